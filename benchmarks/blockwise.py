"""Speed of the blockwise engine, as ratios in one interleaved run, beside its peers and its bounds.

    python benchmarks/blockwise.py [--pair 1:26] [--vocab 8192] [--batch 1 8] [--rates 0.05] [--dtype float32] [--device cpu]
    python benchmarks/blockwise.py --base FOLDER --guide FOLDER --prompts FILE   # your own pair; a prompt a line

Pairs of random weights (Qwen3 architecture) stand for real ones: nothing predicts their takeovers. `--pair demo` is the bundled
pair at spike_ratio=0.045. Every round runs every contender once (A B C A B C …); ratios are medians over rounds. tau is set so
that the wanted share of tokens is taken over; the window test is off. transformers' assisted generation (the guide with the
base as assistant, greedy) refuses batches: it gets one sequence a call at any batch size, and not the demo pair, whose padded
vocabularies differ. lm-eval's `hf` writes the same number of greedy tokens, 8 repeats a prompt.

Bounds per token, from the costs of passes that this run measures (`b` the base over one token, `G(k)` the guide over k):

    blind   min over k of (k b + G(k)) g / (1 - (1 - g)^k)      the best fixed block; also for the takeovers that came
    ideal   b + g G(1)                                          an engine that knows every takeover in advance

Both are printed for passes that are timed alone, one model again and again, and in turns, as any engine has to run them: there
the guide's weights have driven those of the base out of the processor's caches.

Sequences that differ from lockstep's are listed with the margin at their first difference, beside what the same pass gives in
other shapes: in float32 there should be none.
"""

import argparse
import statistics
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from differences import first_difference
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from random_pairs import SAMPLING, Costs, blind, blind_on, clock, costs, gated, load, pair_folders

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.decoding import blockwise, lockstep
from lm_eval_takeover.demo import PROMPT, problems
from lm_eval_takeover.forward.caches import RaggedCache
from lm_eval_takeover.forward.forward_pass import ForwardPass, prepare_pass
from lm_eval_takeover.method.policies import ALONE, BaseAlone, GuideAlone
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import Generation, Request, Sampling
from lm_eval_takeover.pair.pair import Pair, load_pair
from lm_eval_takeover.pair.policy_choice import load_policy

OURS = "guided, blockwise"


def instances(texts: list[str], tokens: int, samples: int) -> list[Instance]:
    settings = {"do_sample": False, "max_gen_toks": tokens, "until": []}
    return [
        Instance("generate_until", {}, (text, settings), 0, metadata=("bench", i, samples))
        for i, text in enumerate(texts)
        for _ in range(samples)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=["1:13", "1:26", "hybrid", "qwen3", "demo"], default="1:26")
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--entropy", type=float, help="of random pairs, in nats (default: that of their flat logits)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.05])
    parser.add_argument("--rows", type=int, default=2, help="samples, in batches")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--base", type=Path, help="folder of your own base, with --guide and --prompts, instead of --pair")
    parser.add_argument("--guide", type=Path)
    parser.add_argument("--prompts", type=Path, help="text file with a prompt a line")
    options = parser.parse_args()
    own = {"base": options.base, "guide": options.guide}
    if any(own.values()):
        if not (all(own.values()) and options.prompts):
            parser.error("--base, --guide and --prompts go together")
        options.pair = "own"
    with (
        nullcontext(own)
        if options.pair == "own"
        else pair_folders(options.pair, options.vocab, options.dtype, options.entropy) as folders
    ):
        pair = load(folders, options.device, options.dtype)
        sizes = {m.role: sum(p.numel() for p in m.model.parameters()) / 1e6 for m in pair.members}
        print(
            f"pair {options.pair}: base {sizes['base']:.1f} M, guide {sizes['guide']:.1f} M, vocabulary {pair.vocabulary.size}, "
            f"entropy {options.entropy or 'of flat logits'}, {options.device}, {options.dtype}, "
            f"{torch.get_num_threads()} threads, {options.tokens} tokens, "
            f"{options.rounds} rounds"
        )
        if options.device == "cpu" and options.pair != "demo":
            compare_dtypes(folders)
            pipelined(pair)
        for batch in options.batch:
            for rate in options.rates if options.pair != "demo" else [0.0]:
                measure(pair, folders, batch, rate, options)


def compare_dtypes(folders: dict[str, Path]) -> None:
    """Which dtype is the better one on this CPU, by the costs of its passes at batch 1."""
    for dtype in ("float32", "bfloat16"):
        b, guide = costs(load(folders, "cpu", dtype), 1, 128).alone
        seconds, best = blind(b, guide, 0.05)
        print(
            f"{dtype}: b {b * 1e3:.2f} ms, G(1) {guide[1] * 1e3:.2f} ms, G(12) {guide[12] / guide[1]:.2f} G(1); at 5 % the best "
            f"fixed block is {best}, {1 / seconds:.1f} tokens/s"
        )


def pipelined(pair: Pair) -> None:
    """What drafting the next block while the guide checks this one could bring at best, each model on half of the cores.

    A block in which nothing fires takes the longer one of its draft and its check; after a takeover the draft was in vain.
    """
    threads, rate = torch.get_num_threads(), 0.05
    if threads < 2:
        return
    whole = blind(*costs(pair, 1, 128).alone, rate)[0]
    torch.set_num_threads(threads // 2)
    b, guide = costs(pair, 1, 128).alone
    torch.set_num_threads(threads)
    bounds = []
    for k, seconds in guide.items():
        stands = (1 - rate) ** k
        block = stands * max(k * b, seconds) + (1 - stands) * (k * b + seconds)
        bounds.append((block * rate / (1 - stands), k))
    best, k = min(bounds)
    print(
        f"pipelined, {threads // 2} of {threads} threads each: at most {1 / best:.1f} tokens/s with blocks of {k} at 5 %, "
        f"where the best fixed block on all threads has {1 / whole:.1f}"
    )


def measure(pair: Pair, folders: dict[str, Path], batch: int, rate: float, options: argparse.Namespace) -> None:
    samples, rows = min(8, batch), options.rows * batch
    if options.pair == "own":
        texts = [line for line in options.prompts.read_text().splitlines() if line.strip()]
    else:
        texts = demo_texts() if options.pair == "demo" else [f"Problem: how far is {i} from here? " * 3 for i in range(99)]
    if len(texts) < (needed := -(-rows // samples)):
        raise SystemExit(f"--prompts '{options.prompts}' has {len(texts)} prompts; {needed} are needed: give fewer --rows")
    texts, trained = texts[:needed], options.pair in ("own", "demo")
    prompts = [tuple(pair.encode(text)) for text in texts]
    asked = [Request(p, j, options.tokens, SAMPLING) for p in prompts for j in range(samples)][:rows]
    if trained or options.entropy is not None:  # as the tasks draw
        asked = [replace(request, sampling=Sampling(0.6, 0.95)) for request in asked]
    if options.pair == "demo":
        policy = load_policy(ModelArguments(spike_ratio=0.045), load_pair(ModelArguments()))[0]
    else:
        policy = gated(pair, asked, rate)
    greedy = [replace(request, sampling=Sampling()) for request in asked]
    done: dict[str, list[Generation]] = {}

    def ours(name: str, run: Callable[[], Iterable[tuple[int, Generation]]]) -> Callable[[], int]:
        def work() -> int:
            made = dict(run())
            done[name] = [made[i] for i in range(len(made))]
            return sum(len(generation.tokens) for generation in done[name])

        return work

    def by(policy: Policy, requests: list[Request], who: Pair = pair) -> Callable[[], Iterable[tuple[int, Generation]]]:
        return lambda: blockwise.generate(who, policy, requests, batch_size=batch)

    contenders: dict[str, Callable[[], int]] = {
        OURS: ours("guided", by(policy, asked)),
        "guided, lockstep": ours("lockstep", lambda: lockstep.generate(pair, policy, asked, batch_size=batch)),
        "guide alone": ours("guide", by(GuideAlone(), asked, Pair(None, pair.guide))),
        "guide, drafted by the base": ours("drafted guide", by(GuideAlone(), asked)),
        "base alone": ours("base", by(BaseAlone(), asked)),
        "entropy policy, 8 %": ours("entropy", by(gated(pair, asked, 0.08, "entropy", 2), asked)),
    }
    if options.pair != "demo":

        def assisted(**ensemble: float) -> int:
            options_of = {"assistant_ensemble_weight": ensemble["weight"]} if ensemble else {}
            tokens: int = 0
            for request in greedy[: options.rows]:
                ids = torch.tensor([request.prompt], device=options.device)
                out = pair.member("guide").model.generate(
                    ids, attention_mask=torch.ones_like(ids), assistant_model=pair.member("base").model,
                    do_sample=False, max_new_tokens=options.tokens, pad_token_id=0, **options_of,
                )  # fmt: skip
                tokens += int(out.shape[1] - ids.shape[1])
            return tokens

        contenders["assisted generation, one sequence a call"] = assisted
        contenders["two-model ensembling of transformers, one sequence a call"] = partial(assisted, weight=0.5)
    for role in ("base", "guide"):
        lm = HFLM(pretrained=str(folders[role]), batch_size=batch, dtype=options.dtype, device=options.device)
        work = instances(texts, options.tokens, samples)[:rows]

        def peer(lm: HFLM = lm, work: list[Instance] = work) -> int:
            made = lm.generate_until(work, disable_tqdm=True)
            return sum(len(lm.tokenizer(text).input_ids) for text in made) if trained else rows * options.tokens

        contenders[f"{role} alone, greedy"] = ours(f"greedy {role}", by(ALONE[role](), greedy))
        contenders[f"lm-eval hf, {role}, greedy"] = peer
    speed: dict[str, list[float]] = {name: [] for name in contenders}
    rounds: list[Costs] = []
    for round_ in range(options.rounds + 1):
        for name, run in contenders.items():
            started = clock()
            tokens = run()
            if round_:  # the first round warms up
                speed[name].append(tokens / (clock() - started))
            if round_ and name == OURS:  # the machine is faster at times: bounds from the costs of the same minute
                rounds.append(costs(pair, batch, len(asked[0].prompt) + options.tokens // 2, repeats=5))
    cost = rounds[-1]
    b, guide = cost.alone
    guided = done["guided"]
    emitted = sum(len(g.tokens) for g in guided)
    realized = sum(g.takeovers for g in guided) / emitted
    taken_over = [g.taken_over for g in guided]
    best = blind(b, guide, realized)[1]
    passes_per_token = {role: sum(getattr(g, f"{role}_passes") for g in guided) / emitted for role in ("base", "guide")}
    print(
        f"\nbatch {batch}: realized rate {realized:.1%}; b = {b * 1e3:.2f} ms (in turns {cost.turns[0] * 1e3:.2f}), "
        f"G(1) = {guide[1] * 1e3:.2f} ms, G(12) = {guide[12] / guide[1]:.2f} G(1); best fixed block {best}; passes per token: "
        f"base {passes_per_token['base']:.2f}, guide {passes_per_token['guide']:.3f}"
    )
    print("|contender|tokens/s|guided, blockwise over it|\n|---------|-------:|-----------------------:|")
    median = {name: statistics.median(values) for name, values in speed.items()}
    for name, value in median.items():
        ratio = statistics.median(a / c for a, c in zip(speed[OURS], speed[name], strict=True))
        print(f"|{name}|{value:,.1f}|{ratio:.2f}|")
    for kind in ("alone", "in turns"):
        bounds: dict[str, list[float]] = {"blind": [], "blind, these takeovers": [], "ideal": []}
        for one in rounds:
            base_pass, guide_pass = one.alone if kind == "alone" else one.turns
            bounds["blind"].append(blind(base_pass, guide_pass, realized)[0] / batch)
            bounds["blind, these takeovers"].append(blind_on(base_pass, guide_pass, taken_over) / batch)
            bounds["ideal"].append((base_pass + realized * guide_pass[1]) / batch)
        for name, bound in bounds.items():
            share = statistics.median(s * seconds for s, seconds in zip(speed[OURS], bound, strict=True))
            print(f"|{name} bound, passes {kind}|{1 / statistics.median(bound):,.1f}|{share:.2f}|")
    for kind, (base_pass, guide_pass) in (("alone", cost.alone), ("in turns", cost.turns)):
        # A takeover reads the dozen tokens that the guide has skipped: no engine takes less than b + 8 % of G(12).
        print(f"the least that `entropy` at 8 % can take, passes {kind}: {1 + 0.08 * guide_pass[12] / base_pass:.2f} b")
    slower = statistics.median(a / c for a, c in zip(speed["base alone"], speed["entropy policy, 8 %"], strict=True))
    print(f"it took {slower:.2f} times as long as the base alone")
    for role in ("base", "guide"):
        pairs = zip(speed[f"{role} alone, greedy"], speed[f"lm-eval hf, {role}, greedy"], strict=True)
        print(f"{role} alone over lm-eval's hf on the same greedy work: {statistics.median(a / c for a, c in pairs):.2f}")
    differing = [i for i, (a, c) in enumerate(zip(guided, done["lockstep"], strict=True)) if a.tokens != c.tokens]
    print(f"sequences equal to lockstep: {len(guided) - len(differing)} of {len(guided)}", flush=True)
    for i in differing:
        print(f"  sample {i}, {first_difference(pair, policy, asked[i], guided[i], done['lockstep'][i])[0]}", flush=True)
    drafted, alone = done["drafted guide"], done["guide"]
    tokens, equal = (
        sum(len(g.tokens) for g in drafted),
        sum(a.tokens == c.tokens for a, c in zip(drafted, alone, strict=True)),
    )
    guide_passes, base_passes = (sum(getattr(g, f"{role}_passes") for g in drafted) for role in ("guide", "base"))
    faster = statistics.median(a / c for a, c in zip(speed["guide, drafted by the base"], speed["guide alone"], strict=True))
    accepted = f"{(tokens - guide_passes) / base_passes:.1%} of the drafted tokens accepted" if base_passes else "no drafts"
    print(
        f"guide, drafted by the base: {faster:.2f} times the guide alone, {guide_passes / tokens:.3f} guide passes a token, "
        f"{accepted}; {equal} of {len(alone)} texts equal"
    )
    sampling_share(pair, policy, asked, batch)
    expected_tokens(pair, policy, asked, realized, batch)


def sampling_share(pair: Pair, policy: Policy, asked: list[Request], batch: int) -> None:
    """The shares of a guided run that bounds leave out: gate, scores, sampling and books; and reading the prompts."""
    if any(prepare_pass(member).graphed for member in pair.members):
        return  # where passes are not waited for, their times say nothing
    spent = {"prompts": 0.0, "text": 0.0}
    plain = ForwardPass.__call__

    def timed(
        self: ForwardPass,
        cache: RaggedCache,
        slots: Any,
        lengths: Any,
        ids: torch.Tensor,
        vocab: int,
        logits_at: Any = None,
    ) -> torch.Tensor:
        started = clock()
        found = plain(self, cache, slots, lengths, ids, vocab, logits_at)
        spent["text" if vocab else "prompts"] += clock() - started
        return found

    ForwardPass.__call__ = timed  # type: ignore[method-assign]
    try:
        started = clock()
        list(blockwise.generate(pair, policy, asked, batch_size=batch))
        whole = clock() - started
    finally:
        ForwardPass.__call__ = plain  # type: ignore[method-assign]
    outside = 1 - sum(spent.values()) / whole
    print(f"outside the models' passes: {outside:.1%} of the time; reading prompts: {spent['prompts'] / whole:.1%}")


def expected_tokens(pair: Pair, policy: Policy, asked: list[Request], rate: float, batch: int) -> None:
    """Tokens per guide pass with fixed blocks, beside E = (1 - (1 - g)^k) / g."""
    for k in (4, 8, 16):
        made = [g for _, g in blockwise.generate(pair, policy, asked, batch_size=batch, block_size=k)]
        passes = sum(g.guide_passes + 1 for g in made)
        tokens = sum(len(g.tokens) for g in made)
        expected = (1 - (1 - rate) ** k) / rate if rate else k
        print(f"blocks of {k}: {tokens / passes:.2f} tokens per guide pass, expected {expected:.2f}")


def demo_texts() -> list[str]:
    return [PROMPT.format(problem=row["problem"]) for row in problems()]


if __name__ == "__main__":
    main()

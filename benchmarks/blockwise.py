"""Speed of the blockwise engine, as ratios in one interleaved run, beside its peers and its bounds.

    python benchmarks/blockwise.py [--pair 1:26] [--batch 1 8] [--rates 0.05] [--tokens 96] [--rounds 3] [--dtype float32]

Pairs of random weights (Qwen3 architecture) stand for real ones: nothing foretells their takeovers. `--pair demo` is the bundled
pair at spike_ratio=0.045. Every round runs every contender once (A B C A B C …); ratios are medians over rounds. tau is set so
that the wanted share of tokens is taken over; the window test is off. transformers' assisted generation (the guide with the
base as assistant, greedy) takes one sequence a call and models of one padded vocabulary: batch 1 only, not on the demo pair.

Bounds per token, from the costs of passes that this run measures (`b` the base over one token, `G(k)` the guide over k):

    blind   min over k of (k b + G(k)) g / (1 - (1 - g)^k)      the best fixed block
    ideal   b + g G(1)                                          an engine that knows every takeover in advance
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from lm_eval_takeover import blockwise, lockstep
from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.demo import DEMO, PROMPT, problems
from lm_eval_takeover.gate import Gate
from lm_eval_takeover.generation import Generation, Request
from lm_eval_takeover.loading import load_pair, load_policy
from lm_eval_takeover.pair import Member, Pair
from lm_eval_takeover.policy import Policy
from lm_eval_takeover.reader import ForwardPass, Reader, forward_pass
from lm_eval_takeover.sampling import Sampling

SHAPES = {  # hidden size, layers, intermediate size, heads
    "base": (256, 6, 768, 4),
    "1:13": (768, 11, 2304, 12),
    "1:26": (1024, 13, 3072, 16),
}
SAMPLING = Sampling(1.0)
BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def save_pair(folder: Path, ratio: str, vocab: int, dtype: torch.dtype) -> dict[str, Path]:
    """Two random checkpoints that share the demo pair's tokenizer, padded to `vocab`."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO["base"])
    made = {}
    for seed, (role, shape) in enumerate((("base", SHAPES["base"]), ("guide", SHAPES[ratio]))):
        hidden, layers, inner, heads = shape
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=vocab, hidden_size=hidden, num_hidden_layers=layers, intermediate_size=inner,
            num_attention_heads=heads, num_key_value_heads=heads // 2, head_dim=64, tie_word_embeddings=True,
            max_position_embeddings=8192, initializer_range=0.08, eos_token_id=None, bos_token_id=None,
        )  # fmt: skip
        model = Qwen3ForCausalLM(config).to(dtype)
        made[role] = folder / role
        model.save_pretrained(made[role])
        tokenizer.save_pretrained(made[role])
    return made


def costs(passes: dict[str, ForwardPass], batch: int, length: int) -> tuple[float, dict[int, float]]:
    """Seconds of one base pass over a token and of one guide pass over k, for `batch` rows that have read `length`."""
    readers = {role: Reader(one, batch, 500) for role, one in passes.items()}
    for reader in readers.values():
        reader.read(range(batch), torch.randint(0, 500, (batch, length)))
        reader.lengths = [length] * batch

    def seconds(role: str, k: int) -> float:
        taken = []
        for _ in range(9 if role == "base" else 5):
            ids = torch.randint(0, 500, (batch, k))
            started = time.perf_counter()
            readers[role].read(range(batch), ids)
            taken.append(time.perf_counter() - started)
        return statistics.median(taken)

    guide = {k: seconds("guide", k) for k in BLOCKS}
    return statistics.median(seconds("base", 1) for _ in range(3)), guide


def blind(b: float, guide: dict[int, float], rate: float) -> tuple[float, int]:
    """Seconds per token of the best fixed block, and that block."""
    return min(((k * b + seconds) * rate / (1 - (1 - rate) ** k), k) for k, seconds in guide.items())


def gated(pair: Pair, requests: list[Request], rate: float, name: str = "disagreement", rounds: int = 4) -> Policy:
    """A policy whose gate, without window test, realizes about this rate."""
    policy = Policy(name, score="entropy" if name == "entropy" else "ce", gate=Gate(1e9))
    for _ in range(rounds):
        made = [one for _, one in blockwise.generate(pair, policy, requests, batch_size=16)]
        scores = torch.tensor([score for one in made for score in one.scores])
        policy = replace(policy, gate=Gate(float(scores.double().quantile(1 - rate))))
    return policy


def instances(texts: list[str], tokens: int, samples: int) -> list[Instance]:
    settings = {"do_sample": False, "max_gen_toks": tokens, "until": []}
    return [
        Instance("generate_until", {}, (text, settings), 0, metadata=("bench", i, samples))
        for i, text in enumerate(texts)
        for _ in range(samples)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=["1:13", "1:26", "demo"], default="1:26")
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.05])
    parser.add_argument("--rows", type=int, default=3, help="samples, in batches")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.pair == "demo":
            folders: dict[str, Path] = dict(DEMO)
        else:
            folders = save_pair(Path(folder), options.pair, options.vocab, getattr(torch, options.dtype))
        pair = Pair(Member("base", str(folders["base"])), Member("guide", str(folders["guide"])))
        sizes = {m.role: sum(p.numel() for p in m.model.parameters()) / 1e6 for m in pair.members}
        print(
            f"pair {options.pair}: base {sizes['base']:.1f} M, guide {sizes['guide']:.1f} M, vocabulary {pair.vocabulary.size}, "
            f"{options.dtype}, {torch.get_num_threads()} threads, {options.tokens} tokens, {options.rounds} rounds"
        )
        for batch in options.batch:
            for rate in options.rates if options.pair != "demo" else [0.0]:
                measure(pair, folders, batch, rate, options)


def measure(pair: Pair, folders: dict[str, Path], batch: int, rate: float, options: argparse.Namespace) -> None:
    samples, rows = min(8, batch), options.rows * batch
    texts = demo_texts() if options.pair == "demo" else [f"Problem: how far is {i} from here? " * 3 for i in range(99)]
    texts = texts[: -(-rows // samples)]
    prompts = [tuple(pair.encode(text)) for text in texts]
    asked = [Request(p, j, options.tokens, SAMPLING) for p in prompts for j in range(samples)][:rows]
    if options.pair == "demo":
        policy = load_policy(ModelArguments(spike_ratio=0.045), load_pair(ModelArguments()))[0]
        asked = [replace(request, sampling=Sampling(0.6, 0.95)) for request in asked]
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

    contenders: dict[str, Callable[[], int]] = {
        "guided, blockwise": ours("guided", lambda: blockwise.generate(pair, policy, asked, batch_size=batch)),
        "guided, lockstep": ours("lockstep", lambda: lockstep.generate(pair, policy, asked, batch_size=batch)),
        "guide alone": ours("guide", lambda: blockwise.generate(pair, Policy("guide"), asked, batch_size=batch)),
        "base alone": ours("base", lambda: blockwise.generate(pair, Policy("base"), asked, batch_size=batch)),
    }
    if policy.score == "ce":
        entropy_gate = gated(pair, asked, 0.08, "entropy", 1)
        contenders["entropy policy, 8 %"] = ours(
            "entropy", lambda: blockwise.generate(pair, entropy_gate, asked, batch_size=batch)
        )
    if batch == 1 and options.pair != "demo":

        def assisted() -> int:
            tokens: int = 0
            for request in greedy:
                ids = torch.tensor([request.prompt])
                out = pair.member("guide").model.generate(
                    ids, attention_mask=torch.ones_like(ids), assistant_model=pair.member("base").model,
                    do_sample=False, max_new_tokens=options.tokens, pad_token_id=0,
                )  # fmt: skip
                tokens += int(out.shape[1] - ids.shape[1])
            return tokens

        contenders["assisted generation"] = assisted
    if batch > 1:
        for role in ("base", "guide"):
            lm = HFLM(pretrained=str(folders[role]), batch_size=batch, dtype=options.dtype, device="cpu")
            work = instances(texts, options.tokens, samples)[:rows]

            def peer(lm: HFLM = lm, work: list[Instance] = work) -> int:
                lm.generate_until(work, disable_tqdm=True)
                return int(len(work) * options.tokens)

            contenders[f"lm-eval hf, {role}"] = peer
            contenders[f"{role} alone, greedy"] = ours(
                f"greedy {role}",
                lambda role=role: blockwise.generate(pair, Policy(role), greedy, batch_size=batch),  # type: ignore[misc]
            )
    speed: dict[str, list[float]] = {name: [] for name in contenders}
    for round_ in range(options.rounds + 1):
        for name, run in contenders.items():
            started = time.perf_counter()
            tokens = run()
            if round_:  # the first round warms up
                speed[name].append(tokens / (time.perf_counter() - started))
    with torch.inference_mode():
        passes = {role: forward_pass(pair.member(role)) for role in ("base", "guide")}
        b, guide = costs(passes, batch, len(asked[0].prompt) + options.tokens // 2)
    guided = done["guided"]
    emitted = sum(len(g.tokens) for g in guided)
    realized = sum(g.takeovers for g in guided) / emitted
    seconds, best = blind(b, guide, realized)
    ideal = b + realized * guide[1]
    passes_per_token = {role: sum(getattr(g, f"{role}_passes") for g in guided) / emitted for role in ("base", "guide")}
    print(
        f"\nbatch {batch}: realized rate {realized:.1%}; b = {b * 1e3:.2f} ms, G(1) = {guide[1] * 1e3:.2f} ms, "
        f"G(12) = {guide[12] / guide[1]:.2f} G(1); best fixed block {best}; passes per token: base "
        f"{passes_per_token['base']:.2f}, guide {passes_per_token['guide']:.3f}"
    )
    print("|contender|tokens/s|guided, blockwise over it|\n|---------|-------:|-----------------------:|")
    median = {name: statistics.median(values) for name, values in speed.items()}
    for name, value in median.items():
        ratio = statistics.median(a / c for a, c in zip(speed["guided, blockwise"], speed[name], strict=True))
        print(f"|{name}|{value:,.1f}|{ratio:.2f}|")
    for name, bound in (("blind bound", seconds), ("ideal bound", ideal)):
        print(f"|{name}|{batch / bound:,.1f}|{median['guided, blockwise'] * bound / batch:.2f}|")
    same = sum(a.tokens == b.tokens for a, b in zip(done["guided"], done["lockstep"], strict=True))
    print(f"sequences equal to lockstep: {same} of {len(guided)}", flush=True)


def demo_texts() -> list[str]:
    return [PROMPT.format(problem=row["problem"]) for row in problems()]


if __name__ == "__main__":
    main()

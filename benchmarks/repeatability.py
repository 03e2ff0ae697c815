"""What rounding does to texts in bfloat16, how often base and guide draw the same token, and what that is worth.

    python benchmarks/repeatability.py [--pair demo] [--requests 96] [--tokens 200] [--endless] [--times 5]

Prints, as Markdown: the share of single draws and of whole sequences that equal lockstep at batch 1, by engine and batch; how
many runs of one command equal the first, other processes computing beside some of them; the coupling of the two models' draws
beside their total variation; and for the demo pair the standard error of guided minus base accuracy, with the same random
numbers and with others. The demo pair is trained; `1:13` and `1:26` are random weights at temperature 1, whose distributions are
flat: near ties are as frequent there as they can be. `--endless` writes on over end tokens, for long texts.
"""

import argparse
import math
import multiprocessing
import statistics
from dataclasses import replace

import torch
from random_pairs import SAMPLING as FLAT
from random_pairs import gated, pair_folders
from random_pairs import load as load_folders
from torch import Tensor

from lm_eval_takeover.answers.reading import read_answer
from lm_eval_takeover.decoding import engine, lockstep
from lm_eval_takeover.demo import DEMO, PROMPT, calibration_prompts, problems
from lm_eval_takeover.forward.forward_pass import prepare_pass
from lm_eval_takeover.forward.reader import take_reader
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import BaseAlone, Disagreement, GuideAlone
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import Generation, Request, Sampling
from lm_eval_takeover.method.sampling import draw, request_digest, words
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair

ENGINES = (("lockstep", 1, 8), ("blocks of 7", 7, 8), ("auto", "auto", 1), ("auto", "auto", 8), ("auto", "auto", 32))


def texts(made: dict[int, Generation]) -> list[list[int]]:
    return [made[i].tokens for i in sorted(made)]


def equal_sequences(pair: Pair, policies: dict[str, Policy], requests: list[Request]) -> None:
    print("\n|policy|engine|batch|equal to lockstep at batch 1|of sequences|\n|---|---|--:|--:|--:|")
    for name, policy in policies.items():
        reference = texts(dict(lockstep.generate(pair, policy, requests, batch_size=1)))
        for title, block_size, batch in ENGINES:
            made = texts(dict(engine.generate(pair, policy, requests, batch_size=batch, block_size=block_size)))
            equal = sum(a == b for a, b in zip(made, reference, strict=True))
            print(f"|{name}|{title}|{batch}|{equal}|{len(requests)}|", flush=True)


def burn() -> None:
    while True:
        sum(range(100_000))


def one_command(pair: Pair, policy: Policy, requests: list[Request], times: int) -> None:
    """The guided run again and again; every second time beside processes that keep all cores busy."""
    equal = 0
    first = texts(dict(engine.generate(pair, policy, requests, batch_size=8)))
    for number in range(1, times):
        load = [multiprocessing.Process(target=burn, daemon=True) for _ in range(number % 2 * torch.get_num_threads())]
        for process in load:
            process.start()
        equal += texts(dict(engine.generate(pair, policy, requests, batch_size=8))) == first
        for process in load:
            process.terminate()
    print(f"\none command, batch 8, auto, {times} times, {times // 2} of them under load: {equal + 1} equal", flush=True)


@torch.inference_mode()
def passes(member: Member, vocab: int, text: tuple[int, ...], start: int, new: int) -> Tensor:
    """Logits `[tokens, vocab]` after `text[start:]`, read so many tokens at a time behind what comes before."""
    reader = take_reader(prepare_pass(member), 1, vocab)
    reader.read([0], torch.tensor([text[:start]]))
    reader.lengths[0] = start
    parts = []
    for place in range(start, len(text), new):
        ids = torch.tensor([text[place : place + new]])
        parts.append(reader.read([0], ids)[0].clone())
        reader.lengths[0] += ids.shape[1]
    return torch.cat(parts)


def single_draws(pair: Pair, requests: list[Request]) -> None:
    """Along the base's own texts: draws between passes of one shape and another, and between the two models."""
    rollouts = texts(dict(engine.generate(pair, BaseAlone(), requests, batch_size=8)))
    shapes = dict.fromkeys(DEMO, 0)
    coupled = positions = 0
    distance = 0.0
    for request, tokens in zip(requests, rollouts, strict=True):
        text, start = (*request.prompt, *tokens[:-1]), len(request.prompt) - 1
        at = words(0, request_digest(request.prompt), request.sample, len(tokens))
        drawn, nuclei = {}, {}
        for member in pair.members:
            by_shape = [passes(member, pair.vocab_size, text, start, new)[: len(tokens)] for new in (1, 12)]
            first, second = (draw(logits, at, request.sampling) for logits in by_shape)
            shapes[member.role] += int((first != second).sum())
            drawn[member.role], nuclei[member.role] = first, kept(by_shape[0], request.sampling)
        coupled += int((drawn["base"] == drawn["guide"]).sum())
        distance += float((nuclei["base"] - nuclei["guide"]).abs().sum() / 2)
        positions += len(tokens)
    print(f"\n|draws that differ, of {positions:,}|share|\n|---|--:|")
    for role, count in shapes.items():
        print(f"|{role}, passes over 1 and 12 tokens|{count / positions:.2%}|")
    print(f"|base and guide|{1 - coupled / positions:.2%}|\n|their total variation distance|{distance / positions:.2%}|")


def kept(logits: Tensor, sampling: Sampling) -> Tensor:
    """The distributions that are drawn from: `[tokens, vocab]`."""
    p, ids = (logits / sampling.temperature).double().softmax(-1).sort(stable=True, dim=-1, descending=True)
    p = p.masked_fill(p.cumsum(-1) - p >= sampling.top_p, 0.0)
    return torch.zeros_like(p).scatter(-1, ids, p / p.sum(-1, keepdim=True))


def paired_accuracy(pair: Pair, policy: Policy, samples: int = 8) -> None:
    """Guided minus base accuracy on the demo's problems: its standard error, clustered by problem."""
    rows = problems()
    requests = [
        Request(tuple(pair.encode(PROMPT.format(problem=row["problem"]))), j, 320, Sampling(0.6, 0.95))
        for row in rows
        for j in range(samples)
    ]

    def accuracy(policy: Policy, seed: int) -> list[float]:
        written = texts(dict(engine.generate(pair, policy, requests, seed=seed, batch_size=400)))
        right = [
            read_answer(pair.tokenizer.decode(tokens, skip_special_tokens=True)).answer == rows[i // samples]["answer"]
            for i, tokens in enumerate(written)
        ]
        return [statistics.mean(right[start : start + samples]) for start in range(0, len(right), samples)]

    guided, same, other = accuracy(policy, 0), accuracy(BaseAlone(), 0), accuracy(BaseAlone(), 1)
    print("\n|guided minus base accuracy|difference|standard error|\n|---|--:|--:|")
    for title, base in (("the same random numbers", same), ("other random numbers", other)):
        gains = [a - b for a, b in zip(guided, base, strict=True)]
        error = statistics.stdev(gains) / math.sqrt(len(gains))
        print(f"|{title}|{statistics.mean(gains):.2%}|{error:.2%}|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", choices=["demo", "1:13", "1:26"], default="demo")
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=200, help="of a sample, at most")
    parser.add_argument("--endless", action="store_true", help="write on over end tokens")
    parser.add_argument("--times", type=int, default=5, help="how often one command is run")
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    with pair_folders(options.pair, 8192, options.dtype) as folders:
        pair = load_folders(folders, "cpu", options.dtype)
    if options.endless:
        for member in pair.members:
            member.eos_ids = frozenset()
    sampling = Sampling(0.6, 0.95) if options.pair == "demo" else FLAT
    prompts = [tuple(pair.encode(text)) for text in calibration_prompts()[: -(-options.requests // 2)]]
    requests = [Request(prompt, j, options.tokens, sampling) for prompt in prompts for j in range(2)]
    requests = requests[: options.requests]
    guided: Policy = Disagreement(gate=Gate(1.5, 2.0))
    if options.pair != "demo":
        guided = gated(pair, [replace(request, max_new_tokens=64) for request in requests[:8]], 0.05)
    print(f"{options.pair}, {options.dtype}, {len(requests)} requests of up to {options.tokens} tokens")
    single_draws(pair, requests)
    one_command(pair, guided, requests, options.times)
    equal_sequences(pair, {"guided": guided, "base": BaseAlone(), "guide": GuideAlone()}, requests)
    if options.pair == "demo":
        paired_accuracy(pair, guided)


if __name__ == "__main__":
    main()

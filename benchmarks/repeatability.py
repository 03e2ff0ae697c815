"""What rounding does to texts: the demo pair, which is trained, in bfloat16, and how often base and guide draw the same token.

    python benchmarks/repeatability.py [--requests 96] [--tokens 200] [--times 5]

Prints, as Markdown: the share of sequences and of single draws that equal lockstep at batch 1, by engine and batch; whether one
command written several times gives one text; and the coupling of the two models' draws beside their total variation distance.
"""

import argparse

import torch
from torch import Tensor

from lm_eval_takeover.decoding import engine, lockstep
from lm_eval_takeover.demo import DEMO, calibration_prompts
from lm_eval_takeover.forward.forward_pass import prepare_pass
from lm_eval_takeover.forward.reader import Reader
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.generation import Generation
from lm_eval_takeover.method.policies import BaseAlone, Disagreement, GuideAlone
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.method.sampling import draw, request_digest, words
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair

SAMPLING = Sampling(0.6, 0.95)
POLICIES: dict[str, Policy] = {"guided": Disagreement(gate=Gate(1.5, 2.0)), "base": BaseAlone(), "guide": GuideAlone()}
ENGINES = (("lockstep", 1, 8), ("blocks of 7", 7, 8), ("auto", "auto", 1), ("auto", "auto", 8), ("auto", "auto", 32))


def load(dtype: torch.dtype) -> Pair:
    return Pair(*(Member(role, str(folder), dtype=dtype) for role, folder in DEMO.items()))


def texts(made: dict[int, Generation]) -> list[list[int]]:
    return [made[i].tokens for i in sorted(made)]


def equal_sequences(pair: Pair, requests: list[Request]) -> None:
    print("|policy|engine|batch|equal to lockstep at batch 1|of sequences|\n|---|---|--:|--:|--:|")
    for name, policy in POLICIES.items():
        reference = texts(dict(lockstep.generate(pair, policy, requests, batch_size=1)))
        for title, block_size, batch in ENGINES:
            made = texts(dict(engine.generate(pair, policy, requests, batch_size=batch, block_size=block_size)))
            equal = sum(a == b for a, b in zip(made, reference, strict=True))
            print(f"|{name}|{title}|{batch}|{equal}|{len(requests)}|", flush=True)


def one_command(pair: Pair, requests: list[Request], times: int) -> None:
    written = [texts(dict(engine.generate(pair, POLICIES["guided"], requests, batch_size=8))) for _ in range(times)]
    different = sum(other != written[0] for other in written[1:])
    print(f"\none command, batch 8, auto, {times} times: {different} of {times - 1} differ from the first")


@torch.inference_mode()
def passes(member: Member, vocab: int, text: tuple[int, ...], start: int, new: int) -> Tensor:
    """Logits `[tokens, vocab]` after `text[start:]`, read so many tokens at a time behind what comes before."""
    reader = Reader(prepare_pass(member), 1, vocab)
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
    rollouts = texts(dict(engine.generate(pair, POLICIES["base"], requests, batch_size=8)))
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
    print(
        f"|base and guide|{1 - coupled / positions:.2%}|\n|their total variation distance|{distance / positions:.2%}|"
    )


def kept(logits: Tensor, sampling: Sampling) -> Tensor:
    """The distributions that are drawn from: `[tokens, vocab]`."""
    p, ids = (logits / sampling.temperature).double().softmax(-1).sort(stable=True, dim=-1, descending=True)
    p = p.masked_fill(p.cumsum(-1) - p >= sampling.top_p, 0.0)
    return torch.zeros_like(p).scatter(-1, ids, p / p.sum(-1, keepdim=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=200, help="of a sample, at most")
    parser.add_argument("--times", type=int, default=5, help="how often one command is run")
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    pair = load(getattr(torch, options.dtype))
    prompts = [tuple(pair.encode(text)) for text in calibration_prompts()[: -(-options.requests // 2)]]
    requests = [Request(prompt, j, options.tokens, SAMPLING) for prompt in prompts for j in range(2)][
        : options.requests
    ]
    print(f"{options.dtype}, {len(requests)} requests of up to {options.tokens} tokens\n")
    single_draws(pair, requests)
    equal_sequences(pair, requests)
    one_command(pair, requests, options.times)


if __name__ == "__main__":
    main()

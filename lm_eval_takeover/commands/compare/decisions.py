"""The gate against the true decisions of the demo task, which its puzzles know."""

from collections.abc import Mapping
from typing import Any

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.decoding.lockstep import generate
from lm_eval_takeover.demo import PROMPT, problems
from lm_eval_takeover.demo.puzzle import decision_positions
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.pair.loading import load_pair, load_policy

GATE = ("score", "tau", "kappa", "window", "seed")


def count_decisions(config: Mapping[str, Any], batch_size: int) -> tuple[int, int, int]:
    """`(takeovers, true decisions, takeovers at true decisions)` over one sample of each problem, by a guided run's gate.

    `config` is that of the run's results: its `limit` and, under `takeover`, its gate and seed.
    """
    limit = None if config["limit"] is None else int(config["limit"])
    arguments = ModelArguments.parse({name: config["takeover"][name] for name in GATE})
    pair = load_pair(arguments)
    policy, _ = load_policy(arguments, pair)
    prompts = [tuple(pair.encode(PROMPT.format(problem=row["problem"]))) for row in problems()[:limit]]
    requests = [Request(prompt, 0, 320, Sampling(0.6, 0.95)) for prompt in prompts]
    takeovers = decisions = both = 0
    for _, generation in generate(pair, policy, requests, seed=config["takeover"]["seed"], batch_size=batch_size):
        positions = decision_positions([pair.tokenizer.decode([token]) for token in generation.tokens])
        takeovers += generation.takeovers
        decisions += len(positions)
        both += sum(generation.taken_over[position] for position in positions)
    return takeovers, decisions, both

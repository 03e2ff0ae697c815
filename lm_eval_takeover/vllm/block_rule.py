"""`block_size=auto`: how many tokens vLLM drafts, by how many requests it writes at a time.

`decoding/costs.py` says what a step costs and how many tokens it writes, from the configurations of both models; no weight is
loaded. Without drafts both models read one token of each request, as in the fused pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.decoding.costs import PassCost, StepCosts, find_machine
from lm_eval_takeover.method.policy import DIRECTIONS, Policy
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair

LONGEST = 16
LEAST_GAIN = 0.9  # of the fused pair's time with one request; above that, the more robust engine
MOST_LOSS = 1.1  # of its time with any number of requests
LAUNCH = {"cuda": (1.2e-5, 8.6e-5), "cpu": (6e-4, 6e-4)}  # seconds a layer, in CUDA graphs and without; see docs/gpu.md
_COLUMNS = 4096  # cached tokens of a request, at most: a quarter of the context where that is shorter


def describe_costs(arguments: ModelArguments, pair: Pair, policy: Policy) -> StepCosts:
    """Of a pair that may draft. Opens no GPU: vLLM's own name of it is the driver's."""
    from vllm.platforms import current_platform

    engine_arguments = arguments.engine_arguments
    drafting, verifying = (pair.member(role) for role in DIRECTIONS[policy.direction])
    launch = LAUNCH.get(pair.member("guide").device.type, LAUNCH["cpu"])[bool(engine_arguments.get("enforce_eager"))]
    ranks = int(engine_arguments.get("tensor_parallel_size", 1))

    def find_cost(member: Member) -> PassCost:
        model = member.outline
        machine = find_machine(member.device, model.dtype, current_platform.get_device_name())
        speeds = {name: ranks * getattr(machine, name) for name in ("weights", "cache", "arithmetic")}
        if member.device.type == "cuda":  # the table has what `hf` took there; vLLM has kernels of its own
            speeds |= {"cache": speeds["weights"], "several": 0.0}
        return PassCost.of_model(model, replace(machine, launch=launch, **speeds), padded=False)

    length = int(arguments.max_length or engine_arguments.get("max_model_len") or pair.max_length or 4 * _COLUMNS)
    alone, drafter = policy.host is None, find_cost(drafting)
    return StepCosts(
        drafter=drafter,
        target=find_cost(verifying),
        fused=None if alone else drafter,
        ends=_guess_ends(arguments, policy),
        columns=min(length // 4, _COLUMNS),
        bonus=alone,
    )


def choose_lengths(costs: StepCosts, most: int) -> list[int]:
    """How many tokens to draft with 1, 2 … `most` requests: the least seconds a token, never more than with fewer requests.

    vLLM captures graphs for each length, so there are three: the best with one request, with `most`, and with the square root of
    that. It costs 0.1 % of the time, averaged over the logarithm of the requests.
    """
    every = np.arange(LONGEST + 1)
    some = np.unique([costs.token_seconds(every, rows).argmin() for rows in (1, round(most**0.5), most)])
    lengths = list[int]()
    for rows in range(1, most + 1):
        lengths.append(int(some[costs.token_seconds(some, rows).argmin()]))
        some = some[some <= lengths[-1]]
    return lengths


def list_ranges(lengths: Sequence[int]) -> list[tuple[int, int, int]]:
    """vLLM's `num_speculative_tokens_per_batch_size`: the first and the last number of requests, and their drafts' length."""
    alike = ((length, list(rows)) for length, rows in groupby(range(1, len(lengths) + 1), lambda rows: lengths[rows - 1]))
    return [(rows[0], rows[-1], length) for length, rows in alike]


@dataclass(frozen=True, slots=True)
class Choice:
    """Drafted tokens by the number of requests, as `list_ranges` has them; none where nobody drafts. And why."""

    ranges: list[tuple[int, int, int]]
    reason: str

    @property
    def longest(self) -> int:
        """Tokens of the longest draft, 1 where nobody drafts."""
        return self.ranges[0][2] if self.ranges else 1


def choose_drafts(costs: StepCosts, most: int, *, fixed: bool = False) -> Choice:
    """Drafts, or the fused pair, for up to `most` requests at a time. `fixed`: one length, that of the most requests."""
    lengths = choose_lengths(costs, most)
    lengths = lengths[-1:] * most if fixed else lengths
    times = [costs.token_seconds(length, rows) / costs.fused_seconds(rows) for rows, length in enumerate(lengths, 1)]
    if lengths[0] < 2 or times[0] > LEAST_GAIN:
        return Choice([], "fused, since drafts are not much faster with one request")
    if max(times) > MOST_LOSS:
        rows = times.index(max(times)) + 1
        share = f"{max(times):.0%} of its time with {rows} requests"
        return Choice([], f"fused, since drafts need {share} (max_num_seqs={most})")
    ranges = list_ranges(lengths)
    drafts = ", ".join(f"{length} from {start}" for start, _, length in ranges)
    shares = f"{times[0]:.0%} with 1, {times[-1]:.0%} with {most}"
    return Choice(ranges, f"tokens of a draft by the number of requests: {drafts}; of fused's time {shares}")


def _guess_ends(arguments: ModelArguments, policy: Policy) -> float:
    """How often a position ends a draft, before any was written: the nominal rate; a lone guide's is a guess."""
    if policy.host is None:
        return 0.2
    rates = (arguments.target_rate, arguments.rate, arguments.spike_ratio)
    return max(next((rate for rate in rates if rate is not None), 0.05), 0.01)

"""How long a draft is worth drafting, from tokens, settings and the shapes of both models. No clock is read, so that runs repeat.

A block of `k` drafted positions costs `k b + G(k)`: `b` for a pass of the drafter, `G(k)` for one pass of the donor over `k`
tokens. One more position emits a token with the probability `S` that no position before it ends the draft. So it pays as long as
`S > r (b + G(k+1) - G(k))`, with `r` the tokens per second of the best fixed block (the marginal value theorem). The donor's
passes are padded to a few lengths: up to the next length a position costs the drafter's pass alone, then the whole step is
weighed. `S` follows from the drafter's min-entropy at each drafted token, by how often drafts ended at that min-entropy so far.
Greedy draws have none and follow the overall rate. Costs are modelled (`costs`): only ratios matter, and the optimum is flat.
"""

import math
from dataclasses import replace

import numpy as np
import torch

from lm_eval_takeover.decoding.costs import PassCost, StepCosts, expect_tokens
from lm_eval_takeover.forward.ragged_cache import LONGEST, longest_draft

_BUCKETS = 24  # of min-entropy, four to a factor of e, from e^-4 nats on
_MASS = 1 - np.exp(-np.exp((np.arange(_BUCKETS) + 0.5) / 4 - 4))  # of all tokens but the most probable one, by bucket
_PRIOR_RATE, _PRIOR_MASS, _PRIOR_WEIGHT = 0.05, 0.1, 100.0  # assumed before the first position; the weight in positions
_BUCKET_WEIGHT = 10.0  # positions that the expectation counts for in each bucket
_ALONE_WEIGHT = 10.0  # of the prior, where a guide may as well write alone
# Of its time alone, what drafts of the best fixed length may take. Drafts that end where the drafter is unsure are faster than
# those; with several rows a draft is as long as the longest row's.
_MOST_SECONDS, _MOST_SHARED_SECONDS = 1.05, 0.9
_PROBE, _PROBED = 2, 25  # tokens of its drafts until so many positions were seen: what they cost may be lost
_LENGTHS = np.arange(1, LONGEST + 1)


class MismatchRates:
    """How often a draft ends at a position, by the drafter's min-entropy there: `-ln` of its largest probability, in nats.

    Where little was seen, the rate is in proportion to the mass of all other tokens: a certain drafter is rarely contradicted.
    """

    def __init__(self) -> None:
        self._seen, self._ended = np.zeros(_BUCKETS), np.zeros(_BUCKETS)
        self._fit()

    def _fit(self) -> None:
        weight = self._seen.sum() + _PRIOR_WEIGHT
        self.overall = self.estimate(_PRIOR_WEIGHT)
        mass = ((self._seen * _MASS).sum() + _PRIOR_MASS * _PRIOR_WEIGHT) / weight
        expected = np.minimum(self.overall * _MASS / mass, 1.0)
        self._rates: list[float] = ((self._ended + _BUCKET_WEIGHT * expected) / (self._seen + _BUCKET_WEIGHT)).tolist()

    @property
    def seen(self) -> float:
        """How many positions were verified."""
        return float(self._seen.sum())

    def estimate(self, weight: float) -> float:
        """How often drafts end, whatever the min-entropy; earlier knowledge counts as so many positions."""
        return float((self._ended.sum() + _PRIOR_RATE * weight) / (self._seen.sum() + weight))

    @staticmethod
    def bucket(min_entropy: float) -> int:
        return min(_BUCKETS - 1, max(0, int(4 * (math.log(min_entropy) + 4)))) if min_entropy > 1e-9 else 0

    def rate(self, min_entropy: float) -> float:
        """The probability that a draft ends at a position of this min-entropy."""
        return self._rates[self.bucket(min_entropy)]

    def learn(self, min_entropies: list[float], ended: list[bool]) -> None:
        """Positions that were verified: their min-entropies, and whether the draft ended there."""
        for min_entropy, end in zip(min_entropies, ended, strict=True):
            bucket = self.bucket(min_entropy)
            self._seen[bucket] += 1
            self._ended[bucket] += end
        self._fit()


class Schedule:
    """The lengths of the drafts of one run. `block_size` fixes them; `bonus`: a draft that stands gives one token more."""

    def __init__(self, drafter: PassCost, donor: PassCost, block_size: int | None, *, bonus: bool) -> None:
        self.fixed, self.rates = block_size, MismatchRates()
        self._costs = StepCosts(drafter, donor, None, 0.0, 0, bonus, rereads=False)

    def limit(self, rows: int, vocab: int, device: torch.device) -> int:
        """The longest draft of the next block."""
        if self.fixed is not None:
            return self.fixed
        longest = longest_draft(rows, vocab, device)
        return min(_PROBE, longest) if self._costs.bonus and self.rates.seen < _PROBED else longest

    def break_even_rows(self, rows: int, drafting: int, columns: int = 0) -> list[float]:
        """By length of a draft: how many rows must be expected to stand for a longer one to pay.

        `drafting` of the `rows` go through the drafter's pass, all through the donor's. Both read `columns` of each row.
        """
        if self.fixed is not None:
            return [0.0] * (self.fixed + 1)
        costs = self._at(columns)
        read = costs.count_read(_LENGTHS)
        step = read[1:] - read[:-1]  # tokens more, in each row, that the donor reads for one position more: mostly none
        positions = np.maximum(step, 1)
        drafted = costs.drafter.draft_seconds(drafting, drafting * columns)
        seconds = drafted + costs.target.per_draw * rows + np.where(step > 0, costs.target.per_token * rows, 0.0)
        speed = rows / costs.token_seconds(_LENGTHS, rows).min()  # of the best fixed block
        return [0.0, *(speed * seconds * positions / expect_tokens(positions, costs.ends)).tolist(), float(rows)]

    def drafts_pay(self, rows: int, columns: int = 0) -> bool:
        """Whether the donor that writes alone is slower, as far as is known of how often drafts end: within a standard error."""
        ends = self.rates.estimate(_ALONE_WEIGHT)
        error = math.sqrt(ends * (1 - ends) / (self.rates.seen + _ALONE_WEIGHT))
        costs = replace(self._at(columns), ends=max(ends - error, min(ends, _PRIOR_RATE)))
        drafted, most = costs.token_seconds(_LENGTHS, rows).min(), _MOST_SECONDS if rows == 1 else _MOST_SHARED_SECONDS
        return self.fixed is not None or bool(drafted < most * costs.fused_seconds(rows))

    def _at(self, columns: int) -> StepCosts:
        """The costs of a step, by what is known of drafts now."""
        return replace(self._costs, ends=self.rates.overall, columns=columns)

"""How long a draft is worth drafting. It changes speed, never tokens.

A block of `k` drafted positions costs `k b + G(k)` (`b` a pass of the host, `G(k)` one pass of the donor over `k` tokens) and
emits tokens up to the first that voids the rest. One more position emits a token with the probability `S` that none before it
did. So it pays as long as `S > r (b + G(k+1) - G(k))`, with `r` the tokens per second at hand: the marginal value theorem, which
also says when blocks do not pay at all (`k = 1` is lockstep). `S` follows from the host's entropies: the share of drafted
positions of that entropy that voided what came behind them so far.

What passes cost (`PassCosts`) is kept with the model, and what entropies foretell (`Foresight`) with the policy, so that only the
first run of a process has to learn them.
"""

import math

import numpy as np

from lm_eval_takeover.forward.draft_length import LONGEST, longest_draft

_BUCKETS = 24  # of entropy, four to a factor of e, from e^-4 nats on
_PRIOR = 5.0  # positions that the overall rate counts for in each bucket
_LEARNING = (1, 2, 4, 8, 16, 8)  # the first blocks, where it is not known yet what passes cost
# One block of so many has a second position whatever it costs: a cost that was measured wrongly does not stay.
_PROBE = 64
_EXPECTED = 10  # blocks that the expected speed counts for in the measured one


class PassCosts:
    """Seconds that one model's passes take, by rows and new tokens."""

    def __init__(self) -> None:
        self._single: dict[int, float] = {}  # by rows, over one token
        self._sums: dict[int, tuple[float, ...]] = {}  # by rows: decaying sums of 1, k, s, k k and k s
        self._slopes: dict[int, float] = {}  # by rows, where lengths differed: seconds of one more token

    def took(self, rows: int, new: int, seconds: float) -> None:
        """One pass was measured."""
        if new == 1:
            self.took_one(rows, seconds)
        seen = (1.0, new, seconds, new * new, new * seconds)
        before = self._sums.get(rows, (0.0,) * 5)
        one, k, s, kk, ks = self._sums[rows] = tuple(0.97 * a + b for a, b in zip(before, seen, strict=True))
        spread = one * kk - k * k
        if spread > 1e-6 * kk * one:
            self._slopes[rows] = max((one * ks - k * s) / spread, 0.0)

    def took_one(self, rows: int, seconds: float) -> None:
        """One pass over a single token, which tells nothing of longer ones."""
        known = self._single.get(rows)
        # Upwards slowly: a pass that another process held up says little.
        rate = 1.0 if known is None else 0.2 if seconds < known else 0.02
        self._single[rows] = seconds if known is None else known + (seconds - known) * rate

    def known(self, rows: int) -> bool:
        """Whether passes of more than one length were measured for so many rows."""
        return rows in self._slopes

    def single(self, rows: int) -> float:
        """Seconds of a pass over one token; 0 where none was measured."""
        return self._nearest(self._single, rows)

    def one_more(self, rows: int) -> float:
        """Seconds that one more token of a pass costs; 0 where it is not known."""
        return self._nearest(self._slopes, rows)

    @staticmethod
    def _nearest(known: dict[int, float], rows: int) -> float:
        """As for the number of rows nearest to this one, in proportion."""
        if not known:
            return 0.0
        other = min(known, key=lambda one: abs(one - rows))
        return known[other] * rows / other


class Foresight:
    """How often a takeover voids the rest of a draft, by the host's entropy where it happens."""

    def __init__(self) -> None:
        self._seen, self._voided = np.zeros(_BUCKETS), np.zeros(_BUCKETS)
        self.overall = 0.05  # whatever the entropy
        self._chances = [self.overall] * _BUCKETS

    @staticmethod
    def bucket(entropy: float) -> int:
        return min(_BUCKETS - 1, max(0, int(4 * (math.log(entropy) + 4)))) if entropy > 1e-9 else 0

    def chance(self, entropy: float) -> float:
        """The probability that a position of this host entropy, in nats, voids what is behind it."""
        return self._chances[self.bucket(entropy)]

    def learn(self, entropies: list[float], voids: list[bool]) -> None:
        """Positions whose gate was evaluated: the host's entropies, and whether they voided the rest."""
        for entropy, void in zip(entropies, voids, strict=True):
            place = self.bucket(entropy)
            self._seen[place] += 1
            self._voided[place] += void
        self.overall = float((self._voided.sum() + 0.5) / (self._seen.sum() + 10.0))
        self._chances = ((self._voided + _PRIOR * self.overall) / (self._seen + _PRIOR)).tolist()


class Pace:
    """The decision for one pool of rows. `block_size` fixes the length instead."""

    def __init__(self, host: PassCosts, donor: PassCosts, foresight: Foresight, block_size: int | None = None) -> None:
        self.host, self.donor, self.foresight, self.fixed = host, donor, foresight, block_size
        self.blocks = 0
        self._tokens, self._seconds = 0.0, 0.0  # decaying sums: tokens per second and row

    def limit(self, rows: int, vocab: int) -> int:
        """The longest draft of the next block."""
        if self.fixed is not None:
            return self.fixed
        wanted = LONGEST if self.chooses(rows) else _LEARNING[self.blocks % len(_LEARNING)]
        return min(wanted, longest_draft(rows, vocab))

    def chooses(self, rows: int) -> bool:
        """Whether drafts end by what they are worth, and not at a length that is given."""
        return self.fixed is None and (self.blocks >= len(_LEARNING) or self.donor.known(rows))

    def least_survival(self, rows: int, computed: int, drafted: int) -> float:
        """Above which one more position is worth it after so many: the expected number of rows that still stand there.

        `computed` of the `rows` go through a pass of the host; all of them through that of the donor.
        """
        if not self.chooses(rows) or (drafted == 1 and self.blocks % _PROBE == _PROBE - 1):
            return 0.0
        more = self.host.single(computed) + self.donor.one_more(rows)
        rate = self._tokens / self._seconds if self._seconds else self._best_fixed(rows)
        return rows * rate * more

    def _best_fixed(self, rows: int) -> float:
        """Tokens per second and row of the best fixed block, which the first block of a run counts on."""
        g, b, first, more = (
            self.foresight.overall,
            self.host.single(rows),
            self.donor.single(rows),
            self.donor.one_more(rows),
        )
        return max((1 - (1 - g) ** k) / g / (k * b + first + (k - 1) * more) for k in range(1, LONGEST + 1))

    def block_ended(
        self, rows: int, entropies: list[float], voids: list[bool], tokens: int, seconds: float | None
    ) -> None:
        """One block: the entropies of the positions whose gate was evaluated, whether they voided the rest, and what came of it.

        `seconds` is None where they say nothing about the next one.
        """
        self.foresight.learn(entropies, voids)
        self.blocks += 1
        if seconds is None:
            return
        if not self._seconds and self.donor.known(rows):  # one block alone says little about the next
            self._tokens, self._seconds = _EXPECTED * seconds * self._best_fixed(rows), _EXPECTED * seconds
        keep = 0.98
        self._tokens = keep * self._tokens + tokens / rows
        self._seconds = keep * self._seconds + seconds

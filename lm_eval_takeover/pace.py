"""How long a draft is worth drafting. It changes speed, never tokens.

A block of `k` drafted positions costs `k b + G(k)` (`b` a pass of the host, `G(k)` one pass of the donor over `k` tokens) and
emits tokens up to the first takeover. One more position emits a token with the probability `S` that nothing fired before it.
So it pays as long as `S > r (b + G(k+1) - G(k))`, with `r` the tokens per second at hand: the marginal value theorem, which
also says when blocks do not pay at all (`k = 1` is lockstep). `S` follows from the host's entropies: the share of drafted
positions of that entropy at which the gate has fired so far.
"""

import math
from collections import deque

import numpy as np

_BUCKETS = 24  # of entropy, four to a factor of e, from e^-4 nats on
_PRIOR = 20.0  # positions that the overall rate counts for in each bucket
_LEARNING = (1, 2, 4, 8, 16, 8)  # the first blocks, which show what passes cost
_KEPT = 64  # measured passes of the donor that a fit remembers
LONGEST = 32


class Pace:
    """Costs, rates and the decision for one pool of rows. `block_size` fixes the length instead."""

    def __init__(self, block_size: int | None = None) -> None:
        self.fixed = block_size
        self.blocks = 0
        self._host: dict[int, float] = {}  # seconds of a pass, by rows
        self._donor: deque[tuple[int, int, float]] = deque(maxlen=_KEPT)  # (rows, new tokens, seconds)
        self._fit = (0.0, 0.0)
        self._seen = np.zeros(_BUCKETS)
        self._fired = np.zeros(_BUCKETS)
        self._tokens, self._seconds = 0.0, 0.0  # decaying sums: tokens per second

    @property
    def limit(self) -> int:
        """The longest draft of the next block."""
        if self.fixed is not None:
            return self.fixed
        return _LEARNING[self.blocks] if self.blocks < len(_LEARNING) else LONGEST

    @property
    def chooses(self) -> bool:
        """Whether drafts end by what they are worth, and not at a length that is given."""
        return self.fixed is None and self.blocks >= len(_LEARNING)

    @staticmethod
    def bucket(entropy: float) -> int:
        return min(_BUCKETS - 1, max(0, int(4 * (math.log(entropy) + 4)))) if entropy > 1e-9 else 0

    def chance(self, entropy: float) -> float:
        """The probability that the gate fires at a position of this host entropy, in nats."""
        overall = (self._fired.sum() + 0.5) / (self._seen.sum() + 10.0)
        place = self.bucket(entropy)
        return float((self._fired[place] + _PRIOR * overall) / (self._seen[place] + _PRIOR))

    def pays(self, survival: float, rows: int) -> bool:
        """Whether one more position is worth it, `survival` the expected number of rows that still stand there."""
        host = self._host.get(rows) or max(self._host.values(), default=0.0)
        rate = self._tokens / self._seconds if self._seconds else 0.0
        return survival > rate * (host + self._fit[1])

    def host_took(self, rows: int, seconds: float) -> None:
        known = self._host.get(rows)
        # Upwards slowly: a pass that another process held up says little.
        self._host[rows] = seconds if known is None else known + (seconds - known) * (0.2 if seconds < known else 0.02)

    def donor_took(self, rows: int, new: int, seconds: float) -> None:
        self._donor.append((rows, new, seconds))
        taken = np.array([(one[1], one[2]) for one in self._donor if one[0] == rows])
        if len(taken) and np.ptp(taken[:, 0]) > 0:
            slope, start = np.polyfit(taken[:, 0], taken[:, 1], 1)
            self._fit = (max(float(start), 0.0), max(float(slope), 0.0))

    def block_ended(self, entropies: list[float], fired: list[bool], tokens: int, seconds: float) -> None:
        """One block: the entropies of the positions whose gate was evaluated, whether it fired, and what came of it."""
        for entropy, fire in zip(entropies, fired, strict=True):
            place = self.bucket(entropy)
            self._seen[place] += 1
            self._fired[place] += fire
        self.blocks += 1
        keep = 0.95
        self._tokens = keep * self._tokens + tokens
        self._seconds = keep * self._seconds + seconds

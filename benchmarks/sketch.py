"""10^8 scores through one quantile sketch: seconds, rank error against its bound, peak memory of the process.

python benchmarks/sketch.py
"""

import resource
import time

import numpy as np
from numpy.typing import NDArray

from lm_eval_takeover.calibration.sketch import QuantileSketch

RHO = (0.005, 0.01, 0.03, 0.05, 0.1)


def batch(rng: np.random.Generator) -> NDArray[np.float32]:
    """A million scores, a seventh of them within 1e-4 nats of ln 6."""
    values = rng.gamma(0.2, 1.0, 10**6)
    values[::7] = np.log(6) + rng.uniform(-1e-4, 1e-4, len(values[::7]))
    return values.astype(np.float32)


def main(count: int = 10**8) -> None:
    seen, rng = QuantileSketch(), np.random.default_rng(0)
    started = time.perf_counter()
    for _ in range(count // 10**6):
        seen.add(batch(rng))
    tau, _ = seen.quantiles_and_tails([1 - rho for rho in RHO])
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rng, above, reached = np.random.default_rng(0), np.zeros(len(RHO)), np.zeros(len(RHO))
    for _ in range(count // 10**6):
        values = batch(rng)
        above += [(values > one).sum() for one in tau]
        reached += [(values >= one).sum() for one in tau]
    wrong = max(
        max(share - upper / count, lower / count - share, 0) for share, lower, upper in zip(RHO, above, reached, strict=True)
    )
    print(
        f"{count:,} scores: {seconds:.1f} s; rank error {wrong:.5%}, bound {seen.rank_error:.5%}; "
        f"peak memory of the process {peak:.0f} MiB"
    )


if __name__ == "__main__":
    main()

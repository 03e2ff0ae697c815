"""Do the figures of `effects` hold? Simulated experiments whose truth is known; each line is over so many of them.

    python benchmarks/effect_intervals.py [--runs 400]

A problem has its own gain, its positions scatter around that, and a position is seen through 8 pairs of continuations. Worlds:
`none`: either token is as likely to end correctly; `even`: the number of positions does not hang on the gain; `tied`: problems
that gain more have more positions; `clear`: the token of a true decision gains 70 points, that of others nothing, while effects
of the other worlds are of all sizes. Half of the positions are drawn, those with large scores more often. Scores: `effect` is
the position's own effect, `decision` whether it is helpful, `near` the effect with noise, `size` how large it is of either sign,
`random` knows nothing. Columns: how often the 95 % interval has the truth.
"""

import argparse

import numpy as np
import polars as pl

from lm_eval_takeover.lab.measures.effects import LARGE, Positions, measure_auroc, measure_position

PAIRS = 8
SCORES = ("effect", "decision", "near", "size", "random")


def simulate(rng: np.random.Generator, world: str, problems: int, each: int) -> pl.DataFrame:
    """A population: a row by position, with its true effect and its scores."""
    gains = np.zeros(problems) if world == "none" else rng.beta(0.5, 0.5, problems)
    sizes = 1 + rng.poisson((2 * gains if world == "tied" else 1.0) * (each - 1), problems)
    owner = np.repeat(np.arange(problems), sizes)
    level = rng.beta(0.6, 0.6, problems)[owner]  # how likely the host's token ends correctly
    rises = gains[owner] * rng.beta(0.5, 0.5, len(owner)) * (1 - level)
    falls = np.where(rng.random(len(owner)) < 0.1, level, 0) * (world != "none")
    if world == "clear":
        level, rises, falls = 0 * level + 0.3, np.where(rng.random(len(owner)) < gains[owner], 0.7, 0.0), 0 * level
    donor = level + rises - falls
    frame = pl.DataFrame({"problem": owner, "level": level, "chance": donor, "truth": donor - level})
    truth = frame["truth"].to_numpy()
    scores = {"effect": truth, "decision": (truth > LARGE).astype(float), "size": np.abs(truth)}
    scores |= {"near": truth + rng.normal(0, 0.3, len(owner)), "random": rng.random(len(owner))}
    return frame.with_columns(**{f"score_{name}": pl.Series(values) for name, values in scores.items()})


def observe(rng: np.random.Generator, population: pl.DataFrame) -> pl.DataFrame:
    """What a call of `effects` sees of it."""
    inclusion = np.where(population["score_near"].to_numpy() > 0.2, 0.8, 0.3)
    drawn = population.with_columns(inclusion=pl.Series(inclusion)).filter(pl.Series(rng.random(len(inclusion)) < inclusion))
    draws = {
        name: rng.random((len(drawn), PAIRS)) < drawn[chance].to_numpy()[:, np.newaxis]
        for name, chance in (("host", "level"), ("donor", "chance"))
    }
    rows = [measure_position(host.tolist(), donor.tolist()) for host, donor in zip(*draws.values(), strict=True)]
    lists = {name: values.tolist() for name, values in draws.items()}
    return pl.concat([drawn, pl.DataFrame(rows)], how="horizontal").with_columns(
        kind=pl.lit("takeover"), **{name: pl.Series(values) for name, values in lists.items()}
    )


def true_auroc(population: pl.DataFrame, score: str) -> float:
    values, large = population[f"score_{score}"].to_numpy(), population["truth"].to_numpy() > LARGE
    above = values[large][:, np.newaxis], values[~large][np.newaxis]
    return float((above[0] > above[1]).mean() + (above[0] == above[1]).mean() / 2)


def measure(world: str, problems: int, each: int, runs: int) -> dict[str, float]:
    """Means over experiments: coverage of each figure, and the figures themselves."""
    rng = np.random.default_rng([problems, each, len(world)])
    large = simulate(rng, world, 40_000, each)
    truth = {"effect": float(large["truth"].to_numpy().mean())}
    truth |= {
        "helpful": float((large["truth"].to_numpy() > LARGE).mean()),
        "harmful": float((large["truth"].to_numpy() < -LARGE).mean()),
    }
    part = large.head(20_000)
    aurocs = {score: true_auroc(part, score) for score in SCORES} if world != "none" else {}
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    for _ in range(runs):
        frame = observe(rng, simulate(rng, world, problems, each))
        positions = Positions(frame)
        mean = positions.mean()
        note("mean", mean.low <= truth["effect"] <= mean.high)
        beyond = positions.describe_beyond()
        for name, sign in (("helpful", 1), ("harmful", -1)):
            value, low, high = (beyond[f"{name}{end}"] or 0.0 for end in ("", "_low", "_high"))
            note(name, value)
            note(f"raw {name}", float((sign * positions.effects > LARGE).mean()))
            note(f"{name} covered", low - 0.01 <= truth[name] <= high)  # of none the lower bound is never quite 0
        for score, area in aurocs.items():
            found_area, low_area, high_area = measure_auroc(positions, frame[f"score_{score}"].to_numpy())
            if found_area is not None and low_area is not None and high_area is not None:
                note(f"auroc {score}", found_area)
                note(f"auroc {score} covered", low_area - 0.005 <= area <= high_area + 0.005)
    medians = {f"median auroc {score}": float(np.median(found[f"auroc {score}"])) for score in aurocs}
    truths = {f"true {name}": value for name, value in (truth | {f"auroc {k}": v for k, v in aurocs.items()}).items()}
    return {name: float(np.mean(values)) for name, values in found.items()} | medians | truths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400)
    runs = parser.parse_args().runs
    for world in ("none", "even", "tied", "clear"):
        for problems, each in ((10, 4), (30, 4), (100, 4), (30, 12)):
            found = measure(world, problems, each, runs)
            print(f"{world}, {problems} problems, {each} positions each: mean covered {found['mean']:.0%}")
            for name in ("helpful", "harmful"):
                print(
                    f"  {name}: true {found[f'true {name}']:.1%}, raw {found[f'raw {name}']:.1%}, corrected {found[name]:.1%}, "
                    f"covered {found[f'{name} covered']:.0%}"
                )
            for score in SCORES if f"auroc {SCORES[0]}" in found else ():
                print(
                    f"  AUROC of {score}: true {found[f'true auroc {score}']:.2f}, mean {found[f'auroc {score}']:.2f}, "
                    f"median {found[f'median auroc {score}']:.2f}, covered {found[f'auroc {score} covered']:.0%}"
                )


if __name__ == "__main__":
    main()

"""Analyses as pure functions: scored samples, classes of tokens, outcomes, by hand, planted, and by independent calculations."""

from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from helpers.analyses import analyse
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from sklearn.metrics import roc_auc_score

from lm_eval_takeover.lab.extra import draw_svg
from lm_eval_takeover.lab.measures import catalogue, outcomes, planning, pooling
from lm_eval_takeover.lab.measures.catalogue import COLUMNS
from lm_eval_takeover.lab.measures.figures import SIZE, draw
from lm_eval_takeover.lab.measures.planning import EXECUTION, NONE, PLANNING
from lm_eval_takeover.lab.measures.pooling import make_frame
from lm_eval_takeover.lab.sample_tokens import SampleTokens, ceil_percent
from lm_eval_takeover.results.stored import tabulate_run
from lm_eval_takeover.runs.journal import AskedSample, Sample
from lm_eval_takeover.runs.run_reader import Answered, RunReader

values = st.lists(st.one_of(st.just(0.0), st.floats(0, 20, width=32)), min_size=1, max_size=300)


def sample(scores, entropies=None, name=("takeover_gsm8k", 0, 0)):
    scores = np.array(scores, np.float32)
    entropies = scores if entropies is None else np.array(entropies, np.float32)
    return SampleTokens(name, {"token_id": np.arange(len(scores)), "ce": scores, "base_entropy": entropies})


def top_set(scores, percent):
    """By sorting pairs, the larger score first and of equal ones the earlier."""
    count = max(1, int(np.ceil(round(len(scores) * percent / 100, 9))))
    return set(sorted(range(len(scores)), key=lambda i: (-np.float32(scores[i]), i))[:count])


@given(values)
def test_gini_and_the_lorenz_curve_are_those_of_their_definitions(scores):
    """Gini is half the relative mean absolute difference, and twice the area between curve and diagonal, equation (8)."""
    found, curve = catalogue.measure_concentration(sample(scores), "ce"), catalogue.measure_lorenz(sample(scores), "ce")
    x = np.sort(np.array(scores, np.float32).astype(float))
    gini, *tops, skipped, measured = found["sums"]
    assert (found["samples"], measured, skipped) == ((1, 1, 0) if x.sum() else (0, 0, 1)) and (curve is None) == (not x.sum())
    if x.sum():
        assert gini == pytest.approx(np.abs(x[:, None] - x[None]).mean() / (2 * x.mean()), abs=1e-9)
        largest = [x[::-1][: len(top_set(scores, percent))].sum() for percent in (1, 5, 8)]
        assert tops == pytest.approx(np.array(largest) / x.sum(), abs=1e-9)
        shares = np.concatenate([[0], x.cumsum()]) / x.sum()
        expected = np.interp(np.linspace(0, 1, 101), np.linspace(0, 1, len(shares)), shares)
        np.testing.assert_allclose(curve["curve"], expected, atol=1e-6)
        assert gini == pytest.approx(1 - 2 * trapezoid(shares, np.linspace(0, 1, len(shares))), abs=1e-9)


@given(values, st.randoms())
def test_top_positions_and_their_overlap_are_those_of_sorted_pairs(scores, random):
    entropies = random.sample(scores, len(scores))
    one = sample(scores, entropies)
    for percent in (1, 2, 5, 10, 20, 30, 50):
        assert set(np.flatnonzero(one.tops("ce", (percent,))[0])) == top_set(scores, percent)
    largest = np.count_nonzero(np.float32(scores) == np.float32(max(scores)))
    if not any(np.float32(scores) > 0) or largest > ceil_percent(len(scores), 1):
        assert catalogue.measure_position(one, "ce") is None and catalogue.measure_overlap(one, "ce") is None
        return
    places = [i * 20 // len(scores) for i in top_set(scores, 1)]
    assert catalogue.measure_position(one, "ce")["counts"].tolist() == [places.count(b) for b in range(20)]
    pairs = [(top_set(scores, p), top_set(entropies, p)) for p in (1, 2, 5, 10, 20, 30, 50)]
    assert catalogue.measure_overlap(one, "ce")["iou"] == pytest.approx([len(a & b) / len(a | b) for a, b in pairs])


def test_tables_have_a_mean_over_the_mathematical_tasks():
    rng = np.random.default_rng(1)
    tasks = ("takeover_gsm8k", "takeover_amc23", "takeover_demo")
    samples = [
        sample(rng.exponential(size=120) ** (2 + i), rng.exponential(size=120), (task, doc, j))
        for i, task in enumerate(tasks)
        for doc in range(4)
        for j in range(2)
    ]
    samples.append(sample(np.zeros(50), np.zeros(50), ("takeover_demo", 9, 0)))
    for name in ("concentration", "lorenz", "position", "overlap"):
        table = analyse(name, samples, ["ce"])
        assert tuple(table.select(COLUMNS[name]).columns) == COLUMNS[name]
        assert (name == "lorenz") == ("mean" not in table["task"].to_list())
    table = {row["task"]: row for row in analyse("concentration", samples, ["ce"]).to_dicts()}
    assert table["mean"]["gini"] == pytest.approx(np.mean([table[task]["gini"] for task in tasks[:2]]))
    assert (table["takeover_demo"]["samples"], table["takeover_demo"]["skipped"]) == (8, 1)
    assert all(row["low"] < row["gini"] < row["high"] for row in table.values())
    position = analyse("position", samples, ["ce"]).filter(pl.col("task") == "takeover_gsm8k")
    assert position["density"].mean() == pytest.approx(1) and position["tokens"].sum() == 8 * 2


def test_intervals_are_of_problems_whose_samples_stay_together():
    effects = np.random.default_rng(0).normal(size=40)

    def measure(problems, values):
        frame = pl.DataFrame({"task": "t", "score": "ce", "doc_id": problems, "x": values, "n": 1})
        return pooling.describe(pooling.pool_ratios(frame, "x", "n")["t", "ce"].values[:, 0], "x", "low", "high")

    found = measure(np.arange(40).repeat(8), effects.repeat(8))
    assert found["high"] - found["low"] == pytest.approx(2 * 1.96 * effects.std() / np.sqrt(40), rel=0.08)
    assert measure(np.zeros(8, int), effects[:8]) == {"x": pytest.approx(effects[:8].mean()), "low": None, "high": None}


def test_classes_of_single_tokens():
    plans = [" Therefore", "wait", "\nFirst", "WHAT", "analyze"]
    acts = ["7", "3.14", ".5", " +", "^{", "$$", "\\", "\\frac", ")$", " ≤", "}=", "*", "frac", "$.", "),"]
    others = ["text", "**.", "steps", "break", "**", "---", "||", ".", ",", "%", "the", "", " ", "\n"]
    found = [planning.classify_vocabulary(texts).codes.tolist() for texts in (plans, acts, others)]
    assert found == [[PLANNING] * len(plans), [EXECUTION] * len(acts), [NONE] * len(others)]


def test_a_letter_is_a_variable_beside_arithmetic_only():
    texts = ["let", " x", "=", " a", " word", "I", "7"]
    vocabulary = planning.classify_vocabulary(texts)

    def kinds(*tokens):
        ids = np.array([texts.index(token) for token in tokens])
        return planning.classify_text(vocabulary, ids).tolist()

    assert kinds("let", " x", "=") == [PLANNING, EXECUTION, EXECUTION]
    assert kinds(" x", " word", " x") == [NONE, NONE, NONE]
    assert kinds("7", " a", " word") == [EXECUTION, NONE, NONE]
    assert kinds("7", " a", "=") == [EXECUTION] * 3
    assert kinds("I", " x") == [NONE, NONE]
    ids = np.array([1, 2, -1, 2**31 - 1], dtype=np.int32)  # the tokenizer lacks the last three
    assert planning.classify_text(planning.classify_vocabulary(["wait", "7"]), ids).tolist() == [EXECUTION, NONE, NONE, NONE]


def test_a_character_of_several_tokens_counts_at_each_of_them():
    """As byte-level vocabularies have them, 49,152 entries of which are no √: two tokens, other ones behind a space."""
    texts = ["The", "\ufffd", "\ufffd", " \ufffd", "2", *(["word"] * 49_147)]
    spelt = {"√": [1, 2], " √": [3, 2], "≈": [1, 1], "·": [4]}
    vocabulary = planning.classify_vocabulary(texts, encode=lambda text: spelt.get(text, [0]))
    assert vocabulary.characters == ((1, 1), (1, 2), (3, 2))
    found = planning.classify_text(vocabulary, np.array([0, 3, 2, 4, 2, 1, 2, 0]))
    assert found.tolist() == [NONE, EXECUTION, EXECUTION, EXECUTION, NONE, EXECUTION, EXECUTION, NONE]
    assert planning.classify_text(vocabulary, np.array([1])).tolist() == [NONE]


def test_enrichment_has_an_interval_over_problems():
    """Planning is twice as frequent at peaks as elsewhere; one problem in three has all the peaks that are planning."""
    rows = []
    for doc in range(60):
        at_peaks = np.array([12, 18]) if doc % 3 == 0 else np.array([0, 30])
        counts = {"in_set": at_peaks, "in_base": np.array([20, 280])}
        rows += [{"task": "t", "doc_id": doc, "run": "base", "set": "peaks", "score": "ce", **counts}] * 4
    table = planning.tabulate_planning(make_frame(rows))
    row = table.filter(pl.col("task") == "t", pl.col("class") == "planning").row(0, named=True)
    assert row["enrichment"] == pytest.approx((4 / 30) / (20 / 300))
    half = 1.96 * np.sqrt(2 / 9 / 60) * 12 / 30 / (20 / 300)  # of the share of problems with such peaks
    assert (row["low"], row["high"]) == (pytest.approx(2 - half, abs=0.1), pytest.approx(2 + half, abs=0.1))
    alone = planning.tabulate_planning(make_frame(rows[:4])).to_dicts()
    assert {row["low"] for row in alone} == {None}


def test_counts_are_pooled_over_tasks():
    """As in the paper's Table 1: the mean of the shares in its Table 6 is another number."""
    counts = {"takeover_gsm8k": ([8, 2], [10, 90]), "takeover_amc23": ([10, 80], [100, 800])}
    rows = [
        {"task": task, "doc_id": 0, "run": "base", "set": "peaks", "score": "ce"}
        | {"in_set": np.array(peaks), "in_base": np.array(everywhere)}
        for task, (peaks, everywhere) in counts.items()
    ]
    mean = planning.tabulate_planning(make_frame(rows)).filter(task="mean").row(0, named=True)
    assert (mean["class"], mean["share_set"], mean["share_base"]) == ("planning", 0.18, 0.11)
    assert mean["enrichment"] == pytest.approx(0.18 / 0.11)


@pytest.mark.parametrize("shared", [0.0, 0.9], ids=["two seeds", "one seed"])
def test_the_null_of_flips_is_what_chance_rescues_where_rows_share_numbers_too(shared):
    """30 problems with Acc 2 %, eight samples; `shared` of the samples have one verdict in both rows."""
    rng, counted, expected = np.random.default_rng(1), [], []
    places = {"task": "takeover_aime24", "doc_id": np.arange(30).repeat(8), "sample": [*range(8)] * 30}
    for _ in range(100):
        chances = rng.beta(0.2, 9.8, 30)[:, None]
        base, other = rng.random((30, 8)) < chances, rng.random((30, 8)) < chances
        right = {"base": base, "again": np.where(rng.random((30, 8)) < shared, base, other)}
        frames = [pl.DataFrame({"run": run, **places, "correct": of.ravel()}) for run, of in right.items()]
        (row, _) = outcomes.tabulate_flips(pl.concat(frames), "base").to_dicts()
        counted.append((row["rescued"], row["harmed"]))
        expected.append(row["null_rescued"])
    assert np.mean(expected) == pytest.approx(np.mean(counted), rel=0.1)
    assert np.mean(counted) > 1 if not shared else 0.1 < np.mean(counted) < 0.5


def make_runs(rows, samples=8):
    """Runs as results, of the first samples of these rows."""
    by_run = {}
    for run, _, _, _, task, doc, j, correct, tokens, taken in (row for row in rows if row[6] < samples):
        stored = Sample(bytes([doc, j]), task, doc, j, "", tokens, taken, 0, 0, 0, 0, False)
        verdict = None, "correct" if correct else "incorrect"
        reader = by_run.setdefault(run, RunReader(Path(run), {"takeover": {"policy": run, "rate": 0.1}}))
        reader.asked.append(AskedSample(task, "", 0, j, doc, "", b""))
        vars(reader).setdefault("answered", []).append(Answered(task, doc, j, "", stored, *verdict, str(doc), doc))
    return {run: tabulate_run(reader) for run, reader in by_run.items()}


def test_budget_rates_and_flips_by_hand():
    right = {"base": [8, 0, 1], "new": [0, 3, 8]}
    rows = [
        (run, run, None, 0.1, task, doc, j, j < count, 10 + doc, doc * (run == "new"))
        for run in right
        for task in ("takeover_gsm8k", "takeover_amc23", "takeover_demo")
        for doc, count in enumerate(right[run])
        for j in range(8)
    ]
    names = ["run", "policy", "score", "nominal", "task", "doc_id", "sample", "correct", "tokens", "takeovers"]
    samples, runs = pl.DataFrame(rows, schema=names, orient="row"), make_runs(rows)
    budget = {(row["task"], row["run"]): row for row in outcomes.tabulate_budget(runs).to_dicts()}
    assert len(budget) == 8
    for task in ("takeover_gsm8k", "mean"):
        row = budget[task, "new"]
        assert (row["acc"], row["pass8"]) == pytest.approx((11 / 24, 2 / 3))
        assert row["realized_rate"] == pytest.approx(3 / 33)
        assert 0 <= row["acc_low"] < 11 / 24 < row["acc_high"] <= 1
    # Two independent tasks are averaged: a narrower interval; the demo is no mathematical task.
    assert budget["mean", "new"]["acc_high"] < budget["takeover_gsm8k", "new"]["acc_high"]
    three = outcomes.tabulate_budget(make_runs(rows, 3))
    of_three = {(row["task"], row["run"]): row for row in three.to_dicts()}
    assert all(row["k"] == 3 for row in of_three.values())
    assert of_three["mean", "new"]["pass8"] == pytest.approx(2 / 3) and budget["mean", "new"]["k"] == 8
    rates = outcomes.tabulate_rates(samples).filter(task="takeover_gsm8k", run="new")
    assert rates.select("doc_id", "realized_rate", "tokens").rows() == [(0, 0, 80), (1, 1 / 11, 88), (2, 2 / 12, 96)]
    flips = {row["task"]: row for row in outcomes.tabulate_flips(samples, "base").to_dicts()}
    fewer = samples.filter((pl.col("run") == "base") | (pl.col("sample") < 2))  # a problem is solved in samples that both have
    harmed = outcomes.tabulate_flips(fewer.filter(pl.col("doc_id") == 2), "base").select("rescued", "harmed").row(0)
    assert harmed == (0, 0) and outcomes.tabulate_flips(fewer, "base").select("rescued", "harmed").row(0) == (1, 1)
    assert [flips["takeover_gsm8k"][name] for name in COLUMNS["flips"][:6]] == ["takeover_gsm8k", "new", 3, 1, 1, 1.0]
    assert [flips["mean"][name] for name in ("problems", "rescued", "harmed")] == [6, 2, 2]
    behind = outcomes.tabulate_flips(samples.filter(pl.col("doc_id") > 0), "base").filter(task="mean")
    assert behind.select("problems", "rescued", "harmed", "p_value").row(0) == (4, 2, 0, 0.5)
    part = samples.filter((pl.col("run") == "base") | (pl.col("task") == "takeover_amc23"))
    both = pl.concat([samples, part.filter(pl.col("run") == "new").with_columns(run=pl.lit("part"))])
    runs |= make_runs([("part", *row[1:]) for row in rows if row[0] == "new" and row[4] == "takeover_amc23"])
    means = outcomes.tabulate_flips(both, "base").filter(task="mean"), outcomes.tabulate_budget(runs).filter(task="mean")
    assert [table["run"].to_list() for table in means] == [["new"], ["base", "new"]]  # `part` lacks a task


def test_ranks_and_near_positions_by_hand():
    columns = {
        "token_id": np.array([5, 6, 7, 8, 9, 10]), "takeover": np.array([1, 1, 1, 1, 0, 1], bool),
        "host_token_id": np.array([5, 1, -1, 2, 9, 3]), "donor_rank": np.array([1, 3, 2, 10, 1, 101]),
        "score": np.array([0.0, 0.1, 0.2, 0.05, 0.6, 0.6], np.float32),
    }  # fmt: skip
    one = SampleTokens(("t", 0, 0), columns)
    ranks = outcomes.tabulate_ranks(make_frame([{"task": "t", "run": "r", "doc_id": 0, **outcomes.measure_ranks(one)}] * 2))
    expected = {"1": 0, "2": 0, "3": 2, "4-10": 2, "11-100": 0, ">100": 2}
    assert dict(ranks.select("rank", "takeovers").iter_rows()) == expected
    measured = make_frame([{"task": "t", "run": "r", "direction": "forward", **outcomes.measure_cross(one, 0.15)}])
    acc = pl.DataFrame({"task": "t", "run": "r", "acc": 0.5, "acc_host": 0.25, "acc_donor": [None]})
    (row,) = outcomes.tabulate_cross(measured, acc, 0.15).to_dicts()
    assert row.keys() == set(COLUMNS["cross"])
    assert (row["changed"], row["changed_share"]) == (3, 0.5)  # one drew the host's own token, of one it is not known
    assert (row["near_share"], row["replaced"], row["replaced_share"], row["threshold"]) == (0.5, 5, 5 / 6, 0.15)


labelled = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5), st.booleans()), min_size=2, max_size=60)


def test_the_signal_is_the_mean_of_the_100_largest():
    def signal(scores):
        return outcomes.measure_failure(SampleTokens(("t", 0, 0), {"token_id": scores, "ce": scores}), "ce")["signal_value"]

    x = np.random.default_rng(0).exponential(size=250).astype(np.float32)
    assert signal(x) == pytest.approx(np.sort(x)[-100:].mean(dtype=float))
    assert signal(x[:30]) == pytest.approx(x[:30].mean(dtype=float))
    assert np.isfinite(signal(np.append(x, np.float32(np.inf))))  # a donor that rules a token out


@given(labelled, st.randoms())
def test_auroc_of_resampled_problems_is_scikit_learns_of_their_rows(rows, random):
    problems, signal, incorrect = (np.array(column) for column in zip(*rows, strict=True))
    names, index = np.unique(problems, return_inverse=True)
    drawn = np.array([random.randrange(3) for _ in names])
    auroc, within = outcomes.measure_areas(problems, signal.astype(float), incorrect.astype(float), drawn.astype(float))
    times = drawn[index]
    if len(np.unique(incorrect[times > 0])) == 2:
        assert auroc == pytest.approx(roc_auc_score(incorrect, signal, sample_weight=times))
    inside = [
        (time, (x > y) + (x == y) / 2)
        for time, (p, x, wrong) in zip(times, rows, strict=True) for q, y, other in rows if p == q and wrong and not other
    ]  # fmt: skip
    counts, wins = zip(*inside, strict=True) if inside else ([0], [0])
    assert within == pytest.approx(np.average(wins, weights=counts)) if sum(counts) else np.isnan(within)


@given(labelled)
def test_no_threshold_calls_more_samples_rightly(rows):
    _, signal, incorrect = (np.array(column) for column in zip(*rows, strict=True))
    threshold = outcomes.choose_threshold(signal.astype(float), incorrect)
    best = max(((signal > t) == incorrect).sum() for t in (-1, *(signal + 0.5)))
    assert ((signal > threshold) == incorrect).sum() == best


def test_a_threshold_is_chosen_on_other_problems():
    problems, signal = np.arange(10).repeat(2), np.tile([1.0, 3.0], 10)
    incorrect = signal > 2
    incorrect[problems % 5 == 0] ^= True  # the fold of problems 0 and 5 goes the other way
    assert outcomes.cross_validated_accuracy(problems, signal, incorrect) == 0.8
    assert np.isnan(outcomes.cross_validated_accuracy(problems * 5, signal, incorrect))


def test_one_class_has_no_auroc_and_no_interval():
    columns = {"task": "t", "doc_id": [0, 1, 2], "sample": 0, "score": "ce", "signal_value": [1.0, 2, 3], "length": 9.0}
    frame = pl.DataFrame(columns)
    row, length, mean, _ = outcomes.tabulate_failure(frame.with_columns(correct=pl.lit(True))).to_dicts()
    assert length["signal"] == "length"
    assert (row["auroc"], row["low"], row["accuracy"], row["majority"]) == (None, None, 1.0, 1.0)
    assert mean["auroc"] is None and mean["task"] == "mean"


def test_a_signal_of_length_is_no_better_than_length_and_one_of_difficulty_tells_nothing_within_problems():
    """Scores that grow with the text, where wrong texts are longer, have a high AUROC that says nothing."""
    rng, rows = np.random.default_rng(0), []
    for doc in range(40):  # half of them are hard
        for j in range(8):
            wrong = bool(rng.random() < (0.75 if doc % 2 else 0.25))
            length = float(4 * wrong + rng.normal())
            for name, signal in (("ce", length), ("entropy", 4 * (doc % 2))):
                rows.append(("takeover_gsm8k", doc, j, name, signal + rng.normal(), length, not wrong))
    names = ["task", "doc_id", "sample", "score", "signal_value", "length", "correct"]
    found = {row["signal"]: row for row in outcomes.tabulate_failure(pl.DataFrame(rows, schema=names, orient="row")).to_dicts()}
    assert found["ce"]["auroc"] > 0.9 and found["length"]["auroc"] > found["ce"]["auroc"]
    assert found["ce"]["minus_length"] == pytest.approx(found["ce"]["auroc"] - found["length"]["auroc"])
    assert found["ce"]["minus_length_high"] < 0 < found["ce"]["minus_entropy_low"] < found["ce"]["minus_entropy"]
    assert found["length"]["minus_length"] is None
    hard = found["entropy"]
    assert hard["auroc"] > 0.65 and hard["within_low"] < 0.5 < hard["within_high"] < 0.62
    assert found["ce"]["within_low"] > 0.85


def test_a_guide_alone_of_tasks_without_a_common_k_is_drawn_as_a_line():
    row = {"task": "mean", "run": "guide", "realized_rate": 1.0, "acc": 0.9, "acc_low": 0.8, "acc_high": 1.0, "pass8": None}
    rows = [row | {"k": None}, row | {"run": "guided", "realized_rate": 0.05, "k": None}]
    svg = draw_svg(partial(draw, "budget", pl.DataFrame(rows)), SIZE)
    assert "guide (100 %)" in svg and "None" not in svg

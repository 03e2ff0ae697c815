"""Measuring in one process and in several."""

from helpers.analyses import write_scores

from lm_eval_takeover.lab.analysis.measuring import Measuring, count_workers, measure_parts
from lm_eval_takeover.lab.analysis.tokens import list_parts


def test_several_processes_measure_what_one_does(tmp_path):
    paths = [write_scores(tmp_path / f"{n}.parquet", [40, 30, 50]) for n in range(5)]
    places = {name: [name] for name in [("a", 0, 0), ("a", 1, 1), ("b", 2, 0)]}
    todo = Measuring(["concentration", "overlap"], ["ce", "entropy"], places)
    parts = list_parts(paths)
    alone = list(measure_parts(todo, parts, count_workers(parts)))
    assert len(alone) == len(parts) == 5
    together = list(measure_parts(todo, parts, workers=2))
    for one, other in zip(alone, together, strict=True):
        assert one.keys() == other.keys()
        assert all(one[name].equals(other[name]) for name in one)

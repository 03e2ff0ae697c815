"""What is measured in one process and in several."""

from helpers.analyses import write_scores

from lm_eval_takeover.lab.analysis.catalogue import MANY, Measuring, measure_files


def test_several_processes_measure_what_one_does(tmp_path):
    paths = [write_scores(tmp_path / f"{n}.parquet", [40, 30, 50]) for n in range(5)]
    places = {name: [name] for name in [("a", 0, 0), ("a", 1, 1), ("b", 2, 0)]}
    todo = Measuring(["concentration", "overlap"], ["ce", "entropy"], places)
    alone, together = (list(measure_files(todo, paths, tokens)) for tokens in (600, MANY))
    assert len(alone) == len(together) == 5
    for one, other in zip(alone, together, strict=True):
        assert one.keys() == other.keys()
        assert all(one[name].equals(other[name]) for name in one)

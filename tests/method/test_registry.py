"""A stranger's score and policy: registered by a file or a package, run by every engine, refused in one line where broken."""

import re
import sys
from dataclasses import dataclass

import pytest
import torch

from lm_eval_takeover import Policy, register_policy, register_score
from lm_eval_takeover.errors import ArgumentError, PluginError
from lm_eval_takeover.method import registry
from lm_eval_takeover.method.named import find_policy
from lm_eval_takeover.method.policies import Disagreement, Gated
from lm_eval_takeover.method.policy import Block, policies
from lm_eval_takeover.method.registry import load_plugins, scores

MARGIN = """
from lm_eval_takeover import register_score

@register_score("{name}", needs_donor=False)
def margin(host_logits):
    first, second = host_logits.softmax(-1).topk(2).values.unbind(-1)
    return 1 - (first - second)
"""


def write(path, text, **names):
    path.write_text(text.format(**names) if names else text)
    return str(path)


def install(folder, name, gates, points, group="scores"):
    """A package with one module and its entry points of this group, as pip leaves it."""
    package, info = folder / name, folder / f"{name}-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    write(package / "__init__.py", "")
    write(package / "gates.py", gates)
    write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    write(info / "entry_points.txt", f"[lm_eval_takeover.{group}]\n{points}\n")
    return package


def test_a_file_and_a_module_register_and_may_be_loaded_again(tmp_path, monkeypatch):
    path = write(tmp_path / "my_gate.py", MARGIN, name="file_margin")
    write(tmp_path / "margin_module.py", MARGIN, name="module_margin")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        load_plugins(f"{path}+margin_module")
    host = torch.tensor([[[2.0, 1.0, 0.0]]])
    first, second = host.softmax(-1)[0, 0, :2]
    for name, source in (("file_margin", "my_gate.py"), ("module_margin", "margin_module.py")):
        assert scores.get(name)(host).tolist() == [[pytest.approx(float(1 - first + second))]]
        assert scores.get(name).source.name == source
        assert len(scores.get(name).source.digest) == 32
        assert not Gated(score=name).drafts  # whether the donor is asked follows from the score


def test_an_entry_point_is_loaded_when_its_name_is_asked_for(tmp_path, monkeypatch):
    points = "acme = acme_gate.gates\nlost = acme_gate.gates"
    package = install(tmp_path, "acme_gate", MARGIN.format(name="acme"), points)
    monkeypatch.syspath_prepend(tmp_path)
    assert "acme_gate.gates" not in sys.modules
    assert scores.get("acme").source.name == "acme_gate/gates.py"
    before = scores.get("acme").source.digest
    with pytest.raises(PluginError, match=r"entry point acme_gate\.gates registers no score 'lost'"):
        scores.get("lost")
    # The digest is of the whole package: a helper's change is a change.
    write(package / "helpers.py", "LEAST = 1\n")
    assert registry.Source.of(scores.get("acme").function).digest != before


def test_an_installed_package_that_cannot_be_imported_is_skipped_until_it_is_asked_for(tmp_path, monkeypatch, caplog):
    install(tmp_path, "torn_gate", "import no_such_module_of_theirs\n", "torn = torn_gate.gates")
    install(tmp_path, "acme_gate", MARGIN.format(name="acme"), "acme = acme_gate.gates")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        assert "acme" in scores.names() and "torn" not in scores.names()
    said = "score 'torn' (entry point torn_gate.gates) raised ModuleNotFoundError, line 1: No module named "
    assert [record.getMessage() for record in caplog.records] == [said + "'no_such_module_of_theirs'; it is skipped"]
    for asked in (scores.get, scores.__contains__, lambda name: find_policy("methods", name)):
        with pytest.raises(PluginError, match=re.escape(said)):
            asked("torn")
    assert "no such score" not in scores


def test_an_unknown_name_lists_what_is_registered_and_where_from(tmp_path):
    load_plugins(write(tmp_path / "my_gate.py", MARGIN, name="my_margin"))
    with pytest.raises(ArgumentError) as error:
        scores.get("my_margim")
    assert str(error.value) == (
        "score='my_margim' is not known; did you mean 'my_margin'? registered: "
        f"{', '.join(scores.names()[:-1])} (lm_eval_takeover); my_margin (my_gate.py)"
    )
    with pytest.raises(ArgumentError, match=r"policy='xyz' is not known; registered: disagreement, .* \(lm_eval_"):
        policies.get("xyz")


def test_a_plugin_that_is_not_there_or_cannot_be_run_names_file_and_line(tmp_path):
    with pytest.raises(PluginError, match=r"^score 'ce' of my_gate\.py is lm_eval_takeover's already"):
        load_plugins(write(tmp_path / "my_gate.py", MARGIN, name="ce"))
    with pytest.raises(ArgumentError, match="is no file"):
        load_plugins("no-such.py")
    with pytest.raises(ArgumentError, match=r"is no Python file \(NAME\.py\); expected a Python file"):
        load_plugins(write(tmp_path / "my_gate.json", MARGIN))
    with pytest.raises(ArgumentError, match="neither a file nor a module that can be imported"):
        load_plugins("no_such_module_of_mine")
    path = write(tmp_path / "broken.py", "x = 1\ny = 1 / 0\n")
    with pytest.raises(PluginError, match=r"plugins='.*broken\.py' raised ZeroDivisionError, line 2: division by zero"):
        load_plugins(path)
    with pytest.raises(PluginError, match=r"raised SyntaxError, line 1: (?!.*\(.*line)"):
        load_plugins(write(tmp_path / "torn.py", "def f(:\n"))


LOGITS = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda logits: {}["x"], r"score 'odd' \(.*test_registry\.py: odd\) raised KeyError, line \d+: 'x'"),
        (lambda logits: logits, r"score 'odd' \(.*: odd\) returned a tensor \[2, 3, 8\], not one \[2, 3\]"),
        (lambda logits: 1.0, r"score 'odd' \(.*\) returned float, not one \[2, 3\]"),
    ],
)
def test_a_score_that_fails_is_one_line_with_its_file_and_function(answer, said):
    def odd(host_logits):
        return answer(host_logits)

    register_score("odd", needs_donor=False)(odd)
    with pytest.raises(PluginError, match=said):
        scores.get("odd")(LOGITS)


def test_memory_that_ran_out_is_not_the_scores_fault_and_nan_is_refused_with_its_name():
    @register_score("large", needs_donor=False)
    def large(host_logits):
        raise torch.OutOfMemoryError("CUDA out of memory")

    @register_score("nan", needs_donor=False)
    def nan(host_logits):
        return host_logits[..., 0] * torch.nan

    with pytest.raises(torch.OutOfMemoryError):
        scores.get("large")(LOGITS)
    policy = Gated(score="nan")
    with pytest.raises(PluginError, match=r"score 'nan' \(.*test_registry\.py: nan\) returned NaN"):
        policy.refuse_nan(policy.scores(LOGITS, None))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda block: block.positions[:, 0] > 1, r"returned a tensor \[2\], not one \[2, 4\]"),
        (lambda block: block.positions, r"returned torch\.int64, not torch\.bool"),
        (lambda block: block.nothing, "raised AttributeError"),
    ],
)
def test_a_policy_that_fails_is_one_line_with_its_file_and_class(answer, said):
    @register_policy("strange")
    @dataclass(frozen=True, kw_only=True)
    class Strange(Policy):
        def takes_over(self, block):
            return answer(block)

    block = Block(torch.arange(4).expand(2, 4), torch.zeros(2, 4), torch.zeros(2, 10))
    with pytest.raises(PluginError, match=rf"policy 'strange' \(.*test_registry\.py: Strange\.takes_over\) {said}"):
        policies.get("strange")().decide(block)


def test_score_top_p_is_for_scores_that_read_it():
    assert Disagreement(score="js", score_top_p=0.9).scorer.reads_top_p
    with pytest.raises(ArgumentError, match=r"score_top_p=0\.9 is read by score=js, not ce"):
        Disagreement(score_top_p=0.9)

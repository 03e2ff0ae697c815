"""Whatever a name is, it becomes one component below the folder that it is meant for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_takeover.storage.paths import join_inside, make_component

HOSTILE = st.text() | st.text(alphabet="./\\~\0\n:-a", max_size=20)


@given(HOSTILE)
def test_a_component_is_one_component(tmp_path_factory, name):
    component = make_component(name)
    root = tmp_path_factory.getbasetemp()
    assert join_inside(root, component).parent == root
    assert make_component(model := "Qwen3-0.6B-Base+Qwen3-8B-disagreement") == model
    assert component not in ("", ".", "..") and not component.startswith(".") and len(component.encode()) <= 200


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "link/x", "a/../../x"])
def test_what_leads_out_is_refused(tmp_path, name):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="lies outside"):
        join_inside(tmp_path / "root", name)
    (tmp_path / "loop").symlink_to("loop")
    assert join_inside(tmp_path, "loop") == tmp_path / "loop"  # who opens it is told what it is

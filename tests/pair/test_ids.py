"""A checkpoint is known by its files, not by where it lies; the bundled ones by their names."""

import shutil

import pytest

from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.pair.ids import identify, locate, sampled_digest, whole_digest


def test_a_hub_id_may_name_a_revision(tmp_path):
    assert locate("owner/name") == ("owner/name", None)
    assert locate("owner/name@v1.0") == ("owner/name", "v1.0")
    folder = tmp_path / "with@sign"
    folder.mkdir()
    assert locate(str(folder)) == (str(folder), None)


def test_a_checkpoint_of_the_hub_that_is_not_cached_has_the_revision_that_was_asked_for():
    assert str(identify("owner/name@v1", "owner/name", "v1")) == "owner/name@v1"
    assert identify("owner/name", "owner/name", None).revision is None


@pytest.mark.parametrize("role", ["base", "guide"])
def test_the_bundled_checkpoints_have_names_of_their_own(tmp_path, role):
    link = tmp_path / "link"
    link.symlink_to(DEMO[role])
    for path in (DEMO[role], link):
        assert identify(str(path), str(path), None).id == f"demo-{role}"
    copy = shutil.copytree(DEMO[role], tmp_path / "copy")
    found = identify(str(copy), str(copy), None)
    assert found.id == "copy"
    assert found.revision == sampled_digest(DEMO[role])


@pytest.mark.parametrize("digest", [sampled_digest, whole_digest])
def test_digests_follow_the_bytes(tmp_path, digest):
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(2**18))
    before = digest(tmp_path)
    (tmp_path / "README.md").write_text("not computed with")
    assert digest(tmp_path) == before
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert digest(tmp_path) != before

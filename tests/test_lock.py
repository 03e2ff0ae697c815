"""requirements.lock has what the package, its tests and its checks need, each with hashes."""

import re
import tomllib

from helpers.pairs import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def test_every_direct_dependency_is_locked_with_hashes_at_a_version_that_fits():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = [*project["dependencies"], *extras["test"], *extras["check"], *extras["analysis"], *extras["plot"]]
    text = (ROOT / "requirements.lock").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE))
    assert len(locked) == len(re.findall("==", text))
    versions = {canonicalize_name(name): version for name, version in locked.items()}
    for one in map(Requirement, named):
        if one.name != "torch":
            assert one.specifier.contains(versions[canonicalize_name(one.name)]), one
    pinned = [
        Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] not in ("#", "")
    ]
    for one in pinned:
        assert one.name == "torch" or one.specifier.contains(versions[canonicalize_name(one.name)]), one
    assert "torch" not in versions and "://" not in text

"""What is used of vLLM is looked up in source that is not imported."""

import runpy
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "check_next_vllm.py"))
FILES = {
    "lib/__init__.py": "if TYPE_CHECKING:\n    from lib.engine import Engine\nraise ImportError('nobody imports this')",
    "lib/engine/__init__.py": "from .core import Core as Engine",
    "lib/engine/core.py": """
from lib.base import Base
class Core(Base[int]):
    size: int = 1
    class Part:
        def close(self): ...
    def __init__(self, config, *, device=None):
        self.runner = config
    async def step(self, rows, *, early=False): ...
Machine = Core
""",
    "lib/base.py": "class Base:\n    def stop(self, name): self.ended, self.at = True, 0",
}


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "path", "names", "fault"),
    [
        ("lib", "Engine", "size runner step stop ended at", None),
        ("lib", "Engine.__init__", "config device", None),
        ("lib.engine.core", "Machine.step", "rows ...", None),
        ("lib", "Engine.step", "rows ...", None),
        ("lib", "Engine.stop", "name", None),
        ("lib", "Engine.Part.close", "", None),
        ("lib", "", "engine TYPE_CHECKING", None),
        ("lib.gone", "Engine", "", "lib.gone.Engine is missing"),
        ("lib", "Motor", "", "lib.Motor is missing"),
        ("lib", "Engine.size.wide", "", "lib.Engine.size.wide is missing"),
        ("lib", "Engine", "size speed", "lib.Engine has no attribute 'speed'"),
        ("lib", "Engine.step", "rows late ...", "lib.Engine.step has no parameter 'late'"),
        ("lib", "Engine.step", "rows", "lib.Engine.step takes (rows, early), not (rows)"),
        ("lib", "Engine.__init__", "device config", "lib.Engine.__init__ takes (config, device), not (device, config)"),
        ("lib.base", "", "ended begun", "lib.base has no mention of 'begun'"),
    ],
)
def test_what_another_version_changed_is_named(root, module, path, names, fault):
    assert SCRIPT["find_faults"](root, ((module, path, names),)) == ((fault,) if fault else ())


def test_the_script_reads_a_folder(tmp_path, capsys):
    assert SCRIPT["report"](tmp_path) == 2
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("__version__ = '1.0'")
    assert SCRIPT["report"](tmp_path) == 1
    printed = capsys.readouterr().out
    missing = ("compilation.backends.set_model_tag", "config")  # the second is imported, whatever the table says
    assert all(f"\nvllm.{name} is missing\n" in printed for name in missing)

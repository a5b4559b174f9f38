"""The package as it is imported: by users who may write nowhere but into the temporary folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOADS = """
import os, sys
os.access = lambda path, _: os.fspath(path).startswith(sys.argv[1])  # root may write everywhere
if "numba before" in sys.argv:
    import numba
import gatherbench
folder = os.environ.get("NUMBA_CACHE_DIR", "")
if "numba before" in sys.argv or "loops" in sys.argv:  # it takes its time
    from gatherbench.kernels import requests  # compiles loops, and imports no torch
    assert requests._touch.stats.cache_path.startswith(folder)
if folder:
    assert os.path.isdir(folder)
    if os.fork() == 0:
        sys.exit(0)  # a child that ends takes nothing along
    os.wait()
    assert os.path.isdir(folder)
print(folder)
"""


def load(tmp_path: Path, writable: str, *more: str, says: str = "", **environment: str) -> str:
    inherited = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "HOME")}
    done = subprocess.run(
        [sys.executable, "-c", LOADS, writable, *more],
        env=inherited | {"HOME": "/proc/nobody", "TMPDIR": str(tmp_path)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert says in done.stderr if says else not done.stderr
    return done.stdout.strip()


def test_who_may_write_nowhere_has_compiled_loops_in_a_folder_that_goes(tmp_path):
    folder = Path(load(tmp_path, "nowhere", "loops"))
    assert folder.parent == tmp_path
    assert not list(tmp_path.iterdir())


def test_a_folder_that_was_given_is_taken(tmp_path):
    given = tmp_path / "given"
    given.mkdir()
    assert load(tmp_path, str(given), NUMBA_CACHE_DIR=str(given)) == str(given)
    assert given.exists()


@pytest.mark.parametrize("imported_before", [(), ("numba before",)])
def test_a_folder_in_which_others_may_write_is_not(tmp_path, imported_before):
    given = tmp_path / "given"
    given.mkdir()
    given.chmod(0o777)
    says = f"{given} is no folder that this user alone can write to"
    used = load(tmp_path, "/", *imported_before, says=says, NUMBA_CACHE_DIR=str(given))
    assert used != str(given)
    assert not list(given.iterdir())


def test_a_home_is_enough(tmp_path):
    """Its cache folder need not exist; what is made there is this user's alone."""
    folder = tmp_path / ".cache" / "gatherbench" / "numba"
    assert load(tmp_path, writable=str(tmp_path), HOME=str(tmp_path)) == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_loops_are_kept_beside_a_source_that_may_be_written(tmp_path):
    assert load(tmp_path, writable="/") == ""


def test_what_a_training_needs_stands_at_the_top():
    import gatherbench
    from gatherbench import pyg
    from gatherbench.bench.sampling.pyg import PygNeighborSampler
    from gatherbench.strategies.pyg_features import FeatureLoader
    from gatherbench.strategies.unified_tensor import UnifiedTensor, unified

    assert gatherbench.unified is unified
    assert gatherbench.UnifiedTensor is UnifiedTensor
    assert pyg.NeighborSampler is PygNeighborSampler
    assert pyg.FeatureLoader is FeatureLoader
    assert {"UnifiedTensor", "empty", "unified"} <= set(dir(gatherbench))
    with pytest.raises(AttributeError, match="unifed"):
        gatherbench.unifed  # type: ignore[attr-defined]  # noqa: B018

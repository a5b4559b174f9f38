"""gatherbench: benchmark and profile the ways of moving GNN node features to a GPU.

The four rooms of the house are ``gatherbench.datasets``, ``gatherbench.kernels``,
``gatherbench.strategies`` and ``gatherbench.bench``. Importing this package loads none of
them, so that ``gatherbench --help`` answers without torch or pandas. :func:`unified`, the way
into one's own training code, :class:`UnifiedTensor`, :func:`empty`, :func:`shared_table` and
:func:`load_run`, a run's measurements as data frames, are loaded when they are first asked for;
what goes with PyTorch Geometric is in ``gatherbench.pyg``.
"""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from gatherbench.kernels.private_folder import cache_folder, private_folder

__all__ = ["UnifiedTensor", "__version__", "empty", "load_run", "shared_table", "unified"]
__version__ = "0.1.0"


def _keep_compiled_loops() -> None:
    """Have numba keep what it compiles, and later executes, where nobody else can write.

    Beside their source, where numba keeps our loops first, whoever may write may write the source.
    What is installed read-only has them in the user's cache. Where neither is to be had, a folder
    of this process serves it and the processes that it starts, and goes with it.
    """
    given = os.environ.get("NUMBA_CACHE_DIR")
    if not given and os.access(__path__[0], os.W_OK):
        return
    folder = given or str(cache_folder("numba"))
    if not private_folder(Path(folder)):
        folder = _folder_of_this_process()
    os.environ["NUMBA_CACHE_DIR"] = folder
    if "numba" in sys.modules:  # it has read its environment
        sys.modules["numba"].config.CACHE_DIR = folder


def _folder_of_this_process() -> str:
    import atexit  # all three seldom needed, and the command line is to answer at once
    import shutil
    import tempfile

    folder, owner = tempfile.mkdtemp(prefix="gatherbench-compiled-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


_keep_compiled_loops()

if TYPE_CHECKING:
    from gatherbench.bench.read.tables import load_run
    from gatherbench.kernels.managed_memory import empty
    from gatherbench.strategies.shared_table import shared_table
    from gatherbench.strategies.unified_tensor import UnifiedTensor, unified
else:  # hidden from type checkers, which would then believe in any name
    _WHERE = {
        "UnifiedTensor": "gatherbench.strategies.unified_tensor",
        "empty": "gatherbench.kernels.managed_memory",
        "load_run": "gatherbench.bench.read.tables",
        "shared_table": "gatherbench.strategies.shared_table",
        "unified": "gatherbench.strategies.unified_tensor",
    }

    def __getattr__(name: str) -> object:
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_WHERE[name]), name)

    def __dir__() -> list[str]:  # for completion: all are there before they are loaded
        return sorted({*globals(), *__all__})

"""gatherbench: benchmark and profile the ways of moving GNN node features to a GPU.

``gatherbench.datasets`` makes and reads graphs in one format on disk, ``gatherbench.kernels`` has
gathers, memory that a GPU can read, reads of a disk, and the account of requests,
``gatherbench.strategies`` the data paths over them, ``gatherbench.bench`` is the harness, and
``gatherbench.stats`` its intervals and verdicts. Importing this package loads none of them, so that
``gatherbench --help`` answers without torch or pandas. :func:`unified` (for your own training
code), :class:`UnifiedTensor`, :func:`empty`, :func:`shared_table` and :func:`load_run` (a run's
measurements as data frames) are loaded at first use; ``gatherbench.pyg`` is for PyTorch Geometric.
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
    """Make numba cache its compiled code, which it executes later, where only this user can write.

    By default numba caches loops next to their source: anyone who can write there can also change
    the source. A read-only installation uses the user's cache, or else a temporary folder of this
    process and those that it starts.
    """
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if not chosen and os.access(__path__[0], os.W_OK):
        return
    folder = chosen or str(cache_folder("numba"))
    if not private_folder(Path(folder)):
        import atexit  # all three are rarely needed, and slow the command line
        import shutil
        import tempfile

        folder, owner = tempfile.mkdtemp(prefix="gatherbench-compiled-"), os.getpid()

        def remove() -> None:
            if os.getpid() == owner:  # not in a forked child
                shutil.rmtree(folder, ignore_errors=True)

        atexit.register(remove)
    os.environ["NUMBA_CACHE_DIR"] = folder
    if "numba" in sys.modules:  # it has already read its environment
        sys.modules["numba"].config.CACHE_DIR = folder


_keep_compiled_loops()

if TYPE_CHECKING:
    from gatherbench.bench.read.tables import load_run
    from gatherbench.kernels.managed_memory import empty
    from gatherbench.strategies.shared_table import shared_table
    from gatherbench.strategies.unified_tensor import UnifiedTensor, unified
else:  # hidden from type checkers, which would then accept any name
    _MODULE_OF = {
        "UnifiedTensor": "gatherbench.strategies.unified_tensor",
        "empty": "gatherbench.kernels.managed_memory",
        "load_run": "gatherbench.bench.read.tables",
        "shared_table": "gatherbench.strategies.shared_table",
        "unified": "gatherbench.strategies.unified_tensor",
    }

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULE_OF[name]), name)

    def __dir__() -> list[str]:  # for completion: lists names that are not loaded yet
        return sorted({*globals(), *__all__})

"""gatherbench: benchmark and profile the ways of moving GNN node features to a GPU.

The four rooms of the house are ``gatherbench.datasets``, ``gatherbench.kernels``,
``gatherbench.strategies`` and ``gatherbench.bench``. Importing this package loads none of
them, so that ``gatherbench --help`` answers without torch or pandas. :func:`unified`, the way
into one's own training code, is loaded when it is first asked for.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

__all__ = ["__version__", "unified"]
__version__ = "0.1.0"


def _writable(folder: Path) -> bool:
    """Whether something can be made at this path, which need not exist."""
    return os.access(next(p for p in (folder, *folder.parents) if p.exists()), os.W_OK)


def _keep_compiled_loops() -> None:
    """Give numba a place to keep what it compiles, or it refuses to load our loops.

    It keeps them beside their source or in the user's cache folder. A container that runs what is
    installed read-only for a user without a home has neither: then a folder of this process serves
    it and the processes that it starts, and goes with it.
    """
    # Path.expanduser raises where a user has no home.
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    places = (Path(__path__[0]), Path(cache).absolute())
    if "NUMBA_CACHE_DIR" in os.environ or any(_writable(place) for place in places):
        return
    import atexit  # all three seldom needed, and the command line is to answer at once
    import shutil
    import tempfile

    folder, owner = tempfile.mkdtemp(prefix="gatherbench-compiled-"), os.getpid()
    os.environ["NUMBA_CACHE_DIR"] = folder

    def remove() -> None:
        if os.getpid() == owner:  # not in a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)


_keep_compiled_loops()

if TYPE_CHECKING:
    from gatherbench.strategies.unified_tensor import unified
else:  # hidden from type checkers, which would then believe in any name

    def __getattr__(name: str) -> object:
        if name == "unified":
            from gatherbench.strategies.unified_tensor import unified

            return unified
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:  # for completion: unified is there before it is loaded
        return sorted({*globals(), *__all__})

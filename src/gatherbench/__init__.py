"""gatherbench: benchmark and profile the ways of moving GNN node features to a GPU.

The four rooms of the house are ``gatherbench.datasets``, ``gatherbench.kernels``,
``gatherbench.strategies`` and ``gatherbench.bench``. Importing this package loads none of
them, so that ``gatherbench --help`` answers without torch or pandas. :func:`unified`, the way
into one's own training code, is loaded when it is first asked for.
"""

from typing import TYPE_CHECKING

__all__ = ["__version__", "unified"]
__version__ = "0.1.0"

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

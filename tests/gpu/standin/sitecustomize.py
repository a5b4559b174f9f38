"""Puts the stand-in under torch and CUDA's bindings in every Python process, children too.

Python imports this module by itself at its start where it lies on the path, which rehearse.py sees
to. Four modules are changed right after they are loaded, and nothing of the project's.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

#: What is changed, and the module here whose ``install`` changes it.
_CHANGES = {
    "torch": "standin_operators",
    "torch.distributed.distributed_c10d": "standin_ranks",
    "cuda.bindings.runtime": "standin_runtime",
    "cuda.core": "standin_program",
}


class _After(importlib.abc.Loader):
    """Loads as ``real`` does, then calls ``install`` of the module ``change``."""

    def __init__(self, real: importlib.abc.Loader, change: str) -> None:
        self._real, self._change = real, change

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        importlib.import_module(self._change).install(module)

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self._looking: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _CHANGES or fullname in self._looking:
            return None
        self._looking.add(fullname)  # the others shall find it
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _After(spec.loader, _CHANGES[fullname])
        return spec


if os.environ.get("STANDIN_KERNELS"):
    sys.meta_path.insert(0, _Finder())

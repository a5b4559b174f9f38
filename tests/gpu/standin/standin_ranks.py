"""NCCL, which cannot run without GPUs: gloo does its work, by way of host memory.

Whoever asks for the backend ``nccl`` gets ``gloo``, which carries CUDA tensors itself, but for
``all_to_all_single``: that is staged here. To the project such a group is one of NCCL's by name, so
that the code for NCCL runs. Every call has ended when it returns, which is one of the orders that
NCCL allows.
"""

from types import ModuleType
from typing import Any


class _Named:
    """A backend of gloo's that says that it is NCCL."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def name(self) -> str:
        return "nccl"


def install(c10d: ModuleType) -> None:
    """Change the module ``torch.distributed.distributed_c10d``."""
    init, exchange, find = (
        c10d.init_process_group,
        c10d.all_to_all_single,
        c10d.ProcessGroup._get_backend,
    )

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        init("gloo" if backend == "nccl" else backend, *args, **kwargs)

    def all_to_all_single(output: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
        if not output.is_cuda:
            return exchange(output, given, *args, **kwargs)
        arrived = output.cpu()
        exchange(arrived, given.cpu(), *args, **kwargs)
        output.copy_(arrived)
        return None

    def backend_of(group: Any, device: Any) -> Any:
        found = find(group, device)
        return _Named(found) if device.type == "cuda" else found

    c10d.init_process_group = init_process_group
    c10d.all_to_all_single = all_to_all_single
    c10d.ProcessGroup._get_backend = backend_of

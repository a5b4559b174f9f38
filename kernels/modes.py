"""Run torch without the modes that a caller has switched on.

A tensor that is made under ``torch.inference_mode()`` can never be written or trained with outside
of it; one made under ``torch.set_default_device("cuda")`` lies on a GPU; one made under a fake or
functional mode has no memory. Buffers outlive the call that makes them. So the contract
(``Strategy.open``, ``Fetcher.submit``, ``Ticket.result``) and ``unified`` work outside of the
caller's modes. Settings of the process (the default dtype) stay: this package names the dtype and
device of each tensor that it makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.utils._python_dispatch import _disable_current_modes

#: The context to use where no mode is on, as in most calls.
_NO_MODES = nullcontext()


def plain_torch() -> AbstractContextManager[None]:
    """Return a context without inference mode, autocast, default device or other torch modes."""
    if (
        torch.is_inference_mode_enabled()
        or torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._is_any_autocast_enabled()
    ):
        return _outside()
    return _NO_MODES


def is_traced() -> bool:
    """Tell whether torch is tracing: rows that are fetched now would become constants."""
    modes = torch._C._TorchDispatchModeKey
    return torch._C._is_tracing() or torch._C._get_dispatch_mode(modes.PROXY) is not None


@contextmanager
def _outside() -> Iterator[None]:
    with (
        torch._C.DisableTorchFunction(),  # the default device is a mode like any other
        torch._C._DisableAutocast(),
        _disable_current_modes(),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        yield

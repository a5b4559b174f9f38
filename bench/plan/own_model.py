"""A model of the user's own, named in a plan as ``my_module:MyGNN``."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def own_model(name: str) -> type[nn.Module]:
    """The class that ``my_module:MyGNN`` names, from the current folder or ``PYTHONPATH``.

    It is called as ``MyGNN(in_channels, hidden, out_channels, num_layers)`` and makes an
    ``nn.Module`` whose ``forward(x, batch)`` turns the fetched rows ``x``, float32 ``[B, D]``, and
    their ``MiniBatch`` into the seeds' logits ``[S, out_channels]``, as ``BlockGNN.forward`` does.

    Raises:
        ValueError: there is no such module or class, or it is not called like this.
    """
    from torch import nn

    module, _, class_name = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # a console script has its own folder there instead
        sys.path.insert(0, here)
    try:
        found: Any = getattr(importlib.import_module(module), class_name)
        inspect.signature(found).bind("in_channels", "hidden", "out_channels", "num_layers")
    except Exception as error:  # whatever the user's module raises
        said = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"model {name!r} is no MyGNN(in_channels, hidden, out_channels, num_layers) in a module"
            f" of the current folder or PYTHONPATH ({said})"
        ) from error
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ValueError(f"model {name!r} is no class of torch.nn.Module")
    return found

"""Load the user's classes that a plan names: a model, a sampler, a context around each step.

Each of these doors is a class ``module:Class`` from the current folder, ``PYTHONPATH`` or an
installed package. (The fourth door is a strategy, which has a registry.) Parameters of a sampler or
a step context follow the name, ``module:Class share=0.5 every=8``: they are the float, int, str or
bool fields of a frozen dataclass, whose ``__post_init__`` raises ``ValueError`` for invalid values.
``bench/neighbours/`` has examples. A class that is missing or unfit is a ``ValueError``.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import TypeAdapter, ValidationError

from gatherbench.outside import words_of
from gatherbench.plugins import nearest_or_all

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import nn

T = TypeVar("T")

#: The built-in models, by their names in a plan; any other is a ``module:Class``.
MODELS = {"sage": "GraphSAGE", "gat": "GAT", "mlp": "MLP"}
#: The arguments of a model. One that also has a parameter ``relations`` gets their number, and
#: minibatches with the kind of each edge.
MODEL_ARGUMENTS = ("in_channels", "hidden", "out_channels", "num_layers")
RELATIONS = "relations"


class OwnSampler(ABC):
    """Parameters of a user's sampler, which :meth:`open` makes; it draws on the CPU.

    Attributes:
        in_order: whether a minibatch depends on earlier ones, so that one thread draws them all.
    """

    in_order: ClassVar[bool] = False

    @abstractmethod
    def open(
        self, indptr: NDArray[Any], indices: NDArray[Any], fanouts: Sequence[int], seed: int
    ) -> Any:
        """Return a :class:`~gatherbench.bench.sampling.sampler.Sampler` of a graph; ``seed`` is the
        workload's."""


class AroundStep(ABC):
    """Parameters of a context around forward and backward pass of each step; see :meth:`open`."""

    @abstractmethod
    def open(self, model: nn.Module, device: torch.device, folder: Path) -> Any:
        """Return a :class:`~gatherbench.bench.run.models.StepContext` for the steps of a model,
        whose layers may be changed. Its files may lie in ``folder``, which it creates."""


def opened(spec: str, kind: type[T]) -> T:
    """Build the object of a specification ``module:Class key=value …``."""
    name, *settings = spec.split() or [""]
    cls: Any = class_named(name, kind)
    values = dict(setting.partition("=")[::2] for setting in settings)
    known = [field.name for field in fields(cls)]
    for key in values:
        if key not in known:
            raise ValueError(f"{name}: no parameter {key!r}{nearest_or_all(key, known)}")
    try:
        made: T = TypeAdapter(cls).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        setting = "".join(f"{key} = {values[str(key)]!r}: " for key in first["loc"])
        raise ValueError(f"{name}: {setting}{message}") from None
    return made


def short_name(spec: str) -> str:
    """Return a specification without its module: ``Class key=value …``."""
    name, *settings = spec.split() or [""]
    return " ".join([name.rpartition(":")[2], *settings])


def class_named(name: str, kind: type[T]) -> type[T]:
    """Import the class ``module:Class``, a subclass of ``kind``."""
    module, _, class_name = name.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:  # for a console script, sys.path starts elsewhere
        sys.path.insert(0, folder)
    try:
        cls: Any = getattr(importlib.import_module(module), class_name)
    except Exception as error:  # a user's module may raise anything
        tried = "as module:Class from the current folder or PYTHONPATH"
        raise ValueError(f"{name!r} cannot be imported {tried} ({words_of(error)})") from error
    if not (isinstance(cls, type) and issubclass(cls, kind)):
        raise ValueError(f"{name!r} is not a subclass of {kind.__name__}")
    return cls


def own_model(name: str) -> type[nn.Module]:
    """Import the user's model that ``my_module:MyGNN`` names.

    ``MyGNN(in_channels, hidden, out_channels, num_layers)`` returns an ``nn.Module`` whose
    ``forward(x, batch)`` turns the fetched rows ``x``, float32 ``[B, D]``, and
    their ``MiniBatch`` into the seeds' logits ``[S, out_channels]``, as ``BlockGNN.forward`` does.
    """
    from torch import nn

    cls: type[nn.Module] = class_named(name, nn.Module)
    signature = inspect.signature(cls)
    further = {RELATIONS: 1} if RELATIONS in signature.parameters else {}
    try:
        signature.bind(*MODEL_ARGUMENTS, **further)
    except TypeError as error:
        text = ", ".join(MODEL_ARGUMENTS)
        raise ValueError(f"model {name!r} does not take ({text}): {error}") from error
    return cls


def is_relational(model: str) -> bool:
    """Return whether the model receives the kinds of edges."""
    return model not in MODELS and RELATIONS in inspect.signature(own_model(model)).parameters

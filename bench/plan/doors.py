"""The doors by which a side feature enters a plan: a model, a sampler, a context around each step.

Each is a class that the plan names, ``module:Class``, from the current folder, ``PYTHONPATH`` or
what is installed. (The fourth door is a strategy, which has a registry.) A sampler and a step
context may be given parameters behind the name, ``module:Class share=0.5 every=8``: they are the
fields of the class, a frozen dataclass whose ``__post_init__`` raises ``ValueError`` for values
that make no sense. ``bench/neighbours/`` has one of each.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from gatherbench.outside import words_of
from gatherbench.plugins import nearest

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import nn

T = TypeVar("T")

#: The models that are ours, by their names in a plan; any other is a ``module:Class``.
MODELS = {"sage": "GraphSAGE", "gat": "GAT", "mlp": "MLP"}
#: What a model is called with. One that also has a parameter ``relations`` is given their number,
#: and minibatches with the kind of each edge.
MODEL_ARGUMENTS = ("in_channels", "hidden", "out_channels", "num_layers")
RELATIONS = "relations"


class OwnSampler(ABC):
    """Parameters of a sampler, which :meth:`open` makes; it draws on the CPU.

    Attributes:
        in_order: whether a minibatch depends on those before it, so that one thread draws them.
    """

    in_order: ClassVar[bool] = False

    @abstractmethod
    def open(
        self, indptr: NDArray[Any], indices: NDArray[Any], fanouts: Sequence[int], seed: int
    ) -> Any:
        """A :class:`~gatherbench.bench.sampling.sampler.Sampler` of a graph.

        Args:
            seed: the workload's.
        """


class AroundStep(ABC):
    """Parameters of what is put around forward and backward pass of each step; see :meth:`open`."""

    @abstractmethod
    def open(self, model: nn.Module, device: torch.device, folder: Path) -> Any:
        """A :class:`~gatherbench.bench.run.step_context.StepContext` for the steps of a model.

        Args:
            model: its layers may be changed.
            folder: for files; it is made when it is needed.
        """


def opened(words: str, kind: type[T]) -> T:
    """The object of a door that the words name, ``module:Class key=value …``.

    Raises:
        ValueError: there is no such class, or it has no such parameter or value.
    """
    name, *given = words.split() or [""]
    found: Any = class_named(name, kind)
    known = {field.name: str(field.type) for field in fields(found)}
    values: dict[str, Any] = {}
    for one in given:
        key, equals, value = one.partition("=")
        if key not in known or not equals:
            hint = nearest(key, known) or f" (known: {', '.join(known) or 'none'})"
            raise ValueError(f"{name}: no parameter {key!r}{hint}")
        try:
            values[key] = _READ[known[key]](value)
        except (KeyError, ValueError):
            raise ValueError(f"{name}: {key} = {value!r} is no {known[key]}") from None
    made: T = found(**values)
    return made


def short_name(words: str) -> str:
    """The words without the module: ``Class key=value …``."""
    name, *given = words.split() or [""]
    return " ".join([name.rpartition(":")[2], *given])


def class_named(name: str, kind: type[T]) -> type[T]:
    """The class ``module:Class``, of the kind that is wanted.

    Raises:
        ValueError: there is none.
    """
    module, _, class_name = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # a console script has its own folder there instead
        sys.path.insert(0, here)
    try:
        found: Any = getattr(importlib.import_module(module), class_name)
    except Exception as error:  # whatever the user's module raises
        raise ValueError(
            f"{name!r} is no class, module:Class, of the current folder or PYTHONPATH"
            f" ({words_of(error)})"
        ) from error
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise ValueError(f"{name!r} is no class of {kind.__name__}")
    return found


def own_model(name: str) -> type[nn.Module]:
    """The class that ``my_module:MyGNN`` names.

    It is called as ``MyGNN(in_channels, hidden, out_channels, num_layers)`` and makes an
    ``nn.Module`` whose ``forward(x, batch)`` turns the fetched rows ``x``, float32 ``[B, D]``, and
    their ``MiniBatch`` into the seeds' logits ``[S, out_channels]``, as ``BlockGNN.forward`` does.

    Raises:
        ValueError: there is no such module or class, or it is not called like this.
    """
    from torch import nn

    try:
        found: type[nn.Module] = class_named(name, nn.Module)
        signature = inspect.signature(found)
        more = {RELATIONS: 1} if RELATIONS in signature.parameters else {}
        signature.bind(*MODEL_ARGUMENTS, **more)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"model {name!r} is no MyGNN({', '.join(MODEL_ARGUMENTS)}) in a module of the current"
            f" folder or PYTHONPATH ({error})"
        ) from error
    return found


def is_relational(model: str) -> bool:
    """Whether the model is told the kinds of edges."""
    return model not in MODELS and RELATIONS in inspect.signature(own_model(model)).parameters


def _truth(word: str) -> bool:
    return {"yes": True, "no": False}[word]


_READ: dict[str, Callable[[str], Any]] = {"float": float, "int": int, "str": str, "bool": _truth}

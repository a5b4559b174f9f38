"""What is trained on what: everything that decides which minibatches an epoch has."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from gatherbench.bench.plan.structure import Structure
from gatherbench.outside import words_of

if TYPE_CHECKING:
    from torch import nn

    from gatherbench.strategies.partition_orders import Partitions

#: Models of graphs whose edges have kinds (bench/run/relational.py), and PyG's that has the same
#: values.
RELATIONAL = MappingProxyType(
    {
        "rgcn": "rgcn",
        "rgcn-fast": "rgcn",
        "rgcn-compact": "rgcn",
        "rgat": "rgat",
        "rgat-compact": "rgat",
        "rgat-reordered": "rgat",
        "rgat-compact-reordered": "rgat",
    }
)
#: Models by their names in a plan; any other is a class of the user's own, ``module:Class``.
MODELS = MappingProxyType(
    {
        "sage": "GraphSAGE",
        "gat": "GAT",
        "mlp": "MLP",
        "rgcn": "R-GCN",
        "rgcn-fast": "R-GCN fast",
        "rgcn-compact": "R-GCN compact",
        "rgat": "R-GAT",
        "rgat-compact": "R-GAT compact",
        "rgat-reordered": "R-GAT reordered",
        "rgat-compact-reordered": "R-GAT with both",
    }
)
#: The model that looks at no edge: trained on rows of a table without a graph (``uniform``).
GRAPHLESS = "mlp"
#: Characters of a name before its digest, so that it and what is hung on it name a file.
_LONGEST = 180


@dataclass(frozen=True, slots=True)
class Workload:
    """A dataset, a model and the way minibatches are drawn. Hashable; its id stands in every row.

    ``fanouts`` are listed from the seed nodes outwards (PyG's order): the paper's ``--fan-out
    10,25`` in DGL's order, input layer first, is ``(25, 10)`` here. ``max_batches`` cuts the epoch
    short (0: the whole epoch).

    ``gpus`` ranks train together (on a host: processes). By ``scaling``,
    ``batch_size`` seeds are those of a step of all ranks (``strong``: the same steps as one rank
    takes, each split) or of one rank (``weak``: fewer steps an epoch, and larger ones).

    With ``partitions``, such as ``16/4 beta``, a minibatch is drawn from the few parts of the graph
    that a buffer holds meanwhile, in the order named, and from no other: other minibatches, another
    accuracy (MariusGNN). ``activations`` says where what a step saves for its backward pass lies
    meanwhile, ``step`` whether the host issues a step or has the GPU replay it.
    """

    dataset: str
    scale: float = 1.0
    model: str = "sage"
    hidden: int = 16
    fanouts: tuple[int, ...] = (25, 10)
    batch_size: int = 1000
    max_batches: int = 0
    seed: int = 0
    gpus: int = 1
    scaling: Literal["strong", "weak"] = "strong"
    partitions: str = ""
    activations: str = "keep"
    structure: str = ""
    step: str = "issued"

    @property
    def layers(self) -> int:
        return len(self.fanouts)

    @property
    def step_seeds(self) -> int:
        """Seed nodes of a step of all ranks together."""
        return self.batch_size * (self.gpus if self.scaling == "weak" else 1)

    @property
    def parted(self) -> Partitions | None:
        """What ``partitions`` says; the order of the parts is drawn from the seed.

        Raises:
            ValueError: it says nothing that could be done.
        """
        from gatherbench.strategies.partition_orders import Partitions

        return Partitions.parse(self.partitions, self.seed) if self.partitions else None

    @property
    def lists(self) -> Structure:
        """What ``structure`` says.

        Raises:
            ValueError: it says nothing that could be done.
        """
        return Structure.parse(self.structure)

    @property
    def remembers(self) -> bool:
        """Whether minibatches depend on those before, and so are not those of plain sampling."""
        return self.lists.policy != "fbl"

    @property
    def trace_id(self) -> str:
        """Names the minibatches alone: workloads that differ only in the model share a trace."""
        fan = "x".join(str(f) for f in self.fanouts)
        fields = self._fields()
        for other in ("model", "hidden", "activations", "step"):
            fields.pop(other, None)
        if not self.remembers:
            fields.pop("structure", None)
        return self._named(f"f{fan}", "", fields)

    @property
    def id(self) -> str:
        """A readable name with a digest of every field: ``wordnet-sage16x2-b1000-1f2e3d4c``.

        Of a model of the user's own the class alone is readable.
        """
        model = f"{self.model.rpartition(':')[2]}{self.hidden}x{self.layers}"
        memory = "" if self.activations == "keep" else f"-{self.activations}"
        memory += f"-{self.lists.policy}" if self.structure else ""
        memory += "" if self.step == "issued" else f"-{self.step}"
        return self._named(model, memory, self._fields())

    def _named(self, what: str, memory: str, fields: dict[str, Any]) -> str:
        scale = "" if self.scale == 1.0 else f"@{self.scale:g}"
        ranks = "" if self.gpus == 1 else f"-x{self.gpus}{self.scaling[0]}"
        parts = self.partitions.replace("/", "of").replace(" ", "")
        parts = f"-p{parts}" if parts else ""
        name = f"{self.dataset}{scale}-{what}-b{self.batch_size}{ranks}{parts}{memory}"
        return f"{name[:_LONGEST]}-{_digest(json.dumps(fields, sort_keys=True))}"

    def _fields(self) -> dict[str, Any]:
        """What the digests stand for: of a usual workload what they stood for ever since."""
        fields = asdict(self)
        if self.gpus == 1:
            del fields["gpus"], fields["scaling"]
        for later in ("partitions", "activations", "structure", "step"):
            if fields[later] in (0, "", "keep", "issued"):
                del fields[later]
        return fields


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
        said = words_of(error)
        raise ValueError(
            f"model {name!r} is no MyGNN(in_channels, hidden, out_channels, num_layers) in a module"
            f" of the current folder or PYTHONPATH ({said})"
        ) from error
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ValueError(f"model {name!r} is no class of torch.nn.Module")
    return found


def workload_name(fields: Mapping[str, Any]) -> str:
    """A workload of ``plan.json`` in words: its graph, its model, and what is not as usual."""
    if fields["model"] == GRAPHLESS:
        many, rows = fields["max_batches"], fields["batch_size"]
        return f"{fields['dataset']} ({many} minibatches of {rows})"
    usual, words = Workload(fields["dataset"]), []
    if tuple(fields["fanouts"]) != usual.fanouts:
        words.append("fan-outs " + ",".join(map(str, fields["fanouts"])))
    if fields["hidden"] != usual.hidden:
        words.append(f"hidden {fields['hidden']}")
    if fields["batch_size"] != usual.batch_size:
        words.append(f"batch {fields['batch_size']}")
    if fields["max_batches"]:
        words.append(f"{fields['max_batches']} minibatches")
    if (ranks := ranks_of(fields)) > 1:
        words.append(f"{ranks_in_words(ranks)}, {fields['scaling']} scaling")
    if fields.get("partitions"):
        words.append(f"partitions {fields['partitions']}")
    if (where := fields.get("activations", "keep")) != "keep":
        words.append(f"activations: {where}")
    if (step := fields.get("step", "issued")) != "issued":
        words.append(f"{step} step")
    if fields.get("structure"):
        words.append(f"structure: {fields['structure']}")
    scale = "" if fields["scale"] == usual.scale else f"@{fields['scale']:g}"
    name = f"{fields['dataset']}{scale} {MODELS.get(fields['model'], fields['model'])}"
    return f"{name} ({'; '.join(words)})" if words else name


def ranks_of(fields: Mapping[str, Any]) -> int:
    """Ranks of a workload of ``plan.json``."""
    ranks: int = fields.get("gpus", 1)  # plans were written before them
    return ranks


def ranks_in_words(ranks: int, rank: str = "rank") -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{ranks} {rank}{'s' if ranks > 1 else ''}"


def workload_names(workloads: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """:func:`workload_name` by id; where two would read alike, with the id's digest."""
    names = {ident: workload_name(fields) for ident, fields in workloads.items()}
    count = Counter(names.values())
    return {
        ident: name if count[name] == 1 else f"{name} [{ident.rpartition('-')[2]}]"
        for ident, name in names.items()
    }


@dataclass(frozen=True, slots=True)
class Case:
    """One workload run once with one strategy."""

    workload: Workload
    strategy: str
    variant: str
    params: dict[str, Any] = field(hash=False)
    repeat: int

    @property
    def id(self) -> str:
        """Names the case in file names and messages."""
        return case_id(self.workload.id, self.strategy, self.variant, self.repeat)

    @property
    def names(self) -> dict[str, Any]:
        """What tells it from the other cases of a run, by column of the table."""
        names = {"workload": self.workload.id, "strategy": self.strategy, "variant": self.variant}
        return {**names, "repeat": self.repeat}


def case_id(workload: str, strategy: str, variant: str, repeat: int) -> str:
    """:attr:`Case.id`, by the fields of its rows: a plan of elsewhere names no other folder."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", variant)
    name = f"{workload}.{strategy}.{words}.r{repeat}"
    if len(name) > _LONGEST:
        name = f"{name[:_LONGEST]}.{_digest(name)}"
    return re.sub(r"[^\w@.+-]", "-", name, flags=re.ASCII)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]

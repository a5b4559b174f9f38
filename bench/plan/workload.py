"""Define a workload: graph, model and sampling, which decide the minibatches of an epoch."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gatherbench.bench.plan.doors import MODELS, short_name

#: The model that uses no edges: it trains on the rows of the seed nodes.
GRAPHLESS = "mlp"
#: Characters of a name before its digest: with its suffixes it has to be a valid file name.
_LONGEST = 180


@dataclass(frozen=True, slots=True)
class Workload:
    """A dataset, a model and the sampling of minibatches. It is hashable; every row has its id.

    Its fields are keys of a plan. ``fanouts`` are listed from the seed nodes outwards (PyG's
    order): the paper's ``--fan-out 10,25`` in DGL's order, input layer first, is ``(25, 10)`` here.
    By ``scaling``, ``batch_size`` counts the seeds of a step of all ranks (``strong``: the steps of
    one rank, each split) or of one rank (``weak``: fewer and larger steps an epoch).
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
    sampler: str = ""
    around_step: str = ""
    step: str = "issued"

    @property
    def layers(self) -> int:
        return len(self.fanouts)

    @property
    def step_seeds(self) -> int:
        """The number of seed nodes of a step of all ranks together."""
        return self.batch_size * (self.gpus if self.scaling == "weak" else 1)

    @property
    def id(self) -> str:
        """A readable name with a digest of every field: ``wordnet-sage16x2-b1000-1f2e3d4c``.

        A user's own model is named by its class alone.
        """
        model = f"{self.model.rpartition(':')[2]}{self.hidden}x{self.layers}"
        step = f"-{_class_of(self.around_step)}" if self.around_step else ""
        step += "" if self.step == "issued" else f"-{self.step}"
        scale = "" if self.scale == 1.0 else f"@{self.scale:g}"
        ranks = "" if self.gpus == 1 else f"-x{self.gpus}{self.scaling[0]}"
        drawn = f"-{_class_of(self.sampler)}" if self.sampler else ""
        name = f"{self.dataset}{scale}-{model}-b{self.batch_size}{ranks}{drawn}{step}"
        digest = hashlib.sha256(json.dumps(self._fields(), sort_keys=True).encode()).hexdigest()
        return f"{name[:_LONGEST]}-{digest[:8]}"

    def _fields(self) -> dict[str, Any]:
        """Return the digest's fields, without later ones at their defaults, so old ids remain."""
        later = {"gpus": 1, "sampler": "", "around_step": "", "step": "issued"}
        fields = {key: value for key, value in asdict(self).items() if later.get(key) != value}
        if self.gpus == 1:
            del fields["scaling"]
        return fields


#: The description of a field that differs from its default.
_DETAILS = {
    "fanouts": "fan-outs {fanouts}",
    "hidden": "hidden {hidden}",
    "batch_size": "batch {batch_size}",
    "max_batches": "{max_batches} minibatches",
    "seed": "seed {seed}",
    "gpus": "{gpus} ranks, {scaling} scaling",
    "sampler": "sampler: {sampler}",
    "around_step": "around steps: {around_step}",
    "step": "{step} step",
}


def workload_name(fields: Mapping[str, Any]) -> str:
    """Describe a workload of ``plan.json``: graph, model, and values other than the defaults."""
    if fields["model"] == GRAPHLESS:
        many, rows = fields["max_batches"], fields["batch_size"]
        return f"{fields['dataset']} ({many} minibatches of {rows})"
    usual = asdict(Workload(fields["dataset"]))
    words = {**usual, **fields, "fanouts": ",".join(map(str, fields["fanouts"]))}
    usual["fanouts"] = ",".join(map(str, usual["fanouts"]))
    words |= {door: short_name(words[door]) for door in ("sampler", "around_step")}
    details = [text.format(**words) for key, text in _DETAILS.items() if words[key] != usual[key]]
    scale = "" if fields["scale"] == usual["scale"] else f"@{fields['scale']:g}"
    model = MODELS.get(fields["model"]) or short_name(fields["model"])
    name = f"{fields['dataset']}{scale} {model}"
    return f"{name} ({'; '.join(details)})" if details else name


def ranks_of(fields: Mapping[str, Any]) -> int:
    """Return the number of ranks of a workload of ``plan.json``; older ones do not say it."""
    return int(fields.get("gpus", 1))


def workload_names(workloads: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return :func:`workload_name` by id; equal names get the id's digest."""
    names = {ident: workload_name(fields) for ident, fields in workloads.items()}
    count = Counter(names.values())
    return {
        ident: name if count[name] == 1 else f"{name} [{ident.rpartition('-')[2]}]"
        for ident, name in names.items()
    }


@dataclass(frozen=True, slots=True)
class Case:
    """One run of one workload with one strategy."""

    workload: Workload
    strategy: str
    variant: str
    params: dict[str, Any] = field(hash=False)
    repeat: int

    @property
    def id(self) -> str:
        """The name of the case among those of its run."""
        return f"{self.workload.id}.{self.strategy}.{self.variant}.r{self.repeat}"

    @property
    def names(self) -> dict[str, Any]:
        """The values that distinguish it from other cases of a run, by column of the table."""
        path = {"strategy": self.strategy, "variant": self.variant}
        return {"workload": self.workload.id, **path, "repeat": self.repeat}


def _class_of(spec: str) -> str:
    """Return the class of a specification (:mod:`.doors`), as a part of a file's name."""
    return re.sub(r"\W+", "-", short_name(spec).partition(" ")[0], flags=re.ASCII)

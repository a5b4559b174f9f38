"""What is trained on what: everything that decides which minibatches an epoch has."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gatherbench.bench.plan.doors import MODELS, short_name

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

    ``sampler`` names a sampler that draws other minibatches than ours, ``around_step`` what is put
    around forward and backward pass of each step (:mod:`.doors`). ``step`` says whether the host
    issues a step or has the GPU replay it.
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
        """Seed nodes of a step of all ranks together."""
        return self.batch_size * (self.gpus if self.scaling == "weak" else 1)

    @property
    def trace_id(self) -> str:
        """Names the minibatches alone: workloads that differ only in the model share a trace."""
        fan = "x".join(str(f) for f in self.fanouts)
        fields = self._fields()
        for other in ("model", "hidden", "around_step", "step"):
            fields.pop(other, None)
        return self._named(f"f{fan}", "", fields)

    @property
    def id(self) -> str:
        """A readable name with a digest of every field: ``wordnet-sage16x2-b1000-1f2e3d4c``.

        Of a model of the user's own the class alone is readable.
        """
        model = f"{self.model.rpartition(':')[2]}{self.hidden}x{self.layers}"
        step = f"-{_class_of(self.around_step)}" if self.around_step else ""
        step += "" if self.step == "issued" else f"-{self.step}"
        return self._named(model, step, self._fields())

    def _named(self, what: str, step: str, fields: dict[str, Any]) -> str:
        scale = "" if self.scale == 1.0 else f"@{self.scale:g}"
        ranks = "" if self.gpus == 1 else f"-x{self.gpus}{self.scaling[0]}"
        drawn = f"-{_class_of(self.sampler)}" if self.sampler else ""
        name = f"{self.dataset}{scale}-{what}-b{self.batch_size}{ranks}{drawn}{step}"
        return f"{name[:_LONGEST]}-{_digest(json.dumps(fields, sort_keys=True))}"

    def _fields(self) -> dict[str, Any]:
        """What the digests stand for: of a usual workload what they stood for ever since."""
        fields = asdict(self)
        if self.gpus == 1:
            del fields["gpus"], fields["scaling"]
        for later in ("sampler", "around_step", "step"):
            if fields[later] in ("", "issued"):
                del fields[later]
        return fields


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
    for door, what in (("sampler", "sampler"), ("around_step", "around steps")):
        if fields.get(door):
            words.append(f"{what}: {short_name(fields[door])}")
    if (step := fields.get("step", "issued")) != "issued":
        words.append(f"{step} step")
    scale = "" if fields["scale"] == usual.scale else f"@{fields['scale']:g}"
    model = fields["model"]
    name = f"{fields['dataset']}{scale} {MODELS.get(model) or short_name(model)}"
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


def _class_of(words: str) -> str:
    """The class that the words of a door name, as a part of a file's name."""
    return re.sub(r"\W+", "-", short_name(words).partition(" ")[0], flags=re.ASCII)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]

"""What is trained on what: everything that decides which minibatches an epoch has."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    """A dataset, a model and the way minibatches are drawn. Hashable; its id stands in every row.

    ``fanouts`` are listed from the seed nodes outwards (PyG's order): the paper's ``--fan-out
    10,25`` in DGL's order, input layer first, is ``(25, 10)`` here. ``max_batches`` cuts the epoch
    short (0: the whole epoch).
    """

    dataset: str
    scale: float = 1.0
    model: str = "sage"
    hidden: int = 16
    fanouts: tuple[int, ...] = (25, 10)
    batch_size: int = 1000
    max_batches: int = 0
    seed: int = 0

    @property
    def layers(self) -> int:
        return len(self.fanouts)

    @property
    def trace_id(self) -> str:
        """Names the minibatches alone: workloads that differ only in the model share a trace."""
        fields = asdict(self)
        del fields["model"], fields["hidden"]
        fan = "x".join(str(f) for f in self.fanouts)
        scale = "" if self.scale == 1.0 else f"@{self.scale:g}"
        return f"{self.dataset}{scale}-f{fan}-b{self.batch_size}-{_digest(fields)}"

    @property
    def id(self) -> str:
        """A readable name with a digest of every field: ``wordnet-sage16x2-b1000-1f2e3d4c``."""
        scale = "" if self.scale == 1.0 else f"@{self.scale:g}"
        return (
            f"{self.dataset}{scale}-{self.model}{self.hidden}x{self.layers}"
            f"-b{self.batch_size}-{_digest(asdict(self))}"
        )


def _digest(fields: dict[str, object]) -> str:
    text = json.dumps(fields, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]

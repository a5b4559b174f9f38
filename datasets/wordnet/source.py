"""Make a dataset of WordNet, a real graph with text on its nodes that needs no download.

The shipped file holds the hashed words of each gloss; this module counts them in whole numbers, so
that the feature table has the same bits on every machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.download import Published
from gatherbench.datasets.edges import edge_keys
from gatherbench.datasets.source import Progress

#: 300 floats: a row of 1200 bytes, no multiple of a 128-byte cache line.
FEATURE_DIM = 300
#: Lexicographer files 00 to 44, lexnames(5WN).
NUM_CLASSES = 45
#: Pointer symbols of wninput(5WN) and their meanings; of several pointers the first here counts.
SYMBOLS: dict[str, str] = Published("wordnet").known["pointers"]
#: Kinds of edges: the node's pointer to its neighbour, or the inverse of the neighbour's pointer.
RELATIONS = (*SYMBOLS.values(), *(f"inverse of {kind}" for kind in SYMBOLS.values()))

TRAIN, VAL, TEST = 0, 1, 2
SHIPPED = Path(__file__).with_name("wordnet.npz")
_ROWS = 1 << 14  # rows of the table built at a time: 20 MB
Words = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class WordnetSource(Published):
    """WordNet 3.0: synsets, the pointers between them, glosses as features."""

    name: str = "wordnet"

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        with np.load(SHIPPED) as shipped:
            arrays = {name: shipped[name] for name in shipped.files}
        labels, split = arrays["labels"], arrays["split"]
        low, high = np.repeat(np.arange(len(labels)), arrays["pair_counts"]), arrays["pair_ends"]
        keys = edge_keys([(low, high)], len(low), len(labels), self.name, undirected=True)
        occur, kinds = np.unique(arrays["pair_kinds"][::-1].ravel(), return_inverse=True)
        rows = gloss_features(arrays["word_counts"], arrays["word_slots"], progress)
        splits = [np.flatnonzero(split == part) for part in (TRAIN, VAL, TEST)]
        relations = tuple(RELATIONS[kind] for kind in occur)
        self.write(folder, keys, rows, labels, splits, kinds, relations=relations)
        # The licence requires its notice on every copy.
        shutil.copy(SHIPPED.with_name("LICENSE.WordNet"), folder)


def gloss_features(
    word_counts: Words, word_slots: Words, progress: Progress
) -> Iterator[NDArray[np.float32]]:
    """Yield the feature table float32 ``[N, 300]`` in runs of rows.

    A row sums +1 or -1 in its words' columns (``tools/convert_wordnet.py``, ``word_slot``), and is
    divided by its Euclidean length; it stays zero if all its words cancel. As sums are whole, and
    IEEE 754 rounds square root and division correctly, the result is exact everywhere.
    """
    ends = np.cumsum(word_counts, dtype=np.int64)
    for first in range(0, len(word_counts), _ROWS):
        counts = word_counts[first : first + _ROWS]
        end = int(ends[first + len(counts) - 1])
        slots = word_slots[end - int(counts.sum()) : end].astype(np.int64)
        cells = np.repeat(np.arange(len(counts)), counts) * FEATURE_DIM + slots // 2
        size = len(counts) * FEATURE_DIM
        table = np.bincount(cells, 1.0 - 2.0 * (slots % 2), size).reshape(-1, FEATURE_DIM)
        length = np.sqrt((table * table).sum(axis=1, keepdims=True))
        yield (table / np.maximum(length, 1.0)).astype(np.float32)
        progress("wordnet features", min(1.0, (first + _ROWS) / len(word_counts)))

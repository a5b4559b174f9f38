"""Turn WordNet's database files into the small graph file that ships with the package.

WordNet 3.0 is a real graph with text on every node, and its licence lets anybody pass it on. This
tool made the shipped ``wordnet.npz``, so that it can be made and checked again::

    apt install wordnet-base
    python -m tools.convert_wordnet /usr/share/wordnet wordnet.npz

A node is a synset; nodes follow the order of ``data.noun``, ``data.verb``, ``data.adj``,
``data.adv``. The file holds the words that the features count (2 MB) instead of the features
(300 floats for each of 117 659 nodes, 141 MB).
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.wordnet.source import (
    FEATURE_DIM,
    NUM_CLASSES,
    SHIPPED,
    SYMBOLS,
    TEST,
    TRAIN,
    VAL,
)

# wndb(5WN): the letter that a pointer uses for a synset in each file. Adjective satellites ("s")
# are called "a" in pointers.
_FILES = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
#: Pointer symbols by precedence: the first one stands for several.
_KINDS = {symbol: place for place, symbol in enumerate(SYMBOLS)}
_WORD = re.compile(r"[a-z]+")


class Synset(NamedTuple):
    """One line of a data file; ``num_lexical`` of the pointers join single words of two synsets."""

    key: str
    lex_file: int
    pointers: tuple[tuple[str, str], ...]  # the target synset, and the pointer's symbol
    num_lexical: int
    gloss: str


def read_synsets(folder: Path) -> Iterator[Synset]:
    """Yield the synsets of ``data.noun``, ``data.verb``, ``data.adj`` and ``data.adv``.

    The line format is that of wndb(5WN): ``offset lex_filenum ss_type w_cnt word lex_id … p_cnt
    ptr… [frames] | gloss``, with ``w_cnt`` in hexadecimal and ``ptr`` being ``symbol offset pos
    source/target``. Source/target ``0000`` is a pointer between synsets, anything else a lexical
    pointer between two words of them (four hexadecimal digits of word numbers).

    Raises:
        FileNotFoundError: a data file is missing.
        ValueError: a line has another format; the message names the file and the line.
    """
    for part, letter in _FILES.items():
        path = folder / f"data.{part}"
        if not path.is_file():
            raise FileNotFoundError(
                f"{path}: no WordNet data file there; name the folder that holds "
                "data.noun, data.verb, data.adj and data.adv (Debian: package wordnet-base)"
            )
        for number, line in enumerate(path.read_text("ascii").splitlines(), start=1):
            if line.startswith("  "):  # the licence notice at the head of each file
                continue
            try:
                yield _parse(line, letter)
            except (IndexError, ValueError) as error:
                why = f"{path}:{number}: not a synset line of wndb(5WN): {error}"
                raise ValueError(why) from error


def _parse(line: str, letter: str) -> Synset:
    data, bar, gloss = line.partition(" | ")
    if not bar:
        raise ValueError("no gloss")
    fields = data.split()
    start = 5 + 2 * int(fields[3], 16)
    lex_file = int(fields[1])
    if not 0 <= lex_file < NUM_CLASSES:
        raise ValueError(f"lexicographer file {lex_file}")
    quads = [fields[start + 4 * i : start + 4 * i + 4] for i in range(int(fields[start - 1]))]
    pointers = tuple((pos + offset, symbol) for symbol, offset, pos, _ in quads)
    lexical = sum(words != "0000" for _, _, _, words in quads)
    return Synset(letter + fields[0], lex_file, pointers, lexical, gloss)


def word_slot(word: str) -> int:
    """Return the hashing trick's slot of a word: ``2 * column + (1 if it counts as -1)``.

    Signed feature hashing of Weinberger et al., "Feature Hashing for Large Scale Multitask
    Learning" (ICML 2009). SHA-256, so that it is the same on every machine and Python.
    """
    return int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big") % (2 * FEATURE_DIM)


def split_of(key: str) -> int:
    """Return a synset's split (train, validation, test: 60/20/20), from a hash of its key alone."""
    fifth = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 5
    return (TRAIN, TRAIN, TRAIN, VAL, TEST)[fifth]


def convert(folder: Path) -> dict[str, NDArray[np.generic]]:
    """Read WordNet's data files into the arrays of ``wordnet.npz``.

    Every pointer, lexical ones included, joins two synsets; which words it joins is dropped. Most
    pointers are stored with their inverse, so pairs are kept once and without direction, and
    pointers within one synset are dropped.

    Returns:
        ``labels`` uint8 ``[N]``: the lexicographer file.
        ``split`` uint8 ``[N]``: ``TRAIN``, ``VAL`` or ``TEST``.
        ``pair_counts`` uint16 ``[N]``: how many neighbours of each node have a higher number;
        ``pair_ends`` int32 ``[P]``: those neighbours, node by node, ascending.
        ``pair_kinds`` uint8 ``[2, P]``: the relation of the neighbour to the node, and of the node
        to the neighbour, as places in ``RELATIONS``: the first there of several kinds.
        ``word_counts`` uint16 ``[N]``: how many different words (letters a to z, lower case) the
        gloss with its examples has; ``word_slots`` uint16 ``[W]``: their slots, see
        :func:`word_slot`, node by node, ascending.
        ``pointers`` int64 ``[3]``: pointers read, lexical ones, and ones within a synset.

    Raises:
        FileNotFoundError, ValueError: see :func:`read_synsets`; or a pointer's target is missing.
    """
    synsets = list(read_synsets(folder))
    number = {synset.key: i for i, synset in enumerate(synsets)}
    kinds: dict[tuple[int, int], int] = {}  # (v, u): the relation of u to v
    within, slots, word_counts = 0, list[int](), list[int]()
    known: dict[str, int] = {}
    for node, synset in enumerate(synsets):
        for key, symbol in synset.pointers:
            if key not in number:
                raise ValueError(f"{folder}: synset {synset.key} points to {key}, which is missing")
            if symbol not in _KINDS:
                raise ValueError(f"{folder}: synset {synset.key} has a pointer {symbol!r}")
            other, kind = number[key], _KINDS[symbol]
            within += other == node
            if other != node:
                kinds[node, other] = min(kind, kinds.get((node, other), kind))
        words = set(_WORD.findall(synset.gloss.lower()))
        known |= {word: word_slot(word) for word in words - known.keys()}
        slots += sorted(known[word] for word in words)
        word_counts.append(len(words))

    pairs = sorted({(min(pair), max(pair)) for pair in kinds})
    both = [[_kind(kinds, low, high), _kind(kinds, high, low)] for low, high in pairs]
    ends = np.array(pairs, np.int32).reshape(-1, 2)
    total = sum(len(synset.pointers) for synset in synsets)
    lexical = sum(synset.num_lexical for synset in synsets)
    return {
        "labels": np.array([synset.lex_file for synset in synsets], np.uint8),
        "split": np.array([split_of(synset.key) for synset in synsets], np.uint8),
        "pair_counts": np.bincount(ends[:, 0], minlength=len(synsets)).astype(np.uint16),
        "pair_ends": ends[:, 1],
        "pair_kinds": np.array(both, np.uint8).reshape(-1, 2).T.copy(),
        "word_counts": np.array(word_counts, np.uint16),
        "word_slots": np.array(slots, np.uint16),
        "pointers": np.array([total, lexical, within], np.int64),
    }


def _kind(kinds: Mapping[tuple[int, int], int], node: int, other: int) -> int:
    """Return the relation of ``other`` to ``node``; if only ``other`` points, its inverse."""
    kind = kinds.get((node, other))
    return len(SYMBOLS) + kinds[other, node] if kind is None else kind


def content_sha256(arrays: Mapping[str, NDArray[np.generic]]) -> str:
    """Return a digest of names, dtypes, shapes and values that compression does not affect.

    ``arrays`` may be an open ``.npz`` file.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        little = array.astype(array.dtype.newbyteorder("<"))
        digest.update(f"{name} {little.dtype.str} {little.shape}\n".encode())
        digest.update(little.tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="Convert WordNet's data files to wordnet.npz.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("/usr/share/wordnet"))
    parser.add_argument("out", type=Path, nargs="?", default=SHIPPED)
    options = parser.parse_args()
    arrays: dict[str, Any] = convert(options.folder)
    np.savez_compressed(options.out, **arrays)  # its bytes hold no date
    total, lexical, within = arrays["pointers"].tolist()
    print(
        f"{options.out}: {len(arrays['labels'])} synsets, {total} pointers ({lexical} lexical, "
        f"{within} within a synset), {len(arrays['pair_ends'])} undirected edges, "
        f"{len(arrays['word_slots'])} words in glosses, sha256 of content {content_sha256(arrays)}"
    )


if __name__ == "__main__":
    main()

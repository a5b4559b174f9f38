"""Feature and label files that come with an imported graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.layout import DatasetError

_FEATURE_KINDS = "fiu"
#: Names of files that ``torch.save`` writes, and what to do about one.
TORCH_FILES = (".pt", ".pth")
NOT_TORCH = (
    "a file of torch.save: write the tensor as .npy, numpy.save('….npy', tensor.numpy()), "
    "one of bfloat16 as tensor.half()"
)


def map_features(path: Path) -> NDArray[Any]:
    """Map a feature table ``[N, D]`` of floats or whole numbers from a ``.npy`` file.

    Its values are checked when the dataset is opened, as those of every dataset.

    Raises:
        DatasetError: not such a file.
    """
    table = _load(path)
    if table.dtype.kind == "V":  # what ml_dtypes' bfloat16 is read back as
        raise DatasetError(
            f"{path}: holds {table.dtype}, which may be bfloat16: NumPy has none. Features as "
            "float16 move the same bytes"
        )
    if table.ndim != 2 or 0 in table.shape or table.dtype.kind not in _FEATURE_KINDS:
        raise DatasetError(
            f"{path}: holds {table.dtype} {table.shape}, expected numbers of shape [N, D]"
        )
    return table


def read_labels(path: Path) -> NDArray[np.int64]:
    """Read classes, -1 for none: a ``.npy`` ``[N]``, or text with one a line (``#`` comments).

    A ``.csv`` or ``.tsv`` may begin with a line that names its column.

    Raises:
        DatasetError: naming the first line or position that holds no class.
    """
    if path.suffix == ".npy":
        labels = _load(path)
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise DatasetError(
                f"{path}: holds {labels.dtype} {labels.shape}, expected whole numbers of shape [N],"
                " -1 for a node without a class"
            )
    else:
        labels = _read_lines(path)
    bad = np.flatnonzero(labels < -1)
    if len(bad):
        raise DatasetError(
            f"{path}: label {bad[0]} (from 0) is {labels[bad[0]]}, expected a class from 0 up, "
            f"or -1 for none"
        )
    return labels.astype(np.int64)


def _read_lines(path: Path) -> NDArray[np.int64]:
    labels: list[int] = []
    may_be_named = named_file = path.suffix in (".csv", ".tsv")
    blank = 0
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                text = line.strip()
                blank = blank or (number if named_file and labels and not text else 0)
                if blank and text:
                    raise DatasetError(
                        f"{path}: line {blank} is empty: write -1 for a node without a class"
                    )
                if not text or text.startswith("#"):
                    continue
                try:
                    labels.append(int(text))
                except ValueError:
                    if may_be_named and not labels and "," not in text and "\t" not in text:
                        may_be_named = False
                        continue
                    raise DatasetError(
                        f"{path}: line {number}, column 1: expected a class (a whole number, -1 "
                        f"for none; one a line, in the order of the node ids), found {text[:40]!r}"
                    ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path}: cannot be read ({error})") from error
    return np.array(labels, np.int64)


def _load(path: Path) -> NDArray[Any]:
    if path.suffix in TORCH_FILES:
        raise DatasetError(f"{path}: {NOT_TORCH}")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DatasetError(f"{path}: cannot be read ({error})") from error
    if not isinstance(array, np.ndarray):
        raise DatasetError(f"{path}: expected one array (.npy), found several")
    return array

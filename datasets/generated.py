"""Generate features, labels and splits by seed, for graphs that come without them.

A gather moves values regardless of their content, so random ones serve for measuring. A model can
learn nothing from them, and the notes of such a dataset say so.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.source import Progress, silent

#: Dtypes that can be generated.
FEATURE_DTYPES = ("float32", "float16", "float64", "int8", "uint8")
#: Values drawn from one generator; another number changes the values of a seed.
_CHUNK_VALUES = 1 << 20
#: More workers than this would need more memory than they save time.
_MOST_WORKERS = 8
#: In-degrees by hash (draw.py): Pareto's exponent, and the largest in-degree.
ALPHA, MOST = 1.75, 10_000
#: Larger than any number of nodes.
PRIME = 2_147_483_647

_R = TypeVar("_R")


def worker_count(threads: int | None = None) -> int:
    """Return ``threads``, or by default the number of usable cores, at most 8."""
    return threads or min(_MOST_WORKERS, len(os.sched_getaffinity(0)))


def in_order(
    work: Callable[..., _R], tasks: Iterable[tuple[Any, ...]], workers: int
) -> Iterator[_R]:
    """Yield the results of ``work(*task)`` in the order of the tasks, from ``workers`` threads.

    So the number of threads changes no result. Unlike ``Executor.map`` this starts a task only
    after an earlier result is consumed: at most ``workers`` results are in memory.
    """
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[_R]] = deque()
        for task in tasks:
            if len(waiting) == workers:
                yield waiting.popleft().result()
            waiting.append(pool.submit(work, *task))
        while waiting:
            yield waiting.popleft().result()


def feature_rows(
    num_nodes: int, dim: int, dtype: str, seed: int, progress: Progress = silent
) -> Iterator[NDArray[Any]]:
    """Yield a table ``[num_nodes, dim]`` as runs of rows, for ``DatasetWriter.write_features``.

    Values are standard normal, or span the full range of an integer dtype; they are the same for
    every number of threads. It raises as :func:`check_features`.
    """
    check_features(dim, dtype)
    real = np.dtype(dtype)
    rows = max(1, _CHUNK_VALUES // dim)

    def chunk(number: int) -> NDArray[Any]:
        shape = (min(rows, num_nodes - number * rows), dim)
        random = np.random.Generator(np.random.SFC64(np.random.SeedSequence([seed, number])))
        if real.kind == "f":
            wide = np.float64 if real == np.float64 else np.float32
            return random.standard_normal(shape, wide).astype(real, copy=False)
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, shape, real.type, endpoint=True)

    chunks = -(-num_nodes // rows)
    for number, values in enumerate(in_order(chunk, [(k,) for k in range(chunks)], worker_count())):
        progress("write features", number / chunks)
        yield values


def check_features(dim: int, dtype: str) -> None:
    """Refuse (``DatasetError``) a width or dtype that :func:`feature_rows` cannot make."""
    if dtype not in FEATURE_DTYPES:
        raise DatasetError(f"feature dtype {dtype!r}: expected one of {', '.join(FEATURE_DTYPES)}")
    if dim < 1:
        raise DatasetError(f"feature width {dim}: expected 1 or more")


def random_labels(num_nodes: int, num_classes: int, seed: int) -> NDArray[np.int64]:
    """Draw a class for each node, uniformly at random; int64 ``[num_nodes]``."""
    return np.random.default_rng([seed, 1]).integers(0, num_classes, num_nodes)


def random_splits(
    degrees: NDArray[np.int64], sizes: Sequence[int], seed: int
) -> list[NDArray[np.int64]]:
    """Draw disjoint train, validation and test ids, sorted, from nodes that have in-neighbours.

    ``degrees`` (``[N]``) counts the in-neighbours, without which a minibatch would be empty. If
    there are too few such nodes, the training set is filled first and the test set last.
    """
    candidates = np.flatnonzero(degrees)
    ends = np.minimum(np.cumsum(sizes), len(candidates))
    chosen = np.random.default_rng([seed, 2]).choice(candidates, ends[-1], replace=False)
    return [np.sort(part) for part in np.split(chosen, ends[:-1])]

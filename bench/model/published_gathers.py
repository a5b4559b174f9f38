"""Gathers over PCIe 4.0 that somebody else timed, beside the model's.

The times are those of DGL's ``index_select`` on pinned memory (dmlc/dgl #6635), each the whole
call. One of them reads its ids as given; it determines how fast the GPU goes from page to page. All
others have their ids sorted, and nothing is fitted to them.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from gatherbench.bench.model.minibatch_load import MinibatchLoad
from gatherbench.bench.model.physics import gpu_reads
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.kernels.order import page_visits
from gatherbench.kernels.policies import policy
from gatherbench.kernels.requests import count_requests

_POLICY = "dgl"
_WIDTHS = {"float32": 4, "int8": 1}


class Gather(NamedTuple):
    """One published call: ``ids`` of ``rows`` rows of ``dim`` elements, in ``published_s``."""

    rows: int
    dim: int
    dtype: str
    ids: int
    order: str
    published_s: float

    @property
    def row_bytes(self) -> int:
        return self.dim * _WIDTHS[self.dtype]


def published_gathers(reference: pd.DataFrame, profile: LinkProfile) -> pd.DataFrame:
    """Every published gather and what the model says of it on the machine of ``profile``.

    A call costs what the call for a single row took, and what the model says of the reads. Of ids
    that are drawn twice the second read is left out: sorted they meet in the GPU's caches.

    Columns: those of :class:`Gather`, ``modelled_s``, ``error`` (modelled over published, less 1),
    ``fitted``.
    """
    found = sorted(_gathers(reference))
    call_s = statistics.median(one.published_s for one in found if one.ids == 1)
    found = [one for one in found if one.ids > 1]
    (given,) = (one for one in found if one.order == "given")
    rate = (_load(given).gpu_page_visits or 0.0) / (given.published_s - call_s)
    profile = profile.with_constant("read.page_visits", rate, "fitted to the ids as given")
    records = []
    for one in found:
        read_s = gpu_reads(_load(one), profile).seconds.value
        modelled = float("nan") if read_s is None else call_s + read_s
        records.append((*one, modelled, modelled / one.published_s - 1, one is given))
    columns = [*Gather._fields, "modelled_s", "error", "fitted"]
    return pd.DataFrame(records, columns=columns)


def _gathers(reference: pd.DataFrame) -> Iterator[Gather]:
    """The published calls, from the names under which they are filed."""
    names = ["dataset", "workload", "variant", "metric", "value"]
    for dataset, workload, variant, metric, value in reference[names].itertuples(index=False):
        shape = re.fullmatch(r"random-(\d+)x(\d+)-(\w+)", dataset)
        count = re.fullmatch(r"(\d+)-ids", workload)
        if shape is None or count is None:
            continue
        one = Gather(
            int(shape[1]),
            int(shape[2]),
            shape[3],
            int(count[1]),
            variant.removeprefix(f"{_POLICY},"),
            float(value),
        )
        if metric == "payload_in_one_second":
            one = one._replace(published_s=one.ids * one.row_bytes / one.published_s)
        yield one


def _load(one: Gather) -> MinibatchLoad:
    ids = _ids(one)
    point = policy(_POLICY).point(one.row_bytes, _WIDTHS[one.dtype])
    payload = float(ids.size * one.row_bytes)
    return MinibatchLoad(
        payload_bytes=payload,
        gpu_link_read_bytes=payload,
        gpu_requests=count_requests(point, ids, one.row_bytes).requests,
        gpu_page_visits=float(page_visits(torch.from_numpy(ids), one.row_bytes)),
        table_bytes=float(one.rows * one.row_bytes),
        row_bytes=one.row_bytes,
    )


def _ids(one: Gather) -> npt.NDArray[np.int64]:
    """Ids like the published ones: uniform draws; sorted, each of them once."""
    drawn = np.random.default_rng(0).integers(0, one.rows, one.ids)
    return np.unique(drawn) if one.order == "sorted" else drawn

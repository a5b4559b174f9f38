"""What the link model expects, as tables that figures draw beside what was published and measured.

Requests come from request accounting over the very ids, constants from a profile. A value that
needs a constant nobody has published is left out here, and the notebook says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from gatherbench.bench.model.epoch import predict_batches
from gatherbench.bench.model.estimate import Estimate, combine
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.physics import gpu_reads
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.show.sentences.gathers import policy_series
from gatherbench.kernels.policies import POLICIES
from gatherbench.kernels.requests import RequestRow, request_row, uniform_ids

FLOAT_BYTES = 4


def requests_at(
    policies: Sequence[str], row_bytes: Sequence[int], max_request: int = 128
) -> list[RequestRow]:
    """Requests of these policies on uniform ids and float32 rows, by request accounting."""
    ids = uniform_ids(1 << 14)
    return [
        request_row(POLICIES[name], width, FLOAT_BYTES, ids, max_request=max_request)
        for name in policies
        for width in row_bytes
    ]


def modelled_gather_rates(
    policies: Sequence[str], row_bytes: Sequence[int], profile: LinkProfile, span_bytes: float
) -> pd.DataFrame:
    """GB/s of payload that multiprocessors read from host memory.

    Columns: ``kind``, ``series``, ``policy``, ``x`` (row width in bytes), ``y`` (GB/s), ``bound``
    (the limit that holds). Ids are random: as given each row lies on another page, sorted many
    share one.
    """
    records = []
    for row in requests_at(policies, row_bytes):
        payload = float(row.counts.rows * row.row_bytes)
        order = row.policy.order_of(row.row_bytes)
        load = MinibatchLoad(
            payload_bytes=payload,
            gpu_link_read_bytes=payload,
            gpu_requests=row.counts.requests,
            gpu_page_visits=float(row.counts.rows) if order == "given" else 0.0,
            table_bytes=span_bytes,
            row_bytes=row.row_bytes,
        )
        part = gpu_reads(load, profile)
        if part.seconds.value is not None:
            rate = payload / part.seconds.value / 1e9
            series = policy_series(row.policy.name, order)
            records.append(("modelled", series, row.policy.name, row.row_bytes, rate, part.bound))
    return pd.DataFrame(records, columns=["kind", "series", "policy", "x", "y", "bound"])


def modelled_roofs(profile: LinkProfile) -> pd.DataFrame:
    """The link's raw rate in GB/s: ``kind``, ``name``, ``y``."""
    raw = profile.link.raw_rate.value
    rows = [] if raw is None else [("modelled", "raw link", raw / 1e9)]
    return pd.DataFrame(rows, columns=["kind", "name", "y"])


def modelled_transfers(
    profile: LinkProfile, rows: Sequence[int], row_bytes: Sequence[int], num_rows: int
) -> pd.DataFrame:
    """Transfer time of CPU gather over that of aligned zero-copy.

    Columns: ``rows``, ``row_bytes``, ``ratio`` (NaN where a constant is not known). CPU gather is
    the paper's baseline: fresh pageable memory, staged and copied. Each side pays the cost of
    being submitted once.
    """
    records = []
    for width in row_bytes:
        counts = requests_at(["aligned"], [width])[0].counts
        for count in rows:
            payload = float(count * width)
            requests = {size: n / counts.rows * count for size, n in counts.requests.items()}
            shape = MinibatchLoad(payload, table_bytes=num_rows * width, row_bytes=width)
            zero_copy = replace(
                shape,
                gpu_link_read_bytes=payload,
                gpu_requests=requests,
                gpu_page_visits=float(count),
            )
            gathered = replace(
                shape,
                cpu_read_bytes=payload,
                cpu_write_bytes=payload,
                copy_engine_bytes=payload,
                pageable_bytes=payload,
            )
            seconds = [_fetch(load, profile) for load in (gathered, zero_copy)]
            ratio = combine(lambda a, b: a / b, *seconds).value
            records.append((count, width, float("nan") if ratio is None else ratio))
    return pd.DataFrame(records, columns=["rows", "row_bytes", "ratio"])


def _fetch(load: MinibatchLoad, profile: LinkProfile) -> Estimate:
    """Seconds from asking for one minibatch's rows to having them, with nothing beside it."""
    alone = replace(load, sample_s=Estimate(0.0), train_s=Estimate(0.0))
    return predict_batches(alone, profile, 1).fetch_s

"""What crossed the link in an epoch, beside what the requests say should have.

The sensors count what the link carried; the strategies declare requests that were counted from the
ids. That both agree is what makes alignment, which only the second shows in advance, believable;
where they do not, the largest read that the GPU makes is not the assumed one, or something else
crosses the link.
"""

from __future__ import annotations

import math

import pandas as pd

from gatherbench.bench.meters.pcie import DIRECTIONS
from gatherbench.bench.meters.trust import TRUSTED
from gatherbench.bench.read.derive import plan_order
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.declared_rows import requests_of
from gatherbench.bench.run.rows import SERIES
from gatherbench.kernels.requests import COMPLETION_HEADER_BYTES

#: Largest reads that a GPU may make, B; requests are declared for the first.
LARGEST_READS = (128, 64)
_MEASURED = "pcie_host_to_device"
#: By calibration, of each source; one that is trusted is right both ways.
_RATIOS = [f"pcie_{direction}_ratio" for direction in DIRECTIONS]


def link_bytes(run: Run) -> pd.DataFrame:
    """Bytes from host to device in an epoch of each series whose traffic was measured.

    Columns: :data:`~gatherbench.bench.run.rows.SERIES`; ``payload`` (what the path wanted);
    ``read`` (whole sectors of its reads, and its copies, ids among them); ``link_128`` and
    ``link_64`` (that with the header of each completion, were these the GPU's largest reads, and
    with what the run's calibration saw a copied byte cost); ``median``, ``low``, ``high`` and
    ``count`` (measured, over epochs: quartiles). NaN where requests were not counted. Edges that
    are copied for training are measured and not counted: with sampling on the GPU there are none.
    Reads of neighbour lists in host memory, while a GPU draws, are counted as rows are.
    """
    measured = run.values("epoch", _MEASURED).groupby(SERIES)
    keys = SERIES[:3]
    rows = run.select(stage=["fetch", "sample"], basis="declared")
    declared = {key: mine.set_index("metric")["value"] for key, mine in rows.groupby(keys)}
    ratio = copied_ratio(run)
    records = []
    for series, values in measured:
        facts = declared.get(series[:3])
        counted = (float("nan"),) * 4 if facts is None else _counted(facts, ratio or 1.0)
        spread = (values.median(), values.quantile(0.25), values.quantile(0.75), values.count())
        records.append((*series, *counted, *spread))
    names = ["payload", "read", *(f"link_{size}" for size in LARGEST_READS)]
    return plan_order(
        run, pd.DataFrame(records, columns=[*SERIES, *names, "median", "low", "high", "count"])
    )


def copied_ratio(run: Run) -> float | None:
    """Bytes that the trusted sensor counts for each byte copied to the device, by calibration."""
    whole = run.whole[run.whole["status"] == "ok"]
    for _, ratios in whole[whole["metric"].isin(_RATIOS)].groupby("source", sort=False):
        if len(ratios) == len(_RATIOS) and ratios["value"].between(*TRUSTED).all():
            return float(ratios.set_index("metric")["value"][_RATIOS[0]])
    return None


def _counted(facts: pd.Series[float], ratio: float) -> tuple[float, float, float, float]:
    payload, copies = facts["declared_payload"], facts["copy_engine"]
    sizes = {size: facts[name] for size, name in requests_of(facts.index).items()}
    if not sizes and facts["gpu_link_read"]:
        return payload, *(float("nan"),) * 3
    read = sum(size * count for size, count in sizes.items())
    links = []
    for largest in LARGEST_READS:
        requests = sum(count * math.ceil(size / largest) for size, count in sizes.items())
        links.append(read + requests * COMPLETION_HEADER_BYTES + copies * ratio)
    return payload, read + copies, links[0], links[1]

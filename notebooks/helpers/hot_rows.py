"""What rows kept on the GPU are worth: published, by the model, and measured on GPUs.

All as times as fast as aligned zero-copy, which keeps no row, over the share of the rows that are
found on the GPU.
"""

from __future__ import annotations

from dataclasses import fields

import pandas as pd

from gatherbench.bench.read.derive import found_on_device, speedup_over
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES
from gatherbench.strategies.base import Strategy
from gatherbench.strategies.registry import STRATEGIES, build
from helpers.epoch_bars import bar_groups
from helpers.findings import Findings

COLUMNS = ["kind", "series", "x", "y"]
#: Keeps no row: what the others are compared with.
REFERENCE = "aligned_zero_copy"


def published_tiering(published: pd.DataFrame) -> tuple[pd.DataFrame, tuple[float, float]]:
    """Data Tiering: its range of speed-ups as ``roofs`` of ``curves``, and the shares of traffic.

    Of traffic the least and the most that is kept off the link, as shares.
    """
    rows = published[published["run_id"] == "published-data-tiering"]
    speed = rows[rows["metric"] == "speedup"]
    names = [
        f"Data Tiering, {variant}: {y:g} times"
        for variant, y in speed[["variant", "value"]].to_numpy()
    ]
    roofs = pd.DataFrame({"kind": "published", "name": names, "y": speed["value"].to_numpy()})
    off = -rows[rows["metric"] == "link_bytes_change"]["value"]
    return roofs, (float(off.min()), float(off.max()))


def measured_gains(findings: Findings) -> pd.DataFrame:
    """Of what counts on a GPU the rows that it finds there, as :data:`COLUMNS`; a line a policy.

    ``low``, ``high``: the 95 % interval over the repeats; NaN of one.
    """
    records, groups = [], bar_groups(findings, "cuda")
    for run in findings.runs_on("cuda", _kept_gains):
        names = line_names(run)
        for row in _kept_gains(run).to_dict("records"):
            line, _ = names[row["strategy"], row["variant"]]
            name = f"{groups[run.machine, row['workload']]}: {line}"
            ends = (row["speedup"], row["low"], row["high"])
            records.append(("measured", name, 100 * row["counted"], *ends))
    return pd.DataFrame(records, columns=[*COLUMNS, "low", "high"])


def _kept_gains(run: Run) -> pd.DataFrame:
    """Over aligned zero-copy with its usual parameters, of the series that count what they find."""
    table = speedup_over(run, REFERENCE, build(REFERENCE).variant)
    return table.join(found_on_device(run), on=SERIES[:4]).dropna(subset="counted")


def line_names(run: Run) -> dict[tuple[str, str], tuple[str, bool]]:
    """Of each strategy and variant the name of its line, and whether nobody would train with it."""
    known = {one.name for one in STRATEGIES}
    cases = {(c["strategy"], c["variant"]): c["params"] for c in run.plan["cases"]}
    found: dict[tuple[str, str], tuple[str, bool]] = {}
    built = {key: build(key[0], cases[key]) for key in cases if key[0] in known}
    for key in cases:
        alike = [one for one in built.values() if one.name == key[0]]
        label = _line(built[key], alike) if alike else " ".join(key)
        control = bool(alike) and built[key].role == "control"
        found[key] = (f"{label} (control)" if control else label, control)
    return found


def _line(strategy: Strategy, alike: list[Strategy]) -> str:
    """The strategy, and the words in which its variants differ but for how much they keep."""
    differ = [f.name for f in fields(strategy) if len({getattr(one, f.name) for one in alike}) > 1]
    words = [str(getattr(strategy, name)) for name in differ if name != "share"]
    return f"{strategy.name} {', '.join(words)}".strip()

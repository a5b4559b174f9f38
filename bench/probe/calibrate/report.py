"""A calibration for a reader: the constants with their sources, and how far the profile is off."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gatherbench.bench.model.profile import Constant, Curve
from gatherbench.bench.probe.calibrate.check import Check, held_out_errors, smallest_share
from gatherbench.bench.probe.calibrate.run import Calibration

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SMALL = ((1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def render(calibration: Calibration) -> RenderableType:
    """Constants, then the held-out points, then what to make of them."""
    return Group(_constants(calibration), _held_out(calibration.checks), *_closing(calibration))


def quantity(value: float, unit: str) -> str:
    """A value with a prefix of its unit, e.g. ``31.5 GB/s``; a bare number for unit ``1``."""
    if unit == "1":
        return f"{value:,.4g}"
    fitting = (known for known in (*_PREFIXES, *_SMALL) if abs(value) >= known[0])
    size, prefix = next(fitting, (1.0, ""))
    name = f"{prefix}/s" if unit == "1/s" else f"{prefix}{unit}"
    return f"{value / size:.3g} {name}"


def _constants(calibration: Calibration) -> Table:
    table = Table(title=f"Profile {calibration.profile.name}", title_justify="left", box=None)
    table.add_column("constant", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("source")
    for key, constant in calibration.profile.constants():
        table.add_row(key, _value(constant), Text(constant.source, style="dim"))
    return table


def _value(constant: Constant | Curve) -> str:
    if isinstance(constant, Curve):
        numbers = [rate for points in constant.values for _, rate in points]
    else:
        numbers = list(constant.values)
    if not numbers:
        return "unknown"
    ends = (min(numbers), max(numbers))
    return " to ".join(dict.fromkeys(quantity(end, constant.unit) for end in ends))


def _held_out(checks: list[Check]) -> Table:
    table = Table(title="\nHeld out, and predicted", title_justify="left", box=None)
    table.add_column("what", no_wrap=True)
    for name in ("measured", "modelled", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in checks:
        if one.point.held_out:
            predicted, error = "unknown", ""
            if one.predicted is not None and one.error is not None:
                predicted, error = quantity(one.predicted, "B/s"), f"{one.error:+.0%}"
            table.add_row(_what(one), quantity(one.measured.median, "B/s"), predicted, error)
    return table


def _what(one: Check) -> str:
    point = one.point
    words = {"host_gather": "CPU gather", "gpu_gather": "GPU gather", "sm_read": "GPU read"}
    parts = [words[point.kind]]
    if point.row_bytes:
        parts.append(f"rows of {point.row_bytes} B")
    if point.threads:
        parts.append(f"{point.threads} thread{'s' if point.threads > 1 else ''}")
    if point.order == "sorted":
        parts.append("sorted ids")
    if point.span_bytes >= 2**30 and not point.threads:
        parts.append(f"{point.span_bytes / 2**30:g} GiB")
    return ", ".join(parts)


def _closing(calibration: Calibration) -> Iterator[Text]:
    errors = [abs(error) for error in held_out_errors(calibration.checks)]
    if errors:
        yield Text(
            f"\n{len(errors)} held-out points are off by {statistics.median(errors):.0%} (median)"
            f" and {max(errors):.0%} at most."
        )
    share = smallest_share(calibration.found)
    if share is not None:
        yield Text(f"{share} % of the GPU's threads reach 95 % of the best gather.")
    yield Text(f"{calibration.rounds} rounds, {calibration.seconds:.0f} s in all. Written:")
    for path in calibration.files:
        yield Text(f"  {path}", no_wrap=True)
    if calibration.profile.gpu.launch.value is None:
        yield Text(
            "It knows no GPU, so `gatherbench advise` does not use it; `gatherbench calibrate"
            " --base h100-sxm-pcie5` (or another of `gatherbench list profiles`) joins the two."
        )
    else:
        yield Text(
            f"Use it: gatherbench advise DATASET --profile {calibration.files[0]} (below"
            " calibration/ it is found by itself), or as the profile of a plan."
        )

"""Turn the medians of a probe into a machine's profile, from which the link model predicts.

Each constant is a median with its quartiles, or a reason why there is none. A constant that no case
times stays unknown until it is given by hand.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from gatherbench.bench.machine.pcie import UnknownLinkError, raw_rate
from gatherbench.bench.model.profile import SPECS, Constant, LinkProfile, ProfileError, Value
from gatherbench.bench.probe.probe import in_words
from gatherbench.bench.probe.table import RATES, own_best

BY = "measured by gatherbench probe"
#: The last generation of PCI Express that sends single packets.
_LAST_OF_PACKETS = 5
_FOUND_BY = tomllib.loads(Path(__file__).with_name("constants.toml").read_text("utf-8"))
#: Constants that nothing times, with the reason that is recorded.
BY_HAND: dict[str, str] = _FOUND_BY["by_hand"]


def profile_of(table: pd.DataFrame, facts: Mapping[str, Any]) -> LinkProfile:
    """Build a machine's profile from :func:`~gatherbench.bench.probe.table.medians`."""
    cause = "not measured" if facts["gpus"] else "no_device: measured without a GPU"
    unknown = {
        key: Constant(unit=spec.unit, source=BY_HAND.get(key, cause)) for key, spec in SPECS.items()
    }
    profile = LinkProfile(facts["machine"], in_words(facts), unknown)
    for key, value, source in [*_stated(facts), *_timed(table, facts["cores"])]:
        try:
            profile = profile.with_constant(key, value, source)
        except ProfileError as refused:
            profile = profile.with_constant(key, None, f"not believed: {refused}")
    return profile


def _stated(facts: Mapping[str, Any]) -> Iterator[tuple[str, Value, str]]:
    """Give the constants that the machine states, each with its source."""
    for key, stated in _FOUND_BY["stated"].items():
        if facts["gpus"] or key.startswith("host."):
            yield key, _rounded(stated.get("value") or facts[stated["fact"]]), stated["how"]
    generation, lanes = facts["link_generation"], facts["link_lanes"]
    if facts["gpus"] and generation and lanes and generation <= _LAST_OF_PACKETS:
        source = f"PCIe {generation}.0 x{lanes} as NVML reports it, after line coding"
        with suppress(UnknownLinkError):  # as unknown as a link that NVML does not know
            yield "link.raw_rate", _rounded(raw_rate(generation, lanes)), source


def _timed(table: pd.DataFrame, cores: int) -> Iterator[tuple[str, Value, str]]:
    """Give the constants that ``constants.toml`` says a case times: a median, or medians over a
    column."""
    best = own_best(table)
    gathers = best["case"] == "host_gather"
    best[RATES] = best[RATES].where(~gathers, best[RATES] / cores)
    for key, timed in _FOUND_BY["timed"].items():

        def value(rate: float, timed: Mapping[str, Any] = timed) -> float:
            value = rate * timed.get("factor", 1)
            return _rounded(1 / value if "inverse" in timed else value)

        rows = best[best["case"].eq(timed["case"])].sort_values("span_bytes")
        if "row_bytes" in timed:
            rows = rows[rows["row_bytes"].eq(timed["row_bytes"])]
        if rows.empty:
            continue
        low, high = (rows[end] / rows["median_per_s"] - 1 for end in RATES[1:])
        source = f"{BY}, {int(rows['rounds'].sum())} samples,"
        source += f" quartiles {low.min():+.1%} and {high.max():+.1%}; {timed['how']}"
        if "over" not in timed:
            yield key, value(rows["median_per_s"].max()), source
            continue
        # Of the processor's gathers those of the largest table count.
        points = rows.drop_duplicates(timed["over"], keep="last").sort_values(timed["over"])
        curve = zip(points[timed["over"]], points["median_per_s"], strict=True)
        yield key, tuple((float(at), value(rate)) for at, rate in curve), source
    if best["case"].eq("host_sample").any():
        yield "host.sample_cores", _rounded(cores), "the sampler was given every core"


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")

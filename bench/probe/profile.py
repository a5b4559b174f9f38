"""Turn the medians of a probe into a machine's profile, from which the link model predicts.

Each constant is a median with its quartiles, or a reason why there is none. A constant that no case
times stays unknown until it is given by hand, in your own profile or the one named with ``--base``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pandas as pd

from gatherbench.bench.machine.pcie import UnknownLinkError, raw_rate
from gatherbench.bench.model.profile import SPECS, Constant, LinkProfile, ProfileError, Value
from gatherbench.bench.probe.gathers import OUR_BEST
from gatherbench.bench.probe.host import LONG_DEPTH, LONG_READ_BYTES, READ_BYTES
from gatherbench.bench.probe.machine import Facts

#: Bytes of a row, so narrow that the page visits limit the rate.
VISIT_BYTES = 64
BY = "measured by gatherbench probe"
#: The last generation of PCI Express that sends single packets.
_LAST_OF_PACKETS = 5
_HEADER = "pcie-bench model: Neugebauer et al., SIGCOMM 2018"
#: Constants that nothing times, with the reason that is recorded.
BY_HAND = {
    "link.max_payload": "not timed: give it by hand (lspci -vv as root: DevCtl, MaxPayload)",
    "link.dllp_share": "not timed: give it by hand",
    "link.max_request": "not timed: give it by hand; reads are then whole lines of 128 B",
    "link.outstanding_reads": "not timed: give it by hand; the other limits stand in",
    "copy.batched": "copies of single rows are not timed",
}
#: Constants that one case times: the case, the conversion from its rate, and a description.
_TIMED: dict[str, tuple[str, Callable[[float], float], str]] = {
    "link.round_trip": ("round_trip", lambda r: 1 / r, "pointer chase over the smallest table"),
    "copy.to_device": ("copy_to_device", lambda r: r, "a gibibyte"),
    "copy.pageable": ("copy_pageable", lambda r: r, "rows of 512 B, table[ids].to(device)"),
    "gpu.memory_rate": ("gpu_copy", lambda r: 2 * r, "a copy, read and written"),
    "gpu.flops": ("gpu_matmul", lambda r: r, "two matrices, 8192 wide, no TF32"),
    "gpu.launch": ("gpu_launch", lambda r: 1 / r, "forward and backward of a small chain"),
    "gpu.issue": ("gpu_issue", lambda r: 1 / r, "steps of GraphSAGE on a few nodes"),
    "gpu.draw": ("gpu_draw", lambda r: 1 / r, "minibatches of a few nodes, begun two ahead"),
    "gpu.submit": ("gpu_submit", lambda r: 1 / r, "ids to the GPU and the gather's launch"),
    "disk.bandwidth": (
        "disk_sequential",
        lambda r: r,
        f"reads of {LONG_READ_BYTES >> 10} KiB, {LONG_DEPTH} in flight",
    ),
}


def profile_of(table: pd.DataFrame, facts: Facts, base: LinkProfile | None = None) -> LinkProfile:
    """Build a machine's profile from :func:`~gatherbench.bench.probe.table.medians`.

    Args:
        base: the profile that supplies the constants that were not measured.
    """
    if base is None:
        cause = "not measured" if facts.gpus else "no_device: measured without a GPU"
        nothing = {key: Constant(unit=spec.unit, source=cause) for key, spec in SPECS.items()}
        base = LinkProfile(facts.machine, facts.description, nothing)
    else:
        text = f"{facts.description}; what was not measured is {base.name}'s"
        base = replace(base, name=f"{facts.machine}+{base.name}", description=text)
    profile = _Profile(base, table[table["median_per_s"].notna()])
    profile.set("host.cores", facts.cores, "cores that the process may use")
    profile.set("host.memory", facts.host_memory_bytes, "as the kernel reports it")
    for key, (value, source) in _gpu_facts(facts).items():
        profile.set(key, value, source)
    profile.host(facts.cores)
    profile.reads()
    for key, (case, change, description) in _TIMED.items():
        profile.timed(key, profile.rows_of(case), change, description)
    for key, reason in BY_HAND.items():
        profile.set(key, None, reason)
    return profile.profile


def _gpu_facts(facts: Facts) -> dict[str, tuple[Value, str]]:
    if not facts.gpus:
        return {}
    rate, source = None, "NVML does not tell generation and width of the link"
    if (facts.link_generation or 0) > _LAST_OF_PACKETS:
        source = f"PCIe {facts.link_generation}.0 packs packets into flits, which the model lacks"
    elif facts.link_generation and facts.link_lanes:
        try:
            rate = raw_rate(facts.link_generation, facts.link_lanes)
            link = f"PCIe {facts.link_generation}.0 x{facts.link_lanes}"
            source = f"{link} as NVML reports it, after line coding"
        except UnknownLinkError as unknown:
            source = str(unknown)
    return {
        "link.raw_rate": (rate, source),
        "link.header": (12, _HEADER),
        "link.framing": (8, _HEADER),
        "gpu.memory": (facts.gpu_memory_bytes, "as the CUDA driver reports it"),
    }


class _Profile:
    """A profile whose constants are set from medians; without rows they keep the base's value."""

    def __init__(self, base: LinkProfile, table: pd.DataFrame) -> None:
        self.profile, self._table = base, table

    def rows_of(self, case: str, **conditions: object) -> pd.DataFrame:
        rows = self._table[self._table["case"] == case]
        for column, value in conditions.items():
            rows = rows[rows[column] == value]
        return rows

    def host(self, cores: int) -> None:
        """Set the constants of the processor and the disk."""
        copies, reads = self.rows_of("host_copy"), self.rows_of("host_read")
        rates = ["median_per_s", "low_per_s", "high_per_s"]
        candidates = pd.concat([copies.assign(**{r: 2 * copies[r] for r in rates}), reads])
        fastest = candidates.nlargest(1, "median_per_s")
        self.timed("host.memory_rate", fastest, lambda r: r, "the faster of copies and reads")
        gathers = self.rows_of(
            "host_gather", span_bytes=self.rows_of("host_gather")["span_bytes"].max()
        )
        on_all = gathers[gathers["threads"] == cores]
        description = f"random rows on {cores} cores, a core's share"
        self.curve("host.gather_rate", on_all, "row_bytes", lambda r: r / cores, description)
        sampled = self.rows_of("host_sample", threads=cores)
        description = "edges of fan-out 25, 10 on an RMAT graph of 1 M nodes and 25 M edges"
        self.timed("host.sample_rate", sampled, lambda r: r, description)
        if len(sampled):
            self.set("host.sample_cores", cores, "the sampler was given every core")
        description = f"random reads of {READ_BYTES} B past the page cache, by reads in flight"
        self.curve("disk.iops", self.rows_of("disk_random"), "threads", lambda r: r, description)

    def reads(self) -> None:
        """Set the constants of the GPU's reads of host memory."""
        roofs = self.rows_of("sm_read").sort_values("median_per_s")
        roofs = roofs.drop_duplicates("span_bytes", keep="last")
        self.curve("read.roof", roofs, "span_bytes", lambda r: r, "contiguous reads, the best grid")
        description = f"random rows of {VISIT_BYTES} B, each taken to lie on another page"
        our_gather = {
            "row_bytes": VISIT_BYTES,
            "policy": OUR_BEST,
            "order": "given",
            "grid_percent": 0,
        }
        for key, case in (
            ("read.page_visits", "gpu_gather"),
            ("read.managed_page_visits", "managed_gather"),
        ):
            visits = self.rows_of(case, **our_gather)
            self.curve(key, visits, "span_bytes", lambda r: r / VISIT_BYTES, description)

    def timed(
        self, key: str, rows: pd.DataFrame, change: Callable[[float], float], description: str
    ) -> None:
        """Set a constant to a median."""
        for rate in rows["median_per_s"]:
            self.set(key, change(rate), f"{_source(rows)}; {description}")

    def curve(
        self,
        key: str,
        rows: pd.DataFrame,
        by: str,
        change: Callable[[float], float],
        description: str,
    ) -> None:
        """Set a constant to medians over a column."""
        points = rows.sort_values(by)[[by, "median_per_s"]].itertuples(index=False)
        if value := tuple((float(at), float(f"{change(rate):.5g}")) for at, rate in points):
            self.set(key, value, f"{_source(rows)}; {description}")

    def set(self, key: str, value: Value, source: str) -> None:
        """Set a constant; a reason without a value replaces only another reason."""
        if value is None and key not in self.profile.unknown():
            return
        if isinstance(value, (int, float)):
            value = float(f"{value:.5g}")
        try:
            self.profile = self.profile.with_constant(key, value, source)
        except ProfileError as refused:
            self.profile = self.profile.with_constant(key, None, f"not believed: {refused}")


def _source(rows: pd.DataFrame) -> str:
    low, high = (rows[end] / rows["median_per_s"] - 1 for end in ("low_per_s", "high_per_s"))
    samples = int(rows["rounds"].sum())
    return f"{BY}, {samples} samples, quartiles {low.min():+.1%} and {high.max():+.1%}"

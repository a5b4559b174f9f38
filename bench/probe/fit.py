"""From a table of points to a profile: each constant is a median with its spread, or says why not.

Two constants cannot be timed: how large the link's requests are, and how many may be in flight. For
each size that a request may have, the physics of the link model predicts the gathers with one
number of reads in flight after the other; the pair that misses them least is taken, if it misses
them clearly less than others do. Otherwise the constant is not known, and the reason says so.

What is held out is predicted afterwards. Predictions come from the link model's physics, so an
error there is an error of the model and of its constants together.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from gatherbench.bench.machine.pcie import UnknownLinkError, packet_link_rate
from gatherbench.bench.model.load import MinibatchLoad, load_of
from gatherbench.bench.model.physics import cpu_gather, gpu_reads
from gatherbench.bench.model.profile import SPECS, LinkProfile, ProfileError, Value
from gatherbench.bench.probe.cases import (
    DISK_READ_BYTES,
    GATHERS,
    LONG_DEPTH,
    LONG_READ_BYTES,
    MANAGED_ROW_BYTES,
    NARROWEST,
    OUR_BEST,
    USUAL_ROW_BYTES,
    num_ids,
)
from gatherbench.bench.probe.machine import MachineFacts
from gatherbench.bench.read.points import Point, PointRow
from gatherbench.kernels.order import LINE_BYTES, MANAGED_PAGE_BYTES
from gatherbench.strategies.data_path import zero_copy_path

_SAMPLED_IDS = 20_000
SIZE_KEY, TAGS_KEY = "link.max_request", "link.outstanding_reads"
VISITS_KEY, MANAGED_VISITS_KEY = "read.page_visits", "read.managed_page_visits"
#: The field of a load that counts them, of registered and of managed memory.
_VISITS_OF = {False: "gpu_page_visits", True: "managed_page_visits"}
#: A whole line as the papers saw, half a line as counters of an H100 imply, and a sector.
SIZES = (128, 64, 32)
#: Reads in flight that are tried: 4 % apart, about as fine as they can be told.
TAGS = tuple(8 * 1.04**k for k in range(200))
#: Of these every fifth first, then all about the best of them.
_COARSE = 5
#: A fit is better than another if it misses by this share of it or less ...
BETTER = 0.9
#: ... and by so much less, since gathers vary by as much.
NOISE = 0.005
#: A limit of another kind explains gathers if the fit with it misses them by this share or less.
MUCH_BETTER = 0.5
#: Header and framing of a packet are the protocol's, not the machine's.
HEADER_BYTES, FRAMING_BYTES = 12.0, 8.0
HEADER_SOURCE = "pcie-bench model: Neugebauer et al., SIGCOMM 2018"


@dataclass(frozen=True, slots=True)
class Measured:
    """What was seen of one point: amounts per second, over ``count`` samples."""

    median: float
    low: float
    high: float
    count: int

    @property
    def spread(self) -> str:
        """The quartiles as distances from the median."""
        down, up = self.low / self.median - 1, self.high / self.median - 1
        return f"quartiles {down:+.1%} and {up:+.1%}"

    def times(self, factor: float) -> Measured:
        """So many times as much a second."""
        return Measured(factor * self.median, factor * self.low, factor * self.high, self.count)

    def each(self) -> Measured:
        """Seconds for each instead of so many a second."""
        return Measured(1 / self.median, 1 / self.high, 1 / self.low, self.count)


@dataclass(frozen=True, slots=True)
class Check:
    """A point beside what the profile says of it, in amounts per second.

    ``predicted`` is ``None`` where the profile does not know enough.
    """

    point: Point
    measured: Measured
    predicted: float | None

    @property
    def error(self) -> float | None:
        """By how much the prediction is off, as a share of the measurement."""
        return None if self.predicted is None else self.predicted / self.measured.median - 1


def summarise(rows: Iterable[PointRow]) -> dict[Point, Measured]:
    """Medians and quartiles of each point, in the order in which points first appear."""
    rates: dict[Point, list[float]] = defaultdict(list)
    for row in rows:
        if row.amount and row.time_s:
            rates[row.point].append(row.amount / row.time_s)
    found = {}
    for point, values in rates.items():
        low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
        found[point] = Measured(statistics.median(values), low, high, len(values))
    return found


def check(profile: LinkProfile, found: Mapping[Point, Measured]) -> list[Check]:
    """Every point that the profile predicts, fitted or held out, beside its measurement.

    Of contiguous reads only the best grid of each span: the profile knows no other.
    """
    best = best_reads(found).values()
    kept = [
        p
        for p in found
        if p.case == "host_gather" or (p.case in GATHERS and p.grid_percent == 0) or p in best
    ]
    kept.sort(key=lambda p: (p.case, p.row_bytes, p.threads, p.span_bytes))
    return [Check(p, found[p], predicted_rate(profile, p)) for p in kept]


def best_reads(found: Mapping[Point, Measured]) -> dict[int, Point]:
    """The fastest contiguous read of each span, over several grids."""
    reads = sorted((p for p in found if p.case == "sm_read"), key=lambda p: found[p].median)
    return {p.span_bytes: p for p in reads}


def predicted_rate(profile: LinkProfile, point: Point) -> float | None:
    """Bytes of rows a second that the model expects of a gather or a contiguous read.

    ``None`` also where the profile has but a range of what the GPU's reads depend on.
    """
    if point.case != "host_gather" and profile.ranges():
        return None
    if point.case == "sm_read":
        return profile["read.roof"].at(point.span_bytes)
    if point.case == "host_gather":
        size = float(1 << 26)
        load = MinibatchLoad(
            size,
            cpu_read_bytes=size,
            cpu_write_bytes=size,
            row_bytes=point.row_bytes,
            gather_threads=point.threads,
        )
        part = cpu_gather(load, profile)
    else:
        load = gather_load(
            point.row_bytes,
            point.span_bytes,
            point.order,
            num_ids(point),
            managed=point.case == "managed_gather",
        )
        part = gpu_reads(load, profile)
    return load.payload_bytes / part.seconds if part.known and part.seconds else None


@functools.cache
def gather_load(
    row_bytes: int, span_bytes: int, order: str, count: int, *, managed: bool = False
) -> MinibatchLoad:
    """``count`` random rows of a table of ``span_bytes`` as the aligned launch policy reads them.

    Requests are a sample's. Sorted, a sample would visit far more pages for each row, so their
    number is what ``count`` uniform draws are expected to touch.
    """
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, span_bytes // row_bytes, (_SAMPLED_IDS,), generator=draw)
    path = zero_copy_path(ids, row_bytes, OUR_BEST, order, "managed" if managed else "registered")
    load = load_of(path, count / _SAMPLED_IDS, table_bytes=span_bytes, row_bytes=row_bytes)
    if order == "sorted":
        pages = max(1, span_bytes // (MANAGED_PAGE_BYTES if managed else LINE_BYTES))
        visits = pages * (1 - (1 - 1 / pages) ** count)
        load = replace(load, **{_VISITS_OF[managed]: visits})  # type: ignore[arg-type]
    return load


def smallest_share(found: Mapping[Point, Measured], enough: float = 0.95) -> int | None:
    """The least per cent of the GPU's threads whose gather reaches ``enough`` of the best one."""
    rates = {
        p.grid_percent: m.median
        for p, m in found.items()
        if p.case == "gpu_gather" and p.grid_percent
    }
    if not rates:
        return None
    return min(share for share, rate in rates.items() if rate >= enough * max(rates.values()))


def held_out_errors(checks: Iterable[Check]) -> list[float]:
    """The errors of the points that were not fitted and are predicted at all."""
    return [c.error for c in checks if c.point.held_out and c.error is not None]


@dataclass(frozen=True, slots=True)
class RequestFit:
    """The constants that were found, or why the gathers do not tell them.

    ``misfit`` is the root mean square of the relative errors over the gathers that were fitted.
    """

    size: float | str
    tags: float | str
    misfit: float


def fit_requests(
    profile: LinkProfile, gathers: Mapping[Point, Measured], visits: float | None = None
) -> RequestFit:
    """Fit ``link.max_request`` and ``link.outstanding_reads`` to ``gpu_gather`` points.

    The profile's other constants stay as they are, but for the rate of page visits. ``visits`` is
    that of the narrowest rows, if they are bound by it and not by requests in flight: it is taken
    where the model then misses the gathers by half as much or less. An H200 read 110 to 116 M
    rows a second over 1 GiB, of 4 to 400 B, with one request each or with four.
    """
    found = _fit_requests(profile, gathers, SPECS[VISITS_KEY].high)
    if visits is None:
        return found
    bound = _fit_requests(profile, gathers, visits)
    return bound if bound.misfit < MUCH_BETTER * found.misfit - NOISE else found


def _fit_requests(
    profile: LinkProfile, gathers: Mapping[Point, Measured], visits: float | None
) -> RequestFit:
    profile = profile.with_constant(VISITS_KEY, visits, "tried")
    best = {size: _with_size(profile, float(size), gathers) for size in SIZES}
    size = min(best, key=lambda s: (best[s].misfit, -s))
    if not math.isfinite(best[size].misfit):
        why = "the gathers cannot be predicted: neither link.raw_rate nor read.roof is known"
        return RequestFit(why, why, math.inf)
    # Whole lines are what is assumed anyway: they need to be told from every other size, another
    # size from them alone.
    whole = best[SIZES[0]]
    rivals = [best[s] for s in SIZES[1:]] if size == SIZES[0] else [whole]
    if all(_better(best[size].misfit, rival.misfit) for rival in rivals):
        return best[size]
    why = f"another size fits as well; requests of up to {SIZES[0]} B are then assumed"
    return RequestFit(why, whole.tags, whole.misfit)


def _with_size(profile: LinkProfile, size: float, gathers: Mapping[Point, Measured]) -> RequestFit:
    sized = profile.with_constant(SIZE_KEY, size, "tried")
    unlimited = _misfit(sized.with_constant(TAGS_KEY, None, "tried"), gathers)

    def missed(number: int) -> tuple[float, int]:
        return _misfit(sized.with_constant(TAGS_KEY, TAGS[number], "tried"), gathers), number

    _, near = min(missed(number) for number in range(0, len(TAGS), _COARSE))
    fine = range(max(0, near - _COARSE + 1), min(len(TAGS), near + _COARSE))
    least, best = min(missed(number) for number in fine)
    tags = TAGS[best]
    if profile["link.round_trip"].value is not None and _better(least, unlimited):
        return RequestFit(size, tags, least)
    why = "not reached: the other limits explain every gather as well"
    return RequestFit(size, why, unlimited)


def _misfit(profile: LinkProfile, gathers: Mapping[Point, Measured]) -> float:
    """Root mean square of log(predicted / measured); infinite where one cannot be predicted."""
    errors = []
    for point, measured in gathers.items():
        rate = predicted_rate(profile, point)
        if rate is None:
            return math.inf
        errors.append(math.log(rate / measured.median))
    return math.sqrt(statistics.fmean(error**2 for error in errors))


def _better(one: float, other: float) -> bool:
    return one < BETTER * other and other - one > NOISE


def blank_profile(facts: MachineFacts) -> LinkProfile:
    """A profile of this machine in which nothing is known yet."""
    why = "not measured" if facts.gpus else "no_device: calibrated without a GPU"
    return LinkProfile.blank(facts.slug, facts.description, why)


#: A constant that one case times: its key, the case, what becomes of the rate, and in words.
_TIMED: tuple[tuple[str, str, Callable[[Measured], Measured], str], ...] = (
    ("copy.to_device", "copy_to_device", lambda m: m, ""),
    ("copy.to_host", "copy_to_host", lambda m: m, ""),
    ("copy.pageable", "copy_pageable", lambda m: m, "rows of 512 B, table[ids].to(device)"),
    ("gpu.memory_rate", "gpu_copy", lambda m: m.times(2), "a copy, read and written"),
    ("gpu.flops", "gpu_matmul", lambda m: m, "product of two matrices, 8192 wide, no TF32"),
    ("gpu.launch", "gpu_launch", Measured.each, "forward and backward of a small chain"),
    ("gpu.issue", "gpu_issue", Measured.each, "steps of GraphSAGE on a few nodes, on their own"),
    ("gpu.replay", "gpu_replay", Measured.each, "the same steps captured in a CUDA graph"),
    ("gpu.draw", "gpu_draw", Measured.each, "minibatches of a few nodes, begun two ahead"),
    ("gpu.submit", "gpu_submit", Measured.each, "ids to the GPU and the gather's launch"),
)


class Fit:
    """Sets the constants of ``base`` that ``found`` gives, one after the other.

    Held-out points are never looked at. A constant that was not measured keeps what ``base`` says.
    """

    def __init__(
        self, base: LinkProfile, found: Mapping[Point, Measured], facts: MachineFacts
    ) -> None:
        self.profile = base
        self.facts = facts
        self._found = {p: m for p, m in found.items() if not p.held_out}

    def run(self) -> LinkProfile:
        """The profile with every constant set that was measured."""
        self._host()
        self._disk()
        if self.facts.gpus:
            self._told()
            for key, case, change, what in _TIMED:
                for measured in self._of(case).values():
                    self._measured(key, change(measured), what)
            self._dllp_share()
            self._reads()
            self._requests()
            self._managed()
        return self.profile

    def _host(self) -> None:
        cores = self.facts.cores
        self._set("host.cores", cores, "cores that the process may use")
        room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._set("host.memory", room, "as the kernel reports it")
        copies = {p: m.times(2) for p, m in self._of("host_copy").items()}
        fastest = {**copies, **self._of("host_read")}
        if fastest:
            point = max(fastest, key=lambda p: fastest[p].median)
            what = "a copy, read and written" if point.case == "host_copy" else "a read"
            self._measured("host.memory_rate", fastest[point], f"{what}, threads: {point.threads}")
        gathers = {
            p.row_bytes: m.times(1 / cores)
            for p, m in self._of("host_gather").items()
            if p.threads == cores
        }
        if gathers:
            self._curve(
                "host.gather_rate", gathers, f"random rows on {cores} cores, a core's share"
            )
        usual = {
            p.threads: m
            for p, m in self._of("host_gather").items()
            if p.row_bytes == USUAL_ROW_BYTES
        }
        if cores in usual:
            what = f"random rows of {USUAL_ROW_BYTES} B, over the rate of {cores} cores, by cores"
            shares = {n: m.times(1 / usual[cores].median) for n, m in usual.items()}
            self._curve("host.gather_scaling", shares, what)
        for point, measured in self._of("host_sample").items():
            if point.threads == cores:
                what = "edges of fan-out 25, 10 on an RMAT graph of 1 M nodes and 25 M edges"
                self._measured("host.sample_rate", measured, what)
                self._set("host.sample_cores", cores, "the sampler was given every core")

    def _disk(self) -> None:
        reads = {p.threads: m for p, m in self._of("disk_random").items()}
        if not reads:
            remedy = "gatherbench calibrate --disk FOLDER"
            for key in ("disk.iops", "disk.block", "disk.bandwidth"):
                self._set(key, None, f"not measured ({self.facts.no_disk}): {remedy}")
            return
        what = f"random reads of {DISK_READ_BYTES} B past the page cache, by reads in flight"
        self._curve("disk.iops", reads, what)
        self._set("disk.block", float(DISK_READ_BYTES), "what was read at a time")
        for measured in self._of("disk_sequential").values():
            what = f"reads of {LONG_READ_BYTES // 1024} KiB, {LONG_DEPTH} in flight"
            self._measured("disk.bandwidth", measured, what)

    def _told(self) -> None:
        """What the machine tells of itself, and what the protocol fixes."""
        facts = self.facts
        generation, lanes = facts.link_generation, facts.link_lanes
        rate, source = None, "NVML does not tell generation and width of the link"
        if generation and lanes:
            try:
                rate = packet_link_rate(generation, lanes)
                source = f"PCIe {generation}.0 x{lanes} as NVML reports it, after line coding"
            except UnknownLinkError as unknown:
                source = str(unknown)
        self._set("link.raw_rate", rate, source)
        self._set("link.header", HEADER_BYTES, HEADER_SOURCE)
        self._set("link.framing", FRAMING_BYTES, HEADER_SOURCE)
        source = "Max_Payload_Size of the GPU's Device Control register"
        if not facts.max_payload:
            source = "the GPU's PCI configuration cannot be read here (it takes root)"
        self._set("link.max_payload", facts.max_payload, source)
        self._set("gpu.memory", facts.gpu_memory_bytes, "as the CUDA driver reports it")
        self._set("node.gpus", facts.gpus, "as the CUDA driver reports it")
        ports, source = None, "not measured: which GPUs share a port needs copies to all"
        if facts.gpus == 1:
            ports, source = facts.gpus, "CUDA sees one GPU here"
        self._set("node.root_ports", ports, source)

    def _reads(self) -> None:
        trips = self._of("round_trip")
        if trips:
            # Over a larger span it would hold translations of addresses, see read.page_visits.
            point = min(trips, key=lambda p: p.span_bytes)
            what = f"pointer chase over {point.span_bytes / 2**30:g} GiB"
            self._measured("link.round_trip", trips[point].each(), what)
        roofs = {span: self._found[p] for span, p in best_reads(self._found).items()}
        if roofs:
            self._curve("read.roof", roofs, "contiguous reads, the best of several grids")

    def _dllp_share(self) -> None:
        """What the copy engine does not reach of the link's rate for payloads of the usual size."""
        profile = self.profile
        raw, payload = profile["link.raw_rate"].value, profile["link.max_payload"].value
        copied = profile["copy.to_device"].value
        share, why = None, "needs link.raw_rate, link.max_payload and copy.to_device"
        if raw is not None and payload is not None and copied is not None:
            share = 1 - copied * (payload + HEADER_BYTES + FRAMING_BYTES) / payload / raw
            why = "derived: what the copy engine leaves of the link's rate; an upper bound"
            if share < 0:
                share, why = None, f"the copy engine is faster than a link of {raw:.4g} B/s can be"
        self._set("link.dllp_share", share, why)

    def _requests(self) -> None:
        gathers = {p: m for p, m in self._of("gpu_gather").items() if p.grid_percent == 0}
        if not gathers:
            return
        narrow = {p.span_bytes: m for p, m in gathers.items() if p.row_bytes == NARROWEST}
        least = min(p.span_bytes for p in gathers)
        gathers = {p: m for p, m in gathers.items() if p.span_bytes == least}
        narrowest = narrow[least].median / NARROWEST if least in narrow else None
        found = fit_requests(self.profile, gathers, narrowest)
        what = (
            f"fitted by gatherbench calibrate on {self.facts.slug} to {len(gathers)} row widths,"
            f" which the model then misses by {found.misfit:.1%} (root mean square)"
        )
        for key, value in ((SIZE_KEY, found.size), (TAGS_KEY, found.tags)):
            self._set(key, *((None, value) if isinstance(value, str) else (value, what)))
        visits = {span: m.times(1 / NARROWEST) for span, m in narrow.items()}
        what = f"random rows of {NARROWEST} B, each taken to lie on another page"
        self._curve(VISITS_KEY, visits, what)

    def _managed(self) -> None:
        narrow = {
            p.span_bytes: m.times(1 / MANAGED_ROW_BYTES)
            for p, m in self._of("managed_gather").items()
            if p.row_bytes == MANAGED_ROW_BYTES
        }
        if narrow:
            what = f"random rows of {MANAGED_ROW_BYTES} B, each taken to lie on another page"
            self._curve(MANAGED_VISITS_KEY, narrow, what)

    def _measured(self, key: str, measured: Measured, what: str) -> None:
        self._set(key, measured.median, self._source(what, measured.count, measured.spread))

    def _curve(self, key: str, found: Mapping[int, Measured], what: str) -> None:
        points = sorted(found.items())
        widest = max((m for _, m in points), key=lambda m: (m.high - m.low) / m.median)
        count = sum(m.count for _, m in points)
        value = tuple((float(at), _rounded(m.median)) for at, m in points)
        self._set(key, value, self._source(what, count, f"widest {widest.spread}"))

    def _source(self, what: str, count: int, spread: str) -> str:
        by = f"measured by gatherbench calibrate on {self.facts.slug}"
        return f"{by}, {count} samples, {spread}" + (f"; {what}" if what else "")

    def _set(self, key: str, value: Value, source: str) -> None:
        """A value replaces what the base says; the reason for having none only another reason."""
        if value is None and key not in self.profile.unknown():
            return
        if isinstance(value, (int, float)):
            value = _rounded(value)
        try:
            self.profile = self.profile.with_constant(key, value, source)
        except ProfileError as refused:
            self.profile = self.profile.with_constant(key, None, f"not believed: {refused}")

    def _of(self, case: str) -> dict[Point, Measured]:
        return {p: m for p, m in self._found.items() if p.case == case}


def _rounded(value: float) -> float:
    """Five significant digits: more were not measured."""
    return float(f"{value:.5g}")

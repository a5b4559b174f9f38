"""From samples to a profile: each constant is a median with its spread, or says why there is none.

Two constants cannot be timed and are fitted, see ``requests.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gatherbench.bench.machine.pcie import UnknownLinkError, packet_link_rate
from gatherbench.bench.model.profile import LinkProfile, ProfileError, Value
from gatherbench.bench.probe.calibrate.check import Measured
from gatherbench.bench.probe.calibrate.machine import MachineFacts
from gatherbench.bench.probe.calibrate.points import NARROWEST, Kind, Point
from gatherbench.bench.probe.calibrate.requests import SIZE_KEY, TAGS_KEY, VISITS_KEY, fit_requests

#: Header and framing of a packet are the protocol's, not the machine's.
HEADER_BYTES, FRAMING_BYTES = 12.0, 8.0
HEADER_SOURCE = "pcie-bench model: Neugebauer et al., SIGCOMM 2018"


def blank_profile(facts: MachineFacts) -> LinkProfile:
    """A profile of this machine in which nothing is known yet."""
    why = "not measured" if facts.has_gpu else "no_device: calibrated without a GPU"
    return LinkProfile.blank(facts.slug, facts.description, why)


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
        if self.facts.has_gpu:
            self._known_of_the_machine()
            self._link()
            self._gpu()
        return self.profile

    def _host(self) -> None:
        cores = self.facts.cores
        self._set("host.cores", cores, "cores that the process may use")
        copies = {p: _scaled(m, 2) for p, m in self._of("host_copy").items()}
        fastest = {**copies, **self._of("host_read")}
        if fastest:
            point = max(fastest, key=lambda p: fastest[p].median)
            what = "a copy, read and written" if point.kind == "host_copy" else "a read"
            self._measured("host.memory_rate", fastest[point], f"{what}, threads: {point.threads}")
        gathers = {
            p.row_bytes: _scaled(m, 1 / cores)
            for p, m in self._of("host_gather").items()
            if p.threads == cores
        }
        if gathers:
            self._curve(
                "host.gather_rate", gathers, f"random rows on {cores} cores, a core's share"
            )
        for point, measured in self._of("host_sample").items():
            if point.threads == cores:
                what = "edges of fan-out 25, 10 on an RMAT graph of 1 M nodes and 25 M edges"
                self._measured("host.sample_rate", measured, what)
                self._set("host.sample_cores", cores, "the sampler was given every core")

    def _known_of_the_machine(self) -> None:
        facts = self.facts
        generation, lanes = facts.link_generation, facts.link_lanes
        if generation and lanes:
            try:
                rate: float | None = packet_link_rate(generation, lanes)
                source = f"PCIe {generation}.0 x{lanes} as NVML reports it, after line coding"
            except UnknownLinkError as unknown:
                rate, source = None, str(unknown)
        else:
            rate, source = None, "NVML does not tell generation and width of the link"
        self._set("link.raw_rate", rate, source)
        self._set("link.header", HEADER_BYTES, HEADER_SOURCE)
        self._set("link.framing", FRAMING_BYTES, HEADER_SOURCE)
        self._set(
            "link.max_payload",
            facts.max_payload,
            "Max_Payload_Size of the GPU's Device Control register"
            if facts.max_payload
            else "the GPU's PCI configuration cannot be read here (it takes root)",
        )
        self._set("gpu.memory", facts.gpu_memory_bytes, "as the CUDA driver reports it")
        self._set("node.gpus", facts.gpus, "as the CUDA driver reports it")
        one = facts.gpus == 1
        self._set(
            "node.root_ports",
            1.0 if one else None,
            "CUDA sees one GPU here"
            if one
            else "not measured: which GPUs share a port needs copies to all",
        )

    def _link(self) -> None:
        self._only("copy.to_device", "copy_to_device")
        self._only("copy.to_host", "copy_to_host")
        self._only("copy.pageable", "copy_pageable", what="rows of 512 B, table[ids].to(device)")
        self._dllp_share()
        trips = self._of("round_trip")
        if trips:
            # Over a larger span it would hold translations of addresses, see read.page_visits.
            point = min(trips, key=lambda p: p.span_bytes)
            trip = _inverted(trips[point])
            self._measured(
                "link.round_trip", trip, f"pointer chase over {point.span_bytes / 2**30:g} GiB"
            )
        roofs: dict[int, Measured] = {}
        for point, measured in self._of("sm_read").items():
            best = roofs.get(point.span_bytes)
            if best is None or measured.median > best.median:
                roofs[point.span_bytes] = measured
        if roofs:
            self._curve("read.roof", roofs, "contiguous reads, the best of several grids")
        self._requests()

    def _dllp_share(self) -> None:
        """What the copy engine does not reach of the link's rate for payloads of the usual size."""
        profile = self.profile
        raw, payload = profile.link.raw_rate.value, profile.link.max_payload.value
        copied = profile.copy.to_device.value
        if raw is None or payload is None or copied is None:
            why = "needs link.raw_rate, link.max_payload and copy.to_device"
            self._set("link.dllp_share", None, why)
            return
        share = 1 - copied * (payload + HEADER_BYTES + FRAMING_BYTES) / payload / raw
        if share < 0:
            why = f"the copy engine is faster than a link of {raw:.4g} B/s can be"
            self._set("link.dllp_share", None, why)
        else:
            what = "derived: what the copy engine leaves of the link's rate; an upper bound"
            self._set("link.dllp_share", share, what)

    def _requests(self) -> None:
        gathers = {p: m for p, m in self._of("gpu_gather").items() if p.share == 0}
        if not gathers:
            return
        narrow = {p.span_bytes: m for p, m in gathers.items() if p.row_bytes == NARROWEST}
        least = min(p.span_bytes for p in gathers)
        gathers = {p: m for p, m in gathers.items() if p.span_bytes == least}
        found = fit_requests(self.profile, gathers)
        what = (
            f"fitted by gatherbench calibrate on {self.facts.slug} to {len(gathers)} row widths,"
            f" which the model then misses by {found.misfit:.1%} (root mean square)"
        )
        self._set(SIZE_KEY, found.size, found.why_no_size or what)
        self._set(TAGS_KEY, found.tags, found.why_no_tags or what)
        visits = {span: _scaled(m, 1 / NARROWEST) for span, m in narrow.items()}
        what = f"random rows of {NARROWEST} B, each taken to lie on another page"
        self._curve(VISITS_KEY, visits, what)

    def _gpu(self) -> None:
        for measured in self._of("gpu_copy").values():
            self._measured("gpu.memory_rate", _scaled(measured, 2), "a copy, read and written")
        self._only("gpu.flops", "gpu_matmul", what="product of two matrices, 8192 wide, no TF32")
        self._only("gpu.launch", "gpu_launch", _inverted, "forward and backward of a small chain")
        self._only("gpu.submit", "gpu_submit", _inverted, "ids to the GPU and the gather's launch")

    def _only(
        self,
        key: str,
        kind: Kind,
        change: Callable[[Measured], Measured] = lambda m: m,
        what: str = "",
    ) -> None:
        for measured in self._of(kind).values():
            self._measured(key, change(measured), what)

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

    def _of(self, kind: Kind) -> dict[Point, Measured]:
        return {p: m for p, m in self._found.items() if p.kind == kind}


def _scaled(m: Measured, factor: float) -> Measured:
    return Measured(factor * m.median, factor * m.low, factor * m.high, m.count)


def _inverted(m: Measured) -> Measured:
    """Seconds for each instead of so many a second."""
    return Measured(1 / m.median, 1 / m.high, 1 / m.low, m.count)


def _rounded(value: float) -> float:
    """Five significant digits: more were not measured."""
    return float(f"{value:.5g}")

"""How long each part of a minibatch takes alone, from its load and a profile's constants.

Every time is the slowest of several limits: bytes on the link with their headers, requests in
flight over the round trip (Little's law), the rates at which multiprocessors were seen to read and
to change pages, cores, host memory, reads and bytes of a disk. The limit that holds is the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.profile import LinkProfile

#: Reads of fewer bytes on average come a lane an element, or from rows as narrow: how many are in
#: flight decides what they get of the link.
SMALL_READ = 64


@dataclass(frozen=True, slots=True)
class Part:
    """One activity of a minibatch, alone on the machine, or one limit of it."""

    seconds: float  # NaN where a constant that it needs is not known
    bound: str = "unknown"  # the limit that sets its length, in words
    unknown: tuple[str, ...] = ()  # with NaN what is not known, and why: ``gpu.launch: …``
    remarks: tuple[str, ...] = ()  # what the time leaves out

    @property
    def known(self) -> bool:
        return not math.isnan(self.seconds)


def unknown(*why: str) -> Part:
    """A time of which these are not known."""
    return Part(math.nan, unknown=why)


def at_rate(bound: str, amount: float, profile: LinkProfile, key: str, at: float = 0.0) -> Part:
    """An amount at a rate of the profile."""
    return Part(amount / profile.number(key, at), bound, profile.why(key))


def slowest(*limits: Part) -> Part:
    """The longest of several lower bounds of one time; unknown ones are left out with a remark."""
    known = [one for one in limits if one.known]
    missing = merged(one.unknown for one in limits)
    if not known:
        return unknown(*missing)
    left_out = (f"a limit is not known and left out: {text}" for text in missing)
    longest = max(known, key=lambda one: one.seconds)
    return replace(longest, unknown=(), remarks=merged([longest.remarks, left_out]))


def all_known(*limits: Part) -> Part:
    """:func:`slowest` of limits none of which may be left out."""
    missing = merged(one.unknown for one in limits if not one.known)
    return unknown(*missing) if missing else slowest(*limits)


def in_turn(*parts: Part) -> Part:
    """Activities one after the other; bound by what bounds the longest."""
    texts = [merged(getattr(one, name) for one in parts) for name in ("unknown", "remarks")]
    longest = max(parts, key=lambda one: one.seconds)
    return Part(sum(one.seconds for one in parts), longest.bound, *texts)


def merged(groups: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Each text once."""
    return tuple(dict.fromkeys(text for group in groups for text in group))


def split_requests(requests: Mapping[int, float], largest: float) -> dict[float, float]:
    """The requests with those above ``largest`` bytes cut into pieces, from their beginning."""
    pieces: dict[float, float] = {}
    for size, count in requests.items():
        whole, rest = divmod(size, largest)
        for piece, times in ((largest, whole), (rest, 1 if rest else 0)):
            if times:
                pieces[piece] = pieces.get(piece, 0.0) + count * times
    return pieces


def link_time(requests: Mapping[float, float], profile: LinkProfile) -> Part:
    """How long the completions of these reads (size in bytes → count) occupy the link.

    A completion of P bytes takes P + header + framing of the link (12 + 8 B; Neugebauer et al.,
    SIGCOMM 2018); a read above the maximum payload is answered by several.
    """
    names = [f"link.{n}" for n in ("raw_rate", "dllp_share", "header", "framing", "max_payload")]
    if missing := profile.why(*names):
        return unknown(*missing)
    raw, dllp, header, framing, payload = map(profile.number, names)
    wire = sum(
        count * (size + math.ceil(size / payload) * (header + framing))
        for size, count in requests.items()
    )
    return Part(wire / (raw * (1 - dllp)), "link")


def gpu_reads(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """Multiprocessors read rows in host memory.

    Small reads are not predicted from the link alone: they would come out far too fast.
    """
    if load.gpu_requests is None:
        return unknown("requests on the link: not accounted for this path")
    largest = profile["link.max_request"].value or math.inf
    requests = split_requests(load.gpu_requests, largest)
    asked, count = sum(load.gpu_requests.values()), sum(requests.values())
    read_bytes = sum(size * n for size, n in requests.items())
    tags = ("link.round_trip", "link.outstanding_reads")
    in_flight = count * profile.number(tags[0]) / profile.number(tags[1])
    by_requests = Part(in_flight, "requests in flight", profile.why(*tags))
    pages = in_turn(
        _visits(load.gpu_page_visits, "read.page_visits", load, profile),
        _visits(load.managed_page_visits, "read.managed_page_visits", load, profile),
    )
    if read_bytes < SMALL_READ * asked and not by_requests.known and not pages.known:
        why = f"reads of {read_bytes / asked:.0f} B on average, bound by how many are in flight"
        return unknown(*(f"{why} ({one})" for one in by_requests.unknown))
    name, span = "reads by multiprocessors", load.table_bytes
    limits = [link_time(requests, profile), by_requests]
    limits += [at_rate(name, read_bytes, profile, "read.roof", span), pages]
    if load.gpus > 1 and read_bytes:  # alone the link is always narrower
        memory = load.gpus * read_bytes
        limits.append(at_rate("host memory", memory, profile, "host.memory_rate"))
    part = slowest(*limits)
    return replace(part, seconds=part.seconds + load.handover_s)


def _visits(visits: float | None, key: str, load: MinibatchLoad, profile: LinkProfile) -> Part:
    """The GPU goes from page to page in one kind of memory."""
    if visits is None:
        return unknown("page visits: not counted")
    if not visits:
        return Part(0.0, "page visits")
    return at_rate("page visits", visits, profile, key, load.table_bytes)


#: Rates over the size of the table that is read in place, and the field that counts of what.
SPANNED = {
    "read.roof": "gpu_link_read_bytes",
    "read.page_visits": "gpu_page_visits",
    "read.managed_page_visits": "managed_page_visits",
}


def beyond(load: MinibatchLoad, profile: LinkProfile) -> dict[str, float]:
    """Rates that the load's reads are predicted with, of a table larger than they are known of.

    Key → the bytes up to which the rate is known; beyond, that of the largest table stands in.
    """
    needed = {key: profile[key].reach for key, name in SPANNED.items() if getattr(load, name)}
    return {key: reach for key, reach in needed.items() if reach and load.table_bytes > reach}


def engine_copy(num_bytes: float, profile: LinkProfile, copies: float = 0.0) -> Part:
    """The copy engine carries page-locked host memory to the GPU, rows in so many ``copies``.

    What a copy of a batch costs is not known beforehand: without it nothing is predicted.
    """
    payload = profile.number("link.max_payload")
    carried = slowest(
        link_time({payload: num_bytes / payload}, profile),
        at_rate("copy engine", num_bytes, profile, "copy.to_device"),
    )
    if not copies:
        return carried
    return all_known(carried, at_rate("copy engine (copies)", copies, profile, "copy.batched"))


def disk_read(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """Rows come off the disk into host memory, whole blocks, many reads in flight.

    What the processor does for each read is left out.
    """
    if load.disk_bytes is None or load.disk_requests is None:
        why = "what is read off the disk: the page cache decides that, and nobody counts it before"
        return unknown(why)
    depth = min(load.disk_depth, max(1.0, load.disk_requests))
    requests, num_bytes = load.gpus * load.disk_requests, load.gpus * load.disk_bytes
    reads = at_rate("disk (reads a second)", requests, profile, "disk.iops", depth)
    long_reads = at_rate("disk (bytes)", num_bytes, profile, "disk.bandwidth")
    return slowest(reads, long_reads) if reads.known else unknown(*reads.unknown)


def cpu_gather(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """The CPU gathers rows into reused staging memory, for each GPU on all cores.

    Fewer cores are as much slower as was seen, in proportion where that is not known.
    """
    cores, threads = profile["host.cores"].value, load.gather_threads
    if threads:
        cores = cores or threads
        cores *= profile["host.gather_scaling"].at(threads) or min(1.0, threads / cores)
    rate = profile.number("host.gather_rate", load.row_bytes or math.inf)
    missing = profile.why("host.gather_rate", *([] if cores else ["host.cores"]))
    seconds = load.gpus * load.cpu_write_bytes / (rate * (cores or math.nan))
    moved = load.cpu_read_bytes + load.cpu_write_bytes
    return _on_cpu(Part(seconds, "cpu", missing), moved, load, profile)


def staged_copy(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """The CPU gathers into fresh pageable memory, which the driver stages and copies.

    The copy engine follows chunk by chunk. Faults of fresh pages and the staging hold one thread
    up and not every core: GPUs share the memory alone.
    """
    staged = 2 * load.pageable_bytes  # read and written once more by the driver
    moved = load.cpu_read_bytes + load.cpu_write_bytes + staged + load.copy_engine_bytes
    by_cpu = at_rate("cpu", load.pageable_bytes, profile, "copy.pageable")
    gather = _on_cpu(by_cpu, moved, load, profile)
    return all_known(gather, engine_copy(load.copy_engine_bytes, profile))


def _on_cpu(cores: Part, moved: float, load: MinibatchLoad, profile: LinkProfile) -> Part:
    """Work of the cores that moves so many bytes in the memory that all GPUs share."""
    memory = at_rate("host memory", load.gpus * moved, profile, "host.memory_rate")
    return slowest(cores, memory) if cores.known else cores


def local_gather(num_bytes: float, resident_bytes: float, profile: LinkProfile) -> Part:
    """Rows are read and written in the GPU's own memory, which has to hold ``resident_bytes``."""
    room = profile["gpu.memory"].value
    if room is not None and resident_bytes > room:
        fit = f"{resident_bytes / 1e9:.1f} GB do not fit into {room / 1e9:.1f} GB of GPU memory"
        return Part(math.nan, "GPU memory", unknown=(fit,))
    return at_rate("GPU memory", 2 * num_bytes, profile, "gpu.memory_rate")


def sampling(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """The GPU draws a layer after the other; programs on the host draw no faster than its cores."""
    bound = "GPU (sampling)" if load.gpu_samples else "cpu (sampling)"
    if load.sample_s is not None:
        return Part(load.sample_s, bound)
    if load.gpu_samples:
        draws = load.layers * profile.number("gpu.draw")
        return Part(draws, bound, profile.why("gpu.draw"))
    part = at_rate(bound, load.sampled_edges, profile, "host.sample_rate")
    busy, cores = profile["host.sample_cores"].value, profile["host.cores"].value
    share = busy / cores if busy and cores else 1.0
    rate, source = profile.number("host.sample_rate"), profile["host.sample_rate"].source
    remark = f"minibatches drawn at {rate / 1e6:.3g} M edges/s, which all share ({source})"
    return replace(part, seconds=part.seconds * max(1.0, load.gpus * share), remarks=(remark,))


def training(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """A training step on the GPU: a roofline of operations and bytes, or a launch after the other.

    Edges in host memory are copied first. What issuing the step takes the host is apart
    (:func:`issuing`).
    """
    if load.train_s is not None:
        return Part(load.train_s, "training (measured)")
    cost = load.training
    launched = cost.launches * profile.number("gpu.launch")
    limits = [
        at_rate("GPU operations", cost.operations, profile, "gpu.flops"),
        at_rate("GPU memory", cost.memory_bytes, profile, "gpu.memory_rate"),
        Part(launched, "kernel launches", profile.why("gpu.launch")),
    ]
    step = all_known(*limits)
    if not step.known:
        return step
    if issuing(load, profile) > step.seconds:
        step = replace(step, bound="kernel launches")
    step = replace(step, bound=f"training ({step.bound})")
    if load.gpu_samples:
        return step
    return in_turn(step, replace(engine_copy(cost.structure_bytes, profile), bound=step.bound))


def issuing(load: MinibatchLoad, profile: LinkProfile) -> float:
    """Seconds in which the host issues a step; 0 where it is not known.

    An operation takes longer in a step than in a chain, which stands in where no step was timed.
    """
    each = profile["gpu.issue"].value or profile["gpu.launch"].value or 0.0
    return each * load.training.launches

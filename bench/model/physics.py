"""Compute the time of each part of a minibatch alone, from its load and a profile's constants.

The load comes from what a case declares, never from a strategy's name. A time is the slowest of
several limits: bytes on the link with their headers, requests in flight over the round trip
(Little's law), the measured rates at which multiprocessors read and change pages, cores, host
memory, reads and bytes of a disk. The slowest limit is the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.run.training_cost import TrainingCost
from gatherbench.strategies.data_path import DataPath

_NO_TRAINING = TrainingCost(0, 0, 0, 0)
#: Reads in flight at a disk at most, of a path that does not say.
DISK_DEPTH = 128
#: Reads of fewer bytes on average come from one element a lane, or from rows as narrow: the number
#: in flight decides their rate on the link.
SMALL_READ = 64


@dataclass(frozen=True, slots=True)
class MinibatchLoad:
    """An average minibatch of an epoch; fields to ``managed_page_visits`` are a ``DataPath``'s."""

    payload_bytes: float
    cpu_read_bytes: float = 0.0
    cpu_write_bytes: float = 0.0
    copy_engine_bytes: float = 0.0
    engine_row_bytes: float = 0.0
    engine_copies: float = 0.0
    pageable_bytes: float = 0.0
    gpu_link_read_bytes: float = 0.0
    disk_payload_bytes: float = 0.0
    disk_bytes: float | None = 0.0
    disk_requests: float | None = 0.0
    gpu_requests: Mapping[int, float] | None = None
    gpu_page_visits: float | None = None
    managed_page_visits: float | None = 0.0
    disk_depth: int = DISK_DEPTH  # reads that the path keeps in flight at most
    table_bytes: float = 0.0  # span of the feature table
    gpu_table_bytes: float = 0.0  # the part of it in GPU memory
    row_bytes: float = 0.0  # of one feature row; 0: unknown, so wide rows are assumed
    lookahead: int = 0  # minibatches that are prefetched
    gpu_share: float = 0.0  # of multiprocessors, which an overlapped gather takes from training
    sampled_edges: float = 0.0
    layers: int = 0
    gpu_samples: bool = False  # the GPU draws minibatches
    training: TrainingCost = _NO_TRAINING
    handover_s: float = 0.0  # time of each transfer waiting for another process, link idle
    sample_s: float | None = None  # measured; if given, these replace the model's times
    train_s: float | None = None
    gpus: int = 1  # of the machine, each with this load; they share CPU, memory and disk
    remarks: tuple[str, ...] = ()  # sources of these values

    @property
    def copied_bytes(self) -> float:
        """Bytes of rows that the copy engine carries: from the table, or written by the CPU.

        If it carries less than the CPU wrote, multiprocessors read the written rows.
        """
        written = self.copy_engine_bytes >= self.cpu_write_bytes
        return self.engine_row_bytes + (self.cpu_write_bytes if written else 0.0)

    @property
    def brought_bytes(self) -> float:
        """Bytes of feature rows over the link."""
        return self.gpu_link_read_bytes + self.copied_bytes

    @property
    def kept_bytes(self) -> float:
        """Bytes of feature rows that are in this GPU's memory before the minibatch."""
        return max(0.0, self.payload_bytes - self.brought_bytes)


def load_of(path: DataPath, share: float = 1.0, **facts: Any) -> MinibatchLoad:
    """Return ``share`` of ``path``, which is the sum of all; ``facts``: the load's other fields."""
    mean: dict[str, Any] = {f.name: getattr(path, f.name) for f in fields(DataPath)}
    requests, gpu_share = mean.pop("gpu_requests"), mean.pop("gpu_share")
    del mean["gpu_memory_bytes"], mean["peer_bytes"]
    mean = {name: None if value is None else share * value for name, value in mean.items()}
    if requests is not None:
        mean["gpu_requests"] = {size: share * count for size, count in requests.items()}
    return MinibatchLoad(**mean, gpu_share=gpu_share, **facts)


@dataclass(frozen=True, slots=True)
class Part:
    """The time of one activity of a minibatch, alone on the machine, or of one limit of it."""

    seconds: float  # NaN if a constant that it needs is unknown
    bound: str = "unknown"  # the limit that sets the time, in words
    unknown: tuple[str, ...] = ()  # unknown constants of a NaN, and why: ``gpu.launch: …``
    remarks: tuple[str, ...] = ()  # what the time leaves out

    @property
    def known(self) -> bool:
        return not math.isnan(self.seconds)


def at_rate(bound: str, amount: float, profile: LinkProfile, key: str, at: float = 0.0) -> Part:
    """Return the time of an amount at a rate of the profile."""
    return Part(amount / profile.number(key, at), bound, profile.why(key))


def slowest(*limits: Part, all_known: bool = False) -> Part:
    """Return the longest of several lower bounds of one time, and a remark for each unknown one.

    Without a known one the time is unknown; with ``all_known``, if any is unknown.
    """
    known = [limit for limit in limits if limit.known]
    missing = merged(limit.unknown for limit in limits)
    if not known or (all_known and len(known) < len(limits)):
        return Part(math.nan, unknown=missing)
    left_out = (f"not modelled: {text}" for text in missing)
    longest = max(known, key=lambda limit: limit.seconds)
    return replace(longest, unknown=(), remarks=merged([longest.remarks, left_out]))


def in_turn(*parts: Part) -> Part:
    """Return the time of activities one after the other, with the bound of the longest."""
    texts = [merged(getattr(part, name) for part in parts) for name in ("unknown", "remarks")]
    longest = max(parts, key=lambda part: part.seconds)
    return Part(sum(part.seconds for part in parts), longest.bound, *texts)


def merged(groups: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Return each text once."""
    return tuple(dict.fromkeys(text for group in groups for text in group))


def split_requests(requests: Mapping[int, float], largest: float) -> dict[float, float]:
    """Cut requests above ``largest`` bytes into pieces, from their beginning."""
    pieces: dict[float, float] = {}
    for size, count in requests.items():
        whole, rest = divmod(size, largest)
        for piece, times in ((largest, whole), (rest, 1 if rest else 0)):
            if times:
                pieces[piece] = pieces.get(piece, 0.0) + count * times
    return pieces


def link_time(requests: Mapping[float, float], profile: LinkProfile) -> Part:
    """Return how long the completions of these reads (size in bytes → count) occupy the link.

    A completion of P bytes takes P + header + framing of the link (12 + 8 B; Neugebauer et al.,
    SIGCOMM 2018); a read above the maximum payload is answered by several.
    """
    names = [f"link.{n}" for n in ("raw_rate", "dllp_share", "header", "framing", "max_payload")]
    if missing := profile.why(*names):
        return Part(math.nan, unknown=missing)
    raw, dllp, header, framing, payload = map(profile.number, names)
    wire = sum(
        count * (size + math.ceil(size / payload) * (header + framing))
        for size, count in requests.items()
    )
    return Part(wire / (raw * (1 - dllp)), "link")


def gpu_reads(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """Return the time in which multiprocessors read rows in host memory.

    The time of small reads is unknown from the link alone, which would make them far too fast.
    """
    if load.gpu_requests is None:
        why = "requests on the link: not accounted for this path"
        return Part(math.nan, unknown=(why,))
    largest = profile.number("link.max_request", otherwise=math.inf)
    requests = split_requests(load.gpu_requests, largest)
    requested, count = sum(load.gpu_requests.values()), sum(requests.values())
    read_bytes = sum(size * n for size, n in requests.items())
    tags = ("link.round_trip", "link.outstanding_reads")
    in_flight = count * profile.number(tags[0]) / profile.number(tags[1])
    by_requests = Part(in_flight, "requests in flight", profile.why(*tags))
    pages = in_turn(
        _visits(load.gpu_page_visits, "read.page_visits", load, profile),
        _visits(load.managed_page_visits, "read.managed_page_visits", load, profile),
    )
    if read_bytes < SMALL_READ * requested and not by_requests.known and not pages.known:
        why = f"reads of {read_bytes / requested:.0f} B on average, bound by how many are in flight"
        reasons = tuple(f"{why} ({text})" for text in by_requests.unknown)
        return Part(math.nan, unknown=reasons)
    name, span = "reads by multiprocessors", load.table_bytes
    limits = [link_time(requests, profile), by_requests]
    limits += [at_rate(name, read_bytes, profile, "read.roof", span), pages]
    if load.gpus > 1 and read_bytes:  # for one GPU the link is always slower
        memory = load.gpus * read_bytes
        limits.append(at_rate("host memory", memory, profile, "host.memory_rate"))
    part = slowest(*limits)
    return replace(part, seconds=part.seconds + load.handover_s)


def _visits(visits: float | None, key: str, load: MinibatchLoad, profile: LinkProfile) -> Part:
    """Return the time in which the GPU goes from page to page in one kind of memory."""
    if visits is None:
        return Part(math.nan, unknown=("page visits: not counted",))
    if not visits:
        return Part(0.0, "page visits")
    return at_rate("page visits", visits, profile, key, load.table_bytes)


#: Rates that depend on the size of the table, and the fields with the amounts for them.
_SPANNED = {
    "read.roof": "gpu_link_read_bytes",
    "read.page_visits": "gpu_page_visits",
    "read.managed_page_visits": "managed_page_visits",
}


def beyond(load: MinibatchLoad, profile: LinkProfile) -> dict[str, float]:
    """Return the rates for the load's reads that are unknown for so large a table.

    Key → the bytes up to which the rate is known; above, the rate of the largest table is used.
    """
    rates = {key: profile[key].value for key, name in _SPANNED.items() if getattr(load, name)}
    reach = {key: value[-1][0] for key, value in rates.items() if isinstance(value, tuple)}
    return {key: most for key, most in reach.items() if load.table_bytes > most}


def engine_copy(num_bytes: float, profile: LinkProfile, copies: float = 0.0) -> Part:
    """Return the time in which the copy engine carries page-locked memory to the GPU.

    Rows take ``copies`` copies of a batch; without the profile's cost of one the time is unknown.
    """
    payload = profile.number("link.max_payload")
    carried = slowest(
        link_time({payload: num_bytes / payload}, profile),
        at_rate("copy engine", num_bytes, profile, "copy.to_device"),
    )
    if not copies:
        return carried
    each = at_rate("copy engine (copies)", copies, profile, "copy.batched")
    return slowest(carried, each, all_known=True)


def disk_read(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """Return the time in which rows come off the disk, in whole blocks, many reads in flight.

    The processor's work for each read is left out.
    """
    if load.disk_bytes is None or load.disk_requests is None:
        why = "what is read off the disk: the page cache decides that, and nobody counts it before"
        return Part(math.nan, unknown=(why,))
    depth = min(load.disk_depth, max(1.0, load.disk_requests))
    requests, num_bytes = load.gpus * load.disk_requests, load.gpus * load.disk_bytes
    reads = at_rate("disk (reads a second)", requests, profile, "disk.iops", depth)
    long_reads = at_rate("disk (bytes)", num_bytes, profile, "disk.bandwidth")
    return slowest(reads, long_reads) if reads.known else reads


def cpu_gather(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """Return the time in which all cores gather rows into a reused staging buffer for each GPU."""
    cores, keys = profile.number("host.cores"), ("host.gather_rate", "host.cores")
    rate = profile.number("host.gather_rate", load.row_bytes or math.inf)
    seconds, missing = load.gpus * load.cpu_write_bytes / (rate * cores), profile.why(*keys)
    moved = load.cpu_read_bytes + load.cpu_write_bytes
    return _on_cpu(Part(seconds, "cpu", missing), moved, load, profile)


def staged_copy(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """Return the time of a gather into new pageable memory, which the driver stages and copies.

    The copy engine follows chunk by chunk. Page faults of new memory and the staging occupy one
    thread rather than every core, so GPUs share only the memory.
    """
    staged = 2 * load.pageable_bytes  # the driver reads and writes again
    moved = load.cpu_read_bytes + load.cpu_write_bytes + staged + load.copy_engine_bytes
    by_cpu = at_rate("cpu", load.pageable_bytes, profile, "copy.pageable")
    gather = _on_cpu(by_cpu, moved, load, profile)
    return slowest(gather, engine_copy(load.copy_engine_bytes, profile), all_known=True)


def _on_cpu(cores: Part, moved: float, load: MinibatchLoad, profile: LinkProfile) -> Part:
    """Return the time of the cores' work that moves bytes in the memory that all GPUs share."""
    memory = at_rate("host memory", load.gpus * moved, profile, "host.memory_rate")
    return slowest(cores, memory) if cores.known else cores


def local_gather(num_bytes: float, resident_bytes: float, profile: LinkProfile) -> Part:
    """Return the time of reading and writing rows in GPU memory, which holds ``resident_bytes``."""
    room = profile.number("gpu.memory")
    if resident_bytes > room:
        fit = f"{resident_bytes / 1e9:.1f} GB do not fit into {room / 1e9:.1f} GB of GPU memory"
        return Part(math.nan, "GPU memory", unknown=(fit,))
    return at_rate("GPU memory", 2 * num_bytes, profile, "gpu.memory_rate")


def sampling(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """Return the time to draw a minibatch: on the GPU layer by layer, on the host by its cores."""
    bound = "GPU (sampling)" if load.gpu_samples else "cpu (sampling)"
    if load.sample_s is not None:
        return Part(load.sample_s, bound)
    if load.gpu_samples:
        draws = load.layers * profile.number("gpu.draw")
        return Part(draws, bound, profile.why("gpu.draw"))
    part = at_rate(bound, load.sampled_edges, profile, "host.sample_rate")
    share = profile.number("host.sample_cores") / profile.number("host.cores")
    share = 1.0 if math.isnan(share) else share
    rate, source = profile.number("host.sample_rate"), profile["host.sample_rate"].source
    remark = f"minibatches drawn at {rate / 1e6:.3g} M edges/s, which all share ({source})"
    return replace(part, seconds=part.seconds * max(1.0, load.gpus * share), remarks=(remark,))


def training(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """Return the time of a training step on the GPU: the most of operations, bytes and launches.

    Edges in host memory are copied first. The host's time for issuing the step is separate
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
    step = slowest(*limits, all_known=True)
    if not step.known:
        return step
    if issuing(load, profile) > step.seconds:
        step = replace(step, bound="kernel launches")
    step = replace(step, bound=f"training ({step.bound})")
    if load.gpu_samples:
        return step
    return in_turn(step, replace(engine_copy(cost.structure_bytes, profile), bound=step.bound))


def issuing(load: MinibatchLoad, profile: LinkProfile) -> float:
    """Return the seconds in which the host issues a step; 0 if unknown.

    An operation takes longer in a step than in a chain, whose time is used if no step was timed.
    """
    in_a_chain = profile.number("gpu.launch", otherwise=0.0)
    return profile.number("gpu.issue", otherwise=in_a_chain) * load.training.launches

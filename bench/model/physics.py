"""How long each part of a minibatch takes alone, from its load and a profile's constants.

Every time is the slowest of several limits, each a lower bound of its own: bytes on the link with
their headers, requests in flight over the round trip (Little's law), the rates that multiprocessors
were seen to read and to change pages at, cores, host memory, reads and bytes of a disk. The limit
that holds gives the stage its bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gatherbench.bench.model.estimate import Estimate, combine, slowest
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.profile import LinkProfile

#: Starting a collective of NCCL, s (NVIDIA/nccl, src/graph/tuning.cc: rings, protocol LL).
COLLECTIVE_S = 6.6e-6
#: The thread of the host that draws on the GPU, starts fetches and issues training steps.
ISSUING = "issuing thread"
#: Reads of fewer bytes on average are far smaller than a line of 128 B: they come a lane an
#: element, or from rows as narrow, and how many are in flight decides what they get of the link.
SMALL_READ = 64


@dataclass(frozen=True, slots=True)
class Part:
    """One activity of a minibatch, alone on the machine.

    Attributes:
        seconds: how long it takes.
        bound: the limit that sets its length, in words.
        demands: resource → share of it in use meanwhile (``cpu``, ``host memory``, ``link``,
            ``multiprocessors``, ``peer link``, ``disk``, ``issuing thread``).
    """

    seconds: Estimate
    bound: str
    demands: Mapping[str, float] = field(default_factory=dict)


def split_requests(requests: Mapping[int, float], largest: float) -> dict[float, float]:
    """The requests with those above ``largest`` bytes cut into pieces, from their beginning."""
    pieces: dict[float, float] = {}
    for size, count in requests.items():
        whole, rest = divmod(size, largest)
        for piece, times in ((largest, whole), (rest, 1 if rest else 0)):
            if times:
                pieces[piece] = pieces.get(piece, 0.0) + count * times
    return pieces


def link_time(requests: Mapping[float, float], profile: LinkProfile) -> Estimate:
    """Seconds that the completions of these reads (size in bytes → count) occupy the link.

    A completion of P bytes takes P + header + framing of the link (12 + 8 B; Neugebauer et al.,
    SIGCOMM 2018); a read above the maximum payload is answered by several.
    """

    def seconds(raw: float, dllp: float, header: float, framing: float, payload: float) -> float:
        wire = sum(
            count * (size + math.ceil(size / payload) * (header + framing))
            for size, count in requests.items()
        )
        return wire / (raw * (1 - dllp))

    names = ("raw_rate", "dllp_share", "header", "framing", "max_payload")
    return combine(seconds, *(Estimate.of(profile, f"link.{n}") for n in names))


def gpu_reads(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """Multiprocessors read rows in host memory.

    Small reads are not predicted from the link alone: without a limit to how many a second there
    are, by requests in flight or by pages, they would come out far too fast.
    """
    if load.gpu_requests is None:
        missing = Estimate(None, ("requests on the link: not accounted for this path",))
        return Part(missing, "unknown")
    largest = profile["link.max_request"].value
    requests: dict[float, float] = {float(s): n for s, n in load.gpu_requests.items()}
    if largest is not None:
        requests = split_requests(load.gpu_requests, largest)
    count = sum(requests.values())
    read_bytes = sum(size * n for size, n in requests.items())
    by_link = link_time(requests, profile)
    by_requests = combine(
        lambda trip, tags: count * trip / tags,
        Estimate.of(profile, "link.round_trip"),
        Estimate.of(profile, "link.outstanding_reads"),
    )
    by_roof = _at_rate(read_bytes, profile, "read.roof", load.table_bytes)
    by_pages = _visiting(load.gpu_page_visits, "read.page_visits", load, profile)
    by_pages += _visiting(load.managed_page_visits, "read.managed_page_visits", load, profile)
    asked = sum(load.gpu_requests.values())
    if read_bytes < SMALL_READ * asked and not by_requests.known and not by_pages.known:
        why = f"reads of {read_bytes / asked:.0f} B on average, bound by how many are in flight"
        unknown = tuple(f"{why} ({reason})" for reason in by_requests.unknown)
        return Part(Estimate(None, unknown), "unknown")
    seconds, bound = slowest(
        [
            ("link", by_link),
            ("requests in flight", by_requests),
            ("reads by multiprocessors", by_roof),
            ("page visits", by_pages),
        ]
    )
    seconds += Estimate(load.handover_s)
    return _transfer(seconds, bound, by_link, read_bytes, profile)


def _visiting(
    visits: float | None, key: str, load: MinibatchLoad, profile: LinkProfile
) -> Estimate:
    """Seconds that the GPU takes to go from page to page, in one kind of memory."""
    if visits is None:
        return Estimate(None, ("page visits: not counted",))
    return _at_rate(visits, profile, key, load.table_bytes) if visits else Estimate(0.0)


#: Rates that depend on the size of the table which is read in place, and the field that counts
#: what they are rates of.
SPANNED = {
    "read.roof": "gpu_link_read_bytes",
    "read.page_visits": "gpu_page_visits",
    "read.managed_page_visits": "managed_page_visits",
}


def beyond(load: MinibatchLoad, profile: LinkProfile) -> dict[str, float]:
    """Rates that the load's reads are predicted with, of a table larger than they are known of.

    Key → the bytes up to which the rate is known; beyond, that of the largest table stands in.
    """
    needed = {key: profile[key].reach for key, field in SPANNED.items() if getattr(load, field)}
    return {
        key: reach
        for key, reach in needed.items()
        if reach is not None and load.table_bytes > reach
    }


def engine_copy(num_bytes: float, profile: LinkProfile, copies: float = 0.0) -> Part:
    """The copy engine carries page-locked host memory to the GPU, rows in so many ``copies``.

    What a copy of a batch costs is not known beforehand: without it nothing is predicted.
    """
    payload = profile["link.max_payload"].value
    packets = {payload: num_bytes / payload} if payload else {}
    by_link = link_time(packets, profile)
    by_engine = _at_rate(num_bytes, profile, "copy.to_device")
    limits = [("link", by_link), ("copy engine", by_engine)]
    if copies:
        by_copies = _at_rate(copies, profile, "copy.batched")
        if not by_copies.known:
            return Part(by_copies, "unknown")
        limits.append(("copy engine (copies)", by_copies))
    seconds, bound = slowest(limits)
    return _transfer(seconds, bound, by_link, num_bytes, profile)


def in_turn(first: Part, second: Part) -> Part:
    """Two transfers over one link, one after the other; bound by what bounds the longer."""
    seconds = first.seconds + second.seconds
    a, b = first.seconds.value, second.seconds.value
    if a is None or b is None or not a + b:
        return Part(seconds, first.bound, first.demands)
    demands = {
        name: (a * first.demands.get(name, 0.0) + b * second.demands.get(name, 0.0)) / (a + b)
        for name in {**first.demands, **second.demands}
    }
    return Part(seconds, (first if a >= b else second).bound, demands)


def disk_read(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """Rows come off the disk into host memory, whole blocks, many reads in flight.

    As long as its reads take at the rate of that depth, or its bytes at that of long reads. What
    the processor does for each read is left out.
    """
    if load.disk_bytes is None or load.disk_requests is None:
        why = "what is read off the disk: the page cache decides that, and nobody counts it before"
        return Part(Estimate(None, (why,)), "unknown")
    in_flight = min(load.disk_depth, max(1.0, load.disk_requests))
    by_reads = _at_rate(load.disk_requests, profile, "disk.iops", in_flight)
    if not by_reads.known:
        return Part(by_reads, "unknown")
    by_bytes = _at_rate(load.disk_bytes, profile, "disk.bandwidth")
    seconds, bound = slowest([("disk (reads a second)", by_reads), ("disk (bytes)", by_bytes)])
    return Part(seconds, bound, {"disk": 1.0, **_memory_share(load.disk_bytes, seconds, profile)})


def cpu_gather(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """The CPU gathers rows into reused staging memory; nothing is issued meanwhile.

    On an H200's machine a step took 1.2 to 1.7 times as long to issue beside a gather.
    """
    by_cores = load.gather_s or _gather_seconds(load, profile)
    cores = 1.0 if load.gather_s is None else load.cpu_share
    there = profile["host.cores"].value
    if load.gather_threads and there is not None:
        cores = min(cores, load.gather_threads / there)
    alone = _on_cpu(by_cores, load.cpu_read_bytes + load.cpu_write_bytes, profile, cores)
    return replace(alone, demands={**alone.demands, ISSUING: 1.0})


def _gather_seconds(load: MinibatchLoad, profile: LinkProfile) -> Estimate:
    """How long the cores gather, at the rate that reused memory allows.

    Fewer of them as much slower as was seen, in proportion where that is not known.
    """
    cores, threads = Estimate.of(profile, "host.cores"), load.gather_threads
    if threads:
        many = cores.value or threads
        share = profile["host.gather_scaling"].at(threads) or min(1.0, threads / many)
        cores = Estimate(many * share)
    return combine(
        lambda rate, cores: load.cpu_write_bytes / (rate * cores),
        Estimate.of(profile, "host.gather_rate", load.row_bytes or math.inf),
        cores,
    )


def staged_copy(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """The CPU gathers into fresh pageable memory, which the driver stages and copies.

    One activity, because the copy engine follows the staging chunk by chunk: the longer of the
    CPU's part and the copy, with the demands of both. Faults of fresh pages and the driver's
    staging hold one thread up and not every core, so beside others it takes the cores that the
    gather itself needs; where that rate is not known, all of them.
    """
    by_cpu = load.gather_s or _at_rate(load.pageable_bytes, profile, "copy.pageable")
    copy = engine_copy(load.copy_engine_bytes, profile)
    staged = 2 * load.pageable_bytes  # read and written once more by the driver
    moved = load.cpu_read_bytes + load.cpu_write_bytes + staged + load.copy_engine_bytes
    gather = _on_cpu(by_cpu, moved, profile)
    if gather.seconds.value is None or copy.seconds.value is None:
        return Part(combine(max, gather.seconds, copy.seconds), gather.bound)
    seconds, bound = slowest([(gather.bound, gather.seconds), (copy.bound, copy.seconds)])
    by_link = Estimate(copy.seconds.value * copy.demands["link"])
    busy = by_cpu
    if load.gather_s is None and _gather_seconds(load, profile).known:
        busy = _gather_seconds(load, profile)
    demands = {
        "cpu": _share(busy, seconds) * (1.0 if load.gather_s is None else load.cpu_share),
        "link": _share(by_link, seconds),
        **_memory_share(moved, seconds, profile),
    }
    return Part(seconds, bound, demands)


def _on_cpu(by_cores: Estimate, moved: float, profile: LinkProfile, cores: float = 1.0) -> Part:
    """Work of this share of the cores that moves so many bytes in host memory."""
    if not by_cores.known:
        return Part(by_cores, "cpu")
    by_memory = _at_rate(moved, profile, "host.memory_rate")
    seconds, bound = slowest([("cpu", by_cores), ("host memory", by_memory)])
    demands = {"cpu": cores * _share(by_cores, seconds), **_memory_share(moved, seconds, profile)}
    return Part(seconds, bound, demands)


def local_gather(num_bytes: float, resident_bytes: float, profile: LinkProfile) -> Part:
    """Rows are read and written in the GPU's own memory, which has to hold ``resident_bytes``."""
    room = profile["gpu.memory"].value
    if room is not None and resident_bytes > room:
        why = f"{resident_bytes / 1e9:.1f} GB do not fit into {room / 1e9:.1f} GB of GPU memory"
        return Part(Estimate(None, (why,)), "GPU memory")
    seconds = _at_rate(2 * num_bytes, profile, "gpu.memory_rate")
    return Part(seconds, "GPU memory", {"multiprocessors": 1.0})


def sampling(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """The host draws the minibatch, or the GPU does.

    At the profile's rate that keeps as many cores busy as the profile says, otherwise all of them.
    Each of a run's workers keeps one busy, of as many as there are workers if that is not known.
    """
    if load.gpu_samples:
        unknown = Estimate(None, ("sampling on the GPU: neither measured nor modelled",))
        return Part(load.sample_s or unknown, "GPU (sampling)", {ISSUING: 1.0})
    bound = "cpu (sampling)"
    busy, cores = profile["host.sample_cores"].value, profile["host.cores"].value
    if load.sample_s is not None:
        drawn, many = load.sample_s, load.sample_workers
        if not many:
            return Part(drawn, bound, {"cpu": load.cpu_share})
        if cores is None:
            cores = many / load.cpu_share
            drawn = drawn.remark(
                f"as if its host had {cores:.0f} cores, one for each sampler worker"
            )
        return Part(drawn, bound, {"cpu": 1 / cores})
    rate = profile["host.sample_rate"]
    seconds = _at_rate(load.sampled_edges, profile, "host.sample_rate")
    if rate.value is not None:
        seconds = seconds.remark(
            f"minibatches drawn at {rate.value / 1e6:.3g} M edges/s, which all share"
            f" ({rate.source})"
        )
    share = 1.0 if busy is None or cores is None else min(1.0, busy / cores)
    return Part(seconds, bound, {"cpu": share})


def training(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """A training step on the GPU: a roofline of operations and bytes, or a launch after the other.

    Of a step that is replayed an operation takes the GPU at least what one takes that has next to
    nothing to do (``gpu.replay``).

    The minibatch's edges are copied first, if they are in host memory. What issuing the step takes
    the host is apart (:func:`issuing`). Activations that left the GPU come back beside the backward
    pass, over the link that brings the rows, and the step is not shorter than that; the way out is
    the link's other direction.
    """
    demands = {"multiprocessors": 1.0}
    if load.train_s is not None:
        return Part(load.train_s, "training (measured)", demands)
    cost = load.training
    edges = Estimate(0.0)
    if not load.gpu_samples:
        edges = engine_copy(cost.structure_bytes, profile).seconds
    each = "gpu.replay" if load.step_calls else "gpu.launch"
    limits = [
        ("GPU operations", _at_rate(cost.operations, profile, "gpu.flops")),
        ("GPU memory", _at_rate(cost.memory_bytes, profile, "gpu.memory_rate")),
        ("kernel launches", Estimate.of(profile, each) * cost.launches),
    ]
    # None of the three is a roof that may be left out.
    together = combine(max, *(seconds for _, seconds in limits))
    bound = slowest(limits)[1]
    if load.activation_bytes:
        back = engine_copy(load.activation_bytes, profile).seconds
        limits.append(("activations over the link", back))
        together = combine(max, together, back)
        bound = slowest(limits)[1]
        demands["link"] = _share(back, together)
    issued = issuing(load, profile).value or 0.0
    if together.value is not None and issued > together.value:
        bound = "kernel launches"
    return Part(together + edges, f"training ({bound})", demands)


def issuing(load: MinibatchLoad, profile: LinkProfile) -> Estimate:
    """Seconds in which the host issues a step, and does nothing else; 0 where it is not known.

    In a step an operation takes longer to issue than in a chain of nothing else: where the first is
    not known the second stands in.
    """
    known = (profile[key].value for key in ("gpu.issue", "gpu.launch"))
    each = next((value for value in known if value is not None), 0.0)
    return Estimate(each * (load.step_calls or load.training.launches))


def submitting(profile: LinkProfile) -> Estimate:
    """Seconds in which the host starts a fetch."""
    return Estimate.of(profile, "gpu.submit")


def all_reduce(load: MinibatchLoad, profile: LinkProfile, gpus: int) -> Part:
    """The gradients' average over ``gpus`` of a machine, in a ring, as NCCL does.

    Each rank sends and gets 2 (W - 1) / W of the bytes in 2 (W - 1) hops (NVIDIA/nccl,
    src/graph/tuning.cc).
    """
    if load.gradient_bytes is None:
        return Part(Estimate(None, ("bytes of the gradients: not said",)), "unknown")
    sent = 2 * (gpus - 1) / gpus * load.gradient_bytes
    carried = _at_rate(sent, profile, "peer.rate")
    latency = Estimate(COLLECTIVE_S) + Estimate.of(profile, "peer.latency") * (2 * (gpus - 1))
    seconds = carried + latency
    _, bound = slowest([("peer link", carried), ("latency", latency)])
    demands = {"peer link": _share(carried, seconds)}
    return Part(seconds, f"averaging gradients ({bound})", demands)


def _at_rate(amount: float, profile: LinkProfile, key: str, at: float = 0.0) -> Estimate:
    """Seconds for an amount at a rate of the profile."""
    return combine(lambda rate: amount / rate, Estimate.of(profile, key, at))


def _transfer(
    seconds: Estimate, bound: str, by_link: Estimate, num_bytes: float, profile: LinkProfile
) -> Part:
    """A transfer occupies its share of the link and reads the host's memory."""
    demands = {"link": _share(by_link, seconds), **_memory_share(num_bytes, seconds, profile)}
    return Part(seconds, bound, demands)


def _share(limit: Estimate, seconds: Estimate) -> float:
    """How much of a resource an activity uses whose length that resource alone would set.

    All of it where that is not known: nothing is then predicted to run beside it.
    """
    if limit.value is None or not seconds.value:
        return 1.0
    return min(1.0, limit.value / seconds.value)


def _memory_share(num_bytes: float, seconds: Estimate, profile: LinkProfile) -> dict[str, float]:
    """The share of the host's memory rate in use; empty where that rate is not known."""
    rate = profile["host.memory_rate"].value
    if rate is None or not seconds.value:
        return {}
    return {"host memory": min(1.0, num_bytes / rate / seconds.value)}

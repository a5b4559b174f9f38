"""What pages cost a GPU that reads host memory: by kind of memory, by span, and where they split.

Gathers of random rows by our policy ``aligned``, in phases, each in tables of its own:

    span_registered, span_managed          over spans from 256 MiB on
    foreign_registered, foreign_managed    the same by torch.index_select, and by WholeGraph's own
                                           kernel where that is installed
    split_64k, split_4k                    managed; its advice alternates, by which its pages split

The ``visits_…`` are the reads a second that a path measures when it opens. A managed table is never
larger than what the GPU has free: more has not been tried.
"""

from __future__ import annotations

import functools
import importlib.util
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from examples.peers.gatherbench_peers import WholeGraph
from gatherbench.bench.probe.cases import GIB, MIB, OUR_BEST, fitting, num_ids
from gatherbench.bench.probe.gpu import event_seconds
from gatherbench.bench.probe.stand import (
    EVENTS,
    Observation,
    fill_words,
    filled_table,
    row_of,
    visit,
)
from gatherbench.bench.read.points import Point, PointRow
from gatherbench.kernels.cuda_calls import CudaCallError, call_runtime, runtime
from gatherbench.kernels.host_memory import available_bytes
from gatherbench.kernels.launch import Table, gather_into, policy_point
from gatherbench.kernels.managed_memory import SHARE_OF_HOST, managed_table
from gatherbench.kernels.mapped_memory import HostRegistration
from gatherbench.strategies import page_rate

SPANS = tuple(256 * MIB << k for k in range(9))  # to 64 GiB
ROW_BYTES = (64, 256, 512, 1024)
FOREIGN_SPANS, FOREIGN_ROW_BYTES = (4 * GIB, 32 * GIB), (64, 512)
SPLITS = {"split_64k": 64 << 10, "split_4k": 4 << 10}
SPLIT_BYTES, SPLIT_ROUNDS = 2 * GIB, 8
#: Of GPU memory, what is left free beside as much managed memory.
LEFT_BYTES = 4 * GIB
_CHECKED = 4099

Add = Callable[[PointRow], None]
#: A gather of another library's: of a table ``[N, D]`` and ids that it takes for the GPU's.
Kernel = Callable[[Tensor, Tensor], Tensor]


def points(
    case: str, spans: Sequence[int], widths: Sequence[int], kernel: str = OUR_BEST
) -> list[Point]:
    """A gather of random rows of each width over each span."""
    return [Point(case, w, span, 0, 0, kernel, "given") for span in spans for w in widths]


class Gathers:
    """Gathers from ``table`` (uint8, host memory), which the GPU sees at ``address``."""

    def __init__(self, table: Tensor, address: int, phase: Phase) -> None:
        self.table, self.address, self.device = table, address, phase.device
        self._kernels = phase.kernels
        self._draw = torch.Generator(phase.device).manual_seed(0)

    def ids(self, count: int, rows: int) -> Tensor:
        """So many rows in random order, none twice."""
        bounds = torch.arange(count + 1, device=self.device) * rows // count
        part = torch.rand(count, generator=self._draw, dtype=torch.float64, device=self.device)
        found = bounds[:-1] + (part * bounds.diff()).long()
        return found[torch.randperm(count, generator=self._draw, device=self.device)]

    def gather(self, ids: Tensor, width: int, span: int, kernel: str = OUR_BEST) -> Tensor:
        """The rows, on the GPU."""
        rows = span // width
        if kernel in self._kernels:
            table = seen_by_torch(self.address, (rows, width // 4), self.device)
            return self._kernels[kernel](table, ids).view(torch.uint8)
        out = torch.empty((len(ids), width), dtype=torch.uint8, device=self.device)
        point = policy_point(OUR_BEST, width, 4, self.address % 16, out.data_ptr() % 16, 8)
        gather_into(out, Table(self.address, rows, width, width), ids, point)
        return out

    def check(self, width: int, kernel: str = OUR_BEST) -> None:
        """
        Raises:
            RuntimeError: rows of the whole table are not the host's.
        """
        rows = self.table.numel() // width
        ids = self.ids(min(_CHECKED, rows), rows)
        wanted = self.table[: rows * width].view(rows, width)[ids.cpu()]
        if not torch.equal(self.gather(ids, width, self.table.numel(), kernel).cpu(), wanted):
            raise RuntimeError(f"{kernel}, rows of {width} B: wrong rows")

    def measure(self, point: Point) -> Observation:
        """One gather, its ids drawn before."""
        width, span = point.row_bytes, point.span_bytes
        ids = self.ids(min(num_ids(point), span // width), span // width)
        gather = functools.partial(self.gather, ids, width, span, point.policy)
        return Observation(len(ids) * width, event_seconds(gather, self.device), EVENTS)


def seen_by_torch(address: int, shape: tuple[int, int], device: torch.device) -> Tensor:
    """Host memory that the GPU reads in place, float32, as a tensor that torch takes for the GPU's.

    Raises:
        RuntimeError: torch has made a copy.
    """
    seen = {"shape": shape, "typestr": "<f4", "data": (address, False), "version": 3}
    found = torch.as_tensor(SimpleNamespace(__cuda_array_interface__=seen), device=device)
    if found.data_ptr() != address:
        raise RuntimeError(f"torch takes memory at {address:#x} for another device's")
    return found


def measure(add: Add, until: float, wanted: Callable[[Point], bool], most_rounds: int = 0) -> None:
    """The section ``pages``; what is left out has its reason."""
    splits = [functools.partial(split, case) for case in SPLITS]
    phases: list[Callable[[Phase], None]] = [registered, managed, *splits]
    device = torch.device("cuda", torch.cuda.current_device())
    kernels: dict[str, Kernel] = {
        "torch.index_select": lambda table, ids: table.index_select(0, ids)
    }
    peer = None
    if importlib.util.find_spec("pylibwholegraph") is not None:
        peer = WholeGraph()
        kernels[f"WholeGraph {peer.version}"] = peer.gather_from
    for number, phase in enumerate(phases):
        left = max(0.0, until - time.monotonic()) / (len(phases) - number)
        one = Phase(device, kernels, add, wanted, time.monotonic() + left, most_rounds)
        try:
            phase(one)
        except (MemoryError, CudaCallError) as why:
            one.refuse(str(why))
        one.say()
        torch.cuda.empty_cache()
    if peer is not None:
        peer.close()


class Phase:
    """Visits the points that are wanted until its time is up."""

    def __init__(
        self,
        device: torch.device,
        kernels: Mapping[str, Kernel],
        add: Add,
        wanted: Callable[[Point], bool],
        until: float,
        most_rounds: int,
    ) -> None:
        self.device, self.kernels, self._wanted = device, kernels, wanted
        self._keep, self._until, self._rounds = add, until, most_rounds
        self._left: list[Point] = []
        self._rates: defaultdict[Point, list[float]] = defaultdict(list)

    def _add(self, row: PointRow) -> None:
        self._keep(row)
        if row.amount is not None and row.time_s:
            self._rates[row.point].append(row.amount / row.time_s)

    def say(self) -> None:
        """Print the median rate of each point."""
        for point, rates in self._rates.items():
            of = f"{point.row_bytes} B over {point.span_bytes / GIB:g} GiB"
            rate = f"{statistics.median(rates) / 1e9:.4g} G/s"
            print(f"{point.case:18} {point.policy:20} {of:22} {rate}", flush=True)

    def wants(self, *cases: str) -> bool:
        """Whether any of these is asked for; from now on they are to be measured, or refused."""
        self._left = [Point(case) for case in cases if self._wanted(Point(case))]
        return bool(self._left)

    def visit(self, some: Sequence[Point], of: Gathers, least_rounds: int = 1) -> None:
        """Rounds of ``some``; the first, for warming up, is not told."""
        some = [point for point in some if self._wanted(point)]
        done = [point.case for point in some]
        self._left = [point for point in self._left if point.case not in done]
        visit(
            some,
            of.measure,
            self._add,
            out_of_time=lambda: time.monotonic() > self._until,
            warm_up=some,
            least_rounds=min(least_rounds, self._rounds or least_rounds),
            most_rounds=self._rounds,
        )

    def tell(
        self,
        point: Point,
        amount: float | None,
        seconds: float | None,
        source: str,
        reason: str = "",
    ) -> None:
        """One observation, or why there is none; only of what is wanted."""
        if not self._wanted(point):
            return
        self._left = [one for one in self._left if one.case != point.case]
        self._add(row_of(point, 1, amount, seconds, source, reason))

    def refuse(self, why: str) -> None:
        """What is left was not to be had."""
        for point in self._left:
            self._add(row_of(point, reason=why))
        self._left = []

    def visits(self, case: str, of: Gathers) -> None:
        """What a path measures when it opens."""
        size = of.table.numel()
        for step in page_rate.page_visit_steps(of.address, size, self.device):
            near = step.metric.endswith("near")
            point = Point(case, page_rate.READ_BYTES, page_rate.NEAR_BYTES if near else size)
            if step.value is not None and self._wanted(point):
                self.tell(point, page_rate.READS, page_rate.READS / step.value, step.source)


def registered(phase: Phase) -> None:
    """Registered memory, by span."""
    if not phase.wants("span_registered", "foreign_registered", "visits_registered"):
        return
    table = filled_table(max(fitting(SPANS, available_bytes())))
    with HostRegistration(table, phase.device.index) as memory:
        _by_span("registered", phase, Gathers(table, memory.address, phase))


def managed(phase: Phase) -> None:
    """Managed memory that stays on the host, by span."""
    if not phase.wants("span_managed", "foreign_managed", "visits_managed"):
        return
    room = min(
        SHARE_OF_HOST * available_bytes(), torch.cuda.mem_get_info(phase.device)[0] - LEFT_BYTES
    )
    spans = [span for span in SPANS if span <= room]
    if not spans:
        raise MemoryError(f"no_memory: host and GPU have no room for {min(SPANS) >> 20} MiB")
    _by_span("managed", phase, _managed(max(spans), phase))


def _by_span(kind: str, phase: Phase, gathers: Gathers) -> None:
    size = gathers.table.numel()
    gathers.check(ROW_BYTES[0])
    phase.visits(f"visits_{kind}", gathers)
    some = points(f"span_{kind}", [span for span in SPANS if span <= size], ROW_BYTES)
    spans = [span for span in FOREIGN_SPANS if span <= size]
    for kernel in phase.kernels:
        try:
            gathers.check(FOREIGN_ROW_BYTES[0], kernel)
        except RuntimeError as wrong:  # costs its own points alone
            torch.cuda.synchronize(phase.device)
            phase.tell(Point(f"foreign_{kind}", policy=kernel), None, None, "", str(wrong))
            continue
        some += points(f"foreign_{kind}", spans, FOREIGN_ROW_BYTES, kernel)
    phase.visit(some, gathers)
    phase.refuse(f"no_memory: no more than {size >> 20} MiB of {kind} memory are to be had")


def split(case: str, phase: Phase) -> None:
    """Pieces next to each other that differ in advice have pages of their own."""
    if not phase.wants(case):
        return
    gathers, piece = _managed(SPLIT_BYTES, phase), SPLITS[case]
    for begin in range(0, SPLIT_BYTES, 2 * piece):
        _leave_out(gathers.address + begin, piece, phase.device.index)
    gathers.check(ROW_BYTES[0])
    phase.visit(points(case, [SPLIT_BYTES], FOREIGN_ROW_BYTES), gathers, SPLIT_ROUNDS)


def _managed(size: int, phase: Phase) -> Gathers:
    table = managed_table((1, size), torch.uint8, phase.device.index)[0]
    fill_words(table.view(torch.int64))
    return Gathers(table, table.data_ptr(), phase)


def _leave_out(address: int, size: int, device: int | None) -> None:
    """Map no page of these for the GPU before it asks."""
    place = runtime().cudaMemLocation()
    place.type, place.id = runtime().cudaMemLocationType.cudaMemLocationTypeDevice, device
    advice = runtime().cudaMemoryAdvise.cudaMemAdviseUnsetAccessedBy
    call_runtime("cudaMemAdvise", address, size, advice, place)

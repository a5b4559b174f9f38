"""What pages cost a GPU that reads host memory: by kind of memory, by span, and where they split.

Gathers of random rows by our policy ``aligned``, in phases, each in tables of its own:

    span_registered, span_managed    over spans from 256 MiB on
    split_64k, split_4k              managed, whose advice alternates, by which its pages split

and in the section ``full``, which has to be asked for, as it takes all of the GPU's memory and more
managed memory than that leaves free:

    full_managed                     managed, beside so much in GPU memory that 4 GiB are free
    full_unadvised                   the same without advice: the control, whose pages move

Beside ``full_…`` stand the bytes that the link carried, by NVML, those of the rows, and by how much
the GPU's memory in use grew. The ``visits_…`` are the reads a second that a path measures when it
opens.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import statistics
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

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

if TYPE_CHECKING:
    from gatherbench.bench.meters.pcie import FieldCounters

SPANS = tuple(256 * MIB << k for k in range(9))  # to 64 GiB
FULL_SPANS = (16 * GIB, 64 * GIB, 96 * GIB)
ROW_BYTES, FULL_ROW_BYTES = (64, 256, 512, 1024), (512, 64)
SPLITS = {"split_64k": 64 << 10, "split_4k": 4 << 10}
SPLIT_BYTES, UNADVISED_BYTES = 2 * GIB, 16 * GIB
#: Free GPU memory beside what fills it, and rows of the control: each may move 64 KiB and more.
LEFT_BYTES, UNADVISED_ROWS = 4 * GIB, 8192
#: How long rows are gathered beside the byte counter; of all rounds the last.
LINK_S = 0.5
_CHECKED = 4099

Add = Callable[[PointRow], None]


def points(case: str, spans: Sequence[int], widths: Sequence[int]) -> list[Point]:
    """A gather of random rows of each width over each span."""
    return [Point(case, w, span, 0, 0, OUR_BEST, "given") for span in spans for w in widths]


class Gathers:
    """Gathers from ``table`` (uint8, host memory), which the GPU sees at ``address``."""

    def __init__(self, table: Tensor, address: int, device: torch.device) -> None:
        self.table, self.address, self.device = table, address, device
        self._draw = torch.Generator(device).manual_seed(0)

    def ids(self, count: int, rows: int) -> Tensor:
        """So many rows in random order, none twice."""
        bounds = torch.arange(count + 1, device=self.device) * rows // count
        part = torch.rand(count, generator=self._draw, dtype=torch.float64, device=self.device)
        found = bounds[:-1] + (part * bounds.diff()).long()
        return found[torch.randperm(count, generator=self._draw, device=self.device)]

    def gather(self, ids: Tensor, width: int, span: int) -> Tensor:
        """The rows, on the GPU."""
        out = torch.empty((len(ids), width), dtype=torch.uint8, device=self.device)
        point = policy_point(OUR_BEST, width, 4, self.address % 16, out.data_ptr() % 16, 8)
        gather_into(out, Table(self.address, span // width, width, width), ids, point)
        return out

    def check(self, width: int) -> None:
        """
        Raises:
            RuntimeError: rows of the whole table are not the host's.
        """
        rows = self.table.numel() // width
        ids = self.ids(min(_CHECKED, rows), rows)
        wanted = self.table[: rows * width].view(rows, width)[ids.cpu()]
        if not torch.equal(self.gather(ids, width, self.table.numel()).cpu(), wanted):
            raise RuntimeError(f"rows of {width} B: wrong rows")

    def measure(self, point: Point, count: int = 0) -> Observation:
        """One gather, its ids drawn before."""
        width, span = point.row_bytes, point.span_bytes
        ids = self.ids(count or min(num_ids(point), span // width), span // width)
        seconds = event_seconds(lambda: self.gather(ids, width, span), self.device)
        return Observation(len(ids) * width, seconds, EVENTS)


def measure(add: Add, until: float, wanted: Callable[[Point], bool], most_rounds: int = 0) -> None:
    """The section ``pages``; what is left out has its reason."""
    splits = [functools.partial(split, case) for case in SPLITS]
    _in_turn([registered, managed, *splits], add, until, wanted, most_rounds)


def measure_full(
    add: Add, until: float, wanted: Callable[[Point], bool], most_rounds: int = 0
) -> None:
    """The section ``full``."""
    _in_turn([full, unadvised], add, until, wanted, most_rounds)


def _in_turn(
    phases: Sequence[Callable[[Phase], None]],
    add: Add,
    until: float,
    wanted: Callable[[Point], bool],
    most_rounds: int,
) -> None:
    """The phases one after another, until the time is spent."""
    device = torch.device("cuda", torch.cuda.current_device())
    for number, phase in enumerate(phases):
        left = max(0.0, until - time.monotonic()) / (len(phases) - number)
        one = Phase(device, add, wanted, time.monotonic() + left, most_rounds)
        try:
            phase(one)
        except (MemoryError, CudaCallError) as why:
            one.refuse(str(why))
        one.say()
        torch.cuda.empty_cache()


class Phase:
    """Visits the points that are wanted until its time is up."""

    def __init__(
        self,
        device: torch.device,
        add: Add,
        wanted: Callable[[Point], bool],
        until: float,
        most_rounds: int,
    ) -> None:
        self.device, self._wanted = device, wanted
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
            print(f"{point.case:22} {of:22} {statistics.median(rates) / 1e9:.4g} G/s", flush=True)

    def wants(self, *cases: str) -> bool:
        """Whether any of these is asked for; from now on they are to be measured, or refused."""
        self._left = [Point(case) for case in cases if self._wanted(Point(case))]
        return bool(self._left)

    def visit(self, some: Sequence[Point], of: Gathers, share: float = 1.0) -> None:
        """Rounds of ``some``, one at least; the first, for warming up, is not told."""
        some = [point for point in some if self._wanted(point)]
        done = [point.case for point in some]
        self._left = [point for point in self._left if point.case not in done]
        until = time.monotonic() + share * max(0.0, self._until - time.monotonic())
        visit(
            some,
            of.measure,
            self._add,
            out_of_time=lambda: time.monotonic() > until,
            warm_up=some,
            least_rounds=1,
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
    if not phase.wants("span_registered", "visits_registered"):
        return
    spans = fitting(SPANS, available_bytes())
    table = filled_table(max(spans))
    with HostRegistration(table, phase.device.index) as memory:
        gathers = Gathers(table, memory.address, phase.device)
        gathers.check(ROW_BYTES[0])
        phase.visits("visits_registered", gathers)
        phase.visit(points("span_registered", spans, ROW_BYTES), gathers)


def managed(phase: Phase) -> None:
    """Managed memory that stays on the host, by span."""
    if not phase.wants("span_managed", "visits_managed"):
        return
    spans = [span for span in SPANS if span <= SHARE_OF_HOST * available_bytes()]
    gathers = _managed(max(spans), phase.device)
    gathers.check(ROW_BYTES[0])
    phase.visits("visits_managed", gathers)
    phase.visit(points("span_managed", spans, ROW_BYTES), gathers)


def full(phase: Phase) -> None:
    """The same beside a GPU that is full."""
    if not phase.wants(*(f"full_managed{m}" for m in ("", "_link", "_payload", "_grown"))):
        return
    spans = [span for span in FULL_SPANS if span <= SHARE_OF_HOST * available_bytes()]
    if not spans:
        raise MemoryError(f"no_memory: the host has no room for {min(FULL_SPANS) >> 30} GiB")
    gathers = _managed(max(spans), phase.device)
    gathers.check(FULL_ROW_BYTES[-1])
    some = points("full_managed", spans, FULL_ROW_BYTES)
    with _filled_gpu(phase.device):
        phase.visit(some, gathers, 0.7)
        for point in some:
            _beside_link(phase, point, gathers)


def unadvised(phase: Phase) -> None:
    """The control: without advice a page that the GPU reads moves there, with what lies around."""
    if not phase.wants(*(f"full_unadvised{m}" for m in ("", "_link", "_payload", "_grown"))):
        return
    size = min(UNADVISED_BYTES, int(0.5 * available_bytes()) & ~(2 * MIB - 1))
    # Advice that was taken back would leave what it had mapped.
    table = _unadvised(size)
    fill_words(table.view(torch.int64))
    gathers = Gathers(table, table.data_ptr(), phase.device)
    (point,) = points("full_unadvised", [size], FULL_ROW_BYTES[:1])
    with _filled_gpu(phase.device):
        _beside_link(phase, point, gathers, UNADVISED_ROWS)


def split(case: str, phase: Phase) -> None:
    """Pieces next to each other that differ in advice have pages of their own."""
    if not phase.wants(case):
        return
    gathers, piece = _managed(SPLIT_BYTES, phase.device), SPLITS[case]
    for begin in range(0, SPLIT_BYTES, 2 * piece):
        _leave_out(gathers.address + begin, piece, phase.device.index)
    gathers.check(ROW_BYTES[0])
    phase.visit(points(case, [SPLIT_BYTES], FULL_ROW_BYTES), gathers)


def _managed(size: int, device: torch.device) -> Gathers:
    table = managed_table((1, size), torch.uint8, device.index)[0]
    fill_words(table.view(torch.int64))
    return Gathers(table, table.data_ptr(), device)


def _unadvised(size: int) -> Tensor:
    """So many bytes of managed memory, freed with the last tensor over them."""
    address = int(call_runtime("cudaMallocManaged", size, runtime().cudaMemAttachGlobal))
    raw = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(raw, call_runtime, "cudaFree", address)
    return torch.frombuffer(raw, dtype=torch.uint8)


def _leave_out(address: int, size: int, device: int | None) -> None:
    """Map no page of these for the GPU before it asks."""
    place = runtime().cudaMemLocation()
    place.type, place.id = runtime().cudaMemLocationType.cudaMemLocationTypeDevice, device
    advice = runtime().cudaMemoryAdvise.cudaMemAdviseUnsetAccessedBy
    call_runtime("cudaMemAdvise", address, size, advice, place)


@contextlib.contextmanager
def _filled_gpu(device: torch.device) -> Iterator[None]:
    """GPU memory in use but for :data:`LEFT_BYTES`."""
    torch.cuda.empty_cache()
    size = torch.cuda.mem_get_info(device)[0] - LEFT_BYTES
    held = [torch.empty(max(0, size), dtype=torch.uint8, device=device)]
    yield
    held.clear()
    torch.cuda.empty_cache()


def _beside_link(phase: Phase, point: Point, gathers: Gathers, count: int = 0) -> None:
    """Gathers in a row beside the link's byte counter and the GPU's memory in use."""

    def beside(what: str) -> Point:
        return Point(f"{point.case}_{what}", point.row_bytes, point.span_bytes)

    counters = _link_counters(phase.device)
    if not isinstance(counters, str):
        counters.start()
    before, payload, began = _in_use(phase.device), 0.0, time.monotonic()
    seconds = 0.0
    while not payload or (seconds < LINK_S and not count):  # what has moved once is there
        seen = gathers.measure(point, count)
        payload += seen.amount
        phase.tell(point, *seen)
        seconds = time.monotonic() - began
    phase.tell(beside("payload"), payload, seconds, "time.monotonic, gathers and their ids")
    grown = _in_use(phase.device) - before
    source = "torch.cuda.mem_get_info less memory_reserved"
    phase.tell(beside("grown"), grown, None, source)
    reason = counters if isinstance(counters, str) else ""
    if not isinstance(counters, str):
        carried = counters.stop()[0]
        if carried.value is not None:
            phase.tell(beside("link"), carried.value, seconds, carried.source)
        reason = str(carried.reason or "")
    if reason:
        phase.tell(beside("link"), None, None, "", reason)


def _link_counters(device: torch.device) -> FieldCounters | str:
    """The link's byte counters, or why there are none."""
    try:
        from gatherbench.bench.meters.nvml_device import NvmlDevice, uuids_of
        from gatherbench.bench.meters.pcie import FieldCounters
        from gatherbench.reason import SensorUnavailableError
    except ImportError as missing:
        return f"not_installed: {missing}"
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    try:
        return FieldCounters(NvmlDevice(uuids_of(device.index or 0, uuid)))
    except SensorUnavailableError as unavailable:
        return str(unavailable.reason)


def _in_use(device: torch.device) -> int:
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)

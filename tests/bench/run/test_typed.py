"""A graph with a table a type, measured for real; rows that a typed witness rejects."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.run import check
from gatherbench.bench.run.check import SPOT_BATCHES, Witness, WrongRowsError
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.models import Projected, build_model
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.store import read_part, rows_of
from gatherbench.bench.run.typed_check import TypedWitness, witness_of
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.prepare import prepare
from gatherbench.bench.sampling.trace import Trace
from gatherbench.bench.show.listing import sizes
from gatherbench.datasets.dataset import DatasetSpec, GraphDataset
from gatherbench.datasets.store import open_dataset
from gatherbench.datasets.wordnet.source import WordnetPartsSource
from gatherbench.datasets.writer import DatasetWriter
from gatherbench.kernels.reference import reference_gather
from gatherbench.strategies import by_type
from gatherbench.strategies.base import Ticket
from gatherbench.strategies.by_type import TypedFetcher, TypedRows, TypedTable, gathered
from gatherbench.strategies.registry import STRATEGIES, build

from ..conftest import MEASURE
from .fakes import measured, skipped

HOST = torch.device("cpu")
COUNTS, WIDTHS = (150, 90, 160), (33, 5, 20)


@pytest.fixture(scope="module")
def typed_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graph "typed" of three types; rows tell the class."""
    root, rng, nodes = tmp_path_factory.mktemp("typed"), np.random.default_rng(1), sum(COUNTS)
    labels, order = rng.integers(0, 3, nodes), rng.permutation(nodes)
    spec = DatasetSpec(
        "typed", 1.0, nodes, 0, max(WIDTHS), "float32", 3, "a test", "none",
        node_types=tuple(zip("abc", COUNTS, strict=True)), widths=WIDTHS,
    )  # fmt: skip
    with DatasetWriter(root / "typed", spec) as writer:
        neighbours = np.sort(rng.integers(0, nodes, (nodes, 8)))
        writer.write_columns([(np.full(nodes, 8), neighbours.ravel())])
        starts = np.cumsum([0, *COUNTS])
        for number, (start, rows, width) in enumerate(zip(starts, COUNTS, WIDTHS, strict=False)):
            table = rng.standard_normal((rows, width), np.float32)
            table[np.arange(rows), labels[start : start + rows]] += 4
            writer.write_features(table, number)
        writer.write_labels(labels)
        writer.write_splits(order[:200], order[200:300], order[300:])
    return root


@pytest.fixture
def job_of(typed_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GATHERBENCH_DATA", str(typed_root))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)

    def make(strategy: str, workload: Workload | None = None, **changes) -> Job:
        workload = workload or Workload("typed", fanouts=(4, 3), batch_size=32, max_batches=5)
        case = Case(workload, strategy, build(strategy).variant, {}, 0)
        plan, rows = MEASURE.model_copy(update=changes), RowMaker("run", "abc", "box", "host")
        part = tmp_path / f"{case.id}.jsonl"
        return Job(case, plan, "cpu", rows, *prepare(workload), part)

    return make


def value(rows: list[Row], stage: str, metric: str, epoch: int = -1) -> float | None:
    (found,) = [r for r in rows if (r.stage, r.metric, r.epoch) == (stage, metric, epoch)]
    return found.value


HERE = [
    kind.name
    for kind in STRATEGIES
    if kind().skip(HOST) is None
    and by_type.typed_refusal(kind(), HOST) is None
    and not kind().lossy
    and kind.role != "floor"
]


def row_bytes_of(job: Job, epoch: int = 0) -> int:
    """Bytes of an epoch's rows, id by id."""
    widths = np.repeat(WIDTHS, COUNTS) * 4
    epochs = Epochs(job, open_dataset(job.dataset), Trace.open(job.trace))
    return sum(int(widths[ids.numpy()].sum()) for ids in epochs.ids(epoch))


def test_all_paths_train_to_the_same_bits_and_declare_what_they_fetch(job_of):
    assert {"cpu_gather", "aligned_zero_copy", "async_zero_copy"} <= set(HERE)
    outcomes = set()
    for name in HERE:
        job = job_of(name)
        rows = measured(job)
        for epoch in range(2):
            wanted = row_bytes_of(job, epoch)
            assert value(rows, "fetch", "payload", epoch) == wanted
            assert value(rows, "fetch", "declared_payload", epoch) == wanted
        declared = {r.metric: r.value for r in rows if r.basis == "declared"}
        assert declared["row"] is declared["operations"] is None
        table = sum(n * w * 4 for n, w in zip(COUNTS, WIDTHS, strict=True))
        assert value(rows, "setup", "table") == table
        assert declared["gpu_table"] == table * (name == "all_in_gpu")
        assert value(rows, "check", "rows") > 0
        losses = tuple(value(rows, "train", "loss", epoch) for epoch in range(2))
        outcomes.add((losses, value(rows, "eval", "test_accuracy")))
    assert len(outcomes) == 1
    (((first, second), _),) = outcomes
    assert first != second, "each epoch has minibatches of its own"


def test_the_floor_and_a_narrow_path_are_measured_too(job_of):
    floor = measured(job_of("no_fetch"))
    assert value(floor, "fetch", "payload", 0) == 0
    narrow = job_of("narrow_rows")
    assert value(measured(narrow), "fetch", "payload", 0) == row_bytes_of(narrow) / 2


@pytest.mark.parametrize(
    ("name", "workload", "changes", "said"),
    [
        ("cached_zero_copy", {}, {}, "it has to know of all nodes"),
        ("disk_mmap", {}, {}, "it has to know of all nodes"),
        ("cpu_gather", {}, {"activations": ["keep", "recompute"]}, 'activations = "keep"'),
        ("cpu_gather", {"step": "captured"}, {}, 'step = "issued"'),
        ("cpu_gather", {"model": "rgcn"}, {}, "have no kinds"),
    ],
)
def test_what_has_one_table_is_refused(job_of, name, workload, changes, said):
    tiny = Workload("typed", fanouts=(4, 3), batch_size=32, max_batches=5)
    assert said in str(skipped(job_of(name, replace(tiny, **workload), **changes)))


def test_several_ranks_are_refused(job_of):
    from gatherbench.bench.run.measure import Ground, MeasuredCase

    job = job_of("cpu_gather")
    case = replace(job.case, workload=replace(job.case.workload, gpus=2))
    several = replace(job, case=case)
    case = MeasuredCase(several, None, Ground(several))
    assert "one rank trains" in str(case.refused())


def test_a_path_that_exchanges_types_ends_the_case(job_of, monkeypatch):
    def wrong(self: TypedFetcher, ids: Tensor) -> Ticket:
        first, second, *rest = by_type.parted(ids, self._table.counts)
        tickets = [
            one.submit(part.ids % table.shape[0])
            for one, part, table in zip(
                self._each, [first, rest[0], second], self._table.parts, strict=True
            )
        ]
        places = first.places, second.places, rest[0].places
        return by_type._TypedTicket(tickets, places, HOST)

    monkeypatch.setattr(TypedFetcher, "_submit", wrong)
    job = job_of("cpu_gather")
    with pytest.raises(WrongRowsError):
        measured(job)
    (told,) = [row for row in rows_of(read_part(job.part)) if row.status == "failed"]
    assert (told.stage, told.metric) == ("check", "rows")


TABLE = TypedTable(
    (torch.arange(12.0).reshape(4, 3), 100 + torch.arange(10.0).reshape(5, 2)), ("a", "b")
)
IDS = torch.tensor([5, 0, 8, 3, 4])


def looked_at(x: object, ids: Tensor = IDS, spoil: bool = False) -> int:
    """How many rows a witness compares that sees ``x``."""
    witness = TypedWitness(TABLE, HOST, lambda rows: rows, floor=False)
    with witness.everything("now") as watch:
        given = ids.clone()
        watch.handed(0, given)
        if spoil:
            given[1] = 3
        with watch.looked_at(0, given, x):
            pass
    return witness.rows


RIGHT = gathered(TABLE, IDS)


def test_a_typed_witness_compares_all_rows():
    assert isinstance(RIGHT, TypedRows)
    assert [one.tolist() for one in RIGHT.rows] == [
        [[0, 1, 2], [9, 10, 11]],
        [[102, 103], [108, 109], [100, 101]],
    ]
    assert looked_at(RIGHT) == 5


def test_what_is_put_aside_of_all_types_is_what_it_is_of_one(monkeypatch):
    monkeypatch.setattr(check, "available_bytes", lambda: 1 << 40)
    one, each = (
        witness_of(truth, HOST, lambda rows: rows, floor=False) for truth in (TABLE.parts[0], TABLE)
    )
    assert isinstance(one, Witness)
    assert isinstance(each, TypedWitness)
    assert sum(part.aside_bytes for part in each._each) == one.aside_bytes == 128 << 20


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (replace(RIGHT, rows=(RIGHT.rows[0].flip(0), RIGHT.rows[1])), "minibatch 0"),
        (replace(RIGHT, rows=(RIGHT.rows[0], RIGHT.rows[1] + 1)), "minibatch 0"),
        (replace(RIGHT, places=RIGHT.places[::-1]), "places of other nodes"),
        (replace(RIGHT, rows=RIGHT.rows[:1]), "no rows of each type"),
        (reference_gather(TABLE.parts[0], torch.tensor([0, 0, 0, 0, 0])), "no rows of each type"),
    ],
)
def test_a_typed_witness_rejects_other_rows_and_places(wrong, said):
    with pytest.raises(WrongRowsError, match=said):
        looked_at(wrong)


def test_of_a_timed_epoch_some_rows_of_each_type_are_compared():
    looked_at = set()
    for _ in range(60):
        witness = TypedWitness(TABLE, HOST, lambda rows: rows, floor=False)
        with witness.spots(6, "in epoch 0") as watch:
            for number in range(6):
                watch.handed(number, IDS)
                with watch.looked_at(number, IDS, RIGHT):
                    pass
                assert witness.rows == 0, "compared within the epoch"
        assert witness.rows == SPOT_BATCHES * len(IDS)
        for number in range(6):
            wrong = replace(RIGHT, places=RIGHT.places[::-1])
            try:
                with witness.spots(6, "") as watch:
                    watch.handed(number, IDS)
                    with watch.looked_at(number, IDS, wrong):
                        pass
            except WrongRowsError:
                looked_at.add(number)
    assert looked_at == set(range(6)), "the draws leave out a minibatch"


def test_a_typed_witness_sees_that_ids_were_changed():
    with pytest.raises(WrongRowsError, match="changed the ids"):
        looked_at(RIGHT, spoil=True)


def test_a_typed_witness_looks_at_memory_before_it_compares():
    said: list[str] = []
    witness = TypedWitness(TABLE, HOST, lambda rows: said.append("rows") or rows, floor=False)
    with witness.everything("now", lambda: said.append("first")) as watch:
        watch.handed(0, IDS)
        with watch.looked_at(0, IDS, RIGHT):
            pass
    assert said == ["first", "rows", "rows"]


def test_a_model_projects_each_types_rows_to_one_width():
    net = build_model(Workload("x", hidden=4, fanouts=(2,)), 0, 3, widths=(3, 2))
    assert isinstance(net, Projected)
    assert [(one.in_features, one.out_features) for one in net.by_type] == [(3, 4), (2, 4)]
    batch = MiniBatch(IDS, (torch.tensor([[3, 4], [0, 1]]),), (2, 5))
    by_hand = torch.empty(5, 4)
    for place, one in enumerate(IDS.tolist()):
        kind, row = (0, TABLE.parts[0][one]) if one < 4 else (1, TABLE.parts[1][one - 4])
        by_hand[place] = (net.by_type[kind](row)).clamp(min=0)
    torch.testing.assert_close(net(RIGHT, batch), net.model(by_hand, batch))
    net(RIGHT, batch).sum().backward()
    assert all(one.grad is not None for one in net.parameters())


def test_the_weights_of_a_model_of_one_table_are_as_before(typed_root):
    one = build_model(Workload("x", hidden=4), 7, 3)
    other = build_model(Workload("x", hidden=4), 7, 3, widths=())
    assert not isinstance(one, Projected)
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_tables_are_loaded_a_type(typed_root):
    from gatherbench.bench.run.table import file_of, load_table

    data: GraphDataset = open_dataset(typed_root / "typed")
    loaded = load_table(data)
    assert isinstance(loaded.features, TypedTable)
    for part, table in zip(loaded.features.parts, data.tables, strict=True):
        assert torch.equal(part, torch.from_numpy(np.array(table)))
        assert part.data_ptr() % 4096 == 0
    assert loaded.features.names == ("a", "b", "c")
    assert (loaded.where, file_of(data)) == ("copied into anonymous memory", None)


def test_lists_say_the_widths_and_advice_is_refused():
    spec = WordnetPartsSource().estimate(1.0)
    assert sizes(spec)[-1] == "50 to 300 × float32"

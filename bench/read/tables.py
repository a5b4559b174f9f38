"""Read a run's folder into tables: the one door for figures, the terminal and notebooks.

What is derived from the rows (medians, ratios, rates) is computed by
:mod:`gatherbench.bench.read.derive` and never stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from gatherbench.bench.meters.load import Waiting
from gatherbench.bench.plan.plan import GPU_SAMPLING, Measure, NamedCase
from gatherbench.bench.plan.workload import Workload, workload_names
from gatherbench.bench.read.disturbance import mark_disturbed
from gatherbench.bench.read.frames import NOISE, Shown, right_of, shown
from gatherbench.bench.run.agreement import results_in
from gatherbench.bench.run.frames import Frames, frames_of
from gatherbench.bench.run.guards import is_running
from gatherbench.bench.run.lines import Lines, lines_of
from gatherbench.bench.run.rows import PROCESS, SERIES, SET, Row, rows_in, table_of
from gatherbench.bench.run.store import RESTORE, SAMPLE_COLUMNS, RunStore, StoreError
from gatherbench.outside import plain, read_json

#: Who reads a run need not know which of its files is damaged: one error for all of them.
RunError = StoreError


@dataclass(frozen=True, eq=False)
class Run:
    """One run, as its folder holds it.

    Attributes:
        folder: where it lies.
        plan: the resolved plan.
        env: the machine, see :func:`gatherbench.bench.machine.env.describe_machine`.
        rows: the table (columns :data:`gatherbench.bench.run.rows.HEADER`), each row joined with
            the fields of its workload (``scale``, ``model``, ``hidden``, ``fanouts``, ...) and with
            what other work there was beside its case
            (:func:`gatherbench.bench.read.disturbance.mark_disturbed`). What is declared is that of
            a case's mean epoch (:func:`of_mean_epoch`).
        samples: seconds of every stage of every minibatch; empty while the run has not ended.
        whole: rows that belong to the run and to none of its cases: the calibration of a GPU's
            sensors (columns :data:`gatherbench.bench.run.rows.HEADER`); empty without a GPU.
        ranks: rows of single processes of the cases that several train together (columns as
            ``rows`` without those of other work); what the case as a whole did is in ``rows``.
        going: whether it was still being measured when it was read; ``None``: it cannot be told.
        tables: the run as its files hold it, without what is no result.
    """

    folder: Path
    plan: dict[str, Any]
    env: dict[str, Any]
    rows: pd.DataFrame
    samples: pd.DataFrame
    whole: pd.DataFrame
    ranks: pd.DataFrame
    going: bool | None = False
    tables: Frames | None = None

    @property
    def epochs(self) -> pd.DataFrame:
        """A line an epoch (of a prediction: a line for its epoch), and of each rank that has one.

        Columns: :data:`gatherbench.bench.run.columns.EPOCH_KEYS`, ``noisy`` (the machine had too
        much other work while the case ran), and what was observed, with the unit in the name:
        ``epoch_s``, ``fetch_s``, ``link_rx_bytes``; see :attr:`columns`. What is missing is NaN,
        and :attr:`reasons` says why.
        """
        return self._frames.epochs

    @property
    def cases(self) -> pd.DataFrame:
        """A line a case: how it ended, its set-up, its checks.

        Columns: :data:`gatherbench.bench.run.columns.CASE_KEYS`, ``noisy``, ``other_cores`` (that
        other work had while the case ran), and what was observed, as in :attr:`epochs`.
        """
        return self._frames.cases

    @property
    def columns(self) -> pd.DataFrame:
        """What each column holds: its ``unit``, ``source`` and ``meaning``; indexed by its name."""
        return self._frames.columns

    @property
    def reasons(self) -> pd.DataFrame:
        """Why a number is missing: a line for each case and column, or for single epochs.

        Columns: :data:`gatherbench.bench.run.columns.REASON_KEYS`; epoch -1: all of the case's.
        """
        return self._frames.reasons

    @cached_property
    def _frames(self) -> Shown:
        noise = self.rows.drop_duplicates([*SERIES, "repeat"])
        tables = self.tables or frames_of(Lines())
        return shown(tables, noise[[*SERIES, "repeat", *NOISE]])

    @property
    def run_id(self) -> str:
        """As its rows have it: the folder may have been given another name."""
        return str(self.rows["run_id"].iloc[0]) if len(self.rows) else self.folder.name

    @cached_property
    def machine(self) -> str:
        """The machine that measured; empty before anything was. Predictions name another."""
        return ", ".join(sorted(set(self.select(basis="measured")["machine"])))

    @property
    def workloads(self) -> list[str]:
        """Ids of the workloads, in the order of the plan."""
        return list(self.plan["workloads"])

    @cached_property
    def drawn(self) -> str:
        """How its minibatches were had: as the plan says, and ``live`` where no GPU could draw."""
        asked = str(self.plan["measure"].get("sampling", "live"))
        return "live" if asked in GPU_SAMPLING and self.select(backend="cuda").empty else asked

    @cached_property
    def minibatches(self) -> str:
        """``fresh``: each epoch had minibatches of its own; ``same``, in runs from before that."""
        has_sets = len(self.select(stage=SET[0], metric=SET[1])) > 0
        return str(self.plan["measure"].get("minibatches", "fresh" if has_sets else "same"))

    @property
    def sampling(self) -> str:
        """That with the workers: ``live``, ``replay, 2 workers``."""
        workers = self.sampler_workers
        return f"{self.drawn}, {workers} worker{'s' * (workers > 1)}" if workers else self.drawn

    @property
    def sampler_workers(self) -> int:
        """Threads that had minibatches ready ahead of the loop; 0: the loop did, or a GPU."""
        if self.drawn in GPU_SAMPLING:
            return 0
        return int(self.plan["measure"].get("sampler_workers", 0))

    @property
    def names(self) -> dict[str, str]:
        """The workloads in words, by id: for titles and sentences."""
        return workload_names(self.plan["workloads"])

    def alike(self, **plain: object) -> list[tuple[str, list[str]]]:
        """Workloads that differ in these fields at most: name in words, and ids; as in the plan.

        ``plain``: what the fields are where nothing is asked for; plans may be older than a field.
        """
        groups: list[tuple[dict[str, object], list[str]]] = []
        for ident, fields in self.plan["workloads"].items():
            same = {**fields, **plain}
            members = next((mine for known, mine in groups if known == same), None)
            if members is None:
                groups.append((same, [ident]))
            else:
                members.append(ident)
        names = workload_names({members[0]: same for same, members in groups})
        return [(names[members[0]], members) for _, members in groups]

    @cached_property
    def processes(self) -> Processes:
        """The processes in which cases took turns with others."""
        return processes_of(self.rows)

    def select(self, **wanted: object) -> pd.DataFrame:
        """The rows whose fields have these values: one value each, or any of a list of them."""
        return self.rows.iloc[self._places(wanted)]

    def values(
        self, stage: str, metric: str, basis: str | Sequence[str] = "measured"
    ) -> pd.Series[float]:
        """The observations of a metric that count, indexed by :data:`SERIES`, repeat and epoch.

        Those of a failed case do not count, nor those beside other work while their series has
        quiet repeats.

        Raises:
            RunError: an observation stands twice in the table.
        """
        wanted = {"stage": stage, "metric": metric, "basis": basis, "status": "ok", "used": True}
        places = self._places(wanted)
        index = self._index[places]
        if index.has_duplicates:
            twice = index[index.duplicated()][0]
            raise RunError(
                f"{self.folder / 'epochs.csv'}: {stage}.{metric} stands twice for {twice}"
            )
        return pd.Series(self.rows["value"].to_numpy()[places], index, name="value")

    def _places(self, wanted: dict[str, object]) -> NDArray[np.intp]:
        """Where in the table the rows of :meth:`select` stand."""
        chosen = np.ones(len(self.rows), bool)
        for name, value in wanted.items():
            one = isinstance(value, str) or not isinstance(value, Collection)
            values = (value,) if one else tuple(value)  # type: ignore[arg-type]
            if (name, values) not in self._masks:
                self._masks[name, values] = self.rows[name].isin(values).to_numpy()
            chosen &= self._masks[name, values]
        return np.flatnonzero(chosen)

    @cached_property
    def _masks(self) -> dict[tuple[str, tuple[object, ...]], NDArray[np.bool_]]:
        """Which rows have one of these values in a column: asked again and again, found once."""
        return {}

    @cached_property
    def _index(self) -> pd.MultiIndex:
        """Of :meth:`values`, for every row."""
        return pd.MultiIndex.from_frame(self.rows[[*SERIES, "repeat", "epoch"]])


def load_run(folder: Path | str) -> Run:
    """Read a run's folder, such as ``results/example``.

    Raises:
        RunError: it is no run folder, was written with another schema version, or holds a file
            that cannot be read; the message names the file and the remedy.
    """
    return run_in(RunStore.open(Path(folder)))


def run_in(store: RunStore) -> Run:
    """The run in a folder that is open; its table is parsed again only where others wrote it.

    Raises:
        RunError: see :func:`load_run`.
    """
    going = is_running(store.folder)  # before the rows: a run that ends meanwhile has them all
    plan, env, frames = store.plan(), store.env(), store.frames()
    check(store.folder, plan, frames, env)
    table = pd.concat([table_of(store.calibration()), frames.rows()], ignore_index=True)
    return _run(store.folder, plan, env, table, store.samples(), going, frames)


def run_of(
    folder: Path,
    plan: dict[str, Any],
    env: dict[str, Any],
    rows: Sequence[Row],
    samples: pd.DataFrame,
    going: bool | None,
) -> Run:
    """These rows of a run as a run of their own; for the arguments see :class:`Run`."""
    frames = frames_of(lines_of(row for row in rows if row.workload))
    return _run(folder, plan, env, table_of(rows), samples, going, frames)


def _run(
    folder: Path,
    plan: dict[str, Any],
    env: dict[str, Any],
    table: pd.DataFrame,
    samples: pd.DataFrame,
    going: bool | None,
    frames: Frames,
) -> Run:
    """What cases measured that are no result is left out."""
    table, right = results_in(table)
    samples = of_measured(table, samples)
    of_a_case = table["workload"] != ""
    whole, table = table[~of_a_case].reset_index(drop=True), table[of_a_case]
    strayed = (table["stage"] == "check") & (table["metric"] == "training")
    if strayed.any():  # found now, or written down when the run ended
        frames = frames_of(lines_of(rows_in(table)))
    table = _with_workloads(of_mean_epoch(table), plan)
    one_rank = table["rank"] >= 0
    ranks, table = table[one_rank].reset_index(drop=True), table[~one_rank].reset_index(drop=True)
    marked = mark_disturbed(table, env)
    return Run(folder, plan, env, marked, samples, whole, ranks, going, right_of(frames, right))


def of_mean_epoch(table: pd.DataFrame) -> pd.DataFrame:
    """The table with what is declared of single epochs as that of a case's mean epoch, -1.

    Counted are the epochs that the case measured. A size of request that none of an epoch's reads
    had has no row there, and counts as none.
    """
    of_epochs = (table["basis"] == "declared") & (table["epoch"] >= 0)
    each, others = table[of_epochs], table[~of_epochs]
    case = ["workload", "strategy", "variant", "backend", "repeat", "rank"]
    epochs = each.groupby(case)["epoch"].transform("nunique")
    metrics = each.groupby([*case, "stage", "metric"])["value"]
    means = metrics.transform("sum") / epochs.where(metrics.transform("count") > 0)
    lines = each.assign(value=means, epoch=-1)[each["value"].notna() | means.isna()]
    once = lines.drop_duplicates([*case, "stage", "metric"])
    return pd.concat([others, once]).sort_index().reset_index(drop=True)


def predicted(run: Run, rows: Sequence[Row]) -> Run:
    """The run with these predictions in place of those that it had."""
    others = run.rows[run.rows["basis"] != "predicted"]
    table = pd.concat([others, _with_workloads(table_of(rows), run.plan)], ignore_index=True)
    made = frames_of(lines_of(rows))
    known = run.tables or frames_of(Lines())
    epochs, cases, reasons = (
        pd.concat([old[old["basis"] != "predicted"], new], ignore_index=True)
        for old, new in (
            (known.epochs, made.epochs),
            (known.cases, made.cases),
            (known.reasons, made.reasons),
        )
    )
    tables = Frames(epochs, cases, reasons, made.columns | known.columns)
    return replace(run, rows=mark_disturbed(table, run.env), tables=tables)


def _with_workloads(table: pd.DataFrame, plan: dict[str, Any]) -> pd.DataFrame:
    """Each row joined with the fields of its workload."""
    fields = pd.DataFrame(
        [
            {**workload, "workload": name, "fanouts": ",".join(map(str, workload["fanouts"]))}
            for name, workload in plan["workloads"].items()
        ]
    ).drop(columns="dataset")
    fields = fields.astype(dict.fromkeys(fields.select_dtypes("str"), object))
    return table.merge(fields, on="workload", how="left", validate="many_to_one")


def of_measured(rows: pd.DataFrame, series: pd.DataFrame) -> pd.DataFrame:
    """The lines of the cases whose epochs are in the table: not of those wrong or cut off."""
    case = ["workload", "strategy", "variant", "repeat"]
    epochs = rows[(rows["stage"] == "epoch") & (rows["basis"] == "measured")]
    known = pd.MultiIndex.from_frame(series[case]).isin(epochs.set_index(case).index)
    return series[known].reset_index(drop=True)


#: Of cases that took turns, by workload, strategy, variant and repeat: when each of their processes
#: began, which names it, by the first epoch that it measured (-1: from the first on). A case has
#: several where it was cut off and resumed. Of paths that had a process alone there is nothing.
Processes = Mapping[tuple[Hashable, ...], Mapping[int, float]]


def processes_of(rows: pd.DataFrame) -> Processes:
    """:attr:`Run.processes` of such rows."""
    mine = rows[(rows["stage"] == PROCESS[0]) & (rows["metric"] == PROCESS[1])].dropna(
        subset="value"
    )
    found: dict[tuple[Hashable, ...], dict[int, float]] = {}
    columns = ["workload", "strategy", "variant", "repeat", "epoch", "value"]
    for *case, epoch, value in mine[columns].itertuples(index=False, name=None):
        found.setdefault(tuple(case), {})[epoch] = value
    return found


def process_at(processes: Processes, case: tuple[Hashable, ...], epoch: int) -> float | None:
    """The process that measured an epoch of a case; ``None``: it had one alone."""
    begun = processes.get(case, {})
    first = max((one for one in begun if one <= epoch), default=None)
    return None if first is None else begun[first]


def only(
    run: Run,
    *,
    workloads: Collection[str] | None = None,
    strategies: Collection[str] | None = None,
    backends: Collection[str] | None = None,
) -> Run:
    """The run as if no other workloads, strategies and backends had been in its plan.

    What the cases declare of themselves belongs to every backend; predictions are left out.
    """
    cases = run.plan["cases"]
    rows, ranks = run.rows, run.ranks
    if workloads is not None:
        cases = [case for case in cases if case["workload"] in workloads]
        rows, ranks = (t[t["workload"].isin(workloads)] for t in (rows, ranks))
    if strategies is not None:
        cases = [case for case in cases if case["strategy"] in strategies]
        rows, ranks = (t[t["strategy"].isin(strategies)] for t in (rows, ranks))
    if backends is not None:
        measured = (rows["basis"] == "measured") & rows["backend"].isin(backends)
        rows = rows[measured | (rows["basis"] == "declared")]
        ranks = ranks[ranks["backend"].isin(backends)]
    kept = {case["workload"] for case in cases}
    table = {name: fields for name, fields in run.plan["workloads"].items() if name in kept}
    plan = {**run.plan, "cases": cases, "workloads": table}
    left = pd.MultiIndex.from_frame(rows[SERIES].drop_duplicates())
    tables = run.tables
    if tables is not None:
        epochs, cases = (
            frame[pd.MultiIndex.from_frame(frame[SERIES]).isin(left)].reset_index(drop=True)
            for frame in (tables.epochs, tables.cases)
        )
        mine = tables.reasons["workload"].isin(kept)
        tables = replace(tables, epochs=epochs, cases=cases, reasons=tables.reasons[mine])
    return replace(run, plan=plan, rows=rows, ranks=ranks, tables=tables)


def newest_run(root: Path) -> Path:
    """The folder of the newest run under ``root`` (``results/``): by start, then by last change.

    Raises:
        RunError: there is none, or no folder can have that name.
    """
    try:
        found = [plan for plan in root.glob("*/*/plan.json") if began(plan.parent)]
    except OSError as error:
        raise RunError(f"{root}: {error.strerror}; name another folder with --results") from error
    if not found:
        raise RunError(f"{root}: holds no run; make one with `gatherbench run quick`")
    return max(found, key=lambda plan: (began(plan.parent), plan.stat().st_mtime)).parent


def began(folder: Path) -> str:
    """When what a folder holds was begun to be measured, UTC; to be compared as a text.

    ``2026-11-23T07:02:41+00:00`` where its ``env.json`` says so; of an older run the date with
    which its name begins, ``2026-11-23``; empty without either.
    """
    try:
        return str(read_json(folder / "env.json")["began"])
    except (OSError, ValueError, KeyError, TypeError):
        found = re.match(r"(\d{4})-?(\d{2})-?(\d{2})", folder.name)
        return "-".join(found.groups()) if found else ""


class _Measured(BaseModel):
    """What is read of ``measure``, which may be of another version."""

    epochs: int
    warmup_epochs: int
    sampling: str = ""
    minibatches: str = ""
    sampler_workers: int = 0
    threads: int = 0
    eval_every_epoch: bool = False


#: What is read of a workload without asking whether it is there.
_NEEDED = {"dataset", "scale", "model", "hidden", "fanouts", "batch_size", "max_batches", "seed"}


class _Shape(BaseModel):
    """What is read of a plan."""

    workloads: dict[str, Workload]
    cases: list[NamedCase]
    measure: _Measured
    name: str


class _Cpu(BaseModel):
    model: str | None = None
    usable_cores: int | None = None
    logical_cores: int | None = None


class _Gpu(BaseModel):
    name: str
    power_limit_w: float | None = None
    link_gen_max: int | None = None
    link_width_max: int | None = None


class _Package(BaseModel):
    package: str
    version: str


class _Memory(BaseModel):
    total: int | None = None


class _Numa(BaseModel):
    processors_by_node: dict[int, int] = {}


class _Env(BaseModel):
    """What is read of a machine."""

    cpu: _Cpu = _Cpu()
    gpus: list[_Gpu] | None = None
    memory: _Memory = _Memory()
    numa: _Numa = _Numa()
    libraries: dict[str, str | None] | None = None
    thread_limits: dict[str, str | None] | None = None
    plugins: dict[str, dict[str, _Package]] = {}
    waiting: Waiting | None = None


def _refuse_other(file: Path, shape: type[BaseModel], what: str, content: object) -> None:
    """
    Raises:
        RunError: the content has another shape; names the first thing that is wrong.
    """
    try:
        shape.model_validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        raise RunError(f"{file}: not a run's {what} ({first_of(error)}); {RESTORE}") from error


def limits_of(plan: dict[str, Any]) -> dict[str, Any]:
    """What a plan's ``measure`` says of how precise is enough; older ones have other keys."""
    measure = plan["measure"]
    said = {key: measure[key] for key in ("repeats", "precision") if measure.get(key) is not None}
    older = [measure[key] for key in ("min_repeats", "max_repeats") if key in measure]
    return {**said, **({"repeats": older} if older and "repeats" not in said else {})}


def first_of(error: ValidationError) -> str:
    """The first thing that is wrong, in a line."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return plain(": ".join(filter(None, (where, first["msg"]))))


def check(folder: Path, plan: dict[str, Any], frames: Frames, env: dict[str, Any]) -> None:
    """Refuse a plan or a machine that is none, rows of another schema or plan, and an old name.

    Raises:
        RunError: it is such a run; the message names the file and the remedy.
    """
    _refuse_other(folder / "plan.json", _Shape, "plan", plan)
    _refuse_other(folder / "plan.json", Measure, "plan", limits_of(plan))
    _refuse_other(folder / "env.json", _Env, "machine", env)
    for name, fields in plan["workloads"].items():
        if lacking := _NEEDED - fields.keys():
            raise RunError(f"{folder / 'plan.json'}: {name} has no {min(lacking)}; {RESTORE}")
    if strange := {case["workload"] for case in plan["cases"]} - plan["workloads"].keys():
        why = f"a case has the workload {min(strange)!r}, which is none of it"
        raise RunError(f"{folder / 'plan.json'}: {why}; {RESTORE}")
    if any(case["strategy"] == "null" for case in plan["cases"]):  # it would rank as a data path
        raise RunError(
            f"{folder}: the no-fetch limit is called no_fetch now, and `null` there; read it with"
            " the gatherbench version that wrote it"
        )
    seen = {*frames.epochs["workload"], *frames.cases["workload"]}
    if strange := seen - plan["workloads"].keys():
        raise RunError(
            f"{folder / 'epochs.csv'}: workload {min(strange)!r} does not stand in plan.json;"
            " the files belong to different runs: put those of one run there"
        )


def no_samples() -> pd.DataFrame:
    """The samples of a run that has none yet."""
    return pd.DataFrame({name: [] for name in SAMPLE_COLUMNS})

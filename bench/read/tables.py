"""A run as frames: a line per epoch, a line per case, missing values, and the columns' meaning.

    run = load_run("results/example")
    run.epochs, run.cases, run.reasons, run.columns    # as in its folder, see METHODOLOGY.md, Files
    run.measured["fetch_s"]                            # epochs that count, by series and repeat
    run.predicted["epoch_s"], run.declared["declared_payload_bytes"], run.ended["setup_open_s"]

These frames hold everything: a derived value is a column of them (``derived.toml``), or a median, a
ratio or a verdict of such a column. A column that :data:`~gatherbench.bench.run.frames.KNOWN` names
exists in each run, NaN if it was not observed.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import gatherbench
from gatherbench.bench.meters.cpu import quiet_cores
from gatherbench.bench.plan.plan import GPU_SAMPLING
from gatherbench.bench.plan.workload import workload_names
from gatherbench.bench.read.check import RunError, check
from gatherbench.bench.run.agreement import STILL_RIGHT, judged, right_in
from gatherbench.bench.run.frames import CASE_KEYS, EPOCH_KEYS, KNOWN, Frames, among, ids_in
from gatherbench.bench.run.guards import is_running
from gatherbench.bench.run.part import LISTS
from gatherbench.bench.run.rows import BASES, SERIES, table_of
from gatherbench.bench.run.store import RunStore, read_observations
from gatherbench.outside import read_json

__all__ = ["Run", "RunError", "load_run"]

#: The key of a measured or predicted case.
CASE = [*SERIES, "repeat"]
_DECLARING = [name for name in CASE if name != "basis"]
_DECLARED = [name for name in KNOWN if name.startswith("declared_")]
_DERIVED: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("derived.toml").read_text(encoding="utf-8")
)
#: The host's clock may be off by a tick on each core: in a short case that looks like other work.
TICK_S = 0.01
#: ``results/reference/``, as it travels with the package.
REFERENCE = Path(gatherbench.__file__).with_name("reference")
_METERED = ["system_cpu_busy_s", "cpu_user_s", "cpu_system_s", "window_s"]
_ABOUT = ["unit", "source", "meaning", "stage", "metric", "declared"]


@dataclass(frozen=True, eq=False)
class Run:
    """One run, as its folder holds it. The epochs of a case that is no result are left out.

    Attributes:
        plan: the resolved plan.
        env: the machine, see :func:`gatherbench.bench.machine.env.describe_machine`.
        epochs: a line per epoch, and of each rank that has one:
            :data:`~gatherbench.bench.run.frames.EPOCH_KEYS`, ``noisy`` (the machine had too much
            other work while the case ran), ``used`` (it counts), then the observations, with the
            unit in the name. A missing value is NaN.
        cases: a line per case: how it ended, its set-up, its checks:
            :data:`~gatherbench.bench.run.frames.CASE_KEYS`, ``noisy``, ``other_cores`` (that other
            work had while the case ran), ``used``, then the observations.
        reasons: why a number is missing, by case and column, or for single epochs (epoch -1: all of
            the case's); with the status ``ok`` its source, if it differs from its column's.
            Columns: :data:`~gatherbench.bench.run.frames.REASON_KEYS`.
        columns: by column, its ``unit``, ``source``, ``meaning``, and the ``stage`` and ``metric``
            by which processes name it.
        declared: the values that each case, even a failed one, declares of its mean epoch, by
            :data:`CASE` without the basis.
        samples: seconds of every stage of every minibatch; empty while the run has not ended.
        calibration: the check of a GPU's sensors, a line per observation
            (:data:`~gatherbench.bench.run.rows.HEADER`); empty without a GPU.
        going: whether it was still being measured when it was read; ``None``: unknown.
    """

    folder: Path
    plan: dict[str, Any]
    env: dict[str, Any]
    epochs: pd.DataFrame
    cases: pd.DataFrame
    reasons: pd.DataFrame
    columns: pd.DataFrame
    declared: pd.DataFrame
    samples: pd.DataFrame
    calibration: pd.DataFrame
    going: bool | None = False

    @cached_property
    def measured(self) -> pd.DataFrame:
        """The measured epochs that count, by :data:`SERIES`, repeat and epoch: none of failed cases
        or single ranks, nor of noisy cases unless their series has no quiet one.

        Raises:
            RunError: an epoch occurs twice in the table.
        """
        epochs = self._counted("measured")
        waited = epochs["host_wait_sample_s"]
        if self.sampler_workers == 0 and self.drawn not in GPU_SAMPLING:
            waited = waited.fillna(0.0)  # the loop itself draws minibatches: it never waits
        names = ["declared_row_bytes", "declared_disk_payload_bytes", "declared_lookahead"]
        series = pd.MultiIndex.from_frame(epochs.reset_index()[SERIES[:4]])
        given = self.declared_medians[names].reindex(series).set_axis(epochs.index)
        return _derived("measured", epochs, **given, waited=waited)

    @cached_property
    def declared_medians(self) -> pd.DataFrame:
        """Declared values of an epoch: medians over repeats, by :data:`SERIES` but the basis."""
        medians = _whole(self.declared, _DECLARED).groupby(SERIES[:4]).median()
        requests = medians.filter(regex=r"^declared_gpu_requests_\d+b$").sum(axis=1, min_count=1)
        return _derived("declared", medians).assign(declared_link_requests=requests)

    @cached_property
    def medians(self) -> pd.DataFrame:
        """A line per measured series: medians of :attr:`measured` over repeats and epochs, of cases
        that count and of declared values over repeats. What is declared of minibatches
        (``declared_sample_…``) is that of the workload. ``role`` is that of its path.
        """
        from gatherbench.strategies.registry import role_of  # imports torch

        seen = pd.concat([self.measured.droplevel("epoch"), self.ended[self.ended["used"]]])
        others = [*EPOCH_KEYS, *CASE_KEYS, *seen.filter(regex="^declared_")]
        numbers = seen.drop(columns=others, errors="ignore").astype(float)
        medians = numbers.groupby(SERIES).median()
        drawn = self.declared.filter(like="declared_sample_").groupby("workload").median()
        declared = self.declared_medians.drop(columns=drawn.columns)
        medians = medians.join(declared, on=SERIES[:4]).join(drawn, on="workload")
        roles = [role_of(*series[1:3]) for series in medians.index]
        return _derived("medians", medians.copy().assign(role=roles), idle_w=self.idle_power_w)

    @cached_property
    def predicted(self) -> pd.DataFrame:
        """The predicted epochs, as :attr:`measured`."""
        return self._counted("predicted")

    def _counted(self, basis: str) -> pd.DataFrame:
        epochs = self.epochs
        chosen = (epochs["basis"] == basis) & (epochs["rank"] < 0) & epochs["used"]
        whole = _whole(epochs[chosen].set_index([*CASE, "epoch"]))
        if whole.index.has_duplicates:
            twice = whole.index[whole.index.duplicated()][0]
            raise RunError(f"{self.folder / 'epochs.csv'}: {twice} stands twice")
        return whole

    @cached_property
    def ended(self) -> pd.DataFrame:
        """The cases that have ended in any way, by :data:`CASE`; ``used``: it counts."""
        chosen = (self.cases["rank"] < 0) & self.cases["status"].notna()
        return _derived("ended", _whole(self.cases[chosen].set_index(CASE)))

    @property
    def in_turns(self) -> bool:
        """Whether paths took turns in one process."""
        return bool(self.ended["setup_process_began_s"].notna().any())

    @property
    def run_id(self) -> str:
        """The run's id, as in its lines: the folder may have been renamed."""
        return next(iter(self._all("run")), self.folder.name)

    @cached_property
    def machine(self) -> str:
        """The machine that measured; empty before any measurement. Predictions name another."""
        return ", ".join(self._all("machine", ["measured"]))

    @cached_property
    def commit(self) -> str:
        """The commits whose code measured or predicted; empty before any measurement."""
        return ", ".join(self._all("commit"))

    @cached_property
    def has_gpu(self) -> bool:
        """Whether any case was measured on a GPU."""
        return "cuda" in self._all("backend", ["measured"])

    @property
    def idle_power_w(self) -> float:
        """The GPU's power with an idle process on it, W; NaN: not measured."""
        readings = self.calibration.query("metric == 'idle_power' and status == 'ok'")["value"]
        return float(readings.iloc[-1]) if len(readings) else math.nan

    def _all(self, column: str, bases: Sequence[str] = BASES) -> list[str]:
        tables = (table[table["basis"].isin(bases)] for table in (self.cases, self.epochs))
        return sorted({str(value) for table in tables for value in table[column].unique()})

    @property
    def workloads(self) -> list[str]:
        """Ids of the workloads, in the order of the plan."""
        return list(self.plan["workloads"])

    @cached_property
    def drawn(self) -> str:
        """The source of its minibatches: as planned, and ``live`` if the GPU could not draw."""
        sampling = str(self.plan["measure"].get("sampling", "live"))
        could = sampling not in GPU_SAMPLING or "cuda" in self._all("backend")
        return sampling if could else "live"

    @property
    def sampler_workers(self) -> int:
        """Threads that draw minibatches ahead of the loop; 0: the loop does, or a GPU."""
        planned = int(self.plan["measure"].get("sampler_workers", 0))
        return 0 if self.drawn in GPU_SAMPLING else planned

    @property
    def names(self) -> dict[str, str]:
        """The workloads in words, by id: for titles and sentences."""
        return workload_names(self.plan["workloads"])

    def families(self, **plain: object) -> dict[str, str]:
        """Return by workload, in the plan's order, a name of all that differ at most in fields.

        ``plain``: their default values; plans may be older than a field.
        """
        same = {ident: {**of, **plain} for ident, of in self.plan["workloads"].items()}
        texts = {ident: json.dumps(of, sort_keys=True) for ident, of in same.items()}
        first = {text: ident for ident, text in reversed(texts.items())}
        names = workload_names({ident: same[ident] for ident in first.values()})
        return {ident: names[first[text]] for ident, text in texts.items()}


def _derived(name: str, frame: pd.DataFrame, **given: Any) -> pd.DataFrame:
    """Return the frame with the columns that ``derived.toml`` derives of it and what is given."""
    with_given = frame.assign(**given).copy()  # in one piece, as many single columns are slow
    for column, formula in _DERIVED[name].items():
        with_given[column] = with_given.eval(formula, engine="python")
    return with_given.drop(columns=[*given]).copy()


def _whole(frame: pd.DataFrame, known: Sequence[str] = tuple(KNOWN)) -> pd.DataFrame:
    """Return the frame with all known columns, even those that were not observed."""
    return frame.reindex(columns=list(dict.fromkeys([*frame, *known])))


def load_run(folder: Path | str, frames: Frames | None = None) -> Run:
    """Read a run's folder, such as ``results/example``; ``frames`` in place of those it holds.

    Raises:
        RunError: it is not a run folder, was written with another schema version, or holds a file
            that cannot be read; the message names the file and the remedy.
    """
    store = RunStore.open(Path(folder))
    going = is_running(store.folder)  # before the tables: a run that ends meanwhile has them all
    plan, env, frames = store.plan(), store.env(), store.frames() if frames is None else frames
    check(store.folder, plan, frames, env)
    samples = store.lists("samples")
    return run_of(store.folder, plan, env, frames, store.calibration(), samples, going)


def run_of(
    folder: Path,
    plan: dict[str, Any],
    env: dict[str, Any],
    frames: Frames,
    calibration: pd.DataFrame | None = None,
    samples: pd.DataFrame | None = None,
    going: bool | None = False,
) -> Run:
    """Make a :class:`Run`; cases that are no result keep declared values and how they ended."""
    frames = judged(frames)  # a run that was killed has not been judged
    right, cases = right_in(frames), frames.cases.copy()
    no_reason = cases["status"].isin(("failed", "skipped")) & cases["reason"].isna()
    cases["reason"] = cases["reason"].mask(no_reason, "no reason was given")
    abouts = [attrgetter(*_ABOUT)(column) for column in frames.columns.values()]
    about = pd.DataFrame(abouts, pd.Index(frames.columns, name="column"), _ABOUT)
    observed = about.index[~about["declared"].astype(bool) & ~about["stage"].isin(STILL_RIGHT)]
    wrong = (cases["basis"] == "measured") & ~among(cases, right)
    cases.loc[wrong, [name for name in observed if name in cases]] = np.nan
    epochs = frames.epochs[(frames.epochs["basis"] != "measured") | among(frames.epochs, right)]
    noise = noise_of(epochs, cases, env)
    samples = pd.DataFrame(columns=list(LISTS["samples"])) if samples is None else samples
    measured = set(ids_in(epochs[epochs["basis"] == "measured"]))
    return Run(
        folder,
        plan,
        env,
        _with_noise(epochs, noise.drop(columns="other_cores"), EPOCH_KEYS),
        _with_noise(cases, noise, CASE_KEYS),
        frames.reasons,
        about,
        of_mean_epoch(frames),
        samples[among(samples, measured)].reset_index(drop=True),
        table_of(()) if calibration is None else calibration,
        going,
    )


def of_mean_epoch(frames: Frames) -> pd.DataFrame:
    """Return :attr:`Run.declared`: means over the epochs that a case measured, or its own values.

    A size of request that no read of an epoch has is absent there, and counts as 0.
    """
    names = [name for name, column in frames.columns.items() if column.declared]
    once, each = (
        frame[(frame["basis"] == "measured") & (frame["rank"] < 0)]
        .set_index(_DECLARING)
        .reindex(columns=names)
        for frame in (frames.cases, frames.epochs)
    )
    by_case = each.dropna(how="all").groupby(_DECLARING, sort=False)
    means = by_case.sum(min_count=1).div(by_case.size().astype(float), axis=0)
    medians = means.combine_first(once[~once.index.duplicated()]).reindex(columns=names)
    return _whole(medians, _DECLARED).dropna(how="all").astype(float)


def noise_of(epochs: pd.DataFrame, cases: pd.DataFrame, env: dict[str, Any]) -> pd.DataFrame:
    """Return how quiet the machine was during each case, by :data:`CASE`.

    A burst of other work may meet all epochs of one case. It then tilts every ratio to that case,
    which neither spread nor interval shows.

    ``noisy``: other work (:class:`gatherbench.bench.meters.cpu.OtherWork`) had too many cores;
    ``other_cores``: those that it had over all of the case's epochs, NaN if the host was not
    metered; ``used``: the case did not fail, and was quiet or its series has no quiet case.
    """
    epochs, cases = epochs[epochs["rank"] < 0], cases[cases["rank"] < 0]
    sums = epochs.reindex(columns=[*CASE, *_METERED, "system_cpu_steal_s"])
    sums = sums.fillna({"system_cpu_steal_s": 0.0}).dropna(subset=_METERED).groupby(CASE).sum()
    window, cores = sums["window_s"], env.get("cpu", {}).get("logical_cores") or 1
    busy = sums["system_cpu_busy_s"] + sums["system_cpu_steal_s"]
    other = busy - (sums["cpu_user_s"] + sums["cpu_system_s"])
    too_much = other - quiet_cores(cores) * window > TICK_S * cores
    index = pd.MultiIndex.from_frame(pd.concat([epochs, cases])[CASE].drop_duplicates())
    noisy = too_much.reindex(index, fill_value=False)
    measured, failed = (
        index.isin(pd.MultiIndex.from_frame(frame[CASE]))
        for frame in (epochs, cases[cases["status"] == "failed"])
    )
    quiet = ~noisy & measured  # a case that is no result has no epochs
    used = ~failed & (~noisy | ~quiet.groupby(SERIES).transform("any"))
    # Clocks tick: a negative load is none.
    load = (other / window).clip(lower=0).reindex(index)
    return pd.DataFrame({"noisy": noisy, "other_cores": load, "used": used})


def _with_noise(frame: pd.DataFrame, noise: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return the lines with columns in order: keys, those of noise, known ones, the others."""
    marked = frame.join(noise, on=CASE).reset_index(drop=True)
    marked[["noisy", "used"]] = marked[["noisy", "used"]].eq(True)
    known = [name for name in KNOWN if name in marked]
    return marked[list(dict.fromkeys([*keys, *noise, *known, *marked]))]


def load_reference(folder: Path = REFERENCE) -> pd.DataFrame:
    """Read the published rows of the tables in ``folder``: figures of other machines.

    Columns: :data:`gatherbench.bench.run.rows.HEADER`, in which ``source`` names the paper, thread
    or vendor, and ``table``: the file's name without its ending.

    Raises:
        RunError: a file is not a table of rows.
    """
    paths = sorted(folder.glob("*.csv"))
    tables = [read_observations(path).assign(table=path.stem) for path in paths]
    return pd.concat(tables or [table_of(()).assign(table="")], ignore_index=True)


def newest_run(root: Path) -> Path:
    """Return the newest run's folder under ``root`` (``results/``): by start, then last change.

    Raises:
        RunError: there is none, or the name is invalid for a folder.
    """
    try:
        plans = [plan for plan in root.glob("*/*/plan.json") if began(plan.parent)]
    except OSError as error:
        raise RunError(f"{root}: {error.strerror}; name another folder with --results") from error
    if not plans:
        raise RunError(f"{root}: holds no run; make one with `gatherbench run quick`")
    return max(plans, key=lambda plan: (began(plan.parent), plan.stat().st_mtime)).parent


def began(folder: Path) -> str:
    """Return when a folder's run began, UTC, as a text that sorts: ``2026-11-23T07:02:41+00:00``.

    Of an older run it is the date with which its name begins, ``2026-11-23``; else empty.
    """
    try:
        return str(read_json(folder / "env.json")["began"])
    except (OSError, ValueError, KeyError, TypeError):
        match = re.match(r"(\d{4})-?(\d{2})-?(\d{2})", folder.name)
        return "-".join(match.groups()) if match else ""

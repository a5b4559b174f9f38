"""Measured epochs beside the model's: the file from which ``bench/model/errors.py`` reads, and the
table of it in ``bench/model/NOTES.md``.

    python -m tools.model_errors [RESULTS]

writes the table ``[loop]`` of each shipped profile from the runs in ``results/`` that were measured
on its GPU, then ``bench/model/epochs.csv`` and the table in the notes. Do so after a change of the
model, and after a run is added.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

from gatherbench.bench.model.epoch import epoch_seconds
from gatherbench.bench.model.errors import FILE, Beside, told_apart
from gatherbench.bench.model.predict import Series, profile_of, series_of
from gatherbench.bench.model.profile import (
    PROFILES_FOLDER,
    LinkProfile,
    load_profile,
    profile_names,
)
from gatherbench.bench.model.roofline import against_measured
from gatherbench.bench.read.tables import Run, load_run
from tools.training_loop import KEYS, Epoch, epochs_of, fitted

RESULTS = Path(__file__).parents[1] / "results"
NOTES = FILE.with_name("NOTES.md")


def gpu_runs(results: Path) -> dict[str, list[Run]]:
    """Shipped profile → the runs of its machine, with epochs measured on a GPU.

    Of those whose host's clock was read: earlier loops drew and issued otherwise.
    """
    found: dict[str, list[Run]] = {}
    for plan in sorted(results.glob("*/*/plan.json")):  # of runs: probes leave rows alone
        run = load_run(plan.parent)
        used = profile_of(run)
        measured = run.select(stage="host", basis="measured", backend="cuda")
        if used is not None and used.name in profile_names() and len(measured):
            found.setdefault(used.name, []).append(run)
    return found


def beside_of(runs: Sequence[Run], profile: LinkProfile) -> Iterator[Beside]:
    """The series of these runs beside the model of ``profile``."""
    epochs = list(epochs_of(runs, profile))
    without = profile
    for key in KEYS:
        without = without.with_constant(key, None, "left out")

    def of_others(mine: Callable[[Epoch], object]) -> dict[object, LinkProfile]:
        groups = dict.fromkeys(map(mine, epochs))
        return {g: fitted([e for e in epochs if mine(e) != g], profile) for g in groups}

    other_runs = of_others(lambda one: one.run)
    other_paths = of_others(lambda one: (one.key[1], one.load.lookahead))
    for run in runs:
        series = {one.key: one for one in series_of(run, profile)}
        for row in against_measured(run, profile).to_dict("records"):
            one = series[str(row["workload"]), str(row["strategy"]), str(row["variant"])]
            if one.load is None:  # its first repeat failed, and declared nothing
                continue
            ahead = one.load.lookahead
            profiles = (without, other_runs[run.run_id], other_paths[one.strategy, ahead])
            names = ("measured_s", "modelled_s", "modelled_path_s")
            times = [row[name] for name in names] + [_epoch_s(one, p) for p in profiles]
            yield Beside(profile.name, run.run_id, *one.key, ahead, *times)


def _epoch_s(one: Series, profile: LinkProfile) -> float:
    if one.load is None:
        return math.nan
    return epoch_seconds(one.load, profile, one.batches, one.gpus, one.nodes).value or math.nan


def between_processes(series: Sequence[Beside]) -> float:
    """How much a path's epochs differ from run to run: their SD, as a share.

    Of paths that were measured on one workload in several runs.
    """
    runs: defaultdict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for one in series:
        runs[one.machine, one.workload, one.strategy, one.variant].append(math.log(one.measured_s))
    several = [statistics.variance(logs) for logs in runs.values() if len(logs) > 1]
    return math.sqrt(statistics.fmean(several))


def write(series: Iterable[Beside], path: Path = FILE) -> None:
    """Six digits of each epoch: more were not measured."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Beside)], lineterminator="\n")
        writer.writeheader()
        for one in series:
            said = asdict(one)
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in said.items()})


_HEAD = "| modelled / measured − 1, % |"
#: Columns of the table, and what each is off by.
_WAYS = {
    "as timed alone": "alone_s",
    "with `[loop]`": "modelled_s",
    "training as measured, too": "trained_s",
    "`[loop]` of other runs": "other_runs_s",
    "of other paths": "other_paths_s",
}


def table(series: Sequence[Beside]) -> list[str]:
    """The errors by path and workload, and what they are together, as Markdown."""
    groups = dict.fromkeys((one.run, one.workload) for one in series)
    lines = _head(_HEAD.strip("| "), *(_named(*group) for group in groups))
    for path in dict.fromkeys((one.strategy, one.variant) for one in series):
        mine = {(o.run, o.workload): o for o in series if (o.strategy, o.variant) == path}
        cells = (_cell(mine[group]) if group in mine else "" for group in groups)
        lines.append(f"| {' '.join(path).removesuffix(' default')} | {' | '.join(cells)} |")
    lines += ["", *_head("epochs", "root mean square", "least", "most", "within 15 %")]
    for words, name in _WAYS.items():
        off = [replace(one, modelled_s=getattr(one, name)).error for one in series]
        rms = math.sqrt(sum(e * e for e in off) / len(off))
        near = f"{sum(abs(e) <= 0.15 for e in off)} of {len(off)}"
        ends = " | ".join(f"{_percent(end)} %" for end in (min(off), max(off)))
        lines.append(f"| {words} | {100 * rms:.1f} % | {ends} | {near} |")
    return lines


def _head(*names: str) -> list[str]:
    return [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]


def _named(run: str, workload: str) -> str:
    """``products-like (energy-41ef43)``: the graph and the run."""
    return f"{workload.partition('-sage')[0]} ({run.split('-', 1)[1]})"


def _cell(one: Beside) -> str:
    return f"{_percent(replace(one, modelled_s=one.alone_s).error)} → {_percent(one.error)}"


def _percent(share: float) -> str:
    return f"{round(100 * share) + 0:+d}".replace("-", "−")


def main(results: Path) -> None:
    found: list[Beside] = []
    for name, runs in gpu_runs(results).items():
        profile = load_profile(name)
        profile = fitted(list(epochs_of(runs, profile)), profile)
        (PROFILES_FOLDER / f"{name}.toml").write_text(profile.to_toml(), encoding="utf-8")
        found += beside_of(runs, profile)
    write(found)
    text = "\n".join(table(found))
    notes = NOTES.read_text(encoding="utf-8")
    begin, last = notes.index(_HEAD), f"| {list(_WAYS)[-1]} |"
    end = notes.index("\n", notes.index(last, begin))
    NOTES.write_text(notes[:begin] + text + notes[end:], encoding="utf-8")
    print(text)
    print(f"\nnot told apart below a ratio of {told_apart():.2f};", end=" ")
    print(f"SD between processes of one path {between_processes(found):.0%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)

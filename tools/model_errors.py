"""Measured epochs beside the model's: the file from which ``bench/model/errors.py`` reads, and the
table of it in ``bench/model/NOTES.md``.

    python -m tools.model_errors [RESULTS]

Do so after a change of the model, and after a run is added.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

from gatherbench.bench.model.epoch import epoch_seconds
from gatherbench.bench.model.errors import FILE, Beside, told_apart
from gatherbench.bench.model.predict import profile_of, series_of
from gatherbench.bench.model.profile import profile_names
from gatherbench.bench.model.roofline import against_measured
from gatherbench.bench.read.tables import load_run

RESULTS = Path(__file__).parents[1] / "results"
NOTES = FILE.with_name("NOTES.md")


def beside(results: Path = RESULTS) -> Iterator[Beside]:
    """The series measured on a GPU whose profile is shipped, beside the model of that profile."""
    for plan in sorted(results.glob("*/*/plan.json")):  # of runs: probes leave rows alone
        run = load_run(plan.parent)
        profile = profile_of(run)
        on_gpu = len(run.select(metric="wall_time", basis="measured", backend="cuda"))
        if profile is None or profile.name not in profile_names() or not on_gpu:
            continue
        chain = profile.with_constant("gpu.issue", None, "left out")
        series = {one.key: one for one in series_of(run, profile)}
        for row in against_measured(run, profile).to_dict("records"):
            one = series[str(row["workload"]), str(row["strategy"]), str(row["variant"])]
            if one.load is None:  # its first repeat failed, and declared nothing
                continue
            chained = epoch_seconds(one.load, chain, one.batches, one.gpus, one.nodes).value
            times = (row["measured_s"], row["modelled_s"], chained or math.nan)
            yield Beside(profile.name, run.run_id, *one.key, one.load.lookahead, *times)


def write(series: Iterable[Beside], path: Path = FILE) -> None:
    """Six digits of each epoch: more were not measured."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Beside)], lineterminator="\n")
        writer.writeheader()
        for one in series:
            said = asdict(one)
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in said.items()})


_HEAD = "| modelled / measured − 1, % |"
#: Lines of the second table, and the times that each is of.
_WAYS = {"by a chain of kernels": "chained_s", "by steps (`gpu.issue`)": "modelled_s"}


def table(series: Sequence[Beside]) -> list[str]:
    """The errors by path and workload, and what they are together, as Markdown."""
    groups = dict.fromkeys((one.run, one.workload) for one in series)
    lines = _head(_HEAD.strip("| "), *(_named(*group) for group in groups))
    for path in dict.fromkeys((one.strategy, one.variant) for one in series):
        mine = {(o.run, o.workload): o for o in series if (o.strategy, o.variant) == path}
        cells = (_percent(mine[group].error) if group in mine else "" for group in groups)
        lines.append(f"| {' '.join(path).removesuffix(' default')} | {' | '.join(cells)} |")
    lines += ["", *_head("issuing", "root mean square", "least", "most", "within 15 %")]
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
    """``hashed-papers (gpu-energy-7ef9f1)``: the graph and the run."""
    return f"{workload.partition('-sage')[0]} ({run.split('-', 1)[1]})"


def _percent(share: float) -> str:
    return f"{round(100 * share) + 0:+d}".replace("-", "−")


def main(results: Path) -> None:
    found = list(beside(results))
    write(found)
    text = "\n".join(table(found))
    notes = NOTES.read_text(encoding="utf-8")
    begin, last = notes.index(_HEAD), f"| {list(_WAYS)[-1]} |"
    end = notes.index("\n", notes.index(last, begin))
    NOTES.write_text(notes[:begin] + text + notes[end:], encoding="utf-8")
    print(text)
    print(f"\nnot told apart below a ratio of {told_apart():.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)

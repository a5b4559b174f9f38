"""All that ``results/`` holds, read at once for the notebooks: published, measured, micro.

Notebooks ask "what is known of this question?", not "what did that run say?": of several runs the
one that was begun last counts, of those that measured what is asked for. What is not there is an
empty table or ``None``, and the figures say so in its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from gatherbench.bench.plan.workload import ranks_of, workload_names
from gatherbench.bench.read.derive import epoch_times, set_aside
from gatherbench.bench.read.points import is_point_table, read_points
from gatherbench.bench.read.reference import load_reference
from gatherbench.bench.read.tables import Run, began, load_run, only
from gatherbench.bench.run.rows import SERIES
from tools.notebooks import RESULTS_VARIABLE

#: A run as a table: a line for each series that has what is asked for; ``workload`` is a column.
Derive = Callable[[Run], pd.DataFrame]


@dataclass(frozen=True, slots=True, eq=False)
class Findings:
    """What is known.

    Attributes:
        published: rows of :func:`gatherbench.bench.read.reference.load_reference`.
        runs: every run, the one that was begun last first.
        micro: what ``gpu-micro`` timed (:mod:`gatherbench.bench.read.points`) on the machine of the
            newest, each case by the newest that has it; and the ``machine``.
    """

    published: pd.DataFrame
    runs: list[Run]
    micro: pd.DataFrame

    @property
    def names(self) -> dict[str, str]:
        """The workloads of all runs in words, by id."""
        plans = [run.plan["workloads"] for run in self.runs]
        return workload_names({ident: fields for plan in plans for ident, fields in plan.items()})

    @property
    def gpu_machine(self) -> str:
        """The machine of the newest ``gpu-micro``, or else of the newest run on a GPU; or empty."""
        machines = [*self.micro["machine"].head(1), *(run.machine for run in self.runs_on("cuda"))]
        return machines[0] if machines else ""

    def runs_on(self, backend: str, derive: Derive = epoch_times) -> list[Run]:
        """The runs that measured ``derive`` on ``backend``, each cut to what no newer one has.

        For each machine and workload the newest run that has it counts: a later plan with other
        workloads, or without what is asked for, hides nothing of an earlier one. Workloads of
        several ranks are a question of their own: :meth:`runs_of_ranks`.
        """
        return self._newest(
            backend, derive, lambda run: {w: [w] for w in run.workloads if _ranks(run, w) == 1}
        )

    def runs_of_ranks(self, backend: str) -> list[Run]:
        """The same for families of workloads that differ in their ranks alone, each as a whole."""
        return self._newest(
            backend,
            epoch_times,
            lambda run: {
                name: alike
                for name, alike in run.alike(gpus=1, scaling="strong")
                if len({_ranks(run, one) for one in alike}) > 1
            },
        )

    def _newest(
        self, backend: str, derive: Derive, parts: Callable[[Run], Mapping[str, Sequence[str]]]
    ) -> list[Run]:
        """The runs, each with those of its ``parts`` that no newer one of the machine has."""
        known: set[tuple[str, str]] = set()
        found = []
        for run in self.runs:
            here = only(run, backends={backend})
            measured = here.select(basis="measured", workload=set(derive(here)["workload"]))
            machines = measured.groupby("workload")["machine"].first()
            wanted = set[str]()
            for name, workloads in parts(run).items():
                there = [w for w in workloads if w in machines.index]
                new = {(machines[w], name) for w in there} - known
                known |= new
                wanted |= set(workloads if new else ())
            if wanted:
                found.append(only(run, workloads=wanted, backends={backend}))
        return found

    def derived(self, backend: str, derive: Derive) -> pd.DataFrame:
        """``derive`` (see :mod:`gatherbench.bench.read.derive`) over the runs that have it, as one
        table, without the series that nobody would train with.

        Columns: ``machine``, ``dataset``, ``model``, and those of ``derive``.
        """
        tables = []
        for run in self.runs_on(backend, derive):
            fixed = run.rows.drop_duplicates("workload")[
                ["workload", "machine", "dataset", "model"]
            ]
            table = derive(run)
            aside = pd.MultiIndex.from_frame(table[SERIES[1:3]]).isin(list(set_aside(run)))
            tables.append(table[~aside].merge(fixed, on="workload"))
        if not tables:
            names = [*SERIES, "median", "low", "high", "machine", "dataset", "model"]
            return pd.DataFrame(columns=names)
        return pd.concat(tables, ignore_index=True)

    def epochs(self, backend: str) -> pd.DataFrame:
        """Seconds per epoch, as :meth:`derived`."""
        return self.derived(backend, epoch_times)


def _ranks(run: Run, workload: str) -> int:
    return ranks_of(run.plan["workloads"][workload])


def open_findings() -> Findings:
    """What the repository's ``results/`` holds, or the folder that ``$GATHERBENCH_RESULTS`` names.

    The published rows are always the repository's.

    Raises:
        FileNotFoundError: neither the working directory nor a folder above it holds ``results/``.
        RunError, StoreError: a run or a table that cannot be read; the message names the file.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "results" / "reference").is_dir():
            own = folder / "results"
            return load_findings(Path(os.environ.get(RESULTS_VARIABLE, own)), own / "reference")
    raise FileNotFoundError(f"{here.name}: no folder above it holds results/reference")


def load_findings(root: Path, reference: Path) -> Findings:
    """What lies below ``root``, with the published rows in ``reference``.

    Raises:
        RunError, StoreError: as :func:`open_findings`.
    """
    plans, tables = (
        sorted(
            {path.parent for path in root.rglob(name) if "predicted" not in path.parts},
            key=began,
            reverse=True,
        )
        for name in ("plan.json", "rows.csv")
    )
    runs = [load_run(folder) for folder in plans]
    # Of one day, where neither says when it began, the one that measured more.
    runs.sort(key=lambda run: (began(run.folder), len(run.rows)), reverse=True)
    probed = [folder for folder in tables if is_point_table(folder / "rows.csv")]
    machine = probed[0].parent.name if probed else ""
    timed = read_points(None)
    for folder in (one for one in probed if one.parent.name == machine):
        more = read_points(folder / "rows.csv")
        fresh = more["time_s"].notna() & ~more["case"].isin(set(timed["case"]))
        timed = pd.concat([timed, more[fresh]]) if len(timed) else more[fresh]
    return Findings(load_reference(reference), runs, timed.assign(machine=machine))

"""From the words of a command line to advice: which graph, which machine, what was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gatherbench.bench.machine.env import this_machine
from gatherbench.bench.machine.gpus import describe_gpus
from gatherbench.bench.model.advise.asked import Asked
from gatherbench.bench.model.advise.caches import with_caches
from gatherbench.bench.model.advise.question import (
    GBIT,
    GIB,
    AdviceError,
    Question,
    dataset_graph,
    disk_of,
    graph_of,
    graph_sizes,
    laws_of,
)
from gatherbench.bench.model.advise.rank import Advice, advise
from gatherbench.bench.model.profile import (
    DEFAULT_PROFILE,
    PROGRAM,
    LinkProfile,
    drawn_by_program,
    load_profile,
)
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.read.derive import epoch_times
from gatherbench.bench.read.disturbance import disturbed
from gatherbench.bench.read.tables import Run, RunError, load_run
from gatherbench.bench.read.units import whole
from gatherbench.bench.run.rows import SERIES

#: Fields of a workload that decide its epoch; seeds draw other minibatches of the same kind.
_SAME = ("dataset", "scale", "model", "hidden", "fanouts")

#: Of ``--sampler``, and what runs call it (``Run.sampling``).
ON_GPU = "gpu"
#: What is said where no ``--sampler`` is.
_SAMPLERS = (
    "each profile has the sampler of where it was measured: compare two profiles under one"
    " --sampler, e.g. 20M edges a second"
)


def answer(asked: Asked, results: Path, calibrations: Path) -> Advice:
    """Advice on what was asked.

    Args:
        results: where runs are kept; those of this machine are used where no other was named.
        calibrations: where ``gatherbench calibrate`` puts its profiles.

    Raises:
        AdviceError, DatasetError, ProfileError: what was asked does not exist or does not fit.
    """
    numbers = (asked.nodes, asked.edges, asked.dim)
    if bool(asked.dataset) == any(numbers):
        raise AdviceError(
            "give a dataset, or --nodes, --edges and --dim of a graph"
            + (", not both" if asked.dataset else "")
        )
    if asked.scale <= 0 or (asked.scale != 1 and not asked.dataset):
        raise AdviceError(f"--scale {asked.scale:g}: a share above 0, of a generated dataset")
    if any(numbers) and not all(numbers):
        raise AdviceError("--nodes, --edges and --dim go together: give all three, above 0")
    # What needs no graph is checked before one is looked for.
    question = Question(
        graph_of(2, 1, 1),
        fanouts_of(asked.fanouts),
        asked.batch_size,
        asked.model,
        asked.hidden,
        asked.gpus,
        asked.gpu_memory * GIB or None,
        asked.machines,
        asked.host_memory * GIB or None,
        asked.network * GBIT or None,
        *disk_of(asked.disk),
        gpu_samples=asked.sampler.lower() == ON_GPU,
    )
    profile, default = chosen_profile(asked.profile, calibrations)
    if question.gpu_samples and profile["gpu.draw"].value is None:
        raise AdviceError(
            f"--sampler {ON_GPU}: profile {profile.name} does not know what a draw takes there"
            " (gpu.draw: gatherbench calibrate measures it)"
        )
    if asked.sampler and not question.gpu_samples:
        profile = _drawn_by(asked.sampler, profile)
    if asked.dataset:
        graph = dataset_graph(asked.dataset, asked.train_nodes, asked.law, asked.scale)
    else:
        graph = graph_of(
            *numbers,
            asked.dtype,
            classes=asked.classes,
            train_nodes=asked.train_nodes,
            laws=laws_of(asked.law),
        )
    question = dataclasses.replace(question, graph=graph)
    sizes = graph_sizes(question)
    measured = {} if asked.profile else measured_epochs(question, results, this_machine())
    advice = with_caches(advise(question, sizes, profile, measured))
    remarks = advice.remarks if asked.sampler else (_SAMPLERS, *advice.remarks)
    return dataclasses.replace(advice, remarks=remarks, default=default)


def measured_epochs(
    question: Question, results: Path, machine: str
) -> dict[tuple[str, str], tuple[float, str]]:
    """(strategy, variant) → median seconds of an epoch on a GPU, and the run that says so.

    Of several runs on this machine the newest that has a case counts; a case beside which there was
    other work counts only where there is no other. All runs must get their minibatches
    (``Run.sampling``) as the newest does, since that is part of an epoch. Epochs that were cut
    short do not count, nor does what was measured in host memory: it is no GPU's time. Where the
    question is of minibatches that the GPU draws, others do not count. Runs that cannot be read are
    passed over.
    """
    found: dict[tuple[str, str], tuple[float, str]] = {}
    loud: set[tuple[str, str]] = set()  # of these the cases beside which there was other work
    if not question.graph.name:
        return found
    agreed = ON_GPU if question.gpu_samples else ""
    for run in _runs(results / machine):
        sampling = run.sampling
        if agreed not in ("", sampling):
            continue
        workloads = [name for name in run.workloads if _same(question, run.plan["workloads"][name])]
        times = epoch_times(run).query("backend == 'cuda' and basis == 'measured'")
        beside = disturbed(run).groupby(SERIES).groups
        for row in times[times["workload"].isin(workloads)].to_dict("records"):
            key = (str(row["strategy"]), str(row["variant"]))
            noisy = tuple(row[name] for name in SERIES) in beside
            agreed = sampling
            if key in found and (noisy or key not in loud):
                continue
            (loud.add if noisy else loud.discard)(key)
            said = f"{run.run_id}, median of {row['count']} epochs, sampling {sampling}"
            found[key] = (float(row["median"]), said + ", beside other work" * noisy)
    return found


def _runs(folder: Path) -> Iterator[Run]:
    """The runs of a machine, the newest first."""
    for table in sorted(folder.glob("*/rows.csv"), reverse=True):
        try:
            yield load_run(table.parent)
        except RunError:
            continue


def _same(question: Question, workload: dict[str, object]) -> bool:
    asked = dataclasses.asdict(question.workload())
    asked["fanouts"] = list(question.fanouts)
    if workload.get("max_batches") or any(workload.get(n) != asked[n] for n in _SAME):
        return False
    names = ("batch_size", "gpus", "nodes", "scaling")
    ranks: dict[str, Any] = {name: workload[name] for name in names if name in workload}
    its = Workload(question.graph.name, **ranks)
    mine = question.workload()  # alike are so many seeds a rank, however they came to be its
    return (its.gpus, its.nodes, its.step_seeds) == (mine.gpus, mine.nodes, mine.step_seeds)


def chosen_profile(name: str, calibrations: Path) -> tuple[LinkProfile, str]:
    """The profile that was named, else this machine's calibration, else the usual one.

    Beside it why it is not this machine's; empty where it is, or was named.

    Raises:
        ProfileError: no such profile.
    """
    if name:
        return load_profile(name), ""
    own = calibrations / f"{this_machine()}.toml"
    if own.is_file() and (profile := load_profile(own))["gpu.launch"].value is not None:
        return profile, ""
    if own.is_file():
        why = f"{own} knows no GPU; gatherbench calibrate --base NAME joins the two"
    elif describe_gpus()["gpus"]:
        why = "this machine is not calibrated; gatherbench calibrate does that"
    else:
        why = "this machine has no GPU; --profile NAME says another"
    return load_profile(DEFAULT_PROFILE), why


def _drawn_by(sampler: str, profile: LinkProfile) -> LinkProfile:
    """The machine, with minibatches drawn at that many edges a second, or by another program."""
    if sampler == PROGRAM:
        return drawn_by_program(profile)
    said = "given with the question, on as many cores as the profile's own sampler"
    try:
        return profile.with_constant("host.sample_rate", float(whole(sampler)), said)
    except ValueError:
        known = f"edges a second (1k to 1000B), such as 20M, {ON_GPU}, or {PROGRAM}"
        raise AdviceError(f"--sampler {sampler!r}: {known}") from None


def fanouts_of(text: str) -> tuple[int, ...]:
    """``25,10`` as numbers.

    Raises:
        AdviceError: they are none.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise AdviceError(f"--fanouts {text!r}: numbers with commas, e.g. 25,10") from None

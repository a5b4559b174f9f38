"""Turn a plan on the command line into a table and pictures; ``gatherbench run`` calls this."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape

from gatherbench.bench.commands.common import CALIBRATIONS, FAILED, OK
from gatherbench.bench.commands.finish import finish, own_profile
from gatherbench.bench.commands.progress import again, reporter
from gatherbench.bench.machine.env import describe_machine, library_versions, machine_slug
from gatherbench.bench.meters import registry as meters
from gatherbench.bench.meters.load import Load, Waiting
from gatherbench.bench.model.profile import DEFAULT_PROFILE, ProfileError, load_profile
from gatherbench.bench.plan.plan import Measure, PlanError, ResolvedPlan
from gatherbench.bench.plan.plan_file import USUAL, load_plan
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.read.check import check, first_of
from gatherbench.bench.read.noise import logical_cores
from gatherbench.bench.read.stopping import StoppingRule
from gatherbench.bench.read.units import listed
from gatherbench.bench.run.frames import RESTORE
from gatherbench.bench.run.guards import status_of
from gatherbench.bench.run.launch import LaunchError
from gatherbench.bench.run.part import ends_case, key_of
from gatherbench.bench.run.runner import PreparedRun, Runner, RunStopped
from gatherbench.bench.run.store import RunStore, write_atomically
from gatherbench.bench.show.terminal import progress_bar
from gatherbench.datasets import registry as datasets
from gatherbench.datasets.store import DatasetError, data_root
from gatherbench.kernels.host_memory import available_bytes
from gatherbench.outside import plain
from gatherbench.plugins import Plugins
from gatherbench.strategies import registry as strategies

if TYPE_CHECKING:  # only the first process of a launcher needs it
    from gatherbench.bench.run.machines import Group

#: The plan that :data:`USUAL` stands for, by device.
USUAL_PLANS = {"cpu": "quick", "cuda": "gpu-decide"}


class BadRunError(ValueError):
    """The requested run is impossible; the message says why, and what would be possible."""


def new_run(
    plan_name: str,
    results: Path,
    device: str,
    *,
    profile: str = "",
    sensors: Path | None = None,
    group: Group | None = None,
) -> PreparedRun:
    """Make the folder for a new run of the plan.

    ``device`` and ``profile`` override the plan's. ``sensors``: the folder of an earlier run whose
    check of this GPU's sensors is used again. ``group``: the processes of a launcher, of which this
    is the first; workloads without ``gpus`` use them all.

    Raises:
        BadRunError: the plan is wrong, or needs a device, cores, ranks or a profile that is
            missing; or the run of ``sensors`` has checked no sensors, or those of another GPU.
        StoreError: ``sensors`` is no run folder.
    """
    load = Load.now()
    try:
        if plan_name == USUAL:
            plan_name = USUAL_PLANS[choose_device(device or "auto")]
        plan = load_plan(plan_name)
        device = choose_device(device or plan.device)
        if group is not None:
            plan = plan.with_ranks(group.launch.world)
            for workload in plan.workloads():
                group.launch.check(workload.gpus)
        if any(workload.fit for workload in plan.workload):
            data_root().mkdir(parents=True, exist_ok=True)
            plan = plan.fitted(available_bytes(), shutil.disk_usage(data_root()).free)
        measure = plan.measure
        env = _described(group)
        _refuse_more_threads(measure, plan.workloads(), env)
        machine = _machine(env)
        checked = None if sensors is None else _checked(sensors, env)
        profile = profile or plan.profile or usual_profile(device, machine)
        modelled = load_profile(profile) if profile else None
        plan = plan.model_copy(update={"device": device, "profile": profile})
        cases = plan.cases()
        env["load"] = asdict(load)
        env["waiting"] = asdict(Waiting.chosen(measure.threads, env["cpu"], load))
        env["plugins"] = _plugins(cases)
        brought = {
            package["package"] for names in env["plugins"].values() for package in names.values()
        }
        env["libraries"] |= library_versions(brought)
    except (PlanError, ProfileError, DatasetError, LaunchError) as error:
        raise BadRunError(str(error)) from error
    try:
        text = ResolvedPlan.of(plan, cases).model_dump(mode="json")
        store = RunStore.create(results, machine, text, env)
        if modelled is not None:
            write_atomically(store.profile_file, modelled.to_toml())
        if checked is not None:
            store.take_sensors(checked)
    except OSError as error:
        raise BadRunError(
            f"{results}: the run cannot be written there: {error}; choose a folder with --results"
        ) from error
    commit = env["commit"]
    return PreparedRun(store, cases, measure, device, commit, machine, load, group)


def _described(group: Group | None) -> dict[str, Any]:
    """Describe the machine for ``env.json``, and how many of them train together."""
    several = group is not None and group.launch.machines > 1
    return describe_machine() | ({"machines": group.launch.machines} if group and several else {})


def _machine(env: dict[str, Any]) -> str:
    """Return the name of the machine, or of several that train together."""
    machines = int(env.get("machines", 1))
    return machine_slug(env) if machines == 1 else f"{machines}x-{machine_slug(env)}"


def _checked(folder: Path, env: dict[str, Any]) -> RunStore:
    store = RunStore.open(folder)
    if not store.sensors_file.exists() or store.env().get("gpu_in_use") != env["gpu_in_use"]:
        raise BadRunError(f"{folder}: has not checked this GPU's sensors; leave --sensors out")
    return store


def reopen(folder: Path, group: Group | None = None) -> PreparedRun:
    """Open an earlier run, to complete it.

    Raises:
        BadRunError: the run has another machine or other ranks, or its plan or machine is invalid.
        StoreError: ``folder`` is no run folder, or a file in it is damaged.
    """
    load = Load.now()
    store = RunStore.open(folder)
    text, env = store.plan(), store.env()
    # Refuse now what would be unreadable at the end, hours later.
    check(folder, text, store.frames(), env)
    store.samples()
    store.timeline()
    own_profile(store)
    try:
        plan = ResolvedPlan.model_validate(text)
        cases = plan.expanded()
        for case in {(c.strategy, c.variant): c for c in cases}.values():
            strategies.build(case.strategy, case.params)
    except (ValueError, KeyError, TypeError) as error:
        if text["measure"].keys() - Measure.model_fields.keys():
            raise BadRunError(
                f"{folder}: measured by an older gatherbench, whose plans had other keys; start a"
                " new run, or resume it with the version that its env.json names"
            ) from error
        message = first_of(error) if isinstance(error, ValidationError) else plain(error)
        raise BadRunError(
            f"{folder / 'plan.json'}: not a run's plan ({message}); {RESTORE}"
        ) from error
    try:
        machine = _machine(env)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        message = f"{folder / 'env.json'}: not a machine ({error!r}); {RESTORE}"
        raise BadRunError(message) from error
    machine_now = _described(group)
    if machine != (this_machine := _machine(machine_now)):
        raise BadRunError(
            f"{folder}: measured on {machine}, and this is {this_machine}: start a new run"
        )
    _refuse_more_threads(plan.measure, plan.workloads.values(), machine_now)
    if group is not None:
        try:
            for workload in plan.workloads.values():
                group.launch.check(workload.gpus)
        except LaunchError as error:
            raise BadRunError(f"{folder}: {error}") from error
    device, commit = choose_device(plan.device), machine_now["commit"]
    return PreparedRun(store, cases, plan.measure, device, commit, machine, load, group=group)


def execute(
    run: PreparedRun,
    out: Console,
    err: Console,
    budget_s: float | None = None,
) -> int:
    """Measure the missing cases, print tables and the paths of files, and return the exit status.

    The measurement stops ``budget_s`` seconds after the start, and the rows so far are printed.
    Without it, the plan's ``budget_s`` limits the time in cases.

    Raises:
        StoreError: another process runs this folder, or the folder cannot be read or written.
    """
    for line in _first_lines(run):
        out.print(line, soft_wrap=True, highlight=False)
    measure = run.measure
    if budget_s is not None:  # it replaces the plan's
        measure = measure.model_copy(update={"budget_s": 0.0})
    with progress_bar(err) as bar:
        runner = Runner(
            run,
            budget_s=budget_s,
            further=StoppingRule(run.cases, measure, logical_cores(run.store.env())),
        )
        runner.progress = reporter(bar, run, out, runner.left_s)
        try:
            failed = runner.run()
        except RunStopped as stop:
            err.print(f"[red]stopped:[/] {escape(str(stop))}; every measurement is saved.")
            err.print(f"Then go on with: {again(run)}", soft_wrap=True)
            return FAILED
        except KeyboardInterrupt as stop:
            err.print(
                f"interrupted; every measurement is saved. Go on with: {again(run)}", soft_wrap=True
            )
            return status_of(stop)
    ended = [row for row in run.store.rows() if ends_case(row)]
    if not ended:
        text = f"the time ended before any of {_cases(len(run.cases))} completed a block"
        err.print(f"[red]Nothing was measured:[/] {text}. Go on with: {again(run)}", soft_wrap=True)
        return FAILED
    left_out = runner.left - runner.unprepared - runner.cut_off
    text = f"{left_out} of {_cases(len(run.cases))} left out" if left_out else ""
    if runner.left and runner.cut_off:
        text += f"{' and ' * bool(text)}{_cases(runner.cut_off)} cut off, whose whole blocks count,"
    if text:
        text += f" when the time ended{_unseen(run)}"
        err.print(f"{text}. Go on with: {again(run)}", soft_wrap=True)
    if runner.unprepared:
        problem = f"{_cases(runner.unprepared)} could not be prepared; try again"
        err.print(f"{problem}: {again(run)}", soft_wrap=True)
    complete = finish(run.store, out, err)
    if failed:
        err.print(f"[red]{_cases(failed)} failed[/]; the table says why")
    measured = any(row.status == "ok" for row in ended)
    if not measured:
        err.print("[red]nothing was measured[/]; the table says why")
    return FAILED if failed or not measured or not complete else OK


def _refuse_more_threads(
    measure: Measure, workloads: Iterable[Workload], env: dict[str, Any]
) -> None:
    cores = env["cpu"]["usable_cores"]
    if measure.threads > cores:
        raise BadRunError(
            f"measure.threads: {measure.threads}, but this process may use only {cores} cores; 0"
            " uses them all"
        )
    workers, cores = measure.sampler_workers, measure.threads or cores
    ranks = max(workload.gpus for workload in workloads) // env.get("machines", 1)
    if workers * ranks > cores:
        scope = f" for each of {ranks} ranks" if ranks > 1 else ""
        raise BadRunError(
            f"measure.sampler_workers: {workers}{scope}, but a case may use only {cores} cores: at"
            f" most {cores // ranks}"
        )


def _first_lines(run: PreparedRun) -> Iterator[str]:
    """Describe how much is measured, where, and where results go; warn of a busy machine."""
    waiting = Waiting.of(run.store.env())
    busy = run.load is not None and run.load.busy
    minutes = run.store.plan().get("minutes")
    about = f", about {minutes:g} minutes" if minutes else ""
    about += " on an idle machine" * bool(about and busy)
    note = " No GPU here: data paths run in host memory." if run.device == "cpu" else ""
    if run.group is not None:
        ranks = sorted({case.workload.gpus for case in run.cases})
        yield f"{run.group.launch}: this is one run of {listed(list(map(str, ranks)))} ranks."
    yield f"{_cases(len(run.cases))}{about}.{note} Results: {escape(str(run.store.folder))}"
    if busy:
        yield (
            f"[yellow]The machine is busy:[/] {run.load}. Epochs take longer and differ more, so"
            " fewer paths are separated; measure again when it is idle."
        )
    if waiting.variables:
        reason = f": {waiting.reason}" if waiting.reason else ", as the environment says"
        yield f"Threads wait {waiting}{reason}."


def _unseen(run: PreparedRun) -> str:
    """Name the paths without any measured case."""
    frames = run.store.frames()
    series = ["workload", "strategy", "variant"]
    measured = {*frames.cases[series].itertuples(index=False, name=None)}
    paths = {f"{c.strategy} {c.variant}": key_of(c)[:3] in measured for c in run.cases}
    names = [name for name, is_measured in paths.items() if not is_measured]
    return f"; not measured at all: {escape(listed(names))}" if names else ""


def _cases(count: int) -> str:
    return f"{count} case{'' if count == 1 else 's'}"


def usual_profile(device: str, machine: str) -> str:
    """Return the default profile of a run; a GPU's is its own calibration, if there is one."""
    if device == "cpu":
        return DEFAULT_PROFILE
    calibration = CALIBRATIONS / f"{machine}.toml"
    return str(calibration) if calibration.is_file() else ""


def _plugins(cases: Sequence[Case]) -> dict[str, dict[str, dict[str, str]]]:
    """Return what other packages add to a run: group, name → ``package`` and ``version``.

    This covers the strategies and datasets of its cases, and every meter.
    """
    used: tuple[tuple[Plugins[Any], set[str]], ...] = (
        (strategies.PLUGINS, {case.strategy for case in cases}),
        (datasets.PLUGINS, {case.workload.dataset for case in cases}),
        (meters.PLUGINS, {meter.name for meter in meters.PLUGINS.usable()}),
    )
    return {
        plugins.group: {
            n: asdict(package) for n, package in plugins.packages().items() if n in names
        }
        for plugins, names in used
    }


def choose_device(name: str) -> str:
    """Return ``cpu`` or ``cuda`` for the device that the plan or the user wants.

    Raises:
        BadRunError: there is no such device.
    """
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise BadRunError(f"device {name!r}: expected auto, cpu or cuda")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise BadRunError("device cuda: torch sees no GPU here; `gatherbench doctor` explains")
    if name == "auto":
        return "cuda" if available else "cpu"
    return name

"""Turn a plan on the command line into a table and pictures; ``gatherbench run`` calls this.

Predictions, pictures and report come from the rows, so they can be made again: after a full disk,
or for another machine.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.text import Text

from gatherbench.bench.commands.common import CALIBRATIONS, DEFAULT_RESULTS, FAILED, OK
from gatherbench.bench.machine.env import describe_machine, library_versions, machine_slug
from gatherbench.bench.meters import registry as meters
from gatherbench.bench.meters.load import Load, Waiting
from gatherbench.bench.model import profile as profiles
from gatherbench.bench.model.predict import predict
from gatherbench.bench.plan.plan import USUAL, Measure, ResolvedPlan, load_plan
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.read.check import first_of
from gatherbench.bench.read.stopping import StoppingRule
from gatherbench.bench.read.tables import Run, load_run
from gatherbench.bench.run.frames import RESTORE
from gatherbench.bench.run.guards import RunStopped, status_of
from gatherbench.bench.run.part import StoreError
from gatherbench.bench.run.runner import News, PreparedRun, Runner
from gatherbench.bench.run.store import RunStore, write_atomically
from gatherbench.bench.show.page import FILE_NAME, write_report
from gatherbench.bench.show.run import render, render_all
from gatherbench.bench.show.terminal import progress_bar
from gatherbench.bench.show.view import save_all
from gatherbench.bench.show.views.registry import views_of
from gatherbench.datasets import registry as datasets
from gatherbench.datasets.store import data_root
from gatherbench.kernels.host_memory import available_bytes
from gatherbench.outside import InputError, plain
from gatherbench.strategies import registry as strategies

if TYPE_CHECKING:  # only the first process of a launcher needs it
    from gatherbench.bench.run.machines import Group

_COLOURS = {"ok": "green", "skipped": "yellow", "failed": "red"}


def new_run(
    plan_name: str,
    results: Path,
    device: str,
    profile: str = "",
    sensors: Path | None = None,
    group: Group | None = None,
) -> PreparedRun:
    """Make the folder for a new run of the plan.

    ``device`` and ``profile`` override the plan's. ``sensors``: the folder of an earlier run whose
    check of this GPU's sensors is used again. ``group``: the processes of a launcher, of which this
    is the first; workloads without ``gpus`` use them all.

    Raises:
        InputError: plan, profile, device, ranks, cores, ``results`` or ``sensors`` do not do.
    """
    load = Load.now()
    if plan_name == USUAL:
        plan_name = "quick" if choose_device(device or "auto") == "cpu" else "gpu-decide"
    plan = load_plan(plan_name)
    device = choose_device(device or plan.device)
    if group is not None:
        plan = plan.with_ranks(group.launch.world)
    if any(workload.fit for workload in plan.workload):
        data_root().mkdir(parents=True, exist_ok=True)
        plan = plan.fitted(available_bytes(), shutil.disk_usage(data_root()).free)
    env = _described(group)
    _refuse(plan.measure, plan.workloads(), env, group)
    machine = machine_slug(env)
    checked = None if sensors is None else RunStore.open(sensors)
    if checked is not None and not (
        checked.sensors_file.exists() and checked.env().get("gpu_in_use") == env["gpu_in_use"]
    ):
        raise InputError(f"{sensors}: has not checked this GPU's sensors; leave --sensors out")
    profile = profile or plan.profile or usual_profile(device, machine)
    modelled = profiles.load_profile(profile) if profile else None
    plan = plan.model_copy(update={"device": device, "profile": profile})
    cases = plan.cases()
    plugins = {
        known.group: {name: asdict(package) for name, package in known.packages().items()}
        for known in (strategies.PLUGINS, datasets.PLUGINS, meters.PLUGINS)
    }
    waiting = Waiting.chosen(plan.measure.threads, env["cpu"], load)
    env |= {"load": asdict(load), "waiting": asdict(waiting), "plugins": plugins}
    packages = {package["package"] for named in plugins.values() for package in named.values()}
    env["libraries"] |= library_versions(packages)
    try:
        text = ResolvedPlan.of(plan, cases).model_dump(mode="json")
        store = RunStore.create(results, machine, text, env)
        if modelled is not None:
            write_atomically(store.profile_file, modelled.to_toml())
        if checked is not None:
            store.take_sensors(checked)
    except OSError as error:
        raise InputError(
            f"{results}: the run cannot be written there: {error}; choose a folder with --results"
        ) from error
    return PreparedRun(store, cases, plan.measure, device, env["commit"], machine, load, group)


def reopen(folder: Path, group: Group | None = None) -> PreparedRun:
    """Open an earlier run, to complete it.

    Raises:
        InputError: it is no run folder, is damaged, or has another machine or other ranks.
    """
    load = Load.now()
    run, store = load_run(folder), RunStore(folder)  # refuses now what the end could not read
    store.lists("timeline")
    own_profile(store)
    file = "plan.json"
    try:
        plan = ResolvedPlan.model_validate(run.plan)
        cases = plan.expanded()
        for case in {(c.strategy, c.variant): c for c in cases}.values():
            strategies.build(case.strategy, case.params)
        file = "env.json"
        machine = machine_slug(run.env)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        message = first_of(error) if isinstance(error, ValidationError) else plain(error)
        raise InputError(
            f"{folder / file}: not a run's {file[:-5]} ({message}), or one of an older gatherbench,"
            f" whose commit env.json has; {RESTORE}"
        ) from error
    env_now = _described(group)
    if machine != (this := machine_slug(env_now)):
        raise InputError(f"{folder}: measured on {machine}, and this is {this}: start a new run")
    _refuse(plan.measure, plan.workloads.values(), env_now, group)
    device, commit = choose_device(plan.device), env_now["commit"]
    return PreparedRun(store, cases, plan.measure, device, commit, machine, load, group)


def execute(run: PreparedRun, out: Console, err: Console, budget_s: float | None = None) -> int:
    """Measure the missing cases, print tables and the paths of files, and return the exit status.

    The measurement stops ``budget_s`` seconds after the start, and the rows so far are printed.
    Without it, the plan's ``budget_s`` limits the time in cases.

    Raises:
        StoreError: another process runs this folder, or the folder cannot be read or written.
    """
    folder, measure = shlex.quote(str(run.store.folder)), run.measure
    again = escape(f"Go on with: gatherbench run --resume {folder}")
    try:
        for line in _introduction(run):
            out.print(line, soft_wrap=True, highlight=False)
        if budget_s is not None:  # it replaces the plan's
            measure = measure.model_copy(update={"budget_s": 0.0})
        further = StoppingRule(run.cases, measure, run.store.env())
        with progress_bar(err) as bar:
            runner = Runner(run, reporter(bar, out), budget_s=budget_s, further=further)
            failed = runner.run()
        ended = run.store.frames().cases["status"].dropna()
        if runner.left:
            left = f"{runner.left} of {_cases(len(run.cases))} left"
            if runner.unprepared:
                left += f", {runner.unprepared} of them because their data could not be prepared"
            err.print(f"{left}. {again}", soft_wrap=True)
        complete = ended.empty or finish(load_run(run.store.folder), out, err)
    except RunStopped as stop:
        text = f"[red]stopped:[/] {escape(str(stop))}; every measurement is saved."
        err.print(f"{text} {again}", soft_wrap=True)
        return FAILED
    except KeyboardInterrupt as stop:
        err.print(f"interrupted; every measurement is saved. {again}", soft_wrap=True)
        return status_of(stop)
    measured = "ok" in set(ended)
    if failed:
        err.print(f"[red]{_cases(failed)} failed[/]; the table says why")
    if not measured:
        err.print("[red]nothing was measured[/]" + "; the table says why" * (not ended.empty))
    return FAILED if failed or not measured or not complete else OK


def reporter(bar: Progress, out: Console) -> Callable[[News], None]:
    """Show the runner's news: a changing line on a terminal, elsewhere a line per quarter.

    The first case to fail or to be skipped for a reason has a line with it.
    """
    task, printed_reasons, quarters = bar.add_task("starting", total=1.0), set[str](), 0

    def tell(news: News) -> None:
        nonlocal quarters
        case, reason = news.case, news.reason
        name = escape(plain(f"{case.workload.id} {case.strategy} {case.variant} r{case.repeat}"))
        step = escape(plain(f"{case.workload.dataset}: {news.step} {news.fraction:.0%}"))
        doing = step if news.step else name
        bar.update(task, description=doing, completed=news.done, total=news.total)
        if reason is not None and reason not in printed_reasons:
            printed_reasons.add(reason)
            text = f"{name} [{_COLOURS[news.status]}]{news.status}[/] {escape(reason)}"
            out.print(text, soft_wrap=True, highlight=False)
        quarter = int(4 * news.done // news.total) if news.status else quarters
        if quarter > quarters and not out.is_terminal:
            out.print(f"{news.done} of {news.total} cases", highlight=False)
        quarters = quarter

    return tell


def own_profile(store: RunStore) -> profiles.LinkProfile | None:
    """Return the profile that the run is predicted for; ``None``: it has none."""
    try:
        return profiles.load_profile(store.profile_file) if store.profile_file.exists() else None
    except profiles.ProfileError as error:
        remedy = f"gatherbench predict {shlex.quote(str(store.folder))} --profile NAME"
        raise StoreError(f"{error}; this writes it anew: {remedy}") from error


def finish(
    run: Run, out: Console, err: Console, command: str = "run --resume", *, all_tables: bool = False
) -> bool:
    """Predict epochs for the run's profile, print the tables, write pictures and report.

    Args:
        command: does this again, for the run's folder.

    Returns:
        Whether all of it was written; ``err`` gets what was not, and the command that writes it.

    Raises:
        StoreError: the rows contradict each other.
    """
    folder, store, quoted = run.folder, RunStore(run.folder), shlex.quote(str(run.folder))
    complete, profile = True, own_profile(store)

    @contextmanager
    def writing(product: str) -> Iterator[None]:
        nonlocal complete
        try:
            yield
        except OSError as error:
            complete = False
            text = f"cannot write the {product}: {error}; every row is saved. Once this is solved"
            err.print(Text(f"{text}, run: gatherbench {command} {quoted}"), soft_wrap=True)

    if profile is not None:
        frames = store.predicted(predict(run, profile))
        run = replace(load_run(folder, frames), going=run.going)
        with writing("predictions"):
            frames.write(folder)
    views = views_of(run)
    out.print(render_all(run, views) if all_tables else render(run))
    with writing("pictures"):
        save_all(views, folder / "figures")
    with writing("report"):
        write_report(run, folder / FILE_NAME, views=views)
        is_default = folder.parent.parent == DEFAULT_RESULTS
        more = f"gatherbench show --all {quoted * (not is_default)}".rstrip()
        out.print(Text(f"Report: {folder / FILE_NAME}; more: {more}"), soft_wrap=True)
    return complete


def choose_device(name: str) -> str:
    """Return ``cpu`` or ``cuda`` for the device that the plan or the user wants."""
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device {name!r}: expected auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device cuda: torch sees no GPU here; `gatherbench doctor` explains")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def usual_profile(device: str, machine: str) -> str:
    """Return the default profile of a run; a GPU's is its own calibration, if there is one."""
    calibration = CALIBRATIONS / f"{machine}.toml"
    if device == "cpu":
        return profiles.DEFAULT_PROFILE
    return str(calibration) if calibration.is_file() else ""


def _introduction(run: PreparedRun) -> Iterator[str]:
    """Say how much is measured, where, and where results go; warn of a busy machine."""
    if run.group is not None:
        ranks = " or ".join(map(str, sorted({case.workload.gpus for case in run.cases})))
        yield f"{run.group.launch}: one run of {ranks} ranks."
    minutes = run.store.plan().get("minutes")
    about = f", about {minutes:g} minutes on an idle machine" if minutes else ""
    note = " No GPU here: data paths run in host memory." if run.device == "cpu" else ""
    yield f"{_cases(len(run.cases))}{about}.{note} Results: {escape(str(run.store.folder))}"
    if run.load is not None and run.load.busy:
        yield (
            f"[yellow]The machine is busy:[/] {run.load}. Epochs take longer and differ more, so"
            " fewer paths are separated; measure again when it is idle."
        )


def _refuse(
    measure: Measure, workloads: Iterable[Workload], env: dict[str, Any], group: Group | None
) -> None:
    """Refuse more threads or samplers than cores, and ranks that the launcher did not start."""
    every_ranks = [workload.gpus for workload in workloads]
    usable = env["cpu"]["usable_cores"]
    cores = measure.threads or usable
    if cores > usable:
        only = f"this process may use only {usable} cores"
        raise InputError(f"measure.threads: {cores}, but {only}; 0 uses them all")
    ranks = max(every_ranks) // env.get("machines", 1)
    if measure.sampler_workers * ranks > cores:
        scope = f" for each of {ranks} ranks" if ranks > 1 else ""
        each = f"{measure.sampler_workers}{scope}"
        only = f"a case may use only {cores} cores: at most {cores // ranks}"
        raise InputError(f"measure.sampler_workers: {each}, but {only}")
    if group is not None:
        for gpus in every_ranks:
            group.launch.check(gpus)


def _described(group: Group | None) -> dict[str, Any]:
    """Describe the machine for ``env.json``, and how many of them train together."""
    machines = 1 if group is None else group.launch.machines
    return describe_machine() | ({"machines": machines} if machines > 1 else {})


def _cases(count: int) -> str:
    return f"{count} case{'' if count == 1 else 's'}"

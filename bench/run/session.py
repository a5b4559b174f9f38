"""What all cases of a process share: its cores, dataset, minibatches, tables, sensors."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import Tensor, nn

from gatherbench.bench.machine.numa import bind_case
from gatherbench.bench.meters.base import Recorder
from gatherbench.bench.meters.nvml_device import GpuUnderTest
from gatherbench.bench.meters.registry import open_meters
from gatherbench.bench.plan.doors import AroundStep, opened
from gatherbench.bench.run import table as tables
from gatherbench.bench.run.captured import CapturedTrainer, StepInputs
from gatherbench.bench.run.counting import sizes_of
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.group import ALONE, Alone
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.models import Trainer, build_model
from gatherbench.bench.run.sensor_check import gpu_under_test
from gatherbench.bench.run.store import write_atomically
from gatherbench.bench.sampling.epoch import knowledge_of
from gatherbench.bench.sampling.splitmix import derive
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.store import open_dataset
from gatherbench.kernels.managed_memory import managed_room
from gatherbench.outside import read_bytes
from gatherbench.reason import Reason, unsupported
from gatherbench.strategies.base import Fetcher, SetupStep, Strategy
from gatherbench.strategies.knowledge import Knowledge, Ranks

#: The file of tuned choices: steps by machine, commit, workload and question.
_TUNED = TypeAdapter(dict[str, list[SetupStep]])


class Session:
    """The things that all cases of a process share, each made at its first use.

    ``job`` is any of theirs, as they differ only in their paths; ``table`` may be loaded already;
    ``group`` has the processes that train together.
    """

    def __init__(self, job: Job, table: tables.Table | None = None, group: Alone = ALONE) -> None:
        self._job, self.group, self.device = job, group, torch.device(job.device)
        #: By kind of memory; one that is dropped lives as long as a path reads it.
        self.tables = {} if table is None else {table.kind: table}

    @cached_property
    def binding(self) -> tuple[int | Reason, str]:
        """Bind the process, with the plan's threads, and return where it is bound.

        torch has one thread beside a GPU, whatever OMP_NUM_THREADS is: those of its pool continue
        to spin after each operation on the cores that gather and sample, 5 to 11 of 16 on the host
        of an H200.
        """
        plan = self._job.measure
        binding = bind_case(self.device, plan.threads, plan.numa, part_of=self.group.cores_of)
        on_gpu = self.device.type == "cuda"
        torch.set_num_threads(1 if on_gpu else len(os.sched_getaffinity(0)))
        return binding

    @cached_property
    def dataset(self) -> GraphDataset:
        return open_dataset(self._job.dataset)

    @cached_property
    def epochs(self) -> Epochs:
        return Epochs(self._job, self.dataset)

    @cached_property
    def labels(self) -> Tensor:
        """The labels, int64 ``[N]``, on the device."""
        return torch.from_numpy(np.array(self.dataset.labels)).to(self.device)

    @cached_property
    def inputs(self) -> StepInputs:
        """The inputs of captured steps, for the minibatches of all sets."""
        return StepInputs(*self.sizes, self.dataset.spec.feature_dim, self.device)

    @cached_property
    def sizes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Nodes and edges of the measured minibatches; if they were not counted, of the first."""
        if (counted := sizes_of(self._job)) is not None:
            return counted
        edges = [[block.shape[1] for block in batch.edges] for batch in self.epochs.first]
        return np.array([batch.num_nodes for batch in self.epochs.first]), np.array(edges)

    @cached_property
    def known(self) -> Knowledge:
        """All information that a path may use."""
        workload, parts = self._job.case.workload, self.epochs.sampler.partitions
        known = knowledge_of(workload, self.dataset, self.epochs, parts)
        ranks = self.group.ranks or Ranks(0, 1, 1)
        return replace(known, ranks=ranks, file=tables.file_of(self.dataset))

    @cached_property
    def gpu(self) -> GpuUnderTest | None:
        """The GPU whose meters are read; ``None`` without a GPU."""
        return gpu_under_test(self.device, self._job.sensors)

    @cached_property
    def recorder(self) -> Recorder:
        return Recorder(open_meters(gpu=self.gpu, folder=self.dataset.folder))

    def kind(self, strategy: Strategy) -> tables.TableKind:
        """Return the kind of memory in which the path's table is loaded."""
        return tables.table_kind(strategy, self.device, self._job.case.workload.gpus)

    def table(self, strategy: Strategy) -> tables.Table:
        """Return the feature table where the path reads it, loaded once for all paths of a kind."""
        kind = self.kind(strategy)
        if kind == "file":
            return tables.load_table(self.dataset, kind)
        if kind not in self.tables:
            self.tables[kind] = tables.load_table(self.dataset, kind, self.device)
        return self.tables[kind]

    def table_refusal(self, strategy: Strategy) -> Reason | None:
        """Return why the path's table cannot be loaded, by each rank, beside those that are."""
        if self.kind(strategy) != "managed" or "managed" in self.tables:
            return None
        if self.device.type != "cuda":
            return unsupported("without a GPU there is no managed memory")
        return managed_room(self.dataset.spec.table_bytes, self._job.case.workload.gpus)

    def model(self) -> nn.Module:
        """Return the workload's model with its first weights."""
        spec = self.dataset.spec
        sizes = spec.feature_dim, spec.num_classes, len(spec.relations)
        return build_model(self._job.case.workload, *sizes)

    def trainer(self) -> Trainer:
        """Return a trainer of a new model: all ranks begin with the same weights."""
        workload, model, around = self._job.case.workload, self.model(), None
        if workload.step == "captured":
            return CapturedTrainer(model, self.labels, self.device, self.inputs)
        if self.group.rank:
            torch.manual_seed(derive(workload.seed, self.group.rank))  # a dropout of its own
        if workload.around_step:
            door = opened(workload.around_step, AroundStep)  # type: ignore[type-abstract]
            around = door.open(model, self.device, self._job.dataset.parent / "around_step")
        return Trainer(model, self.labels, self.device, self.group, around)

    def tuned(self, fetcher: Fetcher, tune: Callable[[], list[SetupStep]]) -> list[SetupStep]:
        """Return the result of ``tune``, or an earlier process's; the path uses it from now on.

        If each process chose anew, from times that scatter, processes would differ: of four of one
        path one gathered on 16 threads at 31 GB/s, the others on 6 and 8 at 17 to 22. So a machine
        chooses once for a run and commit. Ranks of a machine follow the first of them. All tune if
        one has no result: steps of training are made together.
        """
        if not fetcher.tuning:
            return tune()
        job, group, kept = self._job, self.group, self._tuned_before()
        key = f"{job.run.machine}, {job.run.commit}, {job.case.workload.id}: {fetcher.tuning}"
        if all(group.gathered(key in kept)):
            return fetcher.recall(kept[key])
        steps = tune()
        first = group.ranks.first if group.ranks else 0
        of_first = group.gathered([asdict(step) for step in steps])[first]
        if group.rank != first:
            return fetcher.recall([SetupStep(**step) for step in of_first])
        if job.tuned is not None:
            text = _TUNED.dump_json({**self._tuned_before(), key: steps}, indent=1).decode()
            write_atomically(job.tuned, f"{text}\n")
        return steps

    def _tuned_before(self) -> dict[str, list[SetupStep]]:
        """Return earlier processes' results; empty if the file is missing or damaged."""
        try:
            return _TUNED.validate_json(read_bytes(self._job.tuned)) if self._job.tuned else {}
        except (OSError, ValueError):
            return {}

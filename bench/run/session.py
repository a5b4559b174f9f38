"""What all cases of a process share: its cores, dataset, minibatches, tables, sensors."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gatherbench.bench.machine.numa import Binding, bind_case
from gatherbench.bench.meters.base import Recorder
from gatherbench.bench.meters.nvml_device import GpuUnderTest
from gatherbench.bench.meters.registry import open_meters
from gatherbench.bench.plan.doors import AroundStep, opened
from gatherbench.bench.run.captured import CapturedTrainer, StepInputs
from gatherbench.bench.run.counting import Counts
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.group import ALONE, Alone
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.models import Trainer, build_model
from gatherbench.bench.run.sensor_check import gpu_under_test
from gatherbench.bench.run.table import (
    Table,
    TableKind,
    file_of,
    load_table,
    table_kind,
    table_refusal,
)
from gatherbench.bench.sampling.epoch import knowledge_of
from gatherbench.bench.sampling.splitmix import derive
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.store import open_dataset
from gatherbench.reason import Reason
from gatherbench.strategies.base import Strategy
from gatherbench.strategies.knowledge import Knowledge, Ranks


class Session:
    """The things that all cases of a process share, each made at its first use.

    Args:
        job: any of theirs: they differ only in their paths.
        table: one that is already loaded.
        group: the processes that train together, of which this is one.
    """

    def __init__(self, job: Job, table: Table | None = None, group: Alone = ALONE) -> None:
        self._job, self.group, self.device = job, group, torch.device(job.device)
        #: By kind of memory; one that is dropped lives as long as a path reads it.
        self.tables = {} if table is None else {table.kind: table}

    @cached_property
    def binding(self) -> Binding:
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
        first = self.epochs.first
        edges = [[of_layer.shape[1] for of_layer in batch.edges] for batch in first]
        nodes = [batch.num_nodes for batch in first]
        return Counts.of(self._job).sizes or (np.array(nodes), np.array(edges))

    @cached_property
    def known(self) -> Knowledge:
        """All information that a path may use."""
        ids, parts = self.epochs.measured_ids(), self.epochs.sampler.partitions
        known = knowledge_of(self._job.case.workload, self.dataset, ids, parts)
        ranks = self.group.ranks or Ranks(0, 1, 1)
        return replace(known, ranks=ranks, file=file_of(self.dataset))

    @cached_property
    def gpu(self) -> GpuUnderTest | None:
        """The GPU whose meters are read; ``None`` without a GPU."""
        return gpu_under_test(self.device, self._job.sensors)

    @cached_property
    def recorder(self) -> Recorder:
        return Recorder(open_meters(gpu=self.gpu, folder=self.dataset.folder))

    def kind(self, strategy: Strategy) -> TableKind:
        """Return the kind of memory in which the path's table is loaded."""
        return table_kind(strategy, self.device, self._job.case.workload.gpus)

    def table(self, strategy: Strategy) -> Table:
        """Return the feature table where the path reads it, loaded once for all paths of a kind."""
        kind = self.kind(strategy)
        if kind == "file":
            return load_table(self.dataset, kind)
        if kind not in self.tables:
            self.tables[kind] = load_table(self.dataset, kind, self.device)
        return self.tables[kind]

    def table_refusal(self, strategy: Strategy) -> Reason | None:
        """Return why the path's table cannot be loaded in addition to those that are loaded."""
        kind, size = self.kind(strategy), self.dataset.spec.table_bytes
        if kind in self.tables:
            return None
        return table_refusal(kind, size, self.device, self._job.case.workload.gpus)

    def model(self) -> nn.Module:
        """Return the workload's model with its first weights."""
        spec = self.dataset.spec
        sizes = spec.feature_dim, spec.num_classes, len(spec.relations)
        return build_model(self._job.case.workload, *sizes)

    def trainer(self) -> Trainer:
        """Return a trainer of a new model: all ranks begin with the same weights."""
        workload, model = self._job.case.workload, self.model()
        if workload.step == "captured":
            return CapturedTrainer(model, self.labels, self.device, self.inputs)
        if self.group.rank:
            torch.manual_seed(derive(workload.seed, self.group.rank))  # a dropout of its own
        folder = self._job.dataset.parent / "around_step"
        around, words = None, workload.around_step
        if words:
            door = opened(words, AroundStep)  # type: ignore[type-abstract]
            around = door.open(model, self.device, folder)
        return Trainer(model, self.labels, self.device, self.group, around)

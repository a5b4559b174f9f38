"""What an epoch takes of the processor: in all, and by thread."""

from __future__ import annotations

from gatherbench.bench.read.cpu import cores_of, thread_seconds
from gatherbench.bench.read.derive import cpu_seconds
from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.chart import Chart
from gatherbench.bench.show.charts import bars
from gatherbench.bench.show.view import View


def cpu_core_seconds(run: Run) -> Chart:
    """Core-seconds of the process tree in an epoch: the resource that zero-copy gives back."""
    return bars(
        run,
        cpu_seconds(run),
        "s",
        ident="cpu",
        title="Processor time per epoch",
        reading="Core-seconds of the process and its children: sampling, gather and training "
        "alike. Medians of user and system; whiskers: quartiles of their sum.",
        quantity="processor time per epoch",
        legend={"user": ("user", "blue"), "system": ("system", "orange")},
        absent="processor time was not metered",
        predicted=False,
    )


def cpu_by_thread(run: Run) -> Chart:
    """Core-seconds of an epoch by group of threads, and what its cores had left."""
    cores = cores_of(run)
    return bars(
        run,
        thread_seconds(run),
        "s",
        ident="threads",
        title="Processor time per epoch, by thread",
        reading=f"Core-seconds of the case’s threads on {cores} core{'s' * (cores != 1)}; "
        "what they did not use was idle, or with other programs. Medians of each group; number and "
        "whiskers: median and quartiles of what was used. Threads of torch that spin while they "
        "wait for work count as busy.",
        quantity="processor time per epoch",
        legend={
            "main": ("main thread (the loop)", "blue"),
            "gather": ("gather", "vermilion"),
            "sampler": ("sampler", "sky"),
            "torch": ("torch’s own", "green"),
            "rest": ("other", "grey"),
            "unused": ("not used", "pale"),
        },
        absent="threads were not metered",
        predicted=False,
        suffix=" used",
    )


PROCESSOR = View(
    "processor",
    "Processor",
    lambda run: len(run.select(stage="epoch", basis="measured")) > 0,
    charts={"cpu_seconds": cpu_core_seconds, "cpu_threads": cpu_by_thread},
)

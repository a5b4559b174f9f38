# %% [markdown]
# # 1. Where an epoch's time goes on the conventional path
#
# **Figure.** Min et al. (PVLDB 14(11), 2021), the breakdown of an epoch that motivates the paper.
#
# **Question.** When the CPU gathers the rows of each minibatch and a copy brings them to the GPU,
# what share of an epoch is spent on that?
#
# **Claim checked.** The conventional path touches host memory three times for each byte that the
# GPU gets: the CPU reads it, writes it densely, and the copy engine reads it again.

# %%
import pandas as pd

from gatherbench.bench.read.derive import stage_breakdown
from gatherbench.bench.show.drawing import Chart, draw
from gatherbench.bench.show.looks import STAGE_COLOURS
from gatherbench.bench.show.views.epochs import epoch_breakdown
from helpers import NAIVE, known, published, runs, runs_on, say, show

# %% [markdown]
# ## Shares of an epoch
#
# Epochs on different graphs and machines are compared by shares. The published chart has no
# stages: what its CPU-gather epoch takes beyond the epoch with the whole table in GPU memory is
# counted as `fetch`, and that other epoch as `other`.

# %%
chart = published("reddit_epoch").query("metric == 'wall_time'")
chart = chart.set_index(["machine", "strategy"])["value"].unstack()
published_stages = pd.DataFrame({"sample": 0.0, "fetch": chart["cpu_gather"] - chart["all_in_gpu"]})
published_stages = published_stages.assign(
    train=0.0, other=chart["all_in_gpu"], look="published"
).reset_index(names="graph")
published_stages["graph"] = "Reddit, " + published_stages["graph"]
stages = [published_stages]
for backend in ("cuda", "host"):
    measured = known(stage_breakdown, backend).query(
        "strategy == 'cpu_gather' and variant == 'naive'"
    )
    stages.append(
        measured.assign(graph=measured["graph"] + ", " + measured["machine"], look="measured")
    )
table = pd.concat(stages, ignore_index=True)
whole = table[list(STAGE_COLOURS)].sum(axis=1)
shares = table[list(STAGE_COLOURS)].div(whole, axis=0)
suffix = [f" of {seconds:.3g} s" for seconds in whole]
frame = shares.assign(name=table["graph"], look=table["look"], value=1.0, suffix=suffix)
show(
    draw(
        Chart(
            "Where an epoch's time goes when the CPU gathers (naive)",
            frame,
            "share of the epoch",
            "share",
            "Published (outlined): chart in the README of K-Wu/pytorch-direct_dgl, RTX 3090, read"
            " off to ±0.05 s. Measured: medians over repeats and epochs, as shares of their sum.",
            legend={stage: (stage, colour) for stage, colour in STAGE_COLOURS.items()},
        ),
        column=9.0,
    ),
    "Stacked bars: the share of each stage in an epoch with CPU gather, published and measured.",
)

# %% [markdown]
# ## In seconds, every path

# %%
for run in [*runs_on("cuda"), *runs_on("host")]:
    show(epoch_breakdown(run), f"Epoch time by stage of every path, run {run.run_id}.")

# %% [markdown]
# ## What the data say

# %%
for row in published_stages.itertuples():
    share = row.fetch / (row.fetch + row.other)
    say(f"- {row.graph} (published): **{share:.0%}** of the epoch waits for rows.")
for backend, where in {"cuda": "on a GPU", "host": "in host memory, no GPU"}.items():
    measured_runs = runs_on(backend)
    for run in measured_runs:
        share = run.measured["fetch_s"] / run.measured["epoch_s"]
        for workload, name in run.names.items():
            waits = share.xs(NAIVE, level=("strategy", "variant"))
            waits = waits[waits.index.get_level_values("workload") == workload]
            repeats = waits.groupby("repeat").median()
            if len(repeats):
                say(
                    f"- {name}, measured {where}: **{repeats.median():.1%}** of the epoch waits for"
                    f" rows (repeats {repeats.min():.1%} to {repeats.max():.1%})."
                )
    if not measured_runs:
        say(f"- Epochs {where}: **not measured yet**.")
for run in runs():
    path = run.declared_medians.query("strategy == 'cpu_gather'")
    parts = [f"declared_{part}_bytes" for part in ("cpu_read", "cpu_write", "copy_engine")]
    passes = path[parts].sum(axis=1) / path["declared_payload_bytes"]
    for touched in sorted({f"{ratio:.2f}" for ratio in passes.dropna()}):
        say(f"- `cpu_gather` declares {touched} B touched in host memory a byte ({run.run_id}).")

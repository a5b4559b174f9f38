# %% [markdown]
# # 1. Where an epoch's time goes on the conventional path
#
# **Question.** When the CPU gathers the feature rows of each minibatch and a copy brings them to
# the GPU, what share of an epoch is spent on that?
#
# **Claim checked.** Min et al. (PVLDB 14(11), 2021): the conventional path touches host memory
# three times for each byte that the GPU gets (the CPU reads it, writes it densely, and the copy
# engine reads it again).

# %%
import pandas as pd

from gatherbench.bench.read.tables import only
from gatherbench.bench.show.views.epochs import epoch_breakdown
from helpers.bars import stage_shares
from helpers.epoch_bars import (
    disturbances,
    measured_stages,
    passes_over_memory,
)
from helpers.findings import open_findings
from helpers.reddit import reddit_stages
from helpers.shown import say, show

findings = open_findings()

# %% [markdown]
# ## Shares of an epoch
#
# Epochs on different graphs and machines are compared by shares. The published chart has no
# stages: what its CPU-gather epoch takes beyond the epoch with the whole table in GPU memory is
# counted as `fetch`, and that other epoch as `other`. In the model `fetch` is what training waits
# for; its free constants are fitted to the chart's PCIe 3.0 bars.

# %%
on_reddit = reddit_stages(findings.published)
on_gpu = measured_stages(findings, "cuda", "cpu_gather", "naive")
on_host = measured_stages(findings, "host", "cpu_gather", "naive")
missing = [("on a GPU (measured)", "not measured yet: `gatherbench run gpu-decide` on a GPU")]
show(
    stage_shares(
        pd.concat([on_reddit, on_gpu, on_host]),
        missing if on_gpu.empty else [],
        title="Where an epoch's time goes when the CPU gathers (cpu_gather naive)",
        foot="Published: chart in the README of K-Wu/pytorch-direct_dgl, RTX 3090 and "
        "Threadripper 3960X, read off to ±0.05 s; fetch is its CPU-gather epoch less its "
        "all-in-GPU epoch. Measured: medians over repeats and epochs, as shares of their sum. In "
        "host memory no GPU and no link took part: training runs on the same cores and takes a "
        "larger share than on a GPU.",
    ),
    "Stacked bars: the share of each stage in an epoch with CPU gather, published and measured.",
)

# %% [markdown]
# ## In seconds, by variant
#
# The variants of the CPU gather beside each other, and the table in GPU memory as the bound:
# `naive` makes a fresh pageable tensor for each minibatch, as the paper's baseline does; `pinned`
# reuses its staging memory, and has threads of its own.

# %%
for run in [*findings.runs_on("cuda"), *findings.runs_on("host")]:
    show(
        epoch_breakdown(only(run, strategies={"cpu_gather", "all_in_gpu"})),
        f"Epoch time by stage of cpu_gather and all_in_gpu, run {run.run_id}.",
    )

# %% [markdown]
# ## What the data say

# %%
for row in pd.concat([on_reddit, on_gpu, on_host]).itertuples():
    whole = row.sample + row.fetch + row.train + row.other
    share = row.share if row.kind == "measured" else f"{row.fetch / whole:.0%}"
    name = row.label.replace("\n", ", ")
    say(f"- {name} ({row.kind}): **{share}** of the epoch waits for rows.")
for run in findings.runs:
    declared = passes_over_memory(run).query("strategy == 'cpu_gather'")
    for variant, passes in declared.groupby("variant")["passes"].median().dropna().items():
        say(
            f"- `cpu_gather {variant}` declares {passes:.2f} B touched in host memory for each byte"
            f" delivered (run {run.run_id})."
        )
if on_gpu.empty:
    say("- Whether the share is as large on a current GPU and link is **not measured yet**.")
for sentence in disturbances([*findings.runs_on("cuda"), *findings.runs_on("host")]):
    say(sentence)

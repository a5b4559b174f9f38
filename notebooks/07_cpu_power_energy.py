# %% [markdown]
# # 7. CPU use, power and energy
#
# **Question.** What does zero-copy give back besides time?
#
# **Claims checked.** PyTorch-Direct (arXiv 2101.07956): data transfer time −47.1 % on average and
# system power −12.4 to −17.5 % against CPU gather.

# %%
import pandas as pd

from gatherbench.bench.show.answers.epochs import disturbances, measured_changes, published_changes
from gatherbench.bench.show.charts import cpu_core_seconds, gpu_energy_per_epoch
from gatherbench.bench.show.figures.bars import changes
from gatherbench.bench.show.notebook_tables import open_findings
from gatherbench.bench.show.notebooks_show import say, show

findings = open_findings()
QUANTITIES = {
    "transfer time": ("fetch", "wall_time"),
    "processor time": ("epoch", "cpu"),
    "power": ("energy", "power"),
    "energy": ("energy", "energy"),
}

# %%
published = published_changes(findings.published)
measured = measured_changes(findings, "cuda", QUANTITIES)
remedy = "not measured yet: `gatherbench run gpu-epoch` on a GPU"
show(
    changes(
        pd.concat([published, measured]),
        dict.fromkeys(QUANTITIES, remedy),
        title="Change per epoch against CPU gather (naive)",
        foot="Published: PyTorch-Direct, of the whole system. Measured: medians per epoch on a "
        "GPU, then over workloads (whiskers: extremes); transfer time is what the loop waited for "
        "rows, power and energy are the GPU's own (NVML), over windows of whole epochs that are "
        "long enough for its counter.",
    ),
    "Change of transfer time, processor time, power and energy against CPU gather.",
)

# %% [markdown]
# ## Energy in joules, processor time in core-seconds

# %%
for run in findings.runs_on("cuda"):
    show(gpu_energy_per_epoch(run), f"Energy of the GPU per epoch by strategy, run {run.run_id}.")
for run in [*findings.runs_on("cuda"), *findings.runs_on("host")]:
    show(cpu_core_seconds(run), f"Core-seconds per epoch by strategy, run {run.run_id}.")

# %% [markdown]
# ## What the data say

# %%
on_host = measured_changes(findings, "host", {"processor time": ("epoch", "cpu")})
for row in on_host.itertuples():
    change = f"**{row.low:+.0%} to {row.high:+.0%}**"
    say(f"- In host memory, no GPU: {row.label}: processor time {change} per epoch.")
if len(on_host):
    say("- In host memory the same cores gather and train: these are no figures of a GPU.")
for quantity in QUANTITIES:
    mine = measured[measured["quantity"] == quantity]
    if mine.empty:
        say(f"- {quantity.capitalize()} on a GPU: **not measured yet**.")
    for row in mine.itertuples():
        say(f"- On a GPU: {row.label}: {quantity} **{row.low:+.0%} to {row.high:+.0%}** per epoch.")
for sentence in disturbances([*findings.runs_on("cuda"), *findings.runs_on("host")]):
    say(sentence)

# %% [markdown]
# # 7. CPU use, power and energy
#
# **Question.** What does zero-copy give back besides time?
#
# **Claims checked.** PyTorch-Direct (arXiv 2101.07956): data transfer time −47.1 % on average and
# system power −12.4 to −17.5 % against CPU gather.

# %%
import pandas as pd

from gatherbench.bench.read.gpu import gpu_energy
from gatherbench.bench.show.views.resources import cpu_core_seconds, gpu_energy_per_epoch
from helpers.bars import changes
from helpers.epoch_bars import disturbances, measured_changes, published_changes
from helpers.findings import open_findings
from helpers.ratios import ONE_REPEAT
from helpers.shown import say, show

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
remedy = "not measured yet: `gatherbench run gpu-decide` on a GPU"
show(
    changes(
        pd.concat([published, measured]).fillna({"note": ""}),
        dict.fromkeys(QUANTITIES, remedy),
        title="Change per epoch against CPU gather (naive)",
        foot="Published: PyTorch-Direct, of the whole system. Measured on a GPU: ratios of means "
        "over repeats, each strategy by its fastest variant, the median over workloads (whiskers: "
        "from the least to the greatest end of their 95 % intervals, or of single repeats). "
        "Transfer time is what the loop waited for rows: paths that fetch ahead, which hide it, "
        "are left out; all_in_gpu reads GPU memory. Power and energy are the GPU's own (NVML), "
        "over windows of whole epochs that are long enough for its counter.",
    ),
    "Change of transfer time, processor time, power and energy against CPU gather.",
)

# %% [markdown]
# ## Energy in joules, processor time in core-seconds

# %%
for run in findings.runs_on("cuda", gpu_energy) or findings.runs_on("cuda"):
    show(gpu_energy_per_epoch(run), f"Energy of the GPU per epoch by strategy, run {run.run_id}.")
for run in [*findings.runs_on("cuda"), *findings.runs_on("host")]:
    show(cpu_core_seconds(run), f"Core-seconds per epoch by strategy, run {run.run_id}.")

# %% [markdown]
# ## What the data say

# %%
on_host = measured_changes(findings, "host", {"processor time": ("epoch", "cpu")})
say(
    "Each strategy by its fastest variant, which is named, against `cpu_gather naive`; in brackets"
    f" 95 % intervals over the repeats. {ONE_REPEAT}"
)
for row in on_host.itertuples():
    say(f"- In host memory, no GPU: `{row.strategy}`: processor time per epoch: {row.said}.")
if len(on_host):
    say("- In host memory the same cores gather and train: these are no figures of a GPU.")
for quantity in QUANTITIES:
    mine = measured[measured["quantity"] == quantity]
    if mine.empty:
        say(f"- {quantity.capitalize()} on a GPU: **not measured yet**.")
    for row in mine.itertuples():
        say(f"- On a GPU: `{row.strategy}`: {quantity} per epoch: {row.said}.")
for sentence in disturbances([*findings.runs_on("cuda"), *findings.runs_on("host")]):
    say(sentence)

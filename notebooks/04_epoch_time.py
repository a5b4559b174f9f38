# %% [markdown]
# # 4. Epoch time by graph and strategy
#
# **Question.** How much faster does an epoch get, and how near does it come to having the whole
# table in GPU memory?
#
# **Claims checked.** Min et al. (PVLDB 14(11), 2021): 65 to 92 % faster than the conventional
# path in a multi-GPU setup, and for some graphs as fast as all-in-GPU.

# %%
import pandas as pd

from gatherbench.bench.show.views.epochs import speedup
from helpers.bars import epoch_bars, listed_epochs
from helpers.epoch_bars import (
    disturbances,
    gain,
    measured_bars,
    measured_times,
    possible,
    predicted_bars,
    stated_times,
    whole_epochs,
)
from helpers.findings import open_findings
from helpers.reddit import reddit_bars
from helpers.shown import say, show

findings = open_findings()
REDDIT = "RTX 3090, PCIe 4.0"

# %% [markdown]
# ## On a GPU

# %%
chart = reddit_bars(findings.published).query("group == @REDDIT")
chart = chart.assign(group=f"reddit GraphSAGE ({REDDIT})")
on_gpu = measured_bars(findings, "cuda")
bars = pd.concat([chart, predicted_bars(findings), on_gpu], ignore_index=True)
groups = list(dict.fromkeys(bars["group"]))
absent = {
    "published": "not published",
    "modelled": "not modelled",
    "measured": "not measured yet: run on a GPU",
}
machines = bars.dropna(subset="machine").groupby("group")["machine"].unique()
for first in range(0, len(groups), 3):
    show(
        epoch_bars(
            bars,
            absent,
            title="Epoch time by graph and strategy, on a GPU",
            foot="Each strategy by its fastest variant, named beside the bar. Published: chart of "
            "K-Wu/pytorch-direct_dgl, ±0.05 s, and the model of it. Measured: medians; whiskers: "
            "quartiles over epochs and repeats, which do not tell how much processes differ. "
            "Machines: "
            + "; ".join(
                f"{group}: {', '.join(machines[group])}"
                for group in groups[first : first + 3]
                if group in machines
            ),
            groups=groups[first : first + 3],
        ),
        f"Epoch time by strategy for {', '.join(groups[first : first + 3])}.",
    )

# %% [markdown]
# ## A whole epoch of papers100M's shape
#
# The plan `gpu-papers` has the fan-outs, seeds and hidden width of GraphBolt's example, on hashed
# structure and rows, with the features in host memory or on the GPU. GraphBolt had them on a disk
# behind caches, and the published epochs are of A100s: no bar is a verdict over another.

# %%
show(
    listed_epochs(
        whole_epochs(findings),
        "not measured yet: gatherbench run gpu-papers",
        title="One epoch of papers100M's shape",
        foot="Published: dmlc/dgl #7541, pyg-team/pytorch_geometric #10079, as their authors say. "
        "Measured: one epoch a path, one path after the other.",
    ),
    "Whole epochs of papers100M: published by other systems, and measured here.",
)

# %% [markdown]
# ## In host memory
#
# Without a GPU every strategy still runs its data path, in host memory. These bars show what the
# CPU's part of a path costs, and no link and no GPU.

# %%
on_host = measured_bars(findings, "host")
if len(on_host):
    show(
        epoch_bars(
            on_host,
            {},
            title="Epoch time in host memory: no GPU and no link took part",
            foot="Each strategy by its fastest variant, named beside the bar; whiskers: quartiles.",
            kinds=("measured",),
        ),
        "Epoch time by strategy in host memory.",
    )
for run in [*findings.runs_on("cuda"), *findings.runs_on("host")]:
    show(speedup(run), f"Speed-up of each strategy over CPU gather, run {run.run_id}.")

# %% [markdown]
# ## What the data say

# %%
for name, times in stated_times(bars[bars["kind"] != "measured"]):
    say(f"- {name}: {gain(times, possible)}")
for backend, where in ("cuda", "measured"), ("host", "measured in host memory"):
    for name, times, bound in measured_times(findings, backend):
        say(f"- {name}, {where}: {gain(times, host_bound=bound)}")
if on_gpu.empty:
    say("- Epochs on a GPU: **not measured yet**.")
for sentence in disturbances([*findings.runs_on("cuda"), *findings.runs_on("host")]):
    say(sentence)

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

from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.show.views.epochs import speedup
from helpers.bars import epoch_bars
from helpers.epoch_bars import (
    disturbances,
    gain,
    measured_bars,
    measured_times,
    modelled_shapes,
    possible,
    predicted_bars,
    stated_times,
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
# ## Graphs of this field, by the model
#
# Whole epochs on graphs with the sizes of the field's, from their shapes alone. Where a strategy
# has no bar its table does not fit in GPU memory. A graph that is like another has its size and
# not its edges: a minibatch of `reddit-like` holds a third of the rows that the chart of Reddit
# implies, so its epochs are shorter than those above.

# %%
profile = load_profile("rtx3090-pcie4")
shapes = ["products-like", "reddit-like", "wiki-like", "papers100M-like", "twitter-like", "sk-like"]
expected = modelled_shapes(shapes, profile)
for first in range(0, len(shapes), 3):
    show(
        epoch_bars(
            expected,
            {"modelled": "does not fit in GPU memory"},
            title=f"Epoch time by graph and strategy, modelled for {profile.name}",
            foot="GraphSAGE with the paper's hyper-parameters. Each strategy by its fastest "
            "variant, named beside the bar. Minibatches computed from RMAT's degree law; constants "
            "and their sources are the profile's.",
            groups=[f"{name} GraphSAGE" for name in shapes[first : first + 3]],
            kinds=("modelled",),
        ),
        f"Modelled epoch time by strategy for {', '.join(shapes[first : first + 3])}.",
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
for name, times in stated_times(expected.assign(machine=profile.name)):
    fits = any(strategy == "all_in_gpu" for strategy, _ in times)
    too_large = " The table does not fit in GPU memory."
    say(f"- {name}: {gain(times, possible)}{'' if fits else too_large}")
for backend, where in ("cuda", "measured"), ("host", "measured in host memory"):
    for name, times in measured_times(findings, backend):
        say(f"- {name}, {where}: {gain(times)}")
if on_gpu.empty:
    say("- Epochs on a GPU: **not measured yet**.")
for sentence in disturbances([*findings.runs_on("cuda"), *findings.runs_on("host")]):
    say(sentence)

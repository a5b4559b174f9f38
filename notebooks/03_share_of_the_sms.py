# %% [markdown]
# # 3. Zero-copy throughput against the share of the SMs
#
# **Question.** How many of the GPU's multiprocessors does a gather need, and what does training
# lose to a gather beside it?
#
# **Claims checked.** Min et al. (PVLDB 14(11), 2021): on an RTX 3090 a split of 15:85 between
# gather and training saturates PCIe, and 10:90 made no visible difference end to end.

# %%
from gatherbench.bench.show.answers.gathers import (
    gather_against_share,
    overlap_ratios,
    step_against_share,
)
from gatherbench.bench.show.figures.curves import Mark, sm_share
from gatherbench.bench.show.notebook_tables import open_findings
from gatherbench.bench.show.notebooks_show import say, show

findings = open_findings()

# %%
published = findings.published.query("table == 'overlap'").set_index("metric")["value"]
saturates = Mark(100 * published["sm_share_saturating_link"], "saturates PCIe (RTX 3090)")
suffices = Mark(
    100 * published["sm_share_sufficient_end_to_end"], "no visible difference end to end"
)
gather = gather_against_share(findings)
step = step_against_share(findings)
show(
    sm_share(
        gather,
        step,
        ([saturates], [suffices]),
        remedy="`gatherbench run gpu-epoch` and\n`make gpu-micro` on a GPU",
        foot="Published: Min et al., PVLDB 14(11) 2021, splits of the SMs by CUDA MPS. Measured: "
        "the sweeps of async_zero_copy when it opens, alone and beside the real training "
        "step, and gpu-micro's grid caps, as shares of all threads that the GPU holds.",
    ),
    "Rate of a gather, and time of a training step beside it, against the share of the SMs.",
)

# %% [markdown]
# The link model has no curve here: no profile knows how the rate of a gather depends on its share
# of the multiprocessors, and a guess would look like knowledge.
#
# ## What the data say

# %%
if gather.empty and step.empty:
    say("- On a GPU: **not measured yet**. What is published stands alone above.")
for series, line in gather.groupby("series", sort=False):
    enough = line[line["y"] >= 0.97]["x"]
    which = f"**{enough.min():g} %** is the smallest share" if len(enough) else "no share tried"
    say(f"- {series}: {which} that reaches 97 % of the best rate.")
for series, line in step.groupby("series", sort=False):
    best = line.loc[line["y"].idxmin()]
    say(
        f"- {series}: the shortest step takes {best['y']:.2f} times training alone,"
        f" at a share of {best['x']:g} %."
    )
for series, share, ratio in overlap_ratios(findings).itertuples(index=False):
    say(
        f"- {series}: fetch and training side by side take **{ratio:.2f}** times the longer of the"
        f" two, at a share of {share:g} %."
    )

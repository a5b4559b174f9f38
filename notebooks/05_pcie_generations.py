# %% [markdown]
# # 5. PCIe generations: the Reddit chart
#
# **Question.** What does a faster link change for each data path?
#
# **Claim checked.** Chart in the README of K-Wu/pytorch-direct_dgl, the code of Min et al. (PVLDB
# 14(11), 2021): from PCIe 3.0 to 4.0 the epoch with CPU gather hardly gets shorter, the zero-copy
# epochs do.

# %%
import numpy as np

from helpers.bars import epoch_bars
from helpers.epoch_bars import measured_bars, possible
from helpers.findings import open_findings
from helpers.reddit import published_reddit, reddit_bars
from helpers.shown import say, show

findings = open_findings()

# %%
bars = reddit_bars(findings.published)
measured = measured_bars(findings, "cuda", "reddit")
other = {"measured": "not measured: this machine is not at hand"}
show(
    epoch_bars(
        bars,
        other,
        title="One epoch of GraphSAGE on Reddit, by generation of the link",
        foot="Published: read off the chart to ±0.05 s (whiskers). Modelled: the link model, "
        "whose free constants are fitted to the four PCIe 3.0 bars; the PCIe 4.0 bars are "
        "predictions, and the percentage is how far off they are.",
    ),
    "Epoch time on Reddit for PCIe 3.0 and 4.0, four strategies, published beside modelled.",
)

# %% [markdown]
# ## Reddit on the GPUs that were measured

# %%
if measured.empty:
    say("**Not measured yet**: `gatherbench run` a plan with the dataset `reddit` on a GPU.")
else:
    show(
        epoch_bars(
            measured,
            {"published": "", "modelled": ""},
            title="One epoch of GraphSAGE on Reddit, measured",
            foot="Medians of each strategy's best variant; whiskers: quartiles.",
        ),
        "Measured epoch time on Reddit, by strategy.",
    )

# %% [markdown]
# ## What the data say

# %%
at = {
    row.strategy + row.machine: np.log([row.low, row.median, row.high])
    for row in published_reddit(findings.published).itertuples()
}
for strategy in ("cpu_gather", "aligned_zero_copy", "async_zero_copy", "all_in_gpu"):
    ratio = possible(at[strategy + "rtx3090-pcie4"], at[strategy + "rtx3090-pcie3"])
    say(
        f"- Published, `{strategy}`: PCIe 4.0 shortens the epoch by **{1 - ratio.value:.0%}**"
        f" ({1 - ratio.high:.0%} to {1 - ratio.low:.0%} as the chart can be read)."
    )
predicted = bars[(bars["kind"] == "modelled") & (bars["note"] != "fitted")]
worst = max(predicted["note"], key=lambda note: abs(float(note.rstrip("%"))))
off = ", ".join(f"{s} {n}" for s, n in zip(predicted["strategy"], predicted["note"], strict=True))
say(f"- The model, fitted on PCIe 3.0 alone, is off on PCIe 4.0 by: {off} (worst {worst}).")

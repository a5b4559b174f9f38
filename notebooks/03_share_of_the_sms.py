# %% [markdown]
# # 3. Zero-copy throughput against the share of the SMs
#
# **Question.** How many of the GPU's multiprocessors does a gather need, and what does training
# lose to a gather beside it?
#
# **Claims checked.** Min et al. (PVLDB 14(11), 2021): on an RTX 3090 a split of 15:85 between
# gather and training saturates PCIe, and 10:90 made no visible difference end to end.

# %%
from helpers.findings import open_findings
from helpers.gathers import (
    MICRO,
    SWEEP,
    gather_against_share,
    share_table,
    step_against_share,
)
from helpers.ratios import ONE_REPEAT
from helpers.shares import Mark, sm_share
from helpers.shown import say, show

findings = open_findings()

# %%
published = findings.published.query("table == 'overlap'").set_index("metric")["value"]
saturates = Mark(100 * published["sm_share_saturating_link"], "saturates PCIe (RTX 3090)")
suffices = Mark(
    100 * published["sm_share_sufficient_end_to_end"], "no visible difference end to end"
)
gather = gather_against_share(findings)
step = step_against_share(findings)
PUBLISHED = "Published: Min et al., PVLDB 14(11) 2021, splits of the SMs by CUDA MPS. "
MEASURED = {
    SWEEP: (
        "`gatherbench run gpu-decide` on a GPU",
        "Measured: the sweeps of async_zero_copy when it opens, by variant, alone and beside the "
        "real training step; host memory is registered where a variant does not say managed. Means "
        "over repeats, whiskers: 95 % intervals, none of one repeat.",
    ),
    MICRO: (
        "`gatherbench probe --cases gpu_policies` on a GPU",
        "Measured by gpu-micro: grid caps of aligned, ids as given, and loads that are like "
        "training in one way each; medians of one process, whiskers: extremes over its rounds.",
    ),
}
for source, (remedy, foot) in MEASURED.items():
    show(
        sm_share(
            gather[gather["source"] == source],
            step[step["source"] == source],
            ([saturates], [suffices]),
            remedy=remedy,
            foot=f"{PUBLISHED}{foot} Shares are of all threads that the GPU holds.",
        ),
        "Rate of a gather, and time of a training step beside it, against the share of the SMs:"
        f" {source}.",
    )

# %% [markdown]
# The link model has no curve here: no profile knows how the rate of a gather depends on its share
# of the multiprocessors, and a guess would look like knowledge.
#
# ## What the data say

# %%
if gather.empty and step.empty:
    say("- On a GPU: **not measured yet**. What is published stands alone above.")
else:
    say(
        "- Behind a value of gpu-micro are the least and the greatest of the rounds of one process,"
        " behind another its 95 % interval over the repeats. " + ONE_REPEAT
    )
say(*share_table(findings))

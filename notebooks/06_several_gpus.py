# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 6. Several GPUs
#
# **Question.** What does zero-copy win when several GPUs share one host's processor and memory?
#
# **Claim checked.** Min et al. (PVLDB 14(11), 2021): in a multi-GPU setup training is 65 to 92 %
# faster than on the conventional path.

# %%
from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.show.figures.curves import CurveAxes, curves
from gatherbench.bench.show.figures.kinds import MEASURED, MODELLED
from gatherbench.bench.show.notebook_tables import open_findings
from gatherbench.bench.show.notebooks_show import say, show
from gatherbench.bench.show.sentences.reddit import (
    modelled_scaling,
    over_cpu_gather,
    published_range,
)

findings = open_findings()
GPUS = [1, 2, 4, 8]
profile = load_profile("rtx3090-pcie4")
epochs = modelled_scaling(findings.published, profile, GPUS)
absent = {"measured": "this version of the harness trains on one GPU"}
names = {"modelled": f"modelled, {profile.name}"}

# %% [markdown]
# ## Against CPU gather on as many GPUs

# %%
ratios = over_cpu_gather(epochs)
show(
    curves(
        ratios,
        absent,
        CurveAxes("GPUs", "times as fast as CPU gather", GPUS),
        title="Several GPUs: zero-copy against CPU gather",
        foot="Published: a range over graphs and numbers of GPUs that the table does not hold. "
        "Modelled: Reddit, minibatches and program costs fitted to the chart of one GPU (notebook "
        "5); the GPUs share processor, host memory and ports.",
        roofs=published_range(findings.published),
        names=names,
    ),
    "Times as fast as CPU gather against the number of GPUs, published and modelled.",
)

# %% [markdown]
# ## Epoch time

# %%
show(
    curves(
        epochs,
        absent,
        CurveAxes("GPUs", "time per epoch (s)", GPUS),
        title="Several GPUs: one epoch on Reddit, its minibatches shared",
        foot="Modelled as above. What does not get shorter with more GPUs is work of the shared "
        "host.",
        kinds=(MODELLED, MEASURED),
        names=names,
    ),
    "Modelled epoch time against the number of GPUs, a curve a strategy.",
)

# %% [markdown]
# ## What the data say

# %%
low, high = published_range(findings.published)["y"]
for row in ratios[ratios["series"] == "async_zero_copy"].itertuples():
    place = "inside" if low <= row.y <= high else "outside"
    say(
        f"- {row.x} GPU{'s' if row.x > 1 else ''}, modelled: `async_zero_copy` is **{row.y:.1f}**"
        f" times as fast as CPU gather, {place} the published {low:.2f} to {high:.2f}."
    )
bounds = epochs[epochs["x"] == max(GPUS)].set_index("series")["bound"]
said = ", ".join(f"`{strategy}` {bound}" for strategy, bound in bounds.items())
say(f"- What bounds the modelled epoch on {max(GPUS)} GPUs: {said}.")
say(
    "- The paper's graphs and numbers of GPUs are not those of the model here, so a ratio outside"
    " the published range refutes neither."
)
say("- Several GPUs: **not measured yet**.")

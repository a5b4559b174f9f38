# %% [markdown]
# # 10. Hot rows on the GPU
#
# **Question.** What is it worth to keep the rows that are asked for often in GPU memory, and how
# many, by which policy?
#
# **Claim checked.** Data Tiering (Min et al., KDD 2022, arXiv 2111.05894): with hot rows in GPU
# memory and the rest read by zero-copy, 87 to 95 % less crosses the link, and training is 1.6 to
# 2.1 times as fast.

# %%
from gatherbench.bench.read.axis import axis
from gatherbench.bench.show.figures.curves import CurveAxes, curves
from gatherbench.bench.show.views.axis import chart
from helpers.findings import open_findings
from helpers.gathers import over_rounds
from helpers.hot_rows import measured_gains, published_tiering
from helpers.ratios import ONE_REPEAT, compared
from helpers.shown import say, show

findings = open_findings()
roofs, (least, most) = published_tiering(findings.published)

# %% [markdown]
# ## What a row that is found is worth
#
# A row that is found in GPU memory does not cross the link. How much sooner the epoch ends then
# depends on what else it waits for.

# %%
measured = measured_gains(findings)
if len(measured):
    show(
        curves(
            measured,
            {},
            CurveAxes("rows found on the GPU (%)", "times as fast as with no row kept"),
            title="What rows found on the GPU are worth: an epoch of GraphSAGE",
            foot="'No row kept' is aligned zero-copy. Measured: ratios of means over repeats, "
            "whiskers: 95 % intervals, none of one repeat. Dotted, published: the range over the "
            "paper's graphs, against the systems it compares with.",
            roofs=roofs.assign(kind="measured"),
            kinds=("measured",),
        ),
        "Times as fast as aligned zero-copy against the share of rows found on the GPU.",
    )
else:
    say("**Not measured yet**: `gatherbench run hot-rows` on a GPU.")

# %% [markdown]
# ## How many rows, by which policy
#
# From runs that kept several shares of a table. In host memory there is no link that a found row
# could spare, so there the first panel shows what finding rows costs, and no gain.

# %%
kept = [run for run in findings.runs if len(axis(run, "share"))]
for run in kept:
    show(chart(run, "share"), f"Epochs over the share kept, {run.machine}.")
    show(chart(run, "share", "link"), f"Link bytes over the share kept, {run.machine}.")
if not kept:
    say("**Not measured yet**: `gatherbench run hot-rows`, on a GPU or without one.")

# %% [markdown]
# ## What the data say

# %%
low, high = roofs["y"].min(), roofs["y"].max()
say(
    f"- Published: {least:.0%} to {most:.0%} less over the link, training **{low:g} to {high:g}**"
    " times as fast, over graphs that the abstract does not name."
)
for run in kept:
    known = axis(run, "share").dropna(subset="counted").sort_values("counted")
    for one in known.to_dict("records"):
        say(
            f"- {one['family']}, {one['backend']}: `{one['strategy']}` `{one['variant']}` found"
            f" **{one['counted']:.1%}** of the rows, {one['declared']:.1%} were declared."
        )
for row in measured.itertuples():
    gain = compared(over_rounds(row.y, row.low, row.high), "as fast as `aligned_zero_copy given`")
    say(f"- {row.series}, measured: with {row.x:.1f} % of the rows found an epoch is {gain}.")
if measured["low"].isna().any():
    say(f"- {ONE_REPEAT}")
if measured.empty:
    say("- Epochs with hot rows on a GPU: **not measured yet**.")

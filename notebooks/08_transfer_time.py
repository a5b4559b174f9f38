# %% [markdown]
# # 8. Transfer time over number of rows and row width
#
# **Question.** For which transfers is zero-copy faster than gathering on the CPU and copying?
#
# **Claim checked.** The microbenchmark of PyTorch-Direct (arXiv 2101.07956): over numbers of rows
# and row sizes, data transfer time fell by 47.1 % on average.

# %%
from gatherbench.bench.model.profile import profile_of_machine
from helpers.epoch_bars import measured_transfers
from helpers.findings import open_findings
from helpers.gathers import modelled_transfers
from helpers.heatmaps import transfer_heatmap
from helpers.ratios import ONE_REPEAT, compared
from helpers.shown import say, show

findings = open_findings()
ROWS = [1_000, 8_000, 64_000, 256_000]
WIDTHS = [16, 64, 256, 400, 512, 1024, 2408, 4096]

# %%
changes = findings.published.query("table == 'headlines'").set_index("metric")["value"]
faster = 1 / (1 + changes["wall_time_change"])
profile = profile_of_machine(findings.gpu_machine)  # the paper's, unless a GPU was measured
modelled = modelled_transfers(profile, ROWS, WIDTHS, num_rows=4 << 20)
measured = measured_transfers(findings)
show(
    transfer_heatmap(
        modelled,
        measured.drop_duplicates("group"),
        f"−47.1 % on average over the grid, that is {faster:.2f} times as fast (PyTorch-Direct)",
        profile=profile.name,
        remedy="`gatherbench run gpu-decide` on a machine with a GPU",
        foot="Above 1 zero-copy is faster. Modelled: baseline in fresh pageable memory; table of "
        "4 M rows; the rate of the baseline is one constant, of one row width, so cells of "
        f"narrower rows flatter it ({profile['copy.pageable'].source}). Measured: a point for "
        "each workload, at its mean minibatch: cpu_gather naive over aligned_zero_copy given "
        "(registered memory).",
    ),
    "Transfer time of CPU gather over that of zero-copy, by number of rows and row width.",
)

# %% [markdown]
# ## What the data say

# %%
wide = modelled[modelled["row_bytes"] >= 256]
low, high = wide["ratio"].min(), wide["ratio"].max()
say(
    f"- The model expects zero-copy to be **{low:.1f} to {high:.1f}** times as fast for rows of"
    f" 256 B and more on {profile.name} (published: {faster:.2f} on average, on another machine)."
)
lost = modelled[modelled["ratio"] < 1]
if len(lost):
    widths = ", ".join(f"{width} B" for width in sorted(set(lost["row_bytes"])))
    say(
        f"- It expects CPU gather to win in {len(lost)} of {len(modelled)} cells: rows of {widths}."
    )
if measured.empty:
    say("- On a GPU: **not measured yet**.")
for (group, over), mine in measured.groupby(["group", "over"], sort=False):
    first = mine.iloc[0]
    said = "; ".join(f"`{row.variant}` {compared(row.interval)}" for row in mine.itertuples())
    say(
        f"- Measured on {group}, {first['machine']}: {first['rows']:,.0f} rows of"
        f" {first['row_bytes']:.0f} B: `aligned_zero_copy` over `cpu_gather {over}`, times as fast"
        f" by variant: {said}."
    )
if any(interval.repeats < 2 for interval in measured["interval"]):
    say(f"- {ONE_REPEAT}")

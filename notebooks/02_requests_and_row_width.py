# %% [markdown]
# # 2. Requests and throughput against row width
#
# **Question.** What does it cost to read rows that do not start on a 128 B line, and what do
# alignment, the width of an access and the order of the ids win back?
#
# **Claims checked.** A warp that starts in the middle of a line splits its reads into more and
# smaller PCIe requests, each with its header; a circular shift avoids it (Min et al., PVLDB
# 14(11), 2021). Alignment is worth 5 to 10 % (dmlc/dgl #3254); sorting the ids was worth 4.3
# times on 188 B rows (dmlc/dgl #5882, #6635).

# %%
import math

import pandas as pd

from gatherbench.bench.model.profile import profile_of_machine
from gatherbench.bench.read.link_bytes import link_bytes
from gatherbench.bench.show.figures.curves import CurveAxes, curves
from gatherbench.bench.show.figures.requests_per_row import requests_per_row
from helpers.findings import open_findings
from helpers.gathers import (
    measured_gather_rates,
    measured_roofs,
    modelled_gather_rates,
    modelled_roofs,
    over_rounds,
    published_order,
    ratio_over_rounds,
    requests_at,
    span_of,
)
from helpers.ratios import undecided
from helpers.shown import say, show

findings = open_findings()
WIDTHS = [16, 32, 64, 100, 128, 188, 256, 400, 512, 1024, 1412, 2048, 2408, 4096]

# %% [markdown]
# ## Requests on the link, counted
#
# Counted from the addresses that every lane loads. No GPU is needed for it, and none took part.

# %%
show(
    requests_per_row(),
    "Requests per row and bytes on the link beyond the row, against row width, a panel a policy.",
)

# %% [markdown]
# ## Payload per second
#
# The model turns the same requests into time on the link of the paper's machine, or of the one
# that was measured once it is calibrated. It knows no caches, so it does not see what the order of
# the ids is worth.

# %%
profile = profile_of_machine(findings.gpu_machine)  # the paper's, unless a GPU was measured
policies = ["unaligned", "aligned", "dgl", "pytorch-direct", "torch-quiver"]
published = published_order(findings.published)
span = span_of(findings.micro)
modelled = modelled_gather_rates(policies, WIDTHS, profile, span_bytes=span)
measured = measured_gather_rates(findings.micro, policies)
show(
    curves(
        pd.concat([modelled, measured, published]),
        {"measured": "`gatherbench probe --cases gpu_policies` on a GPU"},
        CurveAxes("row width (B)", "payload (GB/s)", [16, 64, 256, 1024, 4096], log_x=True),
        title="Zero-copy: payload per second against row width",
        foot="Published: a table of 100 M × 47 float32 read with DGL (dmlc/dgl #5882, #6635). "
        "Modelled: request accounting on uniform ids, float32 rows, link of the profile. "
        "Left out: reads of less than 64 B on average, where the profile knows neither how many "
        "are in flight nor how long one takes. "
        "Measured: medians, best grid cap; whiskers: slowest and fastest launch. Both: a table of "
        f"{span / 2**30:g} GiB.",
        roofs=pd.concat([modelled_roofs(profile), measured_roofs(findings.micro)]),
        names={"modelled": f"modelled, {profile.name}"},
    ),
    "Payload per second against row width: published, modelled and measured, a curve a policy.",
)

# %% [markdown]
# ## What the data say

# %%
counted = {
    (r.policy.name, r.row_bytes): r for r in requests_at(["unaligned", "aligned"], [400, 2408])
}
for width in (400, 2408):
    plain, shifted = (counted[name, width] for name in ("unaligned", "aligned"))
    saved = 1 - shifted.requests_per_row / plain.requests_per_row
    say(
        f"- Rows of {width} B: {plain.requests_per_row:.2f} requests unaligned,"
        f" {shifted.requests_per_row:.2f} aligned ({saved:.0%} fewer, counted)."
    )
rates = modelled.set_index(["policy", "x"])["y"]
gains = (rates["aligned"] / rates["unaligned"] - 1)[[400, 1412, 2408]]
said = ", ".join(f"{gain:.1%} at {width} B" for width, gain in gains.items())
over = f"over a table of {span / 2**30:g} GiB"
say(
    f"- The model expects alignment to be worth {said} on {profile.name}, {over} (published: 5 to"
    " 10 %)."
)
at = published.set_index("series")["y"]
ratio = at["DGL, sorted"] / at["DGL, given"]
say(f"- Published: with sorted ids DGL's gather was {ratio:.1f} times as fast, rows of 188 B.")
if measured.empty:
    say("- On a GPU: **not measured yet**.")
else:
    say(
        f"- Measured on {findings.gpu_machine} {over}: medians of the ratios within a round, least"
        " to greatest over the rounds, each side with its best grid cap. One process: how much"
        " processes differ is not known."
    )
given = ("aligned", "given")
for width in sorted(set(measured["x"])):
    aligned = ratio_over_rounds(findings.micro, width, given, ("unaligned", "given"))
    ordered = ratio_over_rounds(findings.micro, width, ("aligned", "sorted"), given)
    if not math.isnan(aligned[0] + ordered[0]):
        align, order = (
            f"{ratio - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})"
            + undecided(over_rounds(ratio, low, high))
            for ratio, low, high in (aligned, ordered)
        )
        say(
            f"- Measured at {width} B, {over}: alignment is worth {align}; sorting the ids {order}."
        )
traffic = findings.derived("cuda", link_bytes)
for row in traffic[traffic["strategy"].str.contains("aligned|unified")].itertuples():
    link, by_128, by_64 = (x / row.payload for x in (row.median, row.link_128, row.link_64))
    if not math.isnan(by_128):
        say(
            f"- Measured on {findings.names[row.workload]}, {row.machine}: `{row.strategy}"
            f" {row.variant}` put"
            f" **{link:.2f} B** on the link for a byte that it wanted (counted {by_128:.2f}, or"
            f" {by_64:.2f} with reads of 64 B)."
        )

# %% [markdown]
# # 9. Ours beside the launch policies of other systems
#
# **Question.** Do other systems place their gather on the GPU in a way that costs less, or is
# faster?
#
# **Claims checked.** None of a paper. Each "policy of X" is X's lanes, access widths, shift,
# order and grid on our kernel, as read in its source, and never X itself.

# %%
import pandas as pd

from gatherbench.bench.model.profile import profile_of_machine
from gatherbench.bench.show.figures.curves import CurveAxes, curves
from gatherbench.kernels.policies import POLICIES
from helpers.findings import open_findings
from helpers.gathers import (
    best_orders,
    live_peers,
    measured_gather_rates,
    measured_roofs,
    modelled_gather_rates,
    modelled_roofs,
    over_rounds,
    ratio_over_rounds,
    requests_at,
    span_of,
)
from helpers.heatmaps import policy_costs
from helpers.ratios import compared
from helpers.shown import say, show

findings = open_findings()
WIDTHS = [16, 64, 188, 400, 512, 1412, 2408, 4096]

# %% [markdown]
# ## What each policy costs on the link

# %%
counted = requests_at(list(POLICIES), WIDTHS)
show(
    policy_costs(
        counted,
        title="Bytes on the link for each byte wanted",
        foot="Sectors read and 20 B of header and framing for each request; uniform ids, float32 "
        "rows, caches left out. Bold: within half a per cent of the least of its column.",
    ),
    "A table of link bytes over payload, a line a policy, a column a row width.",
)

# %% [markdown]
# ## Payload per second

# %%
profile = profile_of_machine(findings.gpu_machine)  # the paper's, unless a GPU was measured
span = span_of(findings.micro)
modelled = modelled_gather_rates(list(POLICIES), WIDTHS, profile, span_bytes=span)
measured = measured_gather_rates(findings.micro)
peers = live_peers(findings.micro)
show(
    curves(
        pd.concat([best_orders(pd.concat([measured, modelled])), peers]),
        {"measured": "`gatherbench probe --cases gpu_policies` on a GPU"},
        CurveAxes("row width (B)", "payload (GB/s)", [16, 64, 256, 1024, 4096], log_x=True),
        title="Payload per second, every launch policy",
        foot="Modelled: request accounting on the link of the profile; the order of the ids does "
        "not enter; left out are reads of less than 64 B on average, where the profile knows "
        "neither how many are in flight nor how long one takes. "
        "Measured: medians over the rounds of one process, best grid cap and best order. Both: a "
        f"table of {span / 2**30:g} GiB; what another system gathers itself: of the size named.",
        roofs=pd.concat([modelled_roofs(profile), measured_roofs(findings.micro)]),
        kinds=("modelled", "measured"),
        names={"modelled": f"modelled, {profile.name}"},
    ),
    "Payload per second against row width for every policy, modelled and measured.",
)

# %% [markdown]
# ## What the data say

# %%
table = pd.DataFrame(
    [(r.policy.name, r.policy.system, r.row_bytes, 1 / r.link_efficiency) for r in counted],
    columns=["policy", "system", "width", "cost"],
)
for width in (400, 1412, 2408):
    here = table[table["width"] == width].set_index("policy")
    others = here[here["system"] != "gatherbench"]["cost"]
    say(
        f"- Rows of {width} B, counted: `aligned` puts {here['cost']['aligned']:.2f} B on the"
        f" link for a byte, the policies of other systems {others.min():.2f} to {others.max():.2f}."
    )
if measured.empty:
    say("- Which of them is fastest on a GPU is **not measured yet**.")
else:
    say(
        f"- Measured on {findings.gpu_machine} over a table of {span / 2**30:g} GiB: of each side"
        " the policy, order and grid cap that came out fastest; medians of the ratios within a"
        " round, least to greatest over the rounds. One process: how much processes differ is not"
        " known."
    )
ours = [name for name, policy in POLICIES.items() if policy.system == "gatherbench"]
for width, here in measured.groupby("x"):
    mine = here[here["policy"].isin(ours)]
    others = here[~here["policy"].isin(ours)]
    if len(mine) and len(others):
        best, other = (side.loc[side["y"].idxmax()] for side in (mine, others))
        sides = [(side["policy"], side["order"]) for side in (best, other)]
        ratio = over_rounds(*ratio_over_rounds(findings.micro, width, *sides))
        of = f"as fast as the best of the others ({other['series']})"
        say(f"- Measured at {width} B: our best ({best['series']}) is {compared(ratio, of)}.")
for series, theirs in peers.groupby("series"):
    said = "; ".join(f"{row.y:.1f} GB/s at {row.x} B ({row.beside})" for row in theirs.itertuples())
    say(
        f"- {series}, measured on a table of its own (in brackets our `aligned` in turn with it, by"
        f" the order of the ids; medians of one process): {said}."
    )

"""The launch policies of this field, for ``gatherbench list policies``."""

from __future__ import annotations

from rich.table import Table

from gatherbench.kernels.policies import POLICIES, Policy


def policies_table() -> Table:
    """Every launch policy."""
    table = Table("policy", "whose", "launch")
    table.add_column("source", overflow="fold")
    for policy in POLICIES.values():
        table.add_row(policy.name, policy.label, _rule(policy), policy.source)
    return table


def _rule(policy: Policy) -> str:
    """What a policy decides before it has seen a table."""
    width = f"{policy.width} B" if isinstance(policy.width, int) else policy.width
    words = [f"{width} accesses", f"{policy.mapping} mapping"]
    if policy.shift != "none":
        words.append(f"{policy.shift} shift above {policy.shift_above} B")
    if policy.order != "given":
        words.append(policy.order)
    return ", ".join(words)

"""What ``gpu-best`` holds: each combination, beside what it is made of."""

from gatherbench.bench.plan.plan_file import load_plan
from gatherbench.strategies.registry import build


def test_every_combination_is_there_beside_what_it_is_made_of():
    plan = load_plan("gpu-best")
    assert plan.measure.together, "ratios of one process"
    cases = [c for c in plan.cases() if c.repeat == 0]
    by_table = {c.workload.dataset: set() for c in cases}  # type: dict[str, set[str]]
    for case in cases:
        by_table[case.workload.dataset].add(f"{case.strategy} {case.variant}")
    ordered, given = (by_table[f"papers100M-like{order}"] for order in ("+degree", ""))
    assert ordered == given, "with and without the order"
    assert len(given) == 14

    paths = {
        one: build(c.strategy, c.params) for c in cases for one in [f"{c.strategy} {c.variant}"]
    }
    lossy = {name for name, path in paths.items() if path.lossy}
    hot = [f"cached_zero_copy presampled,{s},{a},managed" for s in ("10%", "50%") for a in "01"]
    assert set(hot) < given - lossy
    narrow = [
        f"narrow_rows {d},{p},managed"
        for d in ("float16", "int8")
        for p in ("async", "cached-ahead")
    ]
    assert lossy == set(narrow)
    assert all(paths[name].aside for name in lossy), "never ranked with the others"
    for name in lossy:  # the same path with rows as they are stands beside it
        inner = paths[name].inner  # type: ignore[attr-defined]
        assert f"{inner.name} {inner.variant}" in given, name

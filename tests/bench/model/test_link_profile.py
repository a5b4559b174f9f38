"""Link profiles: what is read is what stands there, and what is wrong is named with its range."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatherbench.bench.machine.pcie import raw_rate
from gatherbench.bench.model.physics import link_time
from gatherbench.bench.model.profile import (
    DEFAULT_PROFILE,
    SPECS,
    Constant,
    Points,
    ProfileError,
    load_profile,
    profile_names,
)

#: All that are shipped: one that was measured needs no more than its file to be held to this.
PRESETS = profile_names()
GOOD = load_profile(DEFAULT_PROFILE).to_toml()


def test_the_presets_are_there():
    links = {f"{gpu}-pcie{gen}" for gpu, gen in (("rtx3090", 3), ("rtx3090", 4), ("a100", 4))}
    assert {*links, "h100-sxm-pcie5-low", "h200-sxm-pcie5-low", "gh200-c2c"} <= set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_units_and_sources_its_links_rate_and_reads_back(name, tmp_path):
    profile = load_profile(name)
    assert profile.name == name
    assert len(profile.description) > 20
    assert list(profile.constants) == list(SPECS)
    assert all(len(constant.source) > 10 for constant in profile.constants.values())
    if generation := re.search(r"pcie(\d)", name):
        rate = raw_rate(int(generation[1]))
        assert profile["link.raw_rate"].value == pytest.approx(rate, rel=1e-3)
    path = tmp_path / "x.toml"
    path.write_text(profile.to_toml(), encoding="utf-8")
    assert load_profile(path) == profile
    assert hash(load_profile(path)) == hash(profile)


def test_an_older_file_is_still_read(tmp_path):
    """What it does not name is not known, for a reason."""
    path = tmp_path / "mine.toml"
    gone = "[loop]\nissue = { value = 1.0 }\n[peer]\nrate = { value = 1.0 }\n"  # no more
    older = GOOD.replace("[copy]\n", "[copy]\nto_host = { value = 1.0 }\n")
    path.write_text(older + gone, encoding="utf-8")
    profile = load_profile(path)
    disk = {"disk.iops", "disk.bandwidth"}
    newer = {"gpu.issue", "gpu.draw", "host.memory", "read.managed_page_visits", "copy.batched"}
    assert {key for key, spec in SPECS.items() if spec.otherwise} == disk | newer
    assert profile.unknown()["gpu.issue"] == "it was not timed there"
    (why,) = {profile.unknown()[key] for key in disk}
    assert "measure the disk (fio)" in why


def refused(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError) as error:
        load_profile(path)
    return str(error.value)


def changed(key: str, entry: str | None) -> str:
    """The default profile with one constant's line replaced, or left out."""
    section, _, name = key.partition(".")
    lines, here = [], ""
    for line in GOOD.splitlines():
        here = line.strip("[]") if line.startswith("[") else here
        if here == section and line.startswith(f"{name} ="):
            if entry is not None:
                lines.append(f"{name} = {entry}")
        else:
            lines.append(line)
    return "\n".join(lines)


def test_missing_constants_are_named_with_what_is_expected(tmp_path):
    """All of them at once."""
    said = refused(tmp_path, "[link]\n")
    assert said.startswith("mine.toml: ")
    for key, spec in SPECS.items():
        if spec.otherwise:
            assert f"{key}: missing" not in said
            continue
        assert (
            f'{key}: missing ({spec.meaning}); expected {{ value = …, unit = "{spec.unit}"' in said
        )


@pytest.mark.parametrize("key", sorted(SPECS))
def test_a_value_out_of_range_is_refused_with_the_range(key):
    profile, spec = load_profile(DEFAULT_PROFILE), SPECS[key]
    for beyond in (-1.0, 1e20, math.inf, math.nan):
        with pytest.raises(ProfileError) as error:
            profile.with_constant(key, beyond, "a test")
        unit = "" if spec.unit == "1" else f" {spec.unit}"
        wanted = f"{key}: {beyond}: expected {spec.low:g} to {spec.high:g}{unit};"
        assert wanted in str(error.value)


def entry(value: str) -> str:
    return f'{{ value = {value}, unit = "B/s", source = "x" }}'


@pytest.mark.parametrize(
    ("key", "wrong", "part"),
    [
        ("link.raw_rate", "31.5e9", "expected { value"),
        ("link.raw_rate", entry("1e20"), "1e+08 to 1e+13 B/s"),
        ("link.raw_rate", '{ value = 31.5, unit = "GB/s", source = "x" }', "expected 'B/s'"),
        ("link.raw_rate", '{ value = 31.5e9, unit = "B/s" }', "source: Field required"),
        ("link.raw_rate", '{ value = 31.5e9, unit = "B/s", source = " " }', "no source"),
        ("link.raw_rate", entry('"fast"'), "value: Input should be a valid"),
        ("link.raw_rate", entry("true"), "value: Input should be a valid"),
        ("link.raw_rate", '{ vallue = 1, unit = "B/s", source = "x" }', "did you mean 'value'"),
        ("link.raw_rate", entry("[[1, 2e9]]"), "link.raw_rate"),
        ("read.roof", entry("[1, 2]"), "read.roof"),
        ("read.roof", entry("[]"), "ascend"),
        ("read.roof", entry("[[9, 2e9], [1, 2e9]]"), "ascend"),
        ("read.roof", entry("[[inf, 2e9]]"), "ascend"),
        ("read.roof", entry('[["a", 2e9]]'), "value: Input should be a valid"),
        ("read.roof", entry("[[1, 2]]"), "expected 1e+08"),
    ],
)
def test_a_wrong_entry_is_named(key, wrong, part, tmp_path):
    said = refused(tmp_path, changed(key, wrong))
    assert key in said
    assert part in said


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[lnk]\n" + GOOD, "did you mean 'link'"),
        ("link = 3", "link: expected the tables"),
        ("name = ", "not valid TOML"),
        ("link = " + "[" * 1500 + "]" * 1500, "not valid TOML: maximum recursion"),
        ("link = " + "9" * 5001, "not valid TOML: Exceeds the limit"),
        (GOOD.replace("raw_rate", "raw_rat"), "did you mean 'link.raw_rate'"),
    ],
)
def test_a_wrong_file_is_named(text, part, tmp_path):
    assert part in refused(tmp_path, text)


def test_a_profile_that_is_not_there_is_named_with_the_nearest(tmp_path):
    with pytest.raises(ProfileError, match="did you mean 'rtx3090-pcie4'"):
        load_profile("rtx3090-pci4")
    # Not gh200-c2c, which is spelt alike.
    with pytest.raises(ProfileError, match=r"did you mean 'h200-sxm-pcie5-low'"):
        load_profile("h200-sxm-pcie5")
    with pytest.raises(ProfileError, match="No such file"):
        load_profile(tmp_path / "none.toml")


def test_a_replaced_constant_is_checked_too():
    profile = load_profile(DEFAULT_PROFILE)
    assert profile.with_constant("gpu.launch", 1e-5, "a test")["gpu.launch"].value == 1e-5
    assert profile.with_constant("gpu.launch", None, "a test").unknown()["gpu.launch"] == "a test"
    with pytest.raises(ProfileError, match=r"gpu\.launch: 3"):
        profile.with_constant("gpu.launch", 3.0, "a test")
    with pytest.raises(ProfileError, match=r"did you mean 'gpu\.launch'"):
        profile.with_constant("gpu.lunch", 1e-5, "a test")


POINTS = st.lists(
    st.tuples(st.floats(1, 1e12), st.floats(1e9, 1e11)),
    min_size=1,
    max_size=5,
    # Between spans a billionth apart nothing can be interpolated in floats.
    unique_by=lambda p: round(math.log(p[0]), 6),
)


def constant(value: float | Points | None) -> Constant:
    return Constant(value=value, unit="B/s", source="a test")


@given(POINTS, st.floats(1, 1e13))
def test_a_curve_stays_between_its_points(points, span):
    curve = constant(tuple(sorted(points)))
    rate, rates = curve.at(span), [r for _, r in points]
    assert rate is not None
    assert min(rates) * 0.999 <= rate <= max(rates) * 1.001
    for at, there in points:
        assert curve.at(at) == pytest.approx(there)
    assert constant(None).at(span) is None


def test_between_two_points_a_rate_goes_with_the_logarithm():
    curve = constant(((1.0, 10.0), (64.0, 40.0), (128.0, 90.0)))
    assert [curve.at(x) for x in (0.0, 1.0, 8.0, 1000.0, math.inf)] == [10, 10, 25, 90, 90]


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_the_two_ends_of_a_hopper_preset_are_what_is_published(gpu):
    """45.4 and 51.6 GB/s: 63.02 GB/s less 5.4 %, times P / (P + 20); the loss is an A100's."""
    small, large = (load_profile(f"{gpu}-sxm-pcie5-{end}") for end in ("low", "high"))
    for end, size, rate in ((small, 64, 45.4e9), (large, 128, 51.6e9)):
        assert end["link.max_request"].value == size
        seconds = link_time({float(size): 1e6}, end).seconds
        assert size * 1e6 / seconds == pytest.approx(rate, rel=1e-3)
    a100 = load_profile("a100-pcie4")["read.roof"]
    for span in (1 << 30, 10 << 30, 20 << 30, 100 << 30):
        share = (a100.at(span) or 0.0) / (a100.at(1 << 30) or 1.0)
        assert small["read.roof"].at(span) == pytest.approx(35.2e9 * share, rel=1e-3)
        assert large["read.roof"].at(span) == 51.5e9
    differ = [key for key in SPECS if small[key].value != large[key].value]
    assert differ == ["link.max_request", "read.roof"]

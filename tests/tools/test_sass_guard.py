"""The guard over machine code: what it reads, its verdicts, and regressions that it must catch."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import cuda.pathfinder
import numpy as np
import pytest

from gatherbench.kernels.compiler import ARCHITECTURES, KERNEL_SOURCE, CompilerError
from gatherbench.kernels.grid import GridPoint
from gatherbench.kernels.requests import count_requests
from tools import sass
from tools.sass import KernelCode, compare, guarded_points, measure, verdicts

WIDE = GridPoint("circular", 16, 32, 1, 4)
WARPS, LOADS = "warps that registers allow", "table loads in the code"
CODE = KernelCode(40, 0, 200, {"LDG.64": 2, "LDG.EF.128": 4, "STG.EF.128": 4})


@pytest.fixture(scope="module", autouse=True)
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GATHERBENCH_KERNEL_CACHE", str(tmp_path_factory.mktemp("cubins")))
        yield


@pytest.fixture(scope="module")
def right() -> KernelCode:
    return measured()


def measured(source: str | None = None) -> KernelCode:
    return measure([WIDE], ["sm_90"], source=source)[f"sm_90/{WIDE.kernel}"]


def altered(right: str, wrong: str) -> str:
    source = KERNEL_SOURCE.read_text()
    assert right in source, f"the kernel no longer contains {right!r}"
    return source.replace(right, wrong)


def test_the_baseline_has_every_guarded_kernel_and_none_spills():
    points, baseline = guarded_points(), sass.read_baseline()
    made = [(a, p) for a in ARCHITECTURES for p in points]
    assert baseline.kernels.keys() == {f"{arch}/{point.kernel}" for arch, point in made}
    for arch, point in made:
        counts = baseline.kernels[f"{arch}/{point.kernel}"].counts()
        assert counts["spills"] == counts["stack bytes"] == 0
        assert counts["registers"] <= 64, "1024 threads of a block must fit"
        assert counts["bits of the narrowest table load"] == 8 * point.width
        assert counts["table loads in the code"] >= point.rows * point.loads


def test_the_kernel_reads_as_its_point_says(right):
    assert right.memory["LDG.EF.128"] == right.memory["STG.EF.128"] == WIDE.loads
    assert right.counts()["spills"] == 0
    assert right.counts()["warps that registers allow"] >= 32


def test_a_kernel_is_as_in_the_baseline():
    baseline = sass.read_baseline()
    if baseline.compiler != sass._compiler():
        pytest.skip(f"the baseline was made by {baseline.compiler}")
    now = measure([WIDE])
    assert {v.status for v in verdicts({n: baseline.kernels[n] for n in now}, now)} == {"SAME"}


def test_shifted_warps_read_each_line_of_a_row_once():
    """By hand: the batch has every row once, and a row is read line by line, by whole sectors."""
    expected = {32: 0, 64: 0, 96: 0, 128: 0}
    for row in range(41):
        begin = 48 + 2416 * row
        sectors = np.arange(begin // 32, (begin + 2416 - 1) // 32 + 1)
        for in_line in np.unique(sectors // 4, return_counts=True)[1]:
            expected[32 * int(in_line)] += 1
    ids = np.random.default_rng(1).permutation(41)
    stored = {p.kernel: count_requests(p, ids, 2416, 48).requests for p in guarded_points()}
    lines = [name for name in stored if re.match(r"(circular-rows|idle-.*)-(4|8|16)B", name)]
    assert len(lines) == 6 + 9
    for name in lines:
        assert stored[name] == expected, name
    for name, requests in stored.items():  # the circular shift costs less than none at any width
        if name.startswith("circular"):
            none = stored[name.replace("circular", "none")]
            assert sum(requests.values()) < sum(none.values()), name


def test_only_a_cubin_that_is_new_is_disassembled(right, monkeypatch):
    read: list[bytes] = []
    other = GridPoint("idle", 4, 0, 1, 4)
    monkeypatch.setattr(sass, "disassemble", lambda cubin: read.append(cubin) or CODE)
    found = measure([WIDE, other], ["sm_90"], known=[right])
    assert found == {f"sm_90/{WIDE.kernel}": right, f"sm_90/{other.kernel}": CODE}
    assert len(read) == 1


#: What a kernel must do that cannot rely on 16 B alignment: four accesses for one.
NARROW = """
    union { Word word; unsigned part[sizeof(Word) / 4]; } whole{};
    const unsigned* parts = reinterpret_cast<const unsigned*>(from);
    if (wanted)
      for (int i = 0; i < int(sizeof(Word) / 4); ++i) whole.part[i] = __ldcs(parts + i);
    return whole.word;"""
AS_IT_IS = "return wanted ? __ldcs(from) : Word{};"


@pytest.mark.parametrize(
    ("as_it_is", "worse", "reason"),
    [
        (AS_IT_IS, NARROW, "bits of the narrowest table load 128 -> 32"),
        ("__launch_bounds__(1024)", "__maxnreg__(24)", "spills 0 -> "),
        ("k < LOADS", "k < 1", "table loads in the code 4 -> 1"),
    ],
)
def test_a_regression_is_caught(right, as_it_is, worse, reason):
    status, said = compare(right, measured(altered(as_it_is, worse)))
    assert status == "WORSE"
    assert reason in said


@pytest.mark.parametrize(
    ("fields", "memory", "status", "reason"),
    [
        ({}, {}, "SAME", ""),
        ({"cubin": "other"}, {}, "CHANGED", "other instructions, as many"),
        ({"instructions": 190}, {}, "CHANGED", "instructions 200 -> 190"),
        ({"registers": 32}, {}, "CHANGED", f"{WARPS} 51 -> 64; registers 40 -> 32"),
        ({"registers": 56}, {}, "WORSE", f"{WARPS} 51 -> 36; registers 40 -> 56"),
        ({"stack_bytes": 8}, {}, "WORSE", "stack bytes 0 -> 8"),
        ({}, {"STL.32": 1}, "WORSE", "spills 0 -> 1; STL.32 0 -> 1"),
        ({}, {"LDG.EF.128": 8}, "CHANGED", f"{LOADS} 4 -> 8; LDG.EF.128 4 -> 8"),
    ],
)
def test_a_verdict_has_a_reason(fields, memory, status, reason):
    new = replace(CODE, memory={**CODE.memory, **memory}, **fields)
    assert compare(CODE, new) == (status, reason)


def test_kernels_that_come_and_go_are_changes():
    found = [(v.kernel, v.status, v.reason) for v in verdicts({"old": CODE}, {"new": CODE})]
    new, old = (("new", "not in the baseline"), ("old", "no longer compiled"))
    assert found == [(name, "CHANGED", reason) for name, reason in (new, old)]


Command = Callable[..., tuple[int, str]]
#: Two kernels that a small build has.
ROWS, FLAT = GridPoint(), GridPoint(lanes=0)


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command line over two kernels, whose baseline is renewed: its exit code and output."""
    monkeypatch.setattr(sass, "guarded_points", lambda: [ROWS, FLAT])

    def run(*arguments: str) -> tuple[int, str]:
        file = ["--baseline", str(tmp_path / "baseline.json"), "--arch", "sm_90"]
        code = sass.main([*arguments, *file])
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def test_the_command_line(command, tmp_path):
    file = tmp_path / "baseline.json"
    assert command("--check")[0] == 2
    assert command("--update")[0] == 0
    assert command("--check") == (0, "2 SAME, 0 CHANGED, 0 WORSE\n")

    renewed = file.read_text()
    text = re.sub('"cubin": "[0-9a-f]+"', '"cubin": "another"', renewed)
    file.write_text(re.sub(f'({ROWS.kernel}.*"LDG.EF.32": )1', r"\g<1>2", text))
    code, said = command("--check")
    assert code == 1
    assert f"WORSE   sm_90/{ROWS.kernel}: table loads in the code 2 -> 1" in said
    assert f"CHANGED sm_90/{FLAT.kernel}: other instructions, as many" in said
    assert "renew sass_baseline.json with it" in said

    file.write_text(renewed.replace("NVRTC 13", "NVRTC 12"))
    code, said = command("--check")
    assert code == 2
    assert "the baseline was made by NVRTC 12" in said


#: What is right and what it becomes. By their numbers of instructions the first two are as before,
#: and the third is better.
CHANGES = {
    "half a line": ("constexpr int kLine = 128;", "constexpr int kLine = 64;"),
    "an id too far": ("entry.id < job.num_rows;", "entry.id <= job.num_rows;"),
    "no shift": (
        "row.shift = static_cast<int>((phase - address) % kLine) / WIDTH;",
        "row.shift = 0 * static_cast<int>(phase);",
    ),
    "another way to say it": (
        "if (row.shift >= job.row_bytes / WIDTH) row.shift = 0;",
        "if (row.shift > job.row_bytes / WIDTH) row.shift = 0;",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_source_needs_a_new_baseline(right, command, tmp_path, monkeypatch, change):
    monkeypatch.setattr(sass, "guarded_points", lambda: [WIDE])
    kernels = {f"sm_90/{WIDE.kernel}": right}
    sass.write_baseline(sass.Baseline(sass._compiler(), kernels), tmp_path / "baseline.json")
    copy = tmp_path / "gather.cu"
    copy.write_text(altered(*CHANGES[change]))
    code, said = command("--check", "--source", str(copy))
    assert code == 1
    assert "CHANGED" in said
    assert command("--update", "--source", str(copy))[0] == 0
    assert command("--check", "--source", str(copy))[0] == 0
    assert command("--check")[0] == 1


def test_what_is_no_cubin_is_refused_and_a_missing_disassembler_says_what_to_install(monkeypatch):
    with pytest.raises(CompilerError, match="failed"):
        sass.disassemble(b"not a cubin")
    monkeypatch.setattr(cuda.pathfinder, "find_nvidia_binary_utility", lambda name: None)
    with pytest.raises(CompilerError, match="pip install nvidia-cuda-cuobjdump"):
        sass.disassemble(b"")

"""Runs the GPU targets of the Makefile on a machine without a GPU, over a stand-in for CUDA.

    python tests/gpu/standin/rehearse.py --out FOLDER [STEP ...]
    python tests/gpu/standin/rehearse.py --out FOLDER -- COMMAND ...

An hour on a GPU is too rare to be spent on what a typing error would have told. The stand-in takes
the place of two libraries, NVIDIA's ``libcudart.so.13`` and ``libcuda.so.1``; everything above them
is real: torch built for CUDA, CUDA's Python bindings, NVRTC, the project. README.md beside this
file says what it can show and what it cannot. A second stand-in, of the meters' tests, is NVML.

Without a command the steps are run in turn, each as a user would, and a table says how each ended;
exit status 1 if one failed. With one, only the command is run, in the same surroundings.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
NVML_STUB = ROOT / "tests/bench/nvml_stub/nvml_stub.c"
#: The GPUs as NVML tells of them: those of native/device.cpp.
NVML = "devices 2\ndriver 580.00\n" + "".join(
    f"""\
gpu{number}.uuid GPU-01020304-0506-0708-090a-0b0c0d0e0f1{number}
gpu{number}.name stand-in (no GPU)
gpu{number}.gen 4
gpu{number}.gen_max 4
gpu{number}.width 16
gpu{number}.width_max 16
gpu{number}.reasons 0
gpu{number}.power_mw 100000
gpu{number}.temperature 40
gpu{number}.clock_mhz 1980
"""
    for number in range(2)
)
#: NVIDIA's control program as far as it is asked: a daemon is a file.
MPS_CONTROL = """\
#!/bin/sh
[ "$1" = -d ] && { touch "$CUDA_MPS_PIPE_DIRECTORY/control"; exit; }
[ -e "$CUDA_MPS_PIPE_DIRECTORY/control" ] || exit 1
read -r told
[ "$told" = quit ] && rm "$CUDA_MPS_PIPE_DIRECTORY/control"
exit 0
"""
#: What one step may take.
LIMIT_S = 900.0


class RehearsalError(RuntimeError):
    """The stand-in cannot be built here; says what is missing."""


def build(folder: Path) -> None:
    """Compile the stand-ins into ``folder``.

    Raises:
        RehearsalError: there is no g++, no CUDA build of torch, or the sources do not compile.
    """
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        raise RehearsalError("torch is not installed: make gpu-rehearsal installs it")
    packages = Path(torch.origin).parents[1]
    headers = packages / "nvidia/cu13/include"
    if not (packages / "torch/lib/libtorch_cuda.so").exists() or not headers.is_dir():
        raise RehearsalError(
            f"the torch in {packages} is not built for CUDA 13, whose libraries this stands under: "
            "make gpu-rehearsal installs one that is"
        )
    if shutil.which("g++") is None or shutil.which("gcc") is None:
        raise RehearsalError("gcc and g++ are needed (Debian and Ubuntu: apt-get install g++)")
    folder.mkdir(parents=True, exist_ok=True)
    native, library = HERE / "native", folder / "libcudart.so.13"
    common = ["-O1", "-g", "-fPIC", "-Wall", "-Wextra"]
    _compile(["gcc", *common, "-c", str(native / "unbuilt.c"), "-o", str(folder / "unbuilt.o")])
    _compile(
        [
            *("g++", "-std=c++17", *common, "-shared", f"-I{headers}"),
            *(str(source) for source in sorted(native.glob("*.cpp"))),
            str(folder / "unbuilt.o"),
            f"-Wl,-soname,{library.name},--version-script={native / 'symbols.map'}",
            *("-o", str(library), "-ldl", "-lpthread"),
        ]
    )
    driver = folder / "libcuda.so.1"  # one library under two names: they share what they know
    driver.unlink(missing_ok=True)
    driver.symlink_to(library.name)
    _compile(["gcc", *common, "-shared", str(NVML_STUB), "-o", str(folder / "libnvidia-ml.so.1")])
    (folder / "nvml.txt").write_text(NVML)
    control = folder / "nvidia-cuda-mps-control"
    control.write_text(MPS_CONTROL)
    control.chmod(0o755)


def _compile(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RehearsalError(f"{command[0]} failed:\n{done.stderr[:4000]}")


def surroundings(folder: Path) -> dict[str, str]:
    """The environment in which every Python is under the stand-in that was built in ``folder``."""
    before = os.environ

    def first(value: Path | str, name: str) -> str:
        return os.pathsep.join(filter(None, (str(value), before.get(name))))

    return {
        **before,
        "PATH": first(folder, "PATH"),
        "LD_LIBRARY_PATH": first(folder, "LD_LIBRARY_PATH"),
        # torch finds its runtime beside itself unless one is loaded already.
        "LD_PRELOAD": first(folder / "libcudart.so.13", "LD_PRELOAD"),
        "PYTHONPATH": first(f"{HERE}{os.pathsep}{ROOT / 'src'}", "PYTHONPATH"),
        "NVML_STUB_SCRIPT": str(folder / "nvml.txt"),
        "STANDIN_KERNELS": str(folder / "kernels"),
        "GATHERBENCH_KERNEL_CACHE": str(folder / "cubins"),
        "STANDIN_GPU_GIB": before.get("STANDIN_GPU_GIB", "10"),
        "GATHERBENCH_MEMORY_GIB": before.get("GATHERBENCH_MEMORY_GIB", "8"),
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "no-daemon"),
    }


def sweep() -> None:
    """Free the memory of processes that are gone: one that was killed leaves it behind."""
    for memory in Path("/dev/shm").glob("standin-*-*"):
        if not Path("/proc", memory.name.split("-")[1]).exists():
            memory.unlink(missing_ok=True)


def steps(out: Path) -> dict[str, list[str]]:
    """The commands by name: what the Makefile runs on a GPU, where it can, in little."""
    make = ["make", "-C", str(ROOT), "VENV=system", f"PYTHON={sys.executable}", f"OUT={out}"]
    probe = [sys.executable, "-m", "gatherbench", "probe", "--budget", "1"]
    others = "foreign_registered,foreign_managed,split_64k"
    return {
        "gpu-test": [*make, "gpu-test", "BUDGET=800"],
        "probe": [*probe, "--out", str(out / "probe")],
        "cases": [*probe, "--out", str(out / "cases"), "--cases", others],
        "profile": [*probe, "--profile", str(out / "profile.toml")],
        "gpu-epoch": [*make, "gpu-epoch", f"GPU_PLAN={HERE / 'rehearsal.toml'}", "BUDGET=800"],
        "meters": [*make, "gpu-epoch", f"GPU_PLAN={HERE / 'meters.toml'}", "BUDGET=400"],
        "ranks": [*make, "gpu-epoch", f"GPU_PLAN={HERE / 'ranks.toml'}", "BUDGET=400"],
        "golden": [sys.executable, str(ROOT / "tests/golden/golden.py")],
    }


def run(names: Sequence[str], out: Path, environment: dict[str, str]) -> bool:
    """Run the steps, say how each ended; whether all ended well."""
    ended = []
    for name in names:
        print(f"== {name}", flush=True)
        began = time.monotonic()
        try:
            command = steps(out)[name]
            seen = environment if name == "ranks" else {**environment, "CUDA_VISIBLE_DEVICES": "0"}
            status = subprocess.run(command, env=seen, timeout=LIMIT_S, check=False)
            how = "ok" if status.returncode == 0 else f"FAILED with status {status.returncode}"
        except subprocess.TimeoutExpired:
            how = f"FAILED: took longer than {LIMIT_S:.0f} s"
        ended.append((name, how, time.monotonic() - began))
    for name, how, seconds in ended:
        print(f"{name}: {how}, {seconds:.0f} s")
    print(f"A rehearsal on a stand-in for CUDA: no time in {out} means anything.")
    return all(how == "ok" for _, how, _ in ended)


def main(arguments: Sequence[str]) -> int:
    """Build, run; the exit status."""
    own, command = list(arguments), []
    if "--" in own:
        at = own.index("--")
        own, command = own[:at], own[at + 1 :]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    known = list(steps(Path()))
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(known)}; all")
    parser.add_argument("--out", type=Path, required=True, help="folder for all that is written")
    options = parser.parse_args(own)
    if unknown := sorted(set(options.steps) - set(known)):
        parser.error(f"unknown step {unknown[0]!r}; there are {', '.join(known)}")
    out = options.out.resolve()
    try:
        build(out / "standin")
    except RehearsalError as missing:
        print(f"error: {missing}", file=sys.stderr)
        return 2
    environment = surroundings(out / "standin")
    sweep()
    try:
        if command:
            return subprocess.run(command, env=environment, check=False).returncode
        return 0 if run(options.steps or known, out, environment) else 1
    finally:
        sweep()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

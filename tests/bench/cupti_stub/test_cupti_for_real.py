"""NVIDIA's own headers and libraries of CUPTI: what the binding believes is what they say."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from gatherbench.bench.meters import cupti

_WHEELS = ("nvidia-cuda-cupti", "nvidia-cuda-cupti-cu12", "nvidia-cuda-runtime", "nvidia-cuda-crt")


def _installed(name: str) -> Iterator[Path]:
    """Files of this name (a pattern) in the toolkit and in NVIDIA's wheels."""
    for root in {os.environ.get("CUDA_HOME", "/usr/local/cuda"), "/usr/local/cuda"}:
        for folder in ("include", "extras/CUPTI/include", "lib64", "lib", "extras/CUPTI/lib64"):
            yield from sorted((Path(root) / folder).glob(name))
    for wheel in _WHEELS:
        try:
            files = metadata.files(wheel) or []
        except metadata.PackageNotFoundError:
            continue
        yield from (Path(str(f.locate())) for f in files if f.match(name))


def _knows_every_error(version: Path) -> bool:
    """Whether the headers name all errors that have a remedy: from 12.8 (API 26) on."""
    found = re.search(r"#define CUPTI_API_VERSION (\d+)", version.read_text(encoding="utf-8"))
    return found is not None and int(found[1]) >= 26


def _camel(field: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), field)


def test_structures_and_constants_are_those_of_the_header(c_compiler: str, tmp_path: Path) -> None:
    versions, driver = list(_installed("cupti_version.h")), list(_installed("cuda.h"))
    common = [path.parent for path in _installed("crt/host_defines.h")]  # cuda.h's own includes
    if not versions or not driver or not common:
        pytest.skip("no CUPTI headers or not all of cuda.h's here: install a CUDA toolkit")
    if not all(_knows_every_error(version) for version in versions):
        pytest.skip("the headers are of CUDA before 12.8, which lacks names of errors")
    head = "CUpti_ActivityUnifiedMemoryCounter"
    lines = ['P("version", CUPTI_API_VERSION);']
    for struct, fields in ((f"{head}2", cupti.Record), (f"{head}Config", cupti.Config)):
        lines += [f'P("{struct}", sizeof({struct}));']
        lines += [
            f'P("{struct}.{name}", offsetof({struct}, {_camel(name)}));'
            for name, _ in fields._fields_
        ]
    counter = "CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER"
    constants = {
        "CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER": cupti.KIND,
        f"{counter}_KIND_BYTES_TRANSFER_HTOD": cupti.HOST_TO_DEVICE,
        f"{counter}_KIND_BYTES_TRANSFER_DTOH": cupti.DEVICE_TO_HOST,
        f"{counter}_KIND_CPU_PAGE_FAULT_COUNT": cupti.CPU_PAGE_FAULT,
        f"{counter}_KIND_GPU_PAGE_FAULT": cupti.GPU_PAGE_FAULT,
        f"{counter}_SCOPE_PROCESS_ALL_DEVICES": cupti._SCOPE_ALL_DEVICES,
        "CUPTI_ACTIVITY_FLAG_FLUSH_FORCED": cupti._FORCED,
        "CUPTI_ERROR_MAX_LIMIT_REACHED": cupti._NO_MORE_RECORDS,
        "CUPTI_ERROR_NOT_INITIALIZED": 15,
        "CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED": 28,
        "CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_DEVICE": 29,
        "CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_NON_P2P_DEVICES": 30,
        "CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_WITH_MPS": 31,
        "CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED": 33,
        "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES": 35,
        "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED": 39,
        "CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES": 40,
        "CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED": 41,
        "CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED": 43,
        "CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED": 45,
    }
    lines += [f'P("{name}", {name});' for name in constants]
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n"
        "#include <cupti_activity.h>\n#include <cupti_version.h>\n"
        f'_Static_assert(offsetof({head}3, pad) == offsetof({head}2, pad), "head");\n'
        '#define P(n, v) printf("%s %lld\\n", n, (long long)(v))\n'
        "int main(void) { \n" + "\n".join(lines) + "\nreturn 0; }\n"
    )
    program = tmp_path / "layout"
    folders = dict.fromkeys(path.parent for path in versions + driver + common)
    includes = [f"-I{folder}" for folder in folders]
    subprocess.run([c_compiler, *includes, "-o", str(program), str(source)], check=True)
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    found = {name: int(value) for name, value in (line.split() for line in printed.splitlines())}
    for struct, ours in ((f"{head}2", cupti.Record), (f"{head}Config", cupti.Config)):
        assert found[struct] == ctypes.sizeof(ours)
        for name, _ in ours._fields_:
            assert found[f"{struct}.{name}"] == getattr(ours, name).offset, name
    assert {name: found[name] for name in constants} == constants
    assert set(cupti._REFUSALS) <= set(constants.values())
    assert any(first <= found["version"] <= last for first, last in cupti.VERSIONS)


_REAL = """
import ctypes, json, struct, sys
from collections import Counter
from gatherbench.bench.meters import cupti
said = {}
try:
    counters = cupti.UnifiedMemoryCounters(sys.argv[1])
    size = 64 if counters.version < 26 else 104  # Counter2, which had become Counter3
    made_up = b"".join(
        struct.pack("<IIQ", 25, counter, value).ljust(size, b"\\0")
        for counter, value in ((1, 4096), (1, 65536), (4, 3), (9, 1))
    )
    memory = ctypes.create_string_buffer(made_up, len(made_up))
    tally = cupti.Tally(counters.version)
    counters._add(tally, ctypes.addressof(memory), len(made_up))
    said["values"] = dict(tally.values)
    counters.start()
    said["values_told"] = dict(counters.stop().values)
except cupti.CuptiError as error:
    said["reason"] = str(error)
print(json.dumps(said))
"""


@pytest.mark.parametrize("soname", ["libcupti.so.13", "libcupti.so.12"])
def test_the_real_library_without_a_driver_gives_a_reason(soname: str) -> None:
    library = next(_installed(soname), None)
    if library is None:
        pytest.skip(f"no {soname} here: neither a CUDA toolkit nor the wheel nvidia-cuda-cupti")
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("a driver is here: tests/gpu asks the counters themselves")
    done = subprocess.run(
        [sys.executable, "-c", _REAL, str(library)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    assert re.match(r"(unsupported|failed): \w+ answered .*; ", said["reason"])
    # 13.5 answers nothing at all without a driver; the others walk records, and step as we say.
    if "cuptiGetVersion" not in said["reason"]:
        assert said["values"] == {"1": 4096 + 65536, "4": 3, "9": 1}

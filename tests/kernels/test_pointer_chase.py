"""The pointer chase: it compiles, each hop is one dependent load, and it ends where it should."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
from tests.shim.execute import SHIM

from gatherbench.kernels.compiler import KERNEL_SOURCE, compile_file
from tools.sass import disassemble

SOURCE = KERNEL_SOURCE.with_name("pointer_chase.cu")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_a_hop_is_one_load(arch):
    code = disassemble(compile_file("pointer_chase.cu", arch))
    assert code.memory == {"LDG.64": 1, "STG.64": 1}


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_walk_ends_where_the_ring_says(tmp_path):
    program = tmp_path / "chase.so"
    shim = SHIM / "cuda_shim.h"
    command = ["g++", "-std=c++17", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    command += ["-Wno-unknown-pragmas", "-include", str(shim), "-x", "c++", str(SOURCE)]
    subprocess.run([*command, "-o", str(program)], check=True)
    chase = ctypes.CDLL(str(program)).chase_kernel
    chase.restype = None
    chase.argtypes = (ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_int, ctypes.c_void_p)

    places = np.random.default_rng(0).permutation(64) * 16
    table = np.full(64 * 16, 2**63, np.uint64)  # anywhere but on the ring: a crash
    table[places] = np.roll(places, -1)
    for start, hops in ((0, 0), (0, 1), (5, 63), (5, 64), (63, 1000)):
        end = np.zeros(1, np.uint64)
        chase(table.ctypes.data, int(places[start]), hops, end.ctypes.data)
        assert int(end[0]) == places[(start + hops) % 64]

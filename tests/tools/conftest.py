"""The GPU of the probe's tests, and the harness's tiny dataset."""

from ..bench.conftest import c_compiler, make_job, make_run, shared_library, tiny_root
from ..bench.probe.conftest import chase_on_host, cuda, steady

__all__ = [
    "c_compiler",
    "chase_on_host",
    "cuda",
    "make_job",
    "make_run",
    "shared_library",
    "steady",
    "tiny_root",
]

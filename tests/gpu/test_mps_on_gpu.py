"""The paper's producer process on a GPU: bytes, order and ends, under an MPS daemon.

Each test is a script of its own, because a process is a client of MPS from its first call or never.
"""

import subprocess
import sys

import pytest

PRELUDE = """
import sys, torch
from gatherbench.kernels.reference import reference_gather, same_bytes
from gatherbench.strategies import conformance
from gatherbench.strategies.registry import build

cuda = torch.device("cuda")
strategy = build("async_zero_copy", {"provider": "mps", "budget": "10"})
surroundings = strategy.surroundings(cuda)
surroundings.__enter__()
if (reason := strategy.skip(cuda, 1 << 20)) is not None:
    print("skip:", reason)
    sys.exit(0)
"""

CONTRACT = """
conformance.check_pipeline(strategy, cuda)
conformance.check_flight_rules(strategy, cuda)
conformance.check_bad_ids(strategy, cuda)
conformance.check_bad_tables(strategy, cuda)
for dtype, row_bytes in ((torch.float32, 400), (torch.int8, 129), (torch.float16, 4096)):
    conformance.check_rows(strategy, cuda, dtype, row_bytes)
print("good")
"""

SLOW_CONSUMER = """
table = conformance.random_table(50_000, 128, torch.float32)
batches = [torch.randint(0, 50_000, (20_000 - 500 * k,)) for k in range(8)]
seen, flight = [], []
with strategy.open(table, cuda) as fetcher:
    for ids in batches:
        flight.append(fetcher.submit(ids))
        if len(flight) > fetcher.lookahead:
            rows = flight.pop(0).result()
            torch.cuda._sleep(50_000_000)
            seen.append(rows.clone())
    seen += [ticket.result().clone() for ticket in flight]
    for step in fetcher.setup:
        print(step.metric, step.value, step.unit)
for ids, rows in zip(batches, seen, strict=True):
    assert same_bytes(rows, reference_gather(table, ids)) is None
print("good")
"""

KILLED = """
from gatherbench.strategies.mps_process import ProducerError
table = conformance.random_table(5000, 64, torch.float32)
with strategy.open(table, cuda) as fetcher:
    fetcher.submit(torch.arange(9)).result().clone()
    torch.cuda.synchronize()  # MPS: a client that is killed in mid-kernel may harm the others
    fetcher._producer.process.kill()
    try:
        fetcher.submit(torch.arange(9)).result()
    except ProducerError as error:
        print(error)
torch.zeros(9, device=cuda).sum().item()  # this process's context is unharmed
print("good")
"""


@pytest.mark.parametrize(
    "script", [CONTRACT, SLOW_CONSUMER, KILLED], ids=["contract", "slow", "killed"]
)
def test_under_mps(script):
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script],
        capture_output=True,
        text=True,
        timeout=170,  # the contract starts eight producers; below the suite's limit for a test
        check=False,
    )
    if done.stdout.startswith("skip:"):
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "good", done.stdout
    print(done.stdout)

"""The command line of a machine that does not wait long before it looks for machine 0."""

import runpy

from gatherbench.bench.commands import execute
from gatherbench.bench.run import door

if __name__ == "__main__":
    door.LOOK_S = 1
    execute.finish = lambda *_: True  # tables and pictures take longer than all the rest
    runpy.run_module("gatherbench", run_name="__main__", alter_sys=True)

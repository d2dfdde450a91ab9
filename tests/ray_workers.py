"""Workers of `ray_cluster`'s nodes, forked from one process that has imported torch and diskgnn: that takes a fresh one
2 seconds of a core.

A node runs this file in place of Ray's `default_worker.py`. It asks the server, which forks, and ends; Ray does not
mind that its worker is another process. Where the folder of the cluster has a file FRESH, it becomes Ray's worker
itself: for tests of how much memory one has.
"""

import gc
import os
import pickle
import runpy
import socket
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

FRESH = "fresh"
_FOLDER = "DISKGNN_TEST_DEATHS"  # as in `ray_deaths`, which is imported later
_IMPORTED = (
    "diskgnn.inference.infer", "diskgnn.nn.typed_models", "diskgnn.preparing.packing_tasks",
    "google.protobuf.descriptor", "jsonschema", "msgpack", "psutil",
)  # fmt: skip
_ENOUGH_BYTES = 1 << 17  # of a request: the kernel takes 208 KiB at once


def serve(folder: Path) -> None:
    """Forks a worker for each request; returns in it. Ray reads its environment when it is imported: not here."""
    for name in _IMPORTED:
        import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(folder / "asking"))
        listening.listen(64)
        print("listening", flush=True)
        while True:
            asking, _ = listening.accept()
            request, streams, _, _ = socket.recv_fds(asking, _ENOUGH_BYTES, 2)
            if (between := os.fork()) == 0:
                if os.fork():
                    os._exit(0)
                break
            os.waitpid(between, 0)
            asking.close()
            for stream in streams:
                os.close(stream)
    asking.close()
    for place, stream in enumerate(streams, 1):
        os.dup2(stream, place)
        os.close(stream)
    arguments, environment, here = pickle.loads(request)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(here)
    tempfile.tempdir = None  # what torch has imported asked for it
    sys.argv[1:] = arguments


def main() -> None:
    default = str(Path(find_spec("ray").submodule_search_locations[0]) / "_private" / "workers" / "default_worker.py")
    if sys.argv[1:2] == ["serve"]:
        serve(Path(sys.argv[2]))
        sys.argv[0] = default
        runpy.run_path(default, run_name="__main__")
        return
    folder = Path(os.environ[_FOLDER])
    if (folder / FRESH).exists():
        os.execv(sys.executable, [sys.executable, default, *sys.argv[1:]])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(str(folder / "asking"))
        socket.send_fds(asking, [pickle.dumps((sys.argv[1:], dict(os.environ), str(Path.cwd())))], [1, 2])
        asking.recv(1)  # until the server has taken it


if __name__ == "__main__":
    main()

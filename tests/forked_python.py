"""Python processes that begin with diskgnn, torch and pyarrow imported, which takes a fresh one 3 seconds of a core.

`Python("-c", program, argument, ...)` is `subprocess.Popen([sys.executable, "-c", program, argument, ...])`, with its
pipes, `env`, `cwd`, signals and exit codes, and `run_python` is `subprocess.run` of the same. "-m" with a module and
the path of a script do as well. A server, one for each process of pytest, imports, and forks each of them. It does
nothing else: a child finds no thread at work, no lock held, no random number drawn. It has its own `__main__`,
arguments, environment, folder and random state. At its end threads are waited for, `atexit` functions run and files
flushed. For variables that Python or a library reads when it starts, as LD_PRELOAD, there is another server.

These differ, so that some tests have to start `sys.executable`:

- Modules are imported, and in memory: not for tests of what is imported, or of how much memory a process takes.
- What is left then is not taken apart object by object, which copies all pages that were shared: half a second of a
  core. `ends_whole=True` asks for that, where a test is about objects that are alive at the end.
- Options of Python cannot be given.
- All children of a server hash strings alike, and /proc shows the server's command line.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import gc
import io
import os
import pickle
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_MOST_BYTES = 1 << 17  # of a request: the kernel takes 208 KiB at once
_READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "ARROW_", "TORCH", "TRITON_", "CUDA", "MKL_")
_READ_LATER = ("PYTHONPATH", "TORCHELASTIC_", "TORCHINDUCTOR_")  # in the child, when they are needed
_IMPORTED = (
    "diskgnn.cli",
    "diskgnn.progress.bars",
    "numpy.ma",
    "torch._dynamo",
    "torch.distributed",
    "pyarrow.dataset",
)
_starting = threading.Lock()


class Python(subprocess.Popen[Any]):
    """A child of this process that runs Python with these arguments; other keywords are those of `subprocess.Popen`."""

    def __init__(self, *arguments: object, ends_whole: bool = False, **keywords: Any) -> None:
        self._ends_whole = ends_whole
        super().__init__([sys.executable, *map(str, arguments)], **keywords)

    def _execute_child(self, args: list[str], *given: Any) -> None:  # where Popen forks and executes
        if sys.platform != "linux":
            super()._execute_child(args, *given)
            return
        (_, preexec, _, pass_fds, folder, environment), pipes, (_, *users, mask, new_session) = (
            given[:6], given[9:15], given[15:21],
        )  # fmt: skip
        assert (preexec, pass_fds, users, mask) == (None, (), [None] * 3, -1), "the server knows nothing of these"
        environment = dict(os.environ if environment is None else environment)
        read_at_start = [
            (name, value) for name, value in environment.items()
            if name.startswith(_READ_AT_START) and not name.startswith(_READ_LATER)
        ]  # fmt: skip
        requests = _server(os.getpid(), *sorted(read_at_start))
        request = pickle.dumps(
            (args[1:], environment, str(Path(folder or "").absolute()), new_session, self._ends_whole)
        )
        streams = [pipe if pipe >= 0 else place for place, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
        with _starting:  # meanwhile, orphans of the server become children of this process
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(requests, [request], streams)
                self.pid = int(requests.recv(_MOST_BYTES))
            finally:
                ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        self._child_created = True
        self._close_pipe_fds(*pipes)


def run_python(
    *arguments: object, check: bool = False, capture_output: bool = False, input: Any = None,  # noqa: A002
    timeout: float | None = None, **keywords: Any,
) -> subprocess.CompletedProcess[Any]:  # fmt: skip
    """Runs Python with these arguments until it ends; keywords are those of `subprocess.run`."""
    if capture_output:
        keywords |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        keywords["stdin"] = subprocess.PIPE
    with Python(*arguments, **keywords) as process:
        try:
            out, error = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, error)
    if check:
        done.check_returncode()
    return done


def fork_command(command: Sequence[str], **keywords: Any) -> Python:
    """`subprocess.Popen` of a command that starts this Python, but for Python's own options."""
    python, *arguments = command
    assert python == sys.executable
    while arguments[0] == "-W":
        del arguments[:2]
    return Python(*arguments, **keywords)


@lru_cache(maxsize=2)  # each has 440 MB in memory
def _server(parent: int, *read_at_start: tuple[str, str]) -> socket.socket:
    """What asks a server of process `parent`, which is this one; closing it ends the server."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    others = {name: value for name, value in os.environ.items() if not name.startswith(_READ_AT_START)}
    environment = others | dict(read_at_start) | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(its.fileno())]
    with its:
        subprocess.Popen(command, pass_fds=[its.fileno()], env=environment, stdout=subprocess.DEVNULL)
    return ours


def _serve(requests: socket.socket) -> tuple[Any, ...]:
    """Forks a child for each request, where this function returns what it is asked for."""
    import diskgnn

    for name in diskgnn.__all__:
        getattr(diskgnn, name)
    for name in _IMPORTED:
        import_module(name)
    with suppress(ImportError):
        import_module("pandas")  # which pyarrow.array imports where it is installed
    gc.collect()
    gc.freeze()  # children need not copy what their collector would look at
    while True:
        request, streams, _, _ = socket.recv_fds(requests, _MOST_BYTES, 3)
        if not request:
            os._exit(0)
        reading, writing = os.pipe()
        with warnings.catch_warnings():  # of a thread of pyarrow's allocator, which takes care of that
            warnings.simplefilter("ignore", DeprecationWarning)
            if (between := os.fork()) == 0 and os.fork():
                os._exit(0)
        if between == 0:
            os.close(writing)
            os.read(reading, 1)  # its end: the process that asked is now the parent
            requests.send(str(os.getpid()).encode())
            for place, stream in enumerate(streams):
                os.dup2(stream, place)
            for descriptor in (*streams, reading, requests.detach()):
                os.close(descriptor)
            return pickle.loads(request)
        os.waitpid(between, 0)
        for descriptor in (*streams, reading, writing):
            os.close(descriptor)


def _become(
    arguments: list[str], environment: dict[str, str], folder: str, new_session: bool, ends_whole: bool
) -> None:
    """Does what Python does with these arguments."""
    try:
        _run(arguments, environment, folder, new_session)
        code = 0
    except SystemExit as ended:
        if ends_whole or not isinstance(ended.code or 0, int):
            raise
        code = ended.code or 0  # type: ignore[assignment]
    if not ends_whole:
        _end(code)


def _end(code: int) -> None:
    """Ends as Python does but for what would go with the process; returns where Python has something to say."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)
    sys.exit(code)


def _run(arguments: list[str], environment: dict[str, str], folder: str, new_session: bool) -> None:
    import numpy as np
    import torch

    if new_session:
        os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # what torch has imported asked for it
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    torch.seed()
    np.random.seed()  # noqa: NPY002
    for number, name in enumerate(("stdin", "stdout", "stderr")):  # the server's know what they were opened on
        old, mode = getattr(sys, name), "wb" if number else "rb"
        binary = open(number, mode, 0 if number and old.write_through else -1, closefd=False)  # noqa: SIM115
        by_line = not old.write_through and (old.line_buffering or binary.isatty())
        text = io.TextIOWrapper(
            binary, old.encoding, old.errors, "\n" if number else None, line_buffering=by_line,
            write_through=old.write_through,
        )  # fmt: skip
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
    sys.orig_argv = [sys.executable, *arguments]
    paths = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    what, *others = arguments
    sys.path = ["", *(str(Path(path).absolute()) for path in paths), *sys.path[1:]]
    if what == "-m":
        sys.path[0], sys.argv = folder, others
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
        return
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    if what == "-c":
        sys.argv, code = ["-c", *others[1:]], compile(others[0], "<string>", "exec", dont_inherit=True)
    else:
        assert not what.startswith("-"), f"{what}: start sys.executable"
        main.__file__ = str(Path(what).absolute())
        sys.path[0], sys.argv = str(Path(what).absolute().parent), arguments
        code = compile(Path(what).read_bytes(), main.__file__, "exec", dont_inherit=True)
    exec(code, vars(main))


if __name__ == "__main__":
    _become(*_serve(socket.socket(fileno=int(sys.argv[1]))))

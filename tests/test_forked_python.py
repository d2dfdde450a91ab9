"""A forked Python does what a fresh one does."""

import os
import signal
import subprocess
import sys

import pytest
from commands import Python, run_python

PROGRAMS = {
    "arguments": "import sys; print(sys.argv, sys.orig_argv[1:], __name__, sys.path[0], __builtins__)",
    "stdin": "import sys; print(sys.stdin.read().upper(), file=sys.stderr)",
    "surroundings": "import os; print(os.getcwd(), os.environ['SAID'], os.environ.get('HOME'))",
    "open files": "import os; print(sorted(os.listdir('/proc/self/fd')))",
    "streams": (
        "import sys; print([(each.encoding, each.errors, each.line_buffering, each.seekable(), each.write_through) "
        "for each in (sys.stdin, sys.stdout, sys.stderr)]); sys.stdout.reconfigure(errors='replace')"
    ),
    "path": "import sys; print(sys.path[:3])",
    "handlers": "import signal; print(*map(signal.getsignal, sorted(signal.valid_signals())))",
    "mask": "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))",
    "session": "import os; print(os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid())",
    "threads": "import threading; print(threading.enumerate() == [threading.main_thread()])",
    "end": "import atexit; atexit.register(print, 'last'); print('first', end='')",
    "exit code": "import sys; print('said'); sys.exit(7)",
    "exit message": "import sys; sys.exit('wrong')",
    "lost output": "import os; print('lost'); os._exit(3)",
    "killed": "import os, signal; print('told', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "aborted": "import os; os.abort()",
    "a thread outlives it": "import threading; threading.Timer(0.2, print, ['late']).start(); print('early')",
    "pickled": "import pickle\nclass Own: pass\nprint(type(pickle.loads(pickle.dumps(Own()))) is Own)",
    "threads of torch": "import torch; print(torch.get_num_threads())",
}  # fmt: skip


def outcome(start, arguments, folder, **keywords):
    environment = {**os.environ, "SAID": "yes", "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "2"}
    done = start(
        arguments, input="heard", cwd=folder, env=environment, capture_output=True, text=True, timeout=300, **keywords
    )
    return done.returncode, done.stdout, done.stderr


def fresh(arguments, **keywords):
    return subprocess.run([sys.executable, *arguments], check=False, **keywords)


def forked(arguments, **keywords):
    return run_python(*arguments, **keywords)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_forked_python_does_what_a_fresh_one_does(name, tmp_path):
    given = ["-c", PROGRAMS[name], "one", "two"]
    assert outcome(forked, given, tmp_path) == outcome(fresh, given, tmp_path)


def test_modules_scripts_and_sessions(tmp_path):
    program = (
        "import os, sys; print(sys.argv, sys.path[:2], __name__, __file__, __spec__ and __spec__.name); "
        "print(os.getsid(0) == os.getpid())"
    )
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "written.py").write_text(program)
    (tmp_path / "found.py").write_text(program)
    for given in (["folder/written.py", "one"], ["-m", "found", "one"]):
        for new_session in (False, True):
            told = outcome(forked, given, tmp_path, start_new_session=new_session)
            assert told == outcome(fresh, given, tmp_path, start_new_session=new_session)
            assert told[0] == 0


def test_an_error_is_told_with_its_traceback(tmp_path):
    code, printed, told = outcome(forked, ["-c", "print('before'); 1 / 0"], tmp_path)
    assert (code, printed) == (1, "before\n")
    assert told.endswith('  File "<string>", line 1, in <module>\nZeroDivisionError: division by zero\n')


def test_no_two_draw_the_same():
    program = (
        "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.initial_seed(), torch.rand(1))"
    )
    one, other = (run_python("-c", program, capture_output=True, text=True, check=True).stdout.split() for _ in "ab")
    assert len({*one, *other}) == 8


def test_it_is_a_child_that_can_be_waited_for_and_killed():
    program = "import os, time; print(os.getppid(), flush=True); time.sleep(600)"
    with Python("-c", program, stdout=subprocess.PIPE) as process:
        assert int(process.stdout.readline()) == os.getpid()
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    with pytest.raises(subprocess.TimeoutExpired):
        run_python("-c", program, timeout=0.1, stdout=subprocess.DEVNULL)
    with pytest.raises(subprocess.CalledProcessError):
        run_python("-c", "import sys; sys.exit(2)", check=True)


def test_variables_that_python_reads_when_it_starts_count(monkeypatch):
    program = "import os; print(os.environ.get('PYTHONHASHSEED'), hash('word'))"
    given = {**os.environ, "PYTHONHASHSEED": "7"}
    for environment in (given, None):
        told = run_python("-c", program, env=environment, capture_output=True, check=True).stdout
        expected = subprocess.check_output([sys.executable, "-c", program], env=given)
        assert (told == expected) == (environment == given)


def test_temporary_files_lie_where_its_environment_says(tmp_path):
    program = "import tempfile; print(tempfile.gettempdir())"
    told = run_python("-c", program, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True)
    assert told.stdout.strip() == str(tmp_path)

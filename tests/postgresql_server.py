"""A PostgreSQL server of the tests' own: on a socket in a folder of its own, as a user without privileges."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PASSWORD = "hunter2"
_LOGINS = "local all guest scram-sha-256\nlocal all all trust\n"
_SETTINGS = {"listen_addresses": "", "fsync": "off", "full_page_writes": "off", "shared_buffers": "16MB",
             "autovacuum": "off", "max_wal_size": "64MB"}  # fmt: skip


@dataclass(frozen=True)
class PostgresServer:
    """A server whose databases can be made and asked by psql, which is not what is tested."""

    folder: Path

    def sql(self, script: str, database: str = "postgres") -> str:
        """What psql prints of a script, unaligned."""
        command = [_program("psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", self.folder, "-U", "owner",
                   "-d", database]  # fmt: skip
        done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def database(self, name: str, script: str) -> str:
        """The URL of a new database."""
        self.sql(f'CREATE DATABASE "{name}"')
        self.sql(script, name)
        return self.url(name)

    def url(self, database: str, who: str = "owner") -> str:
        return f"postgresql://{who}@/{database}?host={self.folder}"


def _program(name: str) -> Path | None:
    """A program of the newest server that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[4]))
    where = shutil.which(name)
    return found[-1] if found else None if where is None else Path(where)


@contextmanager
def started_server() -> Iterator[PostgresServer]:
    """A server until the block ends. Skips where none is installed, or it cannot run."""
    pytest.importorskip("adbc_driver_postgresql", reason="the driver of ADBC is not installed")
    missing = [name for name in ("initdb", "pg_ctl", "psql") if _program(name) is None]
    if missing:
        pytest.skip(f"no PostgreSQL server is installed: there is no {', '.join(missing)}")
    folder = Path(tempfile.mkdtemp(prefix="diskgnn-pg-"))  # paths of sockets have 107 bytes at most
    as_user: dict[str, object] = {}
    if os.getuid() == 0:  # as which the server refuses to run
        user = next((each for each in pwd.getpwall() if each.pw_name in ("postgres", "nobody")), None)
        if user is None:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres or nobody")
        os.chown(folder, user.pw_uid, user.pw_gid)
        folder.chmod(0o755)
        as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    def run(program: str, *arguments: object) -> None:
        done = subprocess.run(
            [_program(program), *map(str, arguments)], cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(folder)},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False, **as_user,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    data = folder / "data"
    settings = " ".join(f"-c {name}={value or repr('')}" for name, value in _SETTINGS.items())
    try:
        run("initdb", "-D", data, "-U", "owner", "--auth=trust", "-E", "UTF8", "--locale=C", "-N")
        (data / "pg_hba.conf").write_text(_LOGINS)
        run("pg_ctl", "-D", data, "-w", "-s", "-l", folder / "log", "-o", f"-k {folder} {settings}", "start")
        try:
            server = PostgresServer(folder)
            server.sql(f"CREATE ROLE guest LOGIN PASSWORD '{PASSWORD}'")
            yield server
        finally:
            run("pg_ctl", "-D", data, "-w", "-s", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)

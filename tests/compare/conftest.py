import subprocess
from types import SimpleNamespace

import pytest
from commands import fork_command
from report_pages import browser, page

from diskgnn.compare import step_runner

__all__ = ["browser", "page"]


@pytest.fixture
def forked_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons of this process find torch imported, which takes each of their servers up to 5 seconds of a core.

    Not for tests of what a step is charged for: the servers have more imported than steps need.
    """

    monkeypatch.setattr(step_runner, "subprocess", SimpleNamespace(Popen=fork_command, PIPE=subprocess.PIPE))

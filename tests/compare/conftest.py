from collections.abc import Iterator

import pytest
from comparisons import steps_forked
from report_pages import browser, page

__all__ = ["browser", "page"]


@pytest.fixture
def forked_servers() -> Iterator[None]:
    """Comparisons of this process run their steps as `steps_forked` says."""
    with steps_forked():
        yield

from collections.abc import Iterator

import pytest
from comparisons import steps_forked
from report_pages import browser, page, write_page

__all__ = ["browser", "page", "write_page"]


@pytest.fixture
def forked_servers() -> Iterator[None]:
    """Comparisons of this process run their steps as `steps_forked` says."""
    with steps_forked():
        yield

from report_pages import browser, page

__all__ = ["browser", "page"]

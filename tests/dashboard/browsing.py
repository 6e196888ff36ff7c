"""Opens the dashboard in Debian's Chromium. Importing this skips a module of tests where there is no browser, unless
DASHBOARD_TESTS=required (`make test-dashboard`)."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from support.processes import Gateway

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
if os.environ.get("DASHBOARD_TESTS") != "required":
    pytest.importorskip("playwright", reason="make test-dashboard installs it")
    pytest.importorskip("axe_playwright_python", reason="make test-dashboard installs it")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here", allow_module_level=True)

Page = Any


@contextlib.contextmanager
def opened(browser: Any, gateway: Gateway, **options: Any) -> Iterator[Page]:
    """Yield the page once it shows its first figures; it may contact only the gateway, and must raise no error."""
    page = browser.new_page(**options)
    errors: list[str] = []
    strangers: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "request", lambda asked: None if asked.url.startswith((gateway.admin_url, "data:")) else strangers.append(asked.url)
    )
    page.goto(gateway.admin_url + "/")
    try:
        yield page
        assert errors == [] and strangers == []
    finally:
        page.close()


def words(page: Page, selector: str) -> str:
    return str(page.locator(selector).inner_text())

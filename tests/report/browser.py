"""A real browser for tests of pages, where this machine has one; else they are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str:
    """Return the path of a Chromium; skip the test without one."""
    pytest.importorskip("playwright.sync_api", reason="playwright is in the test group")
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("no Chromium is installed: `apt-get install chromium`")
    return found


@contextmanager
def started() -> Iterator[Browser]:
    """Yield a headless Chromium."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=[*sandbox, "--font-render-hinting=none"]
        )
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, file: Path, *, at: str = "", **how: Any) -> Iterator[Page]:
    """Yield a page opened from disk; fail where it complained, or asked for anything but itself.

    Args:
      at: what stands behind `#` in its address.
    """
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 800}, **how})
    page = context.new_page()
    page.set_default_timeout(60_000)
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{file.as_uri()}#{at}" if at else file.as_uri())
    if how.get("java_script_enabled", True):
        page.wait_for_selector("html[data-ready]", state="attached")
    yield page
    context.close()
    assert said == []
    assert [url.partition("#")[0] for url in asked] == [file.as_uri()]

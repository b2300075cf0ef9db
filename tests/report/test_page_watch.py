"""A page of `report --watch` shows its file anew, and its reader stays where he was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.report.browser import started
from tests.report.test_page import EXAMPLES, page_of
from tests.report.test_page_browser import PHONE, rows

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SPEC = (EXAMPLES / "t5-1.1-xxl.yaml").read_text(encoding="utf-8")
#: What a reader chose that an address does not say.
CHOSEN = """() => ({
  scroll: Math.round(scrollY), theme: document.documentElement.dataset.theme,
  device: document.getElementById('device').value, plane: document.getElementById('plane').value,
  axis: document.querySelector('#machine-axes input:checked').value,
  heat: document.getElementById('heat').value,
  order: document.querySelector('#array-table [aria-sort=descending]')?.textContent,
  open: [...document.querySelectorAll('main details[open]')].map(each => each.textContent),
  view: document.querySelector('.of-target:not([hidden]) .timeline').timeLine.view,
  focus: document.activeElement.id, search: document.getElementById('search').value})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as found:
        yield found


@pytest.fixture(scope="module")
def texts() -> tuple[str, str]:
    text = SPEC.replace("../arrays", str(EXAMPLES.parent / "arrays"))
    other = text.replace('doc: "', 'doc: "changed, ', 1)
    return tuple(page_of(each, is_watched=True) for each in (text, other))  # type: ignore[return-value]


def until(page: Page, script: str, tries: int = 200) -> None:
    """Wait from here: the policy of the page refuses what polls inside of it.

    A page that is loaded again while it is asked does not answer.
    """
    from playwright.sync_api import Error

    for _ in range(tries):
        with suppress(Error):
            if page.evaluate(script):
                return
        page.wait_for_timeout(50)
    raise AssertionError(f"it never came to be: {script}")


def choose(page: Page) -> None:
    page.select_option("#target", label="v4-512")
    page.fill("#search", "mlp")
    page.click("[data-order=bytes]")
    page.check("#machine-axes input[value='data']")
    page.select_option("#heat", "model")
    page.locator("#plane").fill("3")
    page.fill("#device", "7")
    page.click("#theme")
    page.locator(".sent:visible summary").first.click()
    page.evaluate(
        "document.querySelector('.of-target:not([hidden]) .timeline').timeLine.show(2e5, 4e5)"
    )
    page.focus("#device")
    page.evaluate("scrollTo(0, 700)")


@pytest.mark.parametrize("how", [{}, PHONE])
def test_a_reader_stays_where_he_was(
    browser: Browser, texts: tuple[str, str], how: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    file.write_text(texts[0], encoding="utf-8")
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 800}, **how})
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    choose(page)
    before, address = page.evaluate(CHOSEN), page.url
    page.evaluate("window.mine = 1")
    page.wait_for_timeout(2500)
    assert page.evaluate("window.mine") == 1, "a file that is the same is not loaded again"
    file.write_text(texts[1], encoding="utf-8")
    until(page, "window.mine === undefined && document.documentElement.dataset.ready === 'yes'")
    assert page.locator(".doc").inner_text().startswith("changed, ")
    assert page.evaluate(CHOSEN) == before
    assert page.url == address
    assert rows(page).count() > 0
    file.write_text(texts[1][: len(texts[1]) // 3], encoding="utf-8")
    page.wait_for_timeout(1500)
    assert page.locator("#theme").is_visible(), "half a file is not shown"
    assert said == []
    context.close()


def test_only_a_file_that_is_open_itself_looks(
    browser: Browser, texts: tuple[str, str], tmp_path: Path
) -> None:
    """In a frame, or from a server, a page does not load itself again."""
    (tmp_path / "page.html").write_text(texts[0], encoding="utf-8")
    (tmp_path / "outer.html").write_text("<iframe src=page.html></iframe>", encoding="utf-8")
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((tmp_path / "outer.html").as_uri())
    page.wait_for_timeout(2500)
    assert [url.rpartition("/")[2] for url in asked] == ["outer.html", "page.html"]
    page.close()

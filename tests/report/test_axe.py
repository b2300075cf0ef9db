"""axe finds nothing: at 1440 and at 390, in light and in dark, everything open.

axe-core comes with the package axe-playwright-python. It runs in the page and asks for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from shardspec.cli.main import cli
from tests.report.browser import opened, started
from tests.report.test_page import page_of
from tests.report.test_page_browser import LAYOUTS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("axe_playwright_python", reason="is in the test group")
RUN = """async ([where, runOnly]) => {
  const options = { resultTypes: ["violations"], ...(runOnly ? { runOnly } : {}) };
  const found = await axe.run(where, options);
  return found.violations.flatMap((each) =>
    each.nodes.map((node) => `${each.id}: ${node.target} ${node.failureSummary}`)); }"""
SPEC = """\
shardspec: 1
axes: {batch: 256, length: 2048, embed: 4096, mlp: 16384, layers: 32}
targets:
  v5e-64: {hardware: tpu v5e 8x8, mesh: {fsdp: 16, tensor: 4}}
rules: [batch -> fsdp, mlp -> tensor, embed -> fsdp, length -> none]
scan: {"layers/**": layers@0}
arrays:
  layers/up: f32[layers=32 embed=4096 mlp=16384]
  layers/down: f32[layers=32 mlp=16384 embed=4096]
activations: {residual: batch length embed, hidden: batch length mlp}
step:
  program: ['residual, "layers/up" -> hidden', 'hidden, "layers/down" -> residual']
"""
#: Arrays whose dialog is opened.
SHEETS = 4


def violations(page: Page, where: str = "html", rules: list[str] | None = None) -> list[str]:
    found: list[str] = page.evaluate(RUN, [where, rules])
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write a page with a step and a search, one with many layouts, and one of a change."""
    folder = tmp_path_factory.mktemp("axe")
    found = {name: folder / f"{name}.html" for name in ("step", "layouts", "change")}
    spec, other, saved = (str(folder / name) for name in ("a.yaml", "b.yaml", "found.json"))
    Path(spec).write_text(SPEC, encoding="utf-8")
    text = SPEC.replace("embed -> fsdp", "embed -> none").replace("v5e 8x8", "v6e 8x8")
    Path(other).write_text(text, encoding="utf-8")
    for said in (
        ("search", spec, "-q", "-o", saved),
        ("report", spec, "-q", "--search", saved, "-o", str(found["step"])),
        ("report", "-q", "--diff", spec, other, "-o", str(found["change"])),
    ):
        result = CliRunner().invoke(cli, said)
        assert result.exit_code in (0, 1), result.output
    found["layouts"].write_text(page_of(LAYOUTS), encoding="utf-8")
    return found


@pytest.mark.parametrize("name", ["step", "layouts", "change"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing(browser: Browser, pages: dict[str, Path], name: str, width: int) -> None:
    viewport = {"width": width, "height": 900}
    axe = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    with opened(browser, pages[name], viewport=viewport) as page:
        page.evaluate(f"{axe}; 0")
        page.evaluate("document.querySelectorAll('main details').forEach(e => { e.open = true; })")
        assert violations(page) == []
        for button in page.locator("#rows th > button").all()[:SHEETS]:
            button.evaluate("each => each.click()")
            assert violations(page, "#sheet") == []
            page.click("#sheet-close")
        page.emulate_media(color_scheme="dark")
        assert violations(page, rules=["color-contrast"]) == []


def test_axe_would_find_something(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "bad.html"
    bad = "<html><main><table><tr><th></th></tr></table><img src=''><h4>x</h4></main></html>"
    file.write_text(bad, encoding="utf-8")
    axe = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    page = browser.new_page()
    page.goto(file.as_uri())
    page.evaluate(f"{axe}; 0")
    names = {each.partition(":")[0] for each in violations(page)}
    assert {"image-alt", "document-title"} <= names
    page.close()

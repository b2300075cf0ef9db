"""The site of the documentation: all of the program is on it, nothing on it leads nowhere."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import shardspec
from docs.site import __main__ as site
from docs.site import guides, reference
from docs.site.drawings import drawn
from docs.site.links import links_of
from shardspec import assets
from shardspec.cli.main import VERBS
from shardspec.diagnostics.codes import ALL
from shardspec.language import catalogue, document
from tests.report.browser import started

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parent.parent
PHONE = {"width": 390, "height": 800}


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return site.site_pages()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site; it is built as `make docs-site` does it."""
    pytest.importorskip("zensical", reason="zensical is in the group docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "docs.site", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as browser:
        yield browser


def test_a_layout_that_is_explained_is_drawn_below(pages: dict[str, str]) -> None:
    """Each command that shows a machine or explains an array has its drawing, of what it names."""
    explaining, mesh = pages["explaining.md"], pages["mesh.md"]
    command = "explain decoder/layers_7/self_attention/key/kernel --spec t5-1.1-xxl.yaml"
    answer = explaining[explaining.index(command) :]
    below = answer[answer.index("```\n") :].removeprefix("```\n").strip()
    assert below.startswith('<div class="drawn">')
    assert "dim 1 joined_kv=4096 over model, down" in below.split("</div>")[0]
    assert 'alt="The machine of t5-1.1-xxl.yaml --target v4-512"' in mesh
    assert "The machine of by-hand.yaml --target listed" in mesh
    drawn = {page for page, text in pages.items() if 'class="drawn"' in text or "svg+xml" in text}
    assert {"index.md", "tutorial.md", "serving.md", "training.md", "derived.md"} < drawn


def test_a_stranger_of_a_page_stays_text() -> None:
    nasty = "<img src=x onerror=alert(1)>"
    spec = f'mesh: {{d: 2}}\nrules: [a -> d]\narrays: {{"{nasty}": "f32[a=4 b=4]"}}\n'
    command = f"```console\n$ shardspec explain '{nasty}'\n```\n"
    page = f"```yaml\n# spec.yaml\n{spec}```\n\n{command}"
    added = drawn(page).removeprefix(page)
    assert "&lt;img" in added
    assert "<img" not in added
    assert drawn("```console\n$ shardspec explain --list presets\n```\n").count("drawn") == 0


def test_each_thing_has_a_page(pages: dict[str, str]) -> None:
    expected = [f"verbs/{name}.md" for name in VERBS]
    expected += [f"findings/{code.id}.md" for code in ALL]
    expected += [f"presets/{name}.md" for name in assets.spec_names("presets")]
    assert set(expected) <= set(pages)
    machines = {f"hardware/{name}.md" for name in reference.chips()}
    assert machines <= set(pages)
    assert len(machines) == len(set(catalogue.hardware_names().values()))


def test_each_public_name_is_filled_in_once(pages: dict[str, str]) -> None:
    asked = re.findall(r"^::: shardspec\.(\w+)$", "\n".join(pages.values()), re.MULTILINE)
    assert sorted(asked) == sorted(shardspec.__all__)


def test_each_page_has_one_place_in_nav(pages: dict[str, str]) -> None:
    site.config_of(pages)
    with pytest.raises(ValueError, match=r"\['more.md'\]"):
        site.config_of({**pages, "more.md": "# More"})
    with pytest.raises(ValueError, match=r"\['mesh.md'\]"):
        site.config_of({path: text for path, text in pages.items() if path != "mesh.md"})


def test_what_a_page_says_is_what_the_program_says(pages: dict[str, str]) -> None:
    assert "| `--top N` | Rows shown. [default: 10; x>=1] |" in pages["verbs/search.md"]
    assert "| 1 | findings, or different |" in pages["verbs/check.md"]
    assert "  - batch -> fsdp\n  # Nearly every weight has it." in pages["presets/fsdp.md"]
    assert "| `hbm_bytes` | 16.0 GiB | Google Cloud" in pages["hardware/v5e.md"]
    assert all(f"\n## {key}\n" in pages["keys.md"] for key in document.Document.model_fields)
    assert "kv_heads -> tensor | none" in pages["findings/SHD301.md"]


def test_the_index_has_every_kind_of_word(pages: dict[str, str]) -> None:
    rows = pages["words.md"]
    for row in (
        "- [SHD301](findings/SHD301.md), finding `indivisible`",
        "- [`rules`](keys.md#rules), key",
        "- [`check`](verbs/check.md), verb",
        "- [`--over`](verbs/search.md), option of `search`",
        "- `--top`, option of [cost](verbs/cost.md), [search]",
        "- [`fsdp`](presets/fsdp.md), preset",
        "- [`trillium`](hardware/v6e.md), hardware",
        "- [`Resolver`](python/resolver.md#shardspec.Resolver), Python",
        "- [submesh](glossary.md), term",
    ):
        assert f"\n{row}" in rows, row


def test_a_link_to_what_is_not_on_the_site_is_refused() -> None:
    titles = {"mesh.md": "From a machine to a mesh"}
    text = "[docs/mesh.md](docs/mesh.md#x) and [what](https://jax.dev), `[a](b)`"
    page = guides.on_site("README.md", text, titles)
    assert page == "[From a machine to a mesh](mesh.md#x) and [what](https://jax.dev), `[a](b)`"
    with pytest.raises(ValueError, match=r"README.md: `shardspec/x.py` is not on the site"):
        guides.on_site("README.md", "[x](shardspec/x.py)", titles)


def test_findings_are_linked_in_prose_alone() -> None:
    text = (
        "# SHD301\n\nSHD301, `SHD301`, SHD999\n\n| a |\n|---|\n| `a \\| b` |\n\n```\nSHD301\n```\n"
    )
    page = guides.as_page("a/b.md", text)
    assert page.count("[SHD301](../findings/SHD301.md)") == page.count("](") == 1
    assert "`a | b`" in page
    assert guides.as_page("findings/SHD301.md", "SHD301") == "SHD301"


def test_the_name_of_a_file_stands_above_its_block() -> None:
    page = guides.as_page("a.md", "```yaml\n# spec.yaml\nmesh: {a: 2}\n```\n\n```sh\n# a b\n```\n")
    assert page == '```yaml title="spec.yaml"\nmesh: {a: 2}\n```\n\n```sh\n# a b\n```\n'


def test_dead_links_and_what_is_loaded_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="here"></p><a href="#here">1</a><a href="#gone">2</a><a href="b.html#x">3</a>'
        '<a href="c.html">4</a><a href="https://jax.dev/x">5</a><img src="gone.png">'
        '<script src="https://cdn.dev/x.js"></script><link rel="canonical" href="a.html">'
    )
    (tmp_path / "b.html").write_text('<h2 id="y">b</h2><a href="a.html#here">6</a>')
    found = links_of(tmp_path)
    assert found.dead == tuple(
        f"a.html: {to}" for to in ("#gone", "b.html#x", "c.html", "gone.png")
    )
    assert found.loaded == ("a.html: https://cdn.dev/x.js",)
    assert found.external == ("https://cdn.dev/x.js", "https://jax.dev/x")


def test_it_is_built_strictly_and_all_of_python_is_in_it(built: Path) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (built / "python").iterdir())
    for name in shardspec.__all__:
        assert f'id="shardspec.{name}"' in text, name
    assert "for every array of a pytree, in a tree of the same structure." in text


def read(browser: Browser, file: Path, **how: object) -> Page:
    """Return a page opened from disk, whose complaints and requests go to `page.said`."""
    page = browser.new_context(**how).new_page()  # type: ignore[arg-type]
    page.said = []  # type: ignore[attr-defined]
    for event in ("console", "pageerror"):
        page.on(event, lambda it: page.said.append(str(it)))  # type: ignore[attr-defined, call-overload]
    page.on("request", lambda it: it.url.startswith("file:") or page.said.append(it.url))  # type: ignore[attr-defined]
    page.goto(file.as_uri())
    return page


def test_search_works_from_disk_and_asks_for_nothing(built: Path, browser: Browser) -> None:
    page = read(browser, built / "index.html")
    page.get_by_role("button", name="Search").first.click()
    page.keyboard.type("indivisible")
    page.get_by_text("SHD301 indivisible").first.wait_for(timeout=10_000)
    assert page.said == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["index", "tutorial", "language", "verbs/search", "hardware/v5e"])
def test_a_page_fits_a_phone_in_dark(built: Path, browser: Browser, name: str) -> None:
    page = read(browser, built / f"{name}.html", viewport=PHONE, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.body.dataset.mdColorScheme") == "slate"
    assert page.said == []  # type: ignore[attr-defined]

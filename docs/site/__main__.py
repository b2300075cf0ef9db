"""Build the site of the documentation in a folder: what `make docs-site` runs.

Pages are put together in a folder of their own, then Zensical makes HTML of them, where a warning
is an error; then every link of the HTML is followed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from docs.site.findings import FAMILIES
from docs.site.guides import ROOT, as_page, guide_pages
from docs.site.links import links_of, report
from docs.site.reference import Pages, in_family, reference_pages, title_of
from docs.site.words import words_page

HERE = Path(__file__).parent
#: The report that the site has, and what it is of.
_REPORT, _SAMPLE = "sample-report.html", "specs/examples/llama-3-70b.yaml"


def site_pages() -> Pages:
    """Return all pages of the site as Markdown, by path."""
    guides = guide_pages()
    made = {path: as_page(path, text) for path, text in reference_pages(guides).items()}
    guides["report.md"] += (
        f"\n## A sample\n\n[The report of {_SAMPLE}]({_REPORT}), as it is written.\n"
    )
    return guides | made | {"words.md": words_page(guides)}


def config_of(pages: Pages) -> dict[str, Any]:
    """Return what Zensical is told, with every page in its place.

    Raises:
      ValueError: a page stands nowhere in `nav` of site.yaml, or twice.
    """
    config: dict[str, Any] = yaml.safe_load((HERE / "site.yaml").read_text(encoding="utf-8"))
    config["nav"] = _expanded(config["nav"], pages)
    placed = list(_paths(config["nav"]))
    wrong = {path for path in (*placed, *pages) if placed.count(path) != 1 or path not in pages}
    if wrong:
        raise ValueError(f"pages that `nav` of site.yaml has not once: {sorted(wrong)}")
    handler = config["plugins"][2]["mkdocstrings"]["handlers"]["python"]
    handler["paths"] = [str(ROOT)]
    return config


def _expanded(nav: list[Any], pages: Pages) -> list[Any]:
    """Return `nav` with folders replaced by the pages in them; findings stand by family."""
    made: list[Any] = []
    for entry in nav:
        name, inner = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
        if isinstance(inner, list):
            made.append({name: _expanded(inner, pages)})
        elif inner == "findings/":
            made.append({name: ["findings/index.md", *_families()]})
        elif inner.endswith("/"):
            within = [_entry(path, pages) for path in pages if path.startswith(inner)]
            made.append({name or title_of(pages[f"{inner}index.md"]): within})
        else:
            made.append(entry)
    return made


def _entry(path: str, pages: Pages) -> Any:
    """Return a page as an entry of `nav`; a verb goes without the name of the program."""
    title = title_of(pages[path])
    return {title.removeprefix("shardspec "): path} if title.startswith("shardspec ") else path


def _families() -> list[Any]:
    return [
        {family: [f"findings/{code.id}.md" for code in in_family(digit)]}
        for digit, family in FAMILIES.items()
    ]


def _paths(nav: list[Any]) -> list[str]:
    """Return the paths of `nav`, in order."""
    inner = [next(iter(each.values())) if isinstance(each, dict) else each for each in nav]
    lists = (_paths(each) if isinstance(each, list) else [each] for each in inner)
    return [path for paths in lists for path in paths]


def write_sources(folder: Path) -> Path:
    """Write everything that Zensical reads into a folder, and return its configuration."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = site_pages()
    for path, text in pages.items():
        file = folder / "docs" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    shutil.copytree(HERE.parent / "images", folder / "docs" / "images")
    report = [sys.executable, "-m", "shardspec", "report", _SAMPLE, "-o", folder / "docs" / _REPORT]
    subprocess.run([*report, "--quiet"], cwd=ROOT, check=True)
    (folder / "docs" / "assets").mkdir()
    for name in ("iframe-worker.js", "site.css"):
        shutil.copy(HERE / name, folder / "docs" / "assets")
    config = {**config_of(pages), "docs_dir": "docs", "site_dir": "html"}
    file = folder / "mkdocs.yml"
    file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return file


def build(folder: Path) -> int:
    """Build the site in a folder, its pages in `html`, and return an exit code."""
    config = write_sources(folder)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", config.name]
    result = subprocess.run(command, cwd=folder, check=False)
    if result.returncode:
        return result.returncode
    site = folder / "html"
    links = links_of(site)
    print(*report(links), sep="\n")
    print(f"{len(list(site.rglob('*.html')))} pages: {site / 'index.html'}")
    return int(bool(links.dead or links.loaded))


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1])))

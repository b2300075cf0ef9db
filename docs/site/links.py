"""What the pages of a built site lead to: dead links, and what they would load from elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Attributes that make a browser load something; a `link` only of some kinds.
_LOADS = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("link", "href")}
_NOT_LOADED = {"canonical", "prev", "next", "alternate"}


@dataclass
class Page(HTMLParser):
    """What one page names, and what it leads to.

    Attributes:
      ids: anchors that it has.
      leads: links that a reader follows.
      loads: what a browser loads for it.
    """

    ids: set[str] = field(default_factory=set)
    leads: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Prepare the parser."""
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take down what a tag names or leads to."""
        values = {name: value or "" for name, value in attrs}
        self.ids.update(filter(None, (values.get("id"), values.get("name"))))
        if tag == "a" and "href" in values:
            self.leads.append(values["href"])
        is_loaded = values.get("rel", "") not in _NOT_LOADED
        self.loads += [v for n, v in values.items() if (tag, n) in _LOADS and is_loaded]


@dataclass(frozen=True)
class Links:
    """What is wrong with the links of a site, and what it leads to elsewhere.

    Attributes:
      dead: a line for each link or file that leads nowhere.
      loaded: a line for each thing that a page loads from elsewhere.
      external: addresses elsewhere that a reader can follow.
    """

    dead: tuple[str, ...]
    loaded: tuple[str, ...]
    external: tuple[str, ...]


def links_of(site: Path) -> Links:
    """Return what all pages of a built site lead to."""
    pages = {path.resolve(): _read(path) for path in sorted(site.rglob("*.html"))}
    dead, loaded, external = [], [], set()
    for path, page in pages.items():
        name = path.relative_to(site.resolve()).as_posix()
        if name == "404.html":  # is served in place of any page, so its links start at the root
            continue
        for target in page.loads:
            if urlsplit(target).scheme not in ("", "data"):
                loaded.append(f"{name}: {target}")
        for target in (*page.leads, *page.loads):
            if urlsplit(target).scheme == "data":
                continue
            if urlsplit(target).scheme or target.startswith("//"):
                external.add(target)
            elif not _is_there(path, target, pages):
                dead.append(f"{name}: {target}")
    return Links(tuple(dead), tuple(loaded), tuple(sorted(external)))


def _read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def _is_there(path: Path, target: str, pages: dict[Path, Page]) -> bool:
    """Return whether a link from one file leads to a file, and to an anchor that it has."""
    parts = urlsplit(target)
    file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    file = file / "index.html" if file.is_dir() else file
    if file not in pages or not parts.fragment:
        return file.is_file()
    return unquote(parts.fragment) in pages[file].ids


def report(links: Links) -> Iterator[str]:
    """Yield what is wrong, then where links elsewhere lead, by host."""
    yield from (f"dead link: {each}" for each in links.dead)
    yield from (f"loaded from elsewhere: {each}" for each in links.loaded)
    hosts = sorted({urlsplit(each).netloc for each in links.external})
    yield f"{len(links.external)} links lead elsewhere, and are not followed: {', '.join(hosts)}"


if __name__ == "__main__":
    found = links_of(Path(sys.argv[1]))
    print(*report(found), sep="\n")
    sys.exit(bool(found.dead or found.loaded))

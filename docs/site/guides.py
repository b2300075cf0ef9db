"""Pages of the site that are written by hand: docs/, and README, CONTRIBUTING, CHANGELOG, LICENSE.

They are written to be read where they lie; here links between files become links between pages,
and a finding that is named is a link to its page.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from docs.site.drawings import drawn
from docs.site.reference import Pages, fenced, finding_path, title_of
from shardspec.diagnostics.codes import ALL

ROOT = Path(__file__).parents[2]

#: File or folder of the repository -> page of the site, where the two differ in more than `docs/`.
MOVED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "license.md",
    "docs/frameworks": "frameworks/index.md",
    "docs/findings.md": "findings/index.md",
}

_CODES = {code.id: code for code in ALL}
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
#: What may stand in prose: code, a heading or a link, which are left alone; else a finding.
_WORDS = re.compile(
    r"(?P<alone>`[^`]*`|^#.*$|\[[^\]]*\]\([^)]*\))|\b(?P<code>SHD\d{3})\b", re.MULTILINE
)
_CODE = re.compile(r"`[^`\n]+`")
#: Code, which is left alone, or a link, whose label may hold code.
_LINK = re.compile(r"`[^`\n]+`|\[(?P<label>[^\]]*)\]\((?P<target>[^)\s]+)\)")
#: The head of a block that holds a file, whose name is its first line.
_NAMED = re.compile(r"^```(\w+)\n# ([\w./-]+\.\w+)\n")
_ANCHOR = re.compile(r"(shd\d{3})-[\w-]+")


def guide_pages() -> Pages:
    """Return every page that is written by hand, as it is on the site.

    Raises:
      ValueError: a link leads to what is not on the site.
    """
    texts = {"README.md": "", "CONTRIBUTING.md": "", "CHANGELOG.md": ""}
    files = sorted((ROOT / "docs").rglob("*.md"))
    texts |= {path.relative_to(ROOT).as_posix(): "" for path in files}
    texts.pop("docs/findings.md")  # is made of a page for each
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in texts}
    texts["docs/frameworks"] = _frameworks(texts)
    texts["LICENSE"] = f"# License\n\n{fenced((ROOT / 'LICENSE').read_text(encoding='utf-8'))}"
    titles = {page_of(name): title_of(text) for name, text in texts.items()}
    titles["findings/index.md"] = "Findings"
    return {page_of(name): on_site(name, drawn(text), titles) for name, text in texts.items()}


def page_of(file: str) -> str:
    """Return the page of the site that a file of the repository becomes."""
    return MOVED.get(file, file.removeprefix("docs/"))


def on_site(file: str, text: str, titles: dict[str, str]) -> str:
    """Return the text of a file as a page, its links leading to pages.

    Args:
      titles: of each page that there is.
    """
    linked = _changed(text, lambda part: _LINK.sub(lambda it: _link(file, it, titles), part))
    return as_page(page_of(file), linked)


def as_page(page: str, text: str) -> str:
    """Return Markdown for Python-Markdown, each finding that is named in it leading to its page.

    There, unlike elsewhere, a `|` in the code of a table is not escaped, and the name of a file
    stands above its block, so that what is copied is the file.
    """

    def prose(part: str) -> str:
        plain = _CODE.sub(lambda code: code[0].replace("\\|", "|"), part)
        return with_findings(page, plain)

    return _changed(text, prose, lambda block: _NAMED.sub(r'```\1 title="\2"\n', block))


def with_findings(page: str, text: str) -> str:
    """Return prose in which each finding that is named leads to its page."""

    def linked(found: re.Match[str]) -> str:
        code = _CODES.get(found["code"] or "")
        if code is None or finding_path(code) == page:
            return found[0]
        return f"[{code.id}]({relative(page, finding_path(code))})"

    return _WORDS.sub(linked, text)


def relative(page: str, to: str) -> str:
    """Return the link from one page to another."""
    return posixpath.relpath(to, posixpath.dirname(page) or ".")


def _changed(text: str, prose: Callable[[str], str], block: Callable[[str], str] = str) -> str:
    """Return the text with its prose changed by one function, its blocks of code by another."""
    parts, at = [], 0
    for found in _FENCE.finditer(text):
        parts += [prose(text[at : found.start()]), block(found[0])]
        at = found.end()
    return "".join([*parts, prose(text[at:])])


def _link(file: str, link: re.Match[str], titles: dict[str, str]) -> str:
    """Return a link between files as one between pages; those to elsewhere as they are."""
    path, hash, anchor = (link["target"] or "").partition("#")
    if not path or ":" in path:
        return link[0]
    target = posixpath.normpath(posixpath.join(posixpath.dirname(file), path))
    if target.startswith("docs/images/") and (ROOT / target).is_file():
        return f"[{link['label']}]({relative(page_of(file), target.removeprefix('docs/'))})"
    page = page_of(target)
    if page not in titles:
        raise ValueError(f"{file}: `{link['target']}` is not on the site")
    finding = _ANCHOR.fullmatch(anchor)
    if page == "findings/index.md" and finding:
        page, hash, anchor = f"findings/{finding[1].upper()}.md", "", ""
    label = titles[page] if link["label"].removeprefix("docs/") == page else link["label"]
    label = titles[page] if link["label"] == target else label
    return f"[{label}]({relative(page_of(file), page)}{hash}{anchor})"


def _frameworks(texts: Pages) -> str:
    """Return a page for the folder of frameworks."""
    files = sorted(name for name in texts if name.startswith("docs/frameworks/"))
    lines = [f"- [{title_of(texts[name])}]({posixpath.basename(name)})" for name in files]
    said = "Where the names of a model's axes come from, and a whole example that runs, for each:"
    links = "\n".join(line.replace("](", "](frameworks/") for line in lines)
    return f"# In each framework\n\n{said}\n\n{links}\n"

"""The index: every key, verb, option, finding, preset, machine, public name and term by letter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import PurePosixPath

from docs.site import reference
from docs.site.guides import relative
from docs.site.reference import PYTHON, Pages
from shardspec import assets
from shardspec.diagnostics.codes import ALL
from shardspec.language import catalogue, document

_TERM = re.compile(r"^\| \*\*(.+?)\*\* \|", re.MULTILINE)

#: A word, what kind of thing it is, and the pages about it.
Entry = tuple[str, str, tuple[str, ...]]


def words_page(pages: Pages) -> str:
    """Return the index of the site, by first letter."""
    entries = sorted(set(_entries(pages)), key=lambda entry: (_sorted_by(entry[0]), entry))
    lines = [
        "---\nsearch: {exclude: true}\n---",  # what it lists is found where it is
        "# Index",
        "Terms, keys, verbs, options, findings, presets, hardware, Python.",
    ]
    for letter, group in groupby(entries, key=lambda entry: _sorted_by(entry[0])[0]):
        rows = (_row(*entry) for entry in group)
        lines += [f"## {letter.upper()}", "\n".join(rows)]
    return "\n\n".join(lines)


def _sorted_by(word: str) -> str:
    """Return what a word is ordered by: its letters, without what quotes it."""
    return re.sub(r"^[^a-z0-9]+", "", word.lower()) or word


def _row(word: str, kind: str, to: tuple[str, ...]) -> str:
    """Return a line: the word leads to its page, or is followed by all that it leads to."""
    links = [relative("words.md", page) for page in to]
    if len(links) == 1:
        return f"- [{word}]({links[0]}), {kind}"
    shown = (f"[{PurePosixPath(page).stem}]({link})" for page, link in zip(to, links, strict=True))
    return f"- {word}, {kind} of {', '.join(shown)}"


def _entries(pages: Pages) -> Iterator[Entry]:
    for term in _TERM.findall(pages["glossary.md"]):
        yield term, "term", ("glossary.md",)
    for key in document.Document.model_fields:
        yield f"`{key}`", "key", (f"keys.md#{key}",)
        members = document.ENTRIES[key].model_fields if key in document.ENTRIES else ()
        for member in members:
            yield f"`{member}`", f"key of `{key}`", (f"keys.md#{key}",)
    for code in ALL:
        yield code.id, f"finding `{code.name}`", (reference.finding_path(code),)
        yield f"`{code.name}`", "finding", (reference.finding_path(code),)
    for name in assets.spec_names("presets"):
        yield f"`{name}`", "preset", (f"presets/{name}.md",)
    yield from _machines()
    for page, (_, names) in PYTHON.items():
        for name in names.split():
            yield f"`{name}`", "Python", (f"python/{page}.md#shardspec.{name}",)
    yield from _options()


def _machines() -> Iterator[Entry]:
    """Yield each name of a chip, also those of machines that hold it."""
    chips = {file: name for name, file in reference.chips().items()}
    for name, file in catalogue.hardware_names().items():
        yield f"`{name}`", "hardware", (f"hardware/{chips[file]}.md",)


def _options() -> Iterator[Entry]:
    """Yield each verb, and each option with the verbs that have it."""
    having: dict[str, list[str]] = {}
    for name, command in reference.verbs().items():
        yield f"`{name}`", "verb", (f"verbs/{name}.md",)
        for option in command.params:
            for spelling in option.opts:
                if spelling.startswith("--"):
                    having.setdefault(spelling, []).append(f"verbs/{name}.md")
    for spelling, users in having.items():
        if len(users) == len(reference.verbs()):
            yield f"`{spelling}`", "option of every verb", ("command-line.md",)
        elif len(users) == 1:
            yield f"`{spelling}`", f"option of `{PurePosixPath(users[0]).stem}`", tuple(users)
        else:
            yield f"`{spelling}`", "option", tuple(users)

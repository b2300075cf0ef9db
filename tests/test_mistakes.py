"""Mistakes that users make, one a file of `tests/mistakes`, and how good each message is.

A file is a spec. Its head says what is wrong, which finding reports it and, where the help says
what to write, `follow: OLD => NEW`. `# <- here` marks the wrong line and is not part of the spec.

The grade of a message:

- silent: the finding is not reported;
- bad: it is reported on another line, or without a help;
- good: it is on the line, with a help;
- excellent: it also quotes a word of that line, and the help has something to type.

No message is silent, at most three are bad, and at least fifty are excellent. Where a file says
what to follow, the help quotes NEW or the word in it, and the spec with NEW in place of OLD has no
error and not this finding.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.render import render

FILES = sorted((Path(__file__).parent / "mistakes").glob("*.yaml"))
_HERE = "  # <- here"

Grade = Literal["silent", "bad", "good", "excellent"]


class Mistake(NamedTuple):
    """A spec with a mistake.

    Attributes:
      line: that of the mistake, from 1.
      follow: what the help says to write, and in place of what.
    """

    text: str
    code: str
    line: int
    follow: tuple[str, str] | None


def read(path: Path) -> Mistake:
    head, _, body = path.read_text(encoding="utf-8").partition("\n# finding: ")
    code, *rest = body.splitlines(keepends=True)
    follow = None
    if rest[0].startswith("# follow: "):
        old, _, new = rest.pop(0).removeprefix("# follow: ").rstrip("\n").partition(" => ")
        follow = (old, new)
    assert head.startswith("# ")
    (line,) = [at for at, text in enumerate(rest, 1) if text.rstrip("\n").endswith(_HERE)]
    return Mistake("".join(rest).replace(_HERE, ""), code.strip(), line, follow)


@cache
def found_in(text: str) -> tuple[Diagnostic, ...]:
    spec, faults = pipeline.load_text(text, "spec.yaml")
    if spec is None:
        return faults
    return pipeline.checked(spec, faults, pipeline.plans_of_phases(spec)).shown


def finding_of(mistake: Mistake) -> Diagnostic | None:
    return next((each for each in found_in(mistake.text) if each.code.id == mistake.code), None)


def grade_of(mistake: Mistake) -> Grade:
    """Return the grade, by the rule at the head of this module."""
    found = finding_of(mistake)
    if found is None:
        return "silent"
    place = found.primary.span if found.primary else None
    at = None if place is None else place.source.text.count("\n", 0, place.start) + 1
    if at != mistake.line or not found.help:
        return "bad"
    line = mistake.text.splitlines()[mistake.line - 1]
    quoted = re.findall(r"`[^`]+`|\w+=\w+", found.message)
    names_it = any(word in line for each in quoted for word in re.findall(r"[\w.-]+", each))
    return "excellent" if names_it and re.search(r"`[^`]+`", found.help) else "good"


def test_there_are_enough() -> None:
    assert len(FILES) >= 65
    assert sum(read(path).follow is not None for path in FILES) >= 20


def test_messages_are_as_good_as_the_rule_says() -> None:
    graded = {path.stem: grade_of(read(path)) for path in FILES}
    count = Counter(graded.values())
    worst = [f"{grade}: {name}" for name, grade in graded.items() if grade in ("silent", "bad")]
    assert count["silent"] == 0, worst
    assert count["bad"] <= 3, worst
    assert count["excellent"] >= 50, count


@pytest.mark.parametrize(
    "mistake",
    [pytest.param(read(path), id=path.stem) for path in FILES if read(path).follow is not None],
)
def test_the_help_mends_it_when_followed(mistake: Mistake) -> None:
    found = finding_of(mistake)
    assert found is not None
    assert mistake.follow is not None
    old, new = mistake.follow
    assert mistake.text.count(old) == 1, "one place to write it at"
    names = re.findall(r"`([^`\n]+)`", (found.help or "").replace("``", "`"))
    assert any(name in new or new in name for name in names), render(found)
    after = found_in(mistake.text.replace(old, new))
    assert [render(each) for each in after if each.is_error or each.code.id == mistake.code] == []

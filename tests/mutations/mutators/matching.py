"""Mistakes in patterns over paths, and in the entries that have them."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutations.subjects import Subject
from tests.mutations.text import (
    Mistake,
    entries,
    exchanged,
    parts,
    patterns,
    removed_entry,
    replaced,
    typos,
    values,
)


def path_misspelt(subject: Subject) -> Iterator[Mistake]:
    """A component of a pattern misspelt."""
    for pattern in patterns(subject):
        for word in parts(pattern, r"(?<![\\\w])[A-Za-z]\w{3,}"):
            for typo in typos(word.text):
                yield replaced(f"`{word.text}` as `{typo}` in `{pattern.text}`", word, typo)


def one_star_for_two(subject: Subject) -> Iterator[Mistake]:
    """`*` for `**`."""
    for pattern in patterns(subject):
        for stars in parts(pattern, r"(?<!\*)\*\*(?!\*)"):
            yield replaced(f"`*` for `**` in `{pattern.text}`", stars, "*")


def two_stars_for_one(subject: Subject) -> Iterator[Mistake]:
    """`**` for `*`."""
    for pattern in patterns(subject):
        if not pattern.text.startswith("re:"):
            for star in parts(pattern, r"(?<![*.)\]])\*(?!\*)"):
                yield replaced(f"`**` for `*` in `{pattern.text}`", star, "**")


def leading_stars_lost(subject: Subject) -> Iterator[Mistake]:
    """A leading `**/` lost."""
    for pattern in patterns(subject):
        for stars in parts(pattern, r"^\*\*?/"):
            yield replaced(f"`{pattern.text}` without `{stars.text}`", stars, "")


def digit_for_digits(subject: Subject) -> Iterator[Mistake]:
    r"""`\d` for `\d+`."""
    for pattern in patterns(subject):
        for plus in parts(pattern, r"\\d(\+)"):
            yield replaced(rf"`\d` for `\d+` in `{pattern.text}`", plus, "")


def range_too_short(subject: Subject) -> Iterator[Mistake]:
    """A digit lost in the range of a pattern."""
    for pattern in patterns(subject):
        for digit in parts(pattern, r"\{\d+\.\.(\d)\d\}"):
            yield replaced(f"`{pattern.text}` without a digit", digit, "")
        for last in parts(pattern, r"\{\d+\.\.(\d+)\}"):
            yield replaced(f"`{pattern.text}` one short", last, str(int(last.text) - 1))


def array_range_too_short(subject: Subject) -> Iterator[Mistake]:
    """A digit lost in the range of an array's path."""
    for _, key, _ in entries(subject, "arrays"):
        for digit in parts(key, r"\{\d+\.\.(\d)\d\}"):
            yield replaced(f"`{key.text}` without a digit", digit, "")


def alternative_of_pattern_lost(subject: Subject) -> Iterator[Mistake]:
    """One of `{a,b}` or `(a|b)` lost in a pattern."""
    for pattern in patterns(subject):
        for inner in parts(pattern, r"[{(]([\w,|.*]+[,|][\w.*]+)[)}]"):
            sign = "," if "," in inner.text else "|"
            options = inner.text.split(sign)
            for lost in options:
                rest = sign.join(each for each in options if each != lost)
                yield replaced(f"`{pattern.text}` without `{lost}`", inner, rest)


def params_entry_dropped(subject: Subject) -> Iterator[Mistake]:
    """An entry of `params` dropped."""
    for route, key, _ in entries(subject, "params"):
        yield removed_entry(f"no `{key.text}`", subject, route)


def override_dropped(subject: Subject) -> Iterator[Mistake]:
    """An override dropped."""
    for index, _ in enumerate(subject.spec.overrides):
        yield removed_entry(f"no override {index}", subject, ("overrides", index))


def entries_swapped(subject: Subject) -> Iterator[Mistake]:
    """Two patterns of `params` in each other's place."""
    found = entries(subject, "params")
    for at, (_, one, _) in enumerate(found):
        for _, other, _ in found[at + 1 :]:
            if (
                one.start is not None
                and other.start is not None
                and _alike(one.span.source.text, one, other)
            ):
                yield exchanged(f"`{one.text}` and `{other.text}` swapped", one, other)


def _alike(text: str, *keys: object) -> bool:
    """Say whether keys are quoted in the same way, so that each can stand for the other."""
    before = {text[key.start - 1] for key in keys}  # type: ignore[attr-defined]
    return len(before) == 1


def regex_as_glob(subject: Subject) -> Iterator[Mistake]:
    """A regex where a glob is read."""
    for pattern in patterns(subject):
        for sign in parts(pattern, r"^re:"):
            yield replaced(f"no `re:` before `{pattern.text}`", sign, "")
        if not subject.name.endswith(".shard"):
            for regex in parts(pattern, r"^(?!re:).*\*\*?/.*$"):
                yield replaced(f"`re:` before `{pattern.text}`", regex, f"re:{regex.text}")


def scan_position_wrong(subject: Subject) -> Iterator[Mistake]:
    """A scan axis at another position."""
    for _, value in values(subject, "scan", None):
        for place in parts(value, r"@(-?\d+)"):
            for other in ("0", "1", "2", "-1"):
                if other != place.text:
                    yield replaced(f"`@{other}` for `@{place.text}`", place, other)


def scan_dropped(subject: Subject) -> Iterator[Mistake]:
    """An entry of `scan` dropped."""
    for route, key, _ in entries(subject, "scan"):
        yield removed_entry(f"no scan `{key.text}`", subject, route)


MUTATORS = (
    path_misspelt,
    one_star_for_two,
    two_stars_for_one,
    leading_stars_lost,
    digit_for_digits,
    range_too_short,
    array_range_too_short,
    alternative_of_pattern_lost,
    params_entry_dropped,
    override_dropped,
    entries_swapped,
    regex_as_glob,
    scan_position_wrong,
    scan_dropped,
)

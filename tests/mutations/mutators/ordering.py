"""Mistakes in rules: their order, their alternatives, their places."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from shardspec.diagnostics import Excerpt
from tests.mutations.subjects import Subject
from tests.mutations.text import (
    Change,
    Mistake,
    exchanged,
    parts,
    removed_entry,
    replaced,
    rules,
    typos,
    values,
    words,
)

_TUPLE = r"\([^()]*\)"
_ALTERNATIVES = r"\([^()]*\)|[A-Za-z_][\w.-]*"


def _right(rule: Excerpt) -> Excerpt:
    end = rule.text.find("@")
    return rule.part(rule.text.find("->") + 2, len(rule.text) if end < 0 else end)


def _alternatives(rule: Excerpt) -> list[Excerpt]:
    return list(parts(_right(rule), _ALTERNATIVES))


def typo_in_mesh_axis(subject: Subject) -> Iterator[Mistake]:
    """Typo in the mesh axis of a rule."""
    for rule in rules(subject):
        for word in words(_right(rule)):
            if word.text != "none":
                yield from (
                    replaced(f"`{word.text}` as `{typo}`", word, typo) for typo in typos(word.text)
                )


def other_mesh_axis(subject: Subject) -> Iterator[Mistake]:
    """Another mesh axis in a rule."""
    for rule in rules(subject):
        for word in words(_right(rule)):
            for name in sorted(subject.spec.mesh_axis_names - {word.text}):
                if word.text != "none":
                    yield replaced(f"`{name}` for `{word.text}` in `{rule.text}`", word, name)


def rules_swapped(subject: Subject) -> Iterator[Mistake]:
    """Two rules in each other's place."""
    found = rules(subject)
    for at, one in enumerate(found):
        for other in found[at + 1 :]:
            yield exchanged(f"`{one.text}` and `{other.text}` swapped", one, other)


def rule_dropped(subject: Subject) -> Iterator[Mistake]:
    """A rule dropped."""
    for index, rule in enumerate(rules(subject)):
        yield removed_entry(f"no `{rule.text}`", subject, ("rules", index))


def rule_twice(subject: Subject) -> Iterator[Mistake]:
    """A rule written twice."""
    for rule in rules(subject):
        assert rule.start is not None
        text = subject.text
        start = text.rfind("\n", 0, rule.start) + 1
        end = text.find("\n", rule.start) + 1
        yield Mistake(f"`{rule.text}` twice", (Change(end, end, text[start:end]),))


def tuple_turned(subject: Subject) -> Iterator[Mistake]:
    """The order of a tuple swapped."""
    for rule in rules(subject):
        for found in parts(_right(rule), _TUPLE):
            members = list(words(found))
            yield exchanged(f"`{found.text}` turned", members[0], members[-1])


def tuple_member_lost(subject: Subject) -> Iterator[Mistake]:
    """A mesh axis lost from a tuple."""
    for rule in rules(subject):
        for found in parts(_right(rule), _TUPLE):
            names = [word.text for word in words(found)]
            for name in names:
                rest = ", ".join(each for each in names if each != name)
                yield replaced(f"`{found.text}` without `{name}`", found, f"({rest})")


def alternatives_turned(subject: Subject) -> Iterator[Mistake]:
    """The order of two alternatives swapped."""
    for rule in rules(subject):
        found = _alternatives(rule)
        for one, other in pairwise(found):
            yield exchanged(f"`{rule.text}` turned", one, other)


def none_first(subject: Subject) -> Iterator[Mistake]:
    """`none` put before the other alternatives."""
    for rule in rules(subject):
        first = _alternatives(rule)[0]
        if first.text != "none":
            yield replaced(f"`none |` in `{rule.text}`", first, f"none | {first.text}")


def none_lost(subject: Subject) -> Iterator[Mistake]:
    """`| none` removed."""
    for rule in rules(subject):
        for found in parts(_right(rule), r"\s*\|\s*none"):
            yield replaced(f"no `| none` in `{rule.text}`", found, "")


def alternative_lost(subject: Subject) -> Iterator[Mistake]:
    """The last alternative lost."""
    for rule in rules(subject):
        found = _alternatives(rule)
        if len(found) > 1 and found[-1].text != "none":
            lost = list(parts(_right(rule), r"\s*\|\s*(?:\([^()]*\)|[\w.-]+)\s*$"))
            yield from (replaced(f"`{rule.text}` cut", part, "") for part in lost)


def priority_given(subject: Subject) -> Iterator[Mistake]:
    """A rule given a priority."""
    for rule in rules(subject):
        if "@" not in rule.text:
            for priority in (-3, 3):
                text = f"{rule.text.rstrip()} @ {priority}"
                yield replaced(f"`{text}`", rule, text)


def place_wrong(subject: Subject) -> Iterator[Mistake]:
    """A rule put elsewhere by `at`, or its `at` wrong."""
    for _, place in values(subject, "rules", None, "at"):
        for text in ("start", "before mlp", "after embed", "before mpl", "end"):
            if text != place.text:
                yield replaced(f"`at: {text}` for `{place.text}`", place, text)
    is_dsl = subject.name.endswith(".shard")
    for index, rule in enumerate(rules(subject)):
        if ("rules", index, "rule") in subject.reading.source_map.values or "@" in rule.text:
            continue
        for place_text in ("start", "end"):
            new = f'{{rule: "{rule.text}", at: {place_text}}}'
            new = f"{rule.text} at {place_text}" if is_dsl else new
            yield replaced(f"`{rule.text}` at {place_text}", rule, new)


MUTATORS = (
    typo_in_mesh_axis,
    other_mesh_axis,
    rules_swapped,
    rule_dropped,
    rule_twice,
    tuple_turned,
    tuple_member_lost,
    alternatives_turned,
    none_first,
    none_lost,
    alternative_lost,
    priority_given,
    place_wrong,
)

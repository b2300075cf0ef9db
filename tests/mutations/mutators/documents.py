"""Mistakes in what a document is made of: keys, presets, policy, levels."""

from __future__ import annotations

from collections.abc import Iterator

from shardspec import assets
from tests.mutations.subjects import Subject
from tests.mutations.text import (
    Change,
    Mistake,
    entries,
    parts,
    removed_entry,
    replaced,
    typos,
    values,
)


def key_misspelt(subject: Subject) -> Iterator[Mistake]:
    """A key of the language misspelt."""
    for route, key in subject.reading.source_map.keys.items():
        is_key = len(route) == 1 or (
            len(route) == 3 and route[0] in {"targets", "overrides", "axes"}
        )
        if is_key and key.start is not None and key.text in {str(route[-1]), "axis", "target"}:
            for typo in typos(key.text):
                yield replaced(f"`{typo}` for `{key.text}`", key, typo)


def another_preset(subject: Subject) -> Iterator[Mistake]:
    """Another preset extended."""
    for _, value in values(subject, "extends", None):
        for name in assets.spec_names("presets"):
            if name != value.text:
                yield replaced(f"`{name}` for `{value.text}`", value, name)


def preset_dropped(subject: Subject) -> Iterator[Mistake]:
    """`extends` dropped, or one of its presets."""
    found = values(subject, "extends", None)
    if found:
        yield removed_entry("no `extends`", subject, ("extends",))
    for _, value in found:
        for sign in (", ",):
            start, end = value.start or 0, (value.start or 0) + len(value.text)
            if subject.text[start - 2 : start] == sign:
                yield Mistake(f"no `{value.text}`", (Change(start - 2, end, ""),))
            elif subject.text[end : end + 2] == sign:
                yield Mistake(f"no `{value.text}`", (Change(start, end + 2, ""),))


def manifest_wrong(subject: Subject) -> Iterator[Mistake]:
    """Another model's manifest."""
    for _, value in values(subject, "manifest"):
        for name in assets.spec_names("arrays"):
            other = f"../arrays/{name}.yaml"
            if other != value.text:
                yield replaced(f"`{name}` for `{value.text}`", value, other)


def kept_when_indivisible(subject: Subject) -> Iterator[Mistake]:
    """`policy: {indivisible: keep}` added."""
    is_dsl = subject.name.endswith(".shard")
    line = "policy indivisible keep\n" if is_dsl else "policy: {indivisible: keep}\n"
    at = subject.reading.source_map.keys[("axes",)].span.start
    yield Mistake("keep", (Change(at, at, line),))


def activation_renamed(subject: Subject) -> Iterator[Mistake]:
    """Typo in the name of an activation."""
    for _, key, _ in entries(subject, "activations"):
        for typo in typos(key.text):
            yield replaced(f"`{typo}` for `{key.text}`", key, typo)


def finding_allowed(subject: Subject) -> Iterator[Mistake]:
    """A finding allowed that the spec does not have."""
    is_dsl = subject.name.endswith(".shard")
    at = subject.reading.source_map.keys[("axes",)].span.start
    for name in ("replicated-large", "indivisible", "unmatched-pattern", "size-one-axis"):
        line = f"lint {name} allow\n" if is_dsl else f"lints: {{{name}: allow}}\n"
        yield Mistake(f"{name} allowed", (Change(at, at, line),))


def version_wrong(subject: Subject) -> Iterator[Mistake]:
    """Another version of the language."""
    for _, value in values(subject, "shardspec"):
        for number in parts(value, r"\d+"):
            yield replaced("version 2", number, "2")


MUTATORS = (
    key_misspelt,
    another_preset,
    preset_dropped,
    manifest_wrong,
    kept_when_indivisible,
    activation_renamed,
    finding_allowed,
    version_wrong,
)

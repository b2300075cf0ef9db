"""Mistakes in the names of dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from shardspec.diagnostics import Excerpt
from tests.mutations.subjects import Subject
from tests.mutations.text import Mistake, entries, exchanged, replaced, rules, typos, values, words


def _misspelt(excerpts: list[Excerpt]) -> Iterator[Mistake]:
    for excerpt in excerpts:
        for word in words(excerpt):
            if word.text != "_":
                yield from (
                    replaced(f"`{word.text}` as `{typo}`", word, typo) for typo in typos(word.text)
                )


def _left(rule: Excerpt) -> Excerpt:
    return rule.part(0, rule.text.find("->"))


def typo_in_rule(subject: Subject) -> Iterator[Mistake]:
    """Typo in the logical axis of a rule."""
    yield from _misspelt([_left(rule) for rule in rules(subject)])


def typo_in_params(subject: Subject) -> Iterator[Mistake]:
    """Typo in a name in `params`."""
    yield from _misspelt([value for _, _, value in entries(subject, "params")])


def typo_in_override(subject: Subject) -> Iterator[Mistake]:
    """Typo in a name or mesh axis of an override."""
    for last in ("axes", "spec"):
        yield from _misspelt([value for _, value in values(subject, "overrides", None, last)])


def typo_in_array_type(subject: Subject) -> Iterator[Mistake]:
    """Typo in a name in an array's type."""
    for _, _, value in entries(subject, "arrays"):
        yield from _misspelt([value.part(value.text.find("["), len(value.text))])


def typo_in_activation(subject: Subject) -> Iterator[Mistake]:
    """Typo in a name of an activation."""
    yield from _misspelt([value for _, _, value in entries(subject, "activations")])


def typo_in_axes(subject: Subject) -> Iterator[Mistake]:
    """Typo in a name under `axes`."""
    yield from _misspelt([key for _, key, _ in entries(subject, "axes")])


def names_swapped(subject: Subject) -> Iterator[Mistake]:
    """Two names swapped in a `params` entry."""
    for _, _, value in entries(subject, "params"):
        found = list(words(value))
        for one, other in pairwise(found):
            if one.text != other.text:
                yield exchanged(f"`{one.text}` and `{other.text}` swapped", one, other)


def name_missing(subject: Subject) -> Iterator[Mistake]:
    """One name missing in a `params` entry."""
    for _, _, value in entries(subject, "params"):
        found = [word.text for word in words(value)]
        for index in range(len(found) if len(found) > 1 else 0):
            rest = " ".join(found[:index] + found[index + 1 :])
            yield replaced(f"`{value.text}` without `{found[index]}`", value, rest)


def name_too_many(subject: Subject) -> Iterator[Mistake]:
    """One name too many in a `params` entry."""
    for _, _, value in entries(subject, "params"):
        for word in words(value):
            yield replaced(f"`{word.text}` twice", word, f"{word.text} {word.text}")


def another_name(subject: Subject) -> Iterator[Mistake]:
    """Another axis's name in a `params` entry."""
    known = [axis.name for axis in subject.spec.logical_axes]
    for _, _, value in entries(subject, "params"):
        for word in words(value):
            for name in known:
                if name != word.text:
                    yield replaced(f"`{name}` for `{word.text}`", word, name)


def underscore(subject: Subject) -> Iterator[Mistake]:
    """`_` for a name in a `params` entry."""
    for _, _, value in entries(subject, "params"):
        named = (word for word in words(value) if word.text != "_")
        yield from (replaced(f"`_` for `{word.text}`", word, "_") for word in named)


MUTATORS = (
    typo_in_rule,
    typo_in_params,
    typo_in_override,
    typo_in_array_type,
    typo_in_activation,
    typo_in_axes,
    names_swapped,
    name_missing,
    name_too_many,
    another_name,
    underscore,
)

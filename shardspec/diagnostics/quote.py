"""What a message quotes of the language, in both of its spellings.

A message is written once, for specs in YAML and in the DSL: `f"add {added('axes', name, size)}"`.
What it quotes stands in it twice, between marks, until the text becomes part of a `Diagnostic`,
which takes them out. The marks are made anew in each process, so that no name can hold one; and
what stands beside them, names of the user above all, stays as it is.
"""

from __future__ import annotations

import os
import re

_MARK = f"\0{os.urandom(8).hex()}\0"

#: The sections whose word in the DSL is of one entry.
WORDS = {"activations": "activation", "axes": "axis", "overrides": "override"}
WORDS |= {"lints": "lint", "targets": "target", "phases": "phase"}
#: Names, and patterns of the DSL, that stand without quotes.
_KEY = re.compile(r"[A-Za-z_][\w./-]*")
_PATTERN = re.compile(r"(?!re[:\"])[^\s:=\"#;()\[\]\\]+")


class Text(str):
    """A text of a diagnostic that quotes the language: in one spelling, and it knows both."""

    __slots__ = ("both",)

    both: tuple[str, str]


def is_marked(text: str) -> bool:
    """Say whether a text quotes the language between marks."""
    return _MARK in text


def spelt(text: str, *, is_dsl: bool) -> str:
    """Return a text of a diagnostic, without marks, in one of the spellings."""
    if isinstance(text, Text):
        both = text.both
    elif is_marked(text):
        pieces = text.split(_MARK)
        yaml = "".join(piece for at, piece in enumerate(pieces) if at % 3 != 2)
        both = yaml, "".join(piece for at, piece in enumerate(pieces) if at % 3 != 1)
    else:
        return text
    found = Text(both[is_dsl])
    found.both = both
    return found


def either(yaml: str, dsl: str) -> str:
    """Return what a message says of a spec in YAML, and of one in the DSL."""
    return f"{_MARK}{yaml}{_MARK}{dsl}{_MARK}"


def section(name: str) -> str:
    """Return a section by its key: `axes`, `replicate:`; in the DSL, `axis`, `replicate`."""
    return either(f"`{name}`", f"`{_word(name.removesuffix(':'))}`")


def entry_of(name: str) -> str:
    """Return what one entry of a section is called: `axes` entry; in the DSL, `axis`."""
    return either(f"`{name}` entry", f"`{_word(name)}`")


def entry_in(name: str) -> str:
    """Return the same in other words: entry of `axes`; in the DSL, `axis`."""
    return either(f"entry of `{name}`", f"`{_word(name)}`")


def setting(name: str, *pairs: tuple[str, object]) -> str:
    """Return keys of `lints`, `state`, `coverage` or `policy` with values, as they are written."""
    yaml = ", ".join(f"{key}: {value}" for key, value in pairs)
    lines = (f"`{_word(name)} {key} {value}`" for key, value in pairs)
    return either(f"`{name}: {{{yaml}}}`", " and ".join(lines))


def key(*route: str | int) -> str:
    """Return a key by its route: `policy.indivisible`; in the DSL, `policy indivisible`."""
    first, *rest = map(str, route)
    yaml = dsl = ".".join((first, *rest))
    if first in ("lints", "state", "coverage", "policy"):
        dsl = " ".join((_word(first), *rest))
    return either(f"`{yaml}`", f"`{dsl}`")


def word(key: str, value: object, before: str = "") -> str:
    """Return a key with its value: `unit: 8`; in the DSL, `unit 8`.

    Args:
      before: what the DSL has before the key, where it stands in a block in YAML.
    """
    return either(f"`{key}: {value}`", f"`{before}{key} {value}`")


def size(name: str, value: object) -> str:
    """Return an axis with its size, as in a mesh: `data: 2`; in the DSL, `data = 2`."""
    return either(f"`{_bare(name)}: {value}`", f"`{_bare(name)} = {value}`")


def added(name: str, key: str, value: object) -> str:
    """Return an entry and where to add it: `mlp: 8` to `axes`; in the DSL, `axis mlp = 8`."""
    dsl = f"`{_word(name)} {_bare(key)} = {value}`"
    return either(f"`{_bare(key)}: {value}` to `{name}`", dsl)


def pattern(path: str, value: object) -> str:
    """Return an entry by path: `"**/wi": embed mlp`; in the DSL, `**/wi : embed mlp`."""
    return either(f"`{in_quotes(path)}: {value}`", f"`{_bare(path, _PATTERN)} : {value}`")


def override(path: str, names: str = "", spec: str = "") -> str:
    """Return an entry of `overrides` that names dimensions, or states how they are split."""
    says = f"axes: {names}" if names else f'spec: "{spec}"'
    yaml = f"`{{path: {in_quotes(path)}, {says}, because: ...}}`"
    dsl = f"{_bare(path, _PATTERN)} {f': {names}' if names else f'= {spec}'}"
    return either(yaml, f'`override {dsl} because "..."`')


def replicate(path: str, because: str) -> str:
    """Return the section `replicate` with one entry."""
    yaml = f"`replicate: [{{path: {in_quotes(path)}, because: {because}}}]`"
    return either(yaml, f'`replicate {_bare(path, _PATTERN)} because "{because}"`')


def hardware(machine: str) -> str:
    """Return what to do for a target without hardware: add it."""
    return either(f"add `hardware: {machine}`", f"write `on {machine}` before the `{{`")


def in_quotes(text: str) -> str:
    r"""Return text as a string of YAML and of the DSL.

    >>> print(in_quotes('a"b'))
    "a\"b"
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _word(name: str) -> str:
    return WORDS.get(name, name)


def _bare(name: str, form: re.Pattern[str] = _KEY) -> str:
    return name if form.fullmatch(name) else in_quotes(name)

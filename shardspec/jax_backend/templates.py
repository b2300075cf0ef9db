"""Layers that differ in a number only, and patterns that cannot tell them apart.

`decoder/layers_7/mlp/wi/kernel` and `decoder/layers_8/mlp/wi/kernel` get the same answer from
`**/mlp/wi/kernel`, and from every pattern that says nothing about the 7. So each number in a
path is replaced by a mark, unless a pattern names it, and one array stands for all that share
the result: the *template*.

This holds only for patterns whose answer cannot depend on a number they do not name. `*1`
does (it takes 21 and not 20), and so does `layer_.` (7 and not 10). Where one pattern is of
that kind there are no templates, and every path is matched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial

from shardspec.ir.spec import Pattern

#: Stands for a number; no path has it in a component that JAX or Flax made.
MARK = "\x00"

_NUMBER = re.compile(r"[0-9]+")

#: A glob's component that names numbers: plain text, and braces of plain texts or a range,
#: no digit next to a brace, where two numbers would become one.
_PLAIN = r"[^{}*?\[\]\\,]*"
_NUMBERED = re.compile(rf"{_PLAIN}(?:(?<![0-9}}])\{{[^{{}}*?\[\]\\/]*\}}(?![0-9{{]){_PLAIN})*")
_RANGE = re.compile(r"\{(0|[1-9][0-9]{0,4})\.\.(0|[1-9][0-9]{0,4})\}")

#: A regex between two of its `/`: text without digits, alternatives of such text, anything
#: that may be empty, and at most one piece that takes one character or more.
_TEXT = r"[A-Za-z_\-~]|\\[.\-_]|\(\?:|\(|\)\??|\||\.\*|\\w\*|\\d\*|\[0-9\]\*"
_RUN = r"\.\+|\\w\+|\\d\+|\[0-9\]\+"
_BLIND = re.compile(rf"\^?(?:{_TEXT})*(?:(?:{_RUN})(?:{_TEXT})*)?\$?")


def template_maker(patterns: Iterable[Pattern]) -> Callable[[str], str] | None:
    """Return the function that makes a path's template, or None where paths must be matched.

    Invariants:
      same_template: paths with one template match the same of `patterns`.
    """
    kept: set[str] = set()
    for pattern in patterns:
        named = numbers_named(pattern)
        if named is None:
            return None
        kept |= named

    free = rf"(?<![0-9])(?!(?:{'|'.join(sorted(kept))})(?![0-9]))[0-9]+" if kept else r"[0-9]+"
    return partial(re.compile(free).sub, MARK)


def numbers_named(pattern: Pattern) -> frozenset[str] | None:
    """Return the numbers a pattern names; None where others may change its answer as well.

    >>> sorted(numbers_named(Pattern("**/mlp/wi_{0,1}/kernel")))
    ['0', '1']
    >>> numbers_named(Pattern("layers_*1/kernel")) is None
    True
    """
    if pattern.dialect == "regex":
        parts = pattern.text.replace("[^/]", r"\w").split("/")
        return frozenset() if all(map(_is_blind, parts)) else None
    named: set[str] = set()
    for part in pattern.text.split("/"):
        if "\\" in part or "?" in part or "[" in part:
            return None
        if not _NUMBER.search(part):
            continue
        if not _NUMBERED.fullmatch(part):
            return None
        for low, high in _RANGE.findall(part):
            named.update(map(str, range(int(low), int(high) + 1)))
        if ".." in _RANGE.sub("", part):
            return None
        named.update(_NUMBER.findall(part))
    return frozenset(named)


def _is_blind(part: str) -> bool:
    """Say whether a regex between two `/` outside of groups takes any number for any other."""
    return part.count("(") == part.count(")") and _BLIND.fullmatch(part) is not None


def has_number(text: str) -> bool:
    """Say whether a component has a number in it."""
    return _NUMBER.search(text) is not None

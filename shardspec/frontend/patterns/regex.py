r"""Regular expressions from a spec: Python's meaning, in linear time wherever RE2 can.

A pattern in a file must not hang the compiler: `(\w+/?)+kernel` takes Python's `re` most of a
minute on a path of 34 characters. So a pattern is read by Python's parser, written anew for RE2
and matched there; what RE2 cannot express (backreferences, looking around) runs under `re` within
a budget, and says why. Either way the answer is that of `re.fullmatch`.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from shardspec.frontend.grammar.syntax import SyntaxFault
from shardspec.frontend.patterns.backtracking import backtracking_matches, note_fallback
from shardspec.frontend.patterns.limits import KEPT
from shardspec.frontend.patterns.re2_engine import has_re2, re2_pattern

if TYPE_CHECKING:
    from shardspec.frontend.patterns.regex_tree import Beyond, Tree
    from shardspec.frontend.patterns.wide_paths import WideMatcher

Engine = Literal["re2", "re"]


@dataclass(frozen=True, slots=True)
class Regex:
    """A pattern that is ready to match.

    Attributes:
      text: the pattern as Python spells it.
      engine: `re2` is linear in the path; `re` may backtrack until its budget is spent.
      reason: for `re`: what keeps RE2 from it, e.g. "a backreference".
      plain: for `re2`: RE2's spelling, for plain paths (ASCII without a line break).

    Invariants:
      same_answers: `matches(path)` is `re.fullmatch(text, path) is not None`, within the budget.
    """

    text: str
    engine: Engine
    reason: str = ""
    plain: str = ""

    def matches(self, path: str) -> bool:
        """Say whether the pattern matches the whole path."""
        if self.engine == "re2":
            if is_plain(path):
                pattern = re2_pattern(self.plain)
                if pattern is not None:
                    return pattern.fullmatch(path) is not None
            wide = _wide(self.text)
            found = wide.indices(path)
            if found is not None:
                return bool(found)
            note_fallback(self.text, wide.trouble)
        return backtracking_matches(self.text, path)


def is_plain(path: str) -> bool:
    """Say whether a path is ASCII, not empty and without a line break: nearly all are."""
    return path.isascii() and "\n" not in path and path != ""


@lru_cache(maxsize=KEPT)
def compile_regex(text: str) -> Regex | SyntaxFault:
    r"""Return a Python regex ready to match whole paths, or what is wrong with it.

    >>> compile_regex(r"(.*)/(query|key)/kernel").engine
    're2'
    >>> compile_regex(r"(a+)/\1").reason
    'a backreference'
    """
    from shardspec.frontend.patterns.re2_source import Alphabet, re2_source
    from shardspec.frontend.patterns.regex_tree import Beyond, read_regex, regex_fault

    tree = read_regex(text)
    if isinstance(tree, SyntaxFault):
        return tree
    reason = _reason(tree)
    plain = ""
    if not reason and not isinstance(tree, Beyond):
        try:
            plain = re2_source(tree, Alphabet())
        except RecursionError as error:
            return regex_fault(text, error)
        if re2_pattern(plain) is None:
            reason = "its size: RE2 would need too much memory"
    if not reason:
        return Regex(text, "re2", plain=plain)
    try:
        python_regex(text)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        return regex_fault(text, error)
    return Regex(text, "re", reason)


def regex_literal(text: str) -> str | None:
    """Return the one text that a regex matches, where it spells it out."""
    from shardspec.frontend.patterns.regex_tree import Exactly, Run, read_regex

    tree = read_regex(text)
    items = tree.items if isinstance(tree, Run) else (tree,)
    chars = [item.char for item in items if isinstance(item, Exactly)]
    return "".join(chars) if len(chars) == len(items) else None


@lru_cache(maxsize=KEPT)
def python_regex(text: str) -> re.Pattern[str]:
    """Return a pattern compiled by `re`, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return re.compile(text)


@lru_cache(maxsize=KEPT)
def _wide(text: str) -> WideMatcher:
    from shardspec.frontend.patterns.regex_tree import Beyond, read_regex
    from shardspec.frontend.patterns.wide_paths import WideMatcher

    tree = read_regex(text)
    assert not isinstance(tree, Beyond | SyntaxFault), "only what RE2 can express comes here"
    return WideMatcher((tree,))


def _reason(tree: Tree | Beyond) -> str:
    """Return what keeps a pattern from RE2, or ""."""
    from shardspec.frontend.patterns.regex_tree import Anchor, Beyond, nodes

    if isinstance(tree, Beyond):
        return tree.reason
    if not has_re2():
        return "google-re2, which is not installed"
    anchors = {node for node in nodes(tree) if isinstance(node, Anchor)}
    kinds = {anchor.kind for anchor in anchors}
    if "end_or_break" in kinds and kinds & {"line_start", "line_end"}:
        return "`$` or `^` both with and without MULTILINE"
    boundaries = {a.ascii for a in anchors if a.kind in ("boundary", "not_boundary")}
    return "word boundaries both with and without ASCII" if len(boundaries) == 2 else ""

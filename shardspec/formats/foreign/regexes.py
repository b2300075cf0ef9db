r"""Regexes as other tools mean them -> regexes that match the whole of our paths.

Some tools take `re.search`, some `re.fullmatch`; some join paths by `.`. The language has one
reading, `fullmatch` on `/`-joined paths, so a pattern is rewritten rather than explained. Paths
have no line breaks, which makes `$` an end and `.*` anything at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from shardspec.frontend.grammar.syntax import SyntaxFault
from shardspec.frontend.patterns.regex import MAX_LENGTH, compile_regex

Match = Literal["search", "fullmatch"]

_FLAGS = re.compile(r"(?:\(\?[aiLmsux]+\))+")
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)


def whole_path_regex(pattern: str, match: Match) -> str:
    r"""Return the regex that matches whole paths where `pattern` does in its tool.

    >>> whole_path_regex("attention/(wq|wk)/kernel", "search")
    '.*attention/(wq|wk)/kernel.*'
    >>> whole_path_regex("^wte|lm_head$", "search")
    '.*(?:^wte|lm_head$).*'
    >>> whole_path_regex("^wte/.*", "search")
    'wte/.*'

    Invariants:
      same: where `pattern` is a regex, `fullmatch` of the result is `match` of it.
    """
    if match == "fullmatch":
        return pattern
    flags = _FLAGS.match(pattern)
    start = flags.group() if flags else ""
    body = pattern[len(start) :]
    if "x" in start:
        return f"{start}.*(?:{body}\n).*"
    tokens = list(_tokens(body))
    if _has_choice(tokens):
        return f"{start}.*(?:{body}).*"
    return start + _opened(tokens, body)


def _opened(tokens: list[str], body: str) -> str:
    """Return a pattern of one branch with `.*` at the ends where it does not say otherwise."""
    before = after = ".*"
    if tokens[:1] == ["^"]:
        before, tokens = "", tokens[1:]
    elif tokens[:2] == [".", "*"] and tokens[2:3] not in (["?"], ["+"], ["*"], ["{"]):
        before = ""
    if tokens[-1:] == ["$"]:
        after, tokens = "", tokens[:-1]
    elif tokens[-2:] == [".", "*"]:
        after = ""
    inner = "".join(tokens)
    return before or after if not inner and (before or after) else before + inner + after


def _tokens(pattern: str) -> Iterator[str]:
    """Yield escapes, sets of characters, and single characters."""
    for found in _TOKEN.finditer(pattern):
        yield found.group()


def _has_choice(tokens: list[str]) -> bool:
    """Say whether `|` stands outside of all groups."""
    depth = 0
    for token in tokens:
        depth += (token == "(") - (token == ")")
        if token == "|" and depth == 0:
            return True
    return False


def slashed(pattern: str, separator: str) -> str:
    r"""Return a pattern for paths joined by `separator` as one for paths joined by `/`.

    The two characters change places wherever they stand for themselves.

    >>> slashed(r"layers\.[^.]+\.wq", ".")
    'layers/[^/]+/wq'
    """
    if separator == "/":
        return pattern
    here = (re.escape(separator), *(() if separator in ".^$*+?{}[]\\|()" else (separator,)))
    return "".join(_swapped(token, separator, here) for token in _tokens(pattern))


def _swapped(token: str, separator: str, here: tuple[str, ...]) -> str:
    if token in here or token == "\\" + separator:
        return "/"
    if token in ("/", r"\/"):
        return re.escape(separator)
    if len(token) > 1 and token[0] == "[":
        table = {ord(separator): "/", ord("/"): separator}
        return token[0] + token[1:-1].translate(table) + token[-1]
    return token


def fault(pattern: str) -> str | None:
    """Return what is wrong with a regex, None where nothing is."""
    if len(pattern) > MAX_LENGTH:
        return f"it has {len(pattern):,} characters"
    found = compile_regex(pattern)
    return found.message if isinstance(found, SyntaxFault) else None


def naive(pattern: str, match: Match) -> str:
    """Return a regex under `fullmatch` for the tool's own paths, whatever it looks like.

    Unlike `whole_path_regex` it looks at nothing in the pattern but its flags.
    """
    if match == "fullmatch":
        return pattern
    flags = _FLAGS.match(pattern)
    start = flags.group() if flags else ""
    end = "\n" if "x" in start else ""
    return f"{start}(?:.*)(?:{pattern[len(start) :]}{end})(?:.*)"

"""What to say where a parser stops: what was expected, after what, and what would work.

The parser itself knows what it would have accepted; `confusions` knows what people write when
they mean that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardspec.frontend.grammar.confusions import help_for
from shardspec.frontend.grammar.syntax import SyntaxFault

if TYPE_CHECKING:
    from lark import Lark, Token

#: Terminals in words, in the order in which a message names them.
_WORDS = {
    "LOGICAL_AXIS": "a logical axis",
    "MESH_AXIS": "a mesh axis",
    "NONE": "`none`",
    "BLANK": "`_`",
    "PRIORITY": "a whole number",
    "POSITION": "a position",
    "EDGE": "`start`, `end`",
    "SIDE": "`before`, `after`",
    "DTYPE": "a dtype",
    "SIZE": "a size",
    "COUNT": "a number",
    "REST": "`rest`",
    "SUBMESH": "`submesh`",
    "AUTO": "`auto`",
    "TYPE": "`explicit`, `manual`",
    "NETWORK": "`dcn` or `ici`",
    "PLATFORM": "`tpu`, `gpu`, `cpu`",
    "CHIP": "the name of a chip",
    "TILE": "chips along each dimension (`4x4x8`)",
    "NAME": "a name",
    "KEY": "a name",
    "INTEGER": "a whole number",
    "REST_OF_LINE": "a value",
    "STRING": "text in double quotes",
    "REGEX": '`re"..."`',
    "PATTERN": "a path pattern",
    "WORD": "a word",
    "BECAUSE": "`because`",
}
_ORDER = {name: place for place, name in enumerate(_WORDS)}
_WORD = re.compile(r"[-=]>|[\w.-]+|\S")
_BRACKETS = re.compile(r"^\s*[\[(]|->\s*\[")
_SEEN = 80


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a parser stopped.

    Attributes:
      accepts: the terminals that would have let it go on, without the grammar they are from.
      words: the same, as a message names them.
    """

    at: int
    accepts: frozenset[str]
    words: tuple[str, ...]


def explain_fault(parser: Lark, start: str, text: str) -> SyntaxFault:
    """Return the fault of a text that `parser` has refused."""
    stop = stop_of(parser, start, text)
    before, found = text[max(0, stop.at - _SEEN) : stop.at], text[stop.at : stop.at + _SEEN]
    help = _meant(start, text) or help_for(start, before, found)
    word = _WORD.match(found)
    end = stop.at + (len(word.group()) if word else 0)
    if start == "path_pattern":
        return _in_glob(text, stop.at, end, help)
    previous = _WORD.findall(before)
    after = f" after `{previous[-1]}`" if previous else ""
    return SyntaxFault(f"expected {either(stop.words)}{after}", stop.at, end, help)


def _meant(start: str, text: str) -> str | None:
    """Return the same in this language, where it is written as other tools do."""
    from shardspec.frontend.grammar.meant import partition_meant, rule_meant

    if start == "axis_rule" and _BRACKETS.search(text):
        meant = rule_meant(text)
    elif start == "partition":
        meant = partition_meant(text)
    else:
        return None
    return f"write `{meant}`" if meant else None


def stop_of(parser: Lark, start: str, text: str) -> Stop:
    """Return where `parser` stops in `text`, which it has refused."""
    from lark.exceptions import UnexpectedInput

    machine = parser.parse_interactive(text, start=start)
    at = len(text.rstrip())
    fed: list[Token] = []
    try:
        for token in machine.iter_parse():
            fed.append(token)
    except UnexpectedInput as fault:
        at = at if fault.pos_in_stream is None else fault.pos_in_stream
    # A parser may go on a few steps with a word that does not fit; this one has not seen it.
    machine = parser.parse_interactive("", start=start)
    for token in fed:
        if (token.start_pos or 0) < at:
            machine.feed_token(token)
    accepted: set[str] = machine.accepts()  # type: ignore[no-untyped-call]
    accepts = sorted(accepted, key=_order)
    words = tuple(dict.fromkeys(_in_words(parser, terminal) for terminal in accepts))
    return Stop(at, frozenset(map(_short, accepts)), words)


def either(words: tuple[str, ...]) -> str:
    """Return words as a choice.

    >>> either(("a mesh axis", "`none`", "`(`"))
    'a mesh axis, `none` or `(`'
    """
    *most, last = words or ("something else",)
    return f"{', '.join(most)} or {last}" if most else last


def _in_glob(text: str, at: int, end: int, help: str | None) -> SyntaxFault:
    """Return the fault of a glob; a missing `}` points at the `{` that is open."""
    if text == "":
        help = "`**` matches every path"
        return SyntaxFault("this pattern is empty, and no path is", 0, 0, help)
    if text[at : at + 1] == "}":
        return SyntaxFault("`}` closes nothing", at, end, help)
    if text[at : at + 1] == "\\":
        return SyntaxFault("nothing stands after `\\`", at, end, help)
    opened = _open_brace(text)
    return SyntaxFault("`{` is not closed", opened, opened + 1, help)


def _open_brace(text: str) -> int:
    opened = [0]
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}" and len(opened) > 1:
            opened.pop()
    return opened[-1]


def _order(terminal: str) -> tuple[int, str]:
    if terminal == "$END":
        return (len(_ORDER) + 1, "")
    return (_ORDER.get(_short(terminal), len(_ORDER)), terminal)


def _in_words(parser: Lark, terminal: str) -> str:
    if terminal == "$END":
        return "the end"
    return _WORDS.get(_short(terminal)) or f"`{parser.get_terminal(terminal).pattern.value}`"


def _short(terminal: str) -> str:
    """Return the name of a terminal without the grammar it was imported from."""
    return terminal if terminal.startswith("__") else terminal.rpartition("__")[2]

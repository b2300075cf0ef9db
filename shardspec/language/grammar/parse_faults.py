"""What to say where a parser stops: what was expected, after what, and what would work.

The parser itself knows what it would have accepted. What people write when they mean something
else stands in rows, `grammars/faults.yaml`, that are tried in order at the place where it stopped:
the start symbols they belong to, what ends before the place, what stands at it, and the help.

Rules and partitions as other tools spell them, `("batch", ("replica", "fsdp"))`, `[a, b] -> x`,
`P(None, "data")`, `batch: fsdp`, are put in this language: whoever writes one knows what it should
say, so a message shows it in their own words. What comes back can be read.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import chain
from typing import NamedTuple

from shardspec.assets import data_of
from shardspec.language.grammar.parser import Parser, parser
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.python_syntax import expression

_LONGEST = 400
_SPECS = frozenset({"P", "PartitionSpec"})


def rule_meant(data: object) -> str | None:
    """Return the rule that a pair, a mapping of one name, or text in brackets was meant to be.

    >>> rule_meant(["batch", ["replica", "fsdp"]]), rule_meant({"batch": "fsdp"})
    ('batch -> (replica, fsdp)', 'batch -> fsdp')
    >>> rule_meant("('embed', None)"), rule_meant("[a, b] -> x")
    ('embed -> none', 'a, b -> x')
    """
    if isinstance(data, str):
        left, arrow, right = data.partition("->")
        if arrow:
            names = _nested(left) if left.strip()[:1] in {"(", "["} else left.strip()
            mesh_axes = _nested(right) if right.strip()[:1] == "[" else right
            return _rule(names, mesh_axes) if mesh_axes is not None else None
        data = _nested(data)
    if isinstance(data, dict) and len(data) == 1:
        (data,) = data.items()
    if isinstance(data, list | tuple) and len(data) == 2:
        return _rule(data[0], data[1])
    return None


def partition_meant(data: object) -> str | None:
    """Return the partition that a list, or text such as `P(None, "data")`, was meant to be.

    >>> partition_meant("P(None, ('replica', 'data'))"), partition_meant(["data", None])
    ('(none, (replica, data))', '(data, none)')
    """
    dims = _nested(data) if isinstance(data, str) else data
    if not isinstance(dims, list | tuple) or not dims:
        return None
    spelt = [_mesh_axes(dim) for dim in dims]
    if None in spelt:
        return None
    text = f"({', '.join(map(str, spelt))})"
    return text if _is_read("partition", text) else None


def _rule(left: object, right: object) -> str | None:
    names = left if isinstance(left, list | tuple) else (left,)
    target = _mesh_axes(right)
    if target is None or not names or not all(isinstance(name, str) for name in names):
        return None
    text = f"{', '.join(map(str, names))} -> {target}"
    return text if _is_read("axis_rule", text) else None


def _is_read(start: str, text: str) -> bool:
    return parser("axis_rule").parse(text, start) is not None


def _mesh_axes(data: object) -> str | None:
    """Return one right side of a rule."""
    if data is None or data in ("None", "null", (), []):
        return "none"
    if isinstance(data, str):
        return data.strip()
    if not isinstance(data, list | tuple) or not all(isinstance(axis, str) for axis in data):
        return None
    if len(set(data)) < len(data):
        return None
    return str(data[0]) if len(data) == 1 else f"({', '.join(map(str, data))})"


def _nested(text: str) -> object:
    """Return the tuples and texts that Python, or YAML in brackets, would read; None for others."""
    text = text.strip()
    if len(text) > _LONGEST or "\\" in text:
        return None
    try:
        return _value(expression(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> object:
    match node:
        case ast.Constant(value=str() | None):
            return node.value
        case ast.Name(id=name):
            return name
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return tuple(map(_value, elements))
        case ast.Call(func=function, args=elements, keywords=[]) if _is_spec(function):
            return tuple(map(_value, elements))
    raise ValueError(node)


def _is_spec(function: ast.expr) -> bool:
    """Say whether this is `P`, `PartitionSpec` or one of a module."""
    name = function.attr if isinstance(function, ast.Attribute) else None
    return (function.id if isinstance(function, ast.Name) else name) in _SPECS


class _Row(NamedTuple):
    """What helps at one place; see `grammars/faults.yaml`."""

    at: list[str]
    help: str
    left: str = ""
    right: str = ""


class FaultTable(NamedTuple):
    """What is said of what cannot be read.

    Attributes:
      rows: what helps, in the order in which they are tried.
      words: terminals in words, in the order in which a message names them.
      forms: how a statement of the DSL looks.
    """

    rows: list[_Row]
    words: dict[str, str]
    forms: dict[str, str]


@cache
def fault_table() -> FaultTable:
    """Return `grammars/faults.yaml`."""
    found = data_of("grammars/faults.yaml")
    return FaultTable([_Row(**each) for each in found["rows"]], found["words"], found["forms"])


def help_for(start: str, before: str, found: str) -> str | None:
    """Return what would work, or None where nobody has been here before.

    Args:
      start: the start symbol.
      before: the text up to the place where the parser stopped.
      found: the text from there.
    """
    for row in fault_table().rows:
        if start in row.at and re.search(row.left, before) and re.match(row.right, found):
            return row.help
    return None


#: What a size in a mesh is made of.
_IN_MESHES = {"a logical axis": "a name of `let`", "a size": "a number"}
_LIST = re.compile(r"`[^`]+`(?:, `[^`]+`)+")
_WORD = re.compile(r"[-=]>|[\w.-]+|\S")
_BRACKETS = re.compile(r"^\s*[\[(]|->\s*\[")
_SEEN = 80


#: `$EMBED` and `${EMBED:-4096}`.
SHELL_VARIABLE = re.compile(r"\$(?:\{\w[^{}$\n]*+\}|\w++)")


def variable_fault(found: re.Match[str]) -> SyntaxFault:
    """Return the fault of a variable of a shell: what a spec says depends on files alone."""
    message = f"`{found[0]}` is a variable of a shell, and specs have none"
    help = "write the value here; `--set KEY=VALUE` replaces it for one run"
    return SyntaxFault(message, found.start(), found.end(), help)


def explain_fault(parser: Parser, start: str, text: str) -> SyntaxFault:
    """Return the fault of a text that `parser` has refused."""
    stop = parser.stop(text, start)
    if variable := SHELL_VARIABLE.match(text, stop.at):
        return variable_fault(variable)
    before, found = text[max(0, stop.at - _SEEN) : stop.at], text[stop.at : stop.at + _SEEN]
    help = _meant(start, text) or help_for(start, before, found)
    word = _WORD.match(found)
    end = stop.at + (len(word.group()) if word else 0)
    if start == "path_pattern":
        return _in_glob(text, stop.at, end, help)
    previous = _WORD.findall(before)
    after = f" after `{previous[-1]}`" if previous else ""
    words = expected(parser, stop.accepted)
    if start == "mesh_size":
        words = tuple(_IN_MESHES.get(word, word) for word in words)
    return SyntaxFault(f"expected {either(words)}{after}", stop.at, end, help)


def _meant(start: str, text: str) -> str | None:
    """Return the same in this language, where it is written as other tools do."""
    if start == "axis_rule" and _BRACKETS.search(text):
        meant = rule_meant(text)
    elif start == "partition":
        meant = partition_meant(text)
    else:
        return None
    return f"write `{meant}`" if meant else None


def expected(parser: Parser, accepted: tuple[str, ...]) -> tuple[str, ...]:
    """Return what would let a parser go on, as a message names it."""
    words = (in_words(parser, terminal) for terminal in sorted(accepted, key=_order))
    return tuple(dict.fromkeys(words))


def either(words: tuple[str, ...]) -> str:
    """Return words as a choice; what is a list itself is taken apart.

    >>> either(("a mesh axis", "`none`", "`(`")), either(("`start`, `end`", "`after`"))
    ('a mesh axis, `none` or `(`', '`start`, `end` or `after`')
    """
    apart = (w.split(", ") if _LIST.fullmatch(w) else [w] for w in words or ("something else",))
    *most, last = chain.from_iterable(apart)
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
    order = [*fault_table().words]
    if terminal == "$END":
        return (len(order) + 1, "")
    name = _short(terminal)
    return (order.index(name) if name in order else len(order), terminal)


def in_words(parser: Parser, terminal: str) -> str:
    """Return what a terminal is called in a message: `a mesh axis`, or its own text."""
    if terminal == "$END":
        return "the end"
    known = fault_table().words.get(_short(terminal))
    return known or f"`{parser.shown(terminal)}`"


def _short(terminal: str) -> str:
    """Return the name of a terminal without the grammar it was imported from."""
    return terminal if terminal.startswith("__") else terminal.rpartition("__")[2]

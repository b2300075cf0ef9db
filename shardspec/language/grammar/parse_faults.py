"""What to say where a parser stops: what was expected, after what, and what would work.

The parser itself knows what it would have accepted. What people write when they mean something
else stands in rows that are tried in order at the place where it stopped: the start symbols they
belong to, what ends before the place, what stands at it, and the help.

Rules and partitions as other tools spell them, `("batch", ("replica", "fsdp"))`, `[a, b] -> x`,
`P(None, "data")`, `batch: fsdp`, are put in this language: whoever writes one knows what it should
say, so a message shows it in their own words. What comes back can be read.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardspec.language.grammar.parser import parser
from shardspec.language.grammar.refusals import NO_NAMES
from shardspec.language.grammar.syntax import SyntaxFault

if TYPE_CHECKING:
    from lark import Lark, Token


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
    from lark.exceptions import UnexpectedInput

    try:
        parser("axis_rule").parse(text, start=start)
    except UnexpectedInput:
        return False
    return True


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
        return _value(ast.parse(text, mode="eval").body)
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


_RULES = frozenset({"axis_rule"})
_PARTITIONS = frozenset({"partition"})
_MESH = _RULES | _PARTITIONS
_OVER = frozenset({"mesh_axes"})
_NAMES = frozenset({"names"})
_SCAN = frozenset({"scan"})
_TYPES = frozenset({"array_type"})
_SIZES = frozenset({"size", "array_type"})
_DERIVED = frozenset({"derived"})
_MESH_SIZES = frozenset({"mesh_size"})
_HARDWARE = frozenset({"hardware"})
_GLOBS = frozenset({"path_pattern"})
_STEPS = frozenset({"step_line"})
_ANY = _MESH | _OVER | _NAMES | _SCAN | _SIZES | _DERIVED | _MESH_SIZES | _HARDWARE | {"place"}

_ARROW = "an arrow joins names and mesh axes: `embed -> model`"
_TUPLE = "several mesh axes stand in parentheses: `(replica, data)`; no mesh axis is `none`"
_TILE = "chips along each dimension are joined by `x`: `4x4x8`"

_ROWS: tuple[tuple[frozenset[str], str, str, str], ...] = (
    (_ANY, r"", r"[\"'`]", "names stand without quotes"),
    (_MESH, r"\(\s*$", r"\)", "no mesh axis at all is written `none`"),
    (_RULES, r"[\w)]\s*$", r"=>|=|:|→|-+>|-", _ARROW),
    (_RULES, r"->\s*$", r"$", "name a mesh axis of a target, or `none`"),
    (_RULES, r"->.*\w\s*$", r"\?", "`?` stands behind parentheses: `(model)?`, `(model, fsdp)?`"),
    (_PARTITIONS | _OVER, r"", r"\?", "`?` is for rules: here stands what is, and all of it"),
    (_MESH, r"", r"\[", _TUPLE),
    (
        _RULES,
        r"->.*[\w)]\s*$",
        r",",
        "alternatives are separated by `|`; " + _TUPLE.partition(";")[0],
    ),
    (
        _RULES,
        r"->.*[\w)]\s*$",
        r"\|\||or\b|/|;|\w",
        "alternatives are separated by `|`: `embed -> model | data`",
    ),
    (_RULES, r"^[^>]*\w\s*$", r"\w", "several names are separated by `,`: `mlp, heads -> model`"),
    (_RULES, r"^[^>]*$", r"none\b", "`none` stands on the right: `kv -> none`"),
    (_RULES, r"^[^>]*$", r"_", "a rule needs the name of an axis; `_` names none"),
    (_MESH, r"", r"_(?!\w)", "no mesh axis at all is written `none`"),
    (_MESH, r"[\[(].*$", r"\]|\[", _TUPLE),
    (_RULES, r"@\s*$", r"", "a priority is a whole number; lower is earlier: `embed -> data @ 5`"),
    (
        _PARTITIONS,
        r"^\s*$",
        r"none\s*$",
        "one entry a dimension: `(none)` for one, `(none, none)` for two",
    ),
    (
        _PARTITIONS,
        r"^\s*$",
        r"P\b|PartitionSpec\b|\w",
        "one entry a dimension, in parentheses: `(none, model)`",
    ),
    (_PARTITIONS, r"\w\s*$", r"\w", "the dimensions are separated by `,`: `(none, model)`"),
    (_OVER, r"^[\s(]*$", r"none\b|\)|$", "name a mesh axis of a target: `data`, `(replica, data)`"),
    (_OVER, r"", r"", "several mesh axes stand in parentheses: `(replica, data)`"),
    (_NAMES, r"^\s*$", r"none\s*$", NO_NAMES),
    (_NAMES, r"", r"none\b", "a dimension without a name is written `_`"),
    (_NAMES, r"", r"\[|\(", "names stand one after another: `embed mlp`"),
    (_NAMES, r"", r"\d", "names begin with a letter; sizes stand in the types of `arrays`"),
    (_NAMES, r"", r"->", "names only: mesh axes are placed by `rules`"),
    (_SCAN, r"@\s*$", r"", "a position is counted from 0 at the front of the array: `layers@0`"),
    (_SCAN, r"", r"=|:|\d|$", "an axis and its position are joined by `@`: `layers@0`"),
    (
        _DERIVED,
        r"^\s*$",
        r"",
        "name the parent, and which of its dimensions these are: `from **/kernel dims 0 _`",
    ),
    (
        _DERIVED,
        r"from\s+\S+\s+$",
        r"",
        "the dimensions stand behind `dims`: `from **/kernel dims 0 _`",
    ),
    (_DERIVED, r"dims\b.*$", r"none\b", "a dimension that is none of the parent's is written `_`"),
    (_DERIVED, r"dims\b.*$", r"\[|\(", "dimensions stand one after another: `dims 0 _`"),
    (
        _DERIVED,
        r"dims\b.*$",
        r"",
        "a dimension of the parent (`0`, `-1`, `0/128`, `0*8`), a name, or `_`",
    ),
    (_TYPES, r"^\s*\w*\s*$", r"\(|<|\{|$", "sizes stand in brackets: `bf16[embed mlp]`"),
    (_TYPES, r"^\s*$", r"\[|\d", "a dtype comes first: `f32[4096, 512]`"),
    (_TYPES, r"", r"none\b", "a dimension without a name is its size: `4096`, or `_=4096`"),
    (_TYPES, r"_\s*$", r"", "a dimension without a name needs its size: `_=4096`"),
    (_SIZES, r"\w\s*$", r"[x×]\s", "sizes are multiplied by `*`: `heads * kv`"),
    (_SIZES, r"", r"\d+[x×]", "sizes are multiplied by `*`: `heads * kv`"),
    (_SIZES, r"", r"\d+_\d|\d+[kKmM]\b", "sizes are written in digits: `4096`"),
    (
        _SIZES,
        r"",
        r"[+/%^-]|\*\*",
        "numbers and axes are added, taken off and multiplied: `heads * kv + 2 * state`",
    ),
    (
        _MESH_SIZES,
        r"^\s*$",
        r"-1|\*|\?|\.\.\.|all\b|none\b|None\b",
        "what the other axes leave over is written `rest`",
    ),
    (_MESH_SIZES, r"@\s*$", r"", "`@ dcn` is an axis between slices or nodes, `@ ici` one within"),
    (_MESH_SIZES, r"submesh\s*$", r"[\[(]|\d", _TILE),
    (
        _MESH_SIZES,
        r"\bover\b[^(),]*$",
        r"",
        "name directions of the machine, major to minor: `over x y4` (all of x, 4 along y)",
    ),
    (_MESH_SIZES, r"auto\s*$", r"", "`auto` needs the number of partitions: `auto 16`"),
    (_MESH_SIZES, r"^\s*$", r"\d+x", "a tile is written `submesh 4x2x2x1`"),
    (_MESH_SIZES, r"", r"dcn\b|ici\b", "the network follows `@`: `2 @ dcn`"),
    (
        _MESH_SIZES,
        r"^\s*$",
        r"(explicit|manual)\b",
        "the size stands before the type: `8 explicit`",
    ),
    (_MESH_SIZES, r"[\w@]\s+\w+\s*$", r"(auto|explicit|manual)\b", "an axis has one type"),
    (
        _MESH_SIZES,
        r"\w\s+$",
        r"[A-Za-z]",
        "types of axes are `auto`, `explicit` and `manual`: `8 explicit`",
    ),
    (
        _HARDWARE,
        r"\bby\s*$",
        r"",
        "behind `by` is a file of `shardspec calibrate`: `tpu v4 4x4x8 by hardware.local.yaml`",
    ),
    (_HARDWARE, r"", r"\d+x(\s|[A-Za-z])|[x×]\s", "slices or nodes stand before `*`: `2 * h100`"),
    (_HARDWARE, r"", r"[x×]\s|[(\[,]|\d+[*X]\d|\*", _TILE),
    (
        _HARDWARE,
        r"[A-Za-z]\w*\s+$",
        r"\d+\s*$",
        "a number of chips comes first: `16 v5e`; a slice is `4x4`",
    ),
    (_HARDWARE, r"", r"$", "name a chip: `tpu v4 4x4x8`, `4 * h100`, `8 cpu`"),
    (frozenset({"place"}), r"", r"", "`start`, `end`, `before mlp` or `after mlp`"),
    (_STEPS, r"^[^>]*$", r"$", "an arrow leads to what the line makes: `a, b -> c`"),
    (_STEPS, r"^[^>]*[\w\])\"]\s*$", r"=>|=|:|-", "an arrow leads to what the line makes: `->`"),
    (_STEPS, r"->\s*$", r"", "name what the line makes: `residual, a/kernel -> hidden`"),
    (_STEPS, r"[\w\])\"]\s*$", r"\*|@|\w", "what is read stands with `,` between: `a, b -> c`"),
    (_STEPS, r"\[[^\]]*$", r"\d", "a size follows its name: `slot=640`"),
    (_STEPS, r"flops[^,]*$", r"", "FLOPs are a product of numbers and axes: `2 * batch * embed`"),
    (_GLOBS, r"", r"\}", r"nothing is open here; a brace of the path itself is written `\}`"),
    (_GLOBS, r"", r"\\$", r"`\` makes the next character stand for itself; write `\\` for one"),
    (_GLOBS, r"", r"$", r"close it with `}`; a brace of the path itself is written `\{`"),
)


def help_for(start: str, before: str, found: str) -> str | None:
    """Return what would work, or None where nobody has been here before.

    Args:
      start: the start symbol.
      before: the text up to the place where the parser stopped.
      found: the text from there.
    """
    for starts, left, right, help in _ROWS:
        if start in starts and re.search(left, before) and re.match(right, found):
            return help
    return None


#: Terminals in words, in the order in which a message names them.
_WORDS = {
    "LOGICAL_AXIS": "a logical axis",
    "ANY": "`*`",
    "MESH_AXIS": "a mesh axis",
    "NONE": "`none`",
    "BLANK": "`_`",
    "PRIORITY": "a whole number",
    "POSITION": "a position",
    "EDGE": "`start`, `end`",
    "SIDE": "`before`, `after`",
    "PARENT": "the path of a parent",
    "PLACE": "a dimension of the parent",
    "ELLIPSIS": "`...`",
    "DTYPE": "a dtype",
    "SIZE": "a size",
    "SIGN": "`+`, `-`",
    "COUNT": "a number",
    "COUNTS": "several (`{1..8}`)",
    "REST": "`rest`",
    "SUBMESH": "`submesh`",
    "AUTO": "`auto`",
    "OVER": "`over`",
    "FIT": "`fit`",
    "STRETCH": "a direction (`x`, `y4`)",
    "TYPE": "`explicit`, `manual`",
    "NETWORK": "`dcn` or `ici`",
    "PLATFORM": "`tpu`, `gpu`, `cpu`",
    "CHIP": "the name of a chip",
    "TILE": "chips along each dimension (`4x4x8`)",
    "CALIBRATION": "a file of `shardspec calibrate` (`hardware.local.yaml`)",
    "NAME": "a name",
    "KEY": "a name",
    "INTEGER": "a whole number",
    "REST_OF_LINE": "a value",
    "STRING": "text in double quotes",
    "REGEX": '`re"..."`',
    "PATTERN": "a path pattern",
    "WORD": "a word",
    "BECAUSE": "`because`",
    "PARTS": "`parts`",
    "INTERLEAVED": "`interleaved`",
    "VALUE": "a value",
    "CALL": "`flash`, `gather`, `route`, `dispatch`, `combine`, `split` or `op`",
    "FLOPS": "`, flops`",
    "TIMES": "`x 24`",
    "PER": "`per`",
    "AS": "`as`",
    "SUMS": "`unreduced`, `reduced`",
    "SECTION": "a section",
    "STEP_KEY": "a setting of the step",
    "MEMORY": "`memory`",
    "MEMORY_KIND": "a kind of memory",
    "TRAINING": "`trained` or `frozen`",
    "FILE": "a file",
    "AMOUNT": "an amount (`2%`, `64 MiB`)",
    "ESCAPED_REGEX": '`re:"..."`',
    "LITERAL": "characters of a path",
    "RANGE": "a range (`{0..23}`)",
}
#: What a size in a mesh is made of.
_IN_MESHES = {"a logical axis": "a name of `let`", "a size": "a number"}
_ORDER = {name: place for place, name in enumerate(_WORDS)}
_LIST = re.compile(r"`[^`]+`(?:, `[^`]+`)+")
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
    words = stop.words
    if start in _MESH_SIZES:
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
    words = tuple(dict.fromkeys(in_words(parser, terminal) for terminal in accepts))
    return Stop(at, frozenset(map(_short, accepts)), words)


def either(words: tuple[str, ...]) -> str:
    """Return words as a choice; what is a list itself is taken apart.

    >>> either(("a mesh axis", "`none`", "`(`")), either(("`start`, `end`", "`after`"))
    ('a mesh axis, `none` or `(`', '`start`, `end` or `after`')
    """
    *most, last = (
        one
        for word in words or ("something else",)
        for one in (word.split(", ") if _LIST.fullmatch(word) else [word])
    )
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


def in_words(parser: Lark, terminal: str) -> str:
    """Return what a terminal is called in a message: `a mesh axis`, or its own text."""
    if terminal == "$END":
        return "the end"
    return _WORDS.get(_short(terminal)) or f"`{parser.get_terminal(terminal).pattern.value}`"


def _short(terminal: str) -> str:
    """Return the name of a terminal without the grammar it was imported from."""
    return terminal if terminal.startswith("__") else terminal.rpartition("__")[2]

"""Expressions to constrain -> the same file with constraints, changed nowhere else, as a diff.

The text is edited at offsets and never printed from the syntax tree, so comments and formatting
stay. What is written is parsed again: without the added calls it is the old program, or the
file is refused. The file is a stranger's: it is parsed, never run, in one walk over its tree.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardspec.cure.idioms import Beside, Code, Idiom
from shardspec.python_syntax import expression, parsed

_LARGEST = 2_000_000
_BOM = "\ufeff"
_IMPORT = "import shardspec"
#: Expressions that can be an array.
_VALUES = (
    *(ast.Call, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Subscript, ast.Attribute),
    *(ast.Name, ast.IfExp, ast.Await),
)
#: Fields that hold no array, whatever the expression in them.
_NO_ARRAY = {
    (ast.Call, "func"): "it is a function that is called",
    (ast.Await, "value"): "it is awaited",
    (ast.YieldFrom, "value"): "it is a generator",
    (ast.withitem, "context_expr"): "it is a context manager",
    (ast.ClassDef, "bases"): "it is a base class",
    (ast.AnnAssign, "annotation"): "it is an annotation",
    (ast.arg, "annotation"): "it is an annotation",
}


@dataclass(frozen=True, slots=True)
class Extent:
    """Where an expression is: lines from 1, columns in UTF-8 bytes from 0, as JAX counts them."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Return the extent without the file."""
        return self.line, self.column, self.end_line, self.end_column


@dataclass(frozen=True, slots=True)
class Constrained:
    """An expression, and the logical axes to constrain its value by.

    Attributes:
      names: usually one entry like `batch _ embed`; two for a move, before and after.
      mapped: for each the axes of what `jax.vmap` around it maps; empty where nothing does. Only
        shardspec's own functions take them.
      is_own: whether Flax's function is no choice, as where its rules are not in context.
    """

    at: Extent
    names: tuple[str, ...]
    mapped: tuple[str, ...] = ()
    is_own: bool = False


class Patched(NamedTuple):
    """A file before and after.

    Attributes:
      lines: for each expression what was written for it, stripped; several lines for a move or
        for an expression of several lines. An added import is not among them.
    """

    file: str
    old: str
    new: str
    lines: tuple[str, ...]


class Refused(NamedTuple):
    """Why a file was left as it is.

    Attributes:
      at: the expression that cannot be constrained; None where it is the whole file.
    """

    reason: str
    at: Extent | None = None


def patched(source: str, file: str, constrained: Sequence[Constrained]) -> Patched | Refused:
    """Return a file with all of the constraints, or why one of them cannot be added.

    An expression may be given twice with the same names, which is one constraint; with other names
    it is refused.

    Args:
      source: with its line ends and byte order mark as they are on disk.
      file: what to call it in a diff. The files of the extents are not read.
    """
    mark = _BOM if source.startswith(_BOM) else ""
    try:
        raw = source.removeprefix(_BOM).encode("utf-8")
    except UnicodeEncodeError:
        return Refused("the file is not UTF-8")
    if len(raw) > _LARGEST:
        return Refused(f"the file is larger than {_LARGEST // 1_000_000} MB")
    tree = _parsed(raw)
    if isinstance(tree, str):
        return Refused(tree)
    code, lines = Code(tree), _Lines(raw)
    changes = _changes(code, lines, constrained)
    if isinstance(changes, Refused):
        return changes
    beside = code.beside_imports() if any(each.idiom.needs_import for each in changes) else None
    new, spans = _written(raw, _insertions(lines, changes, beside))
    again = _parsed(new)
    if isinstance(again, str) or not _is_same(tree, again, changes, beside):
        return Refused("the file would mean something else with the constraints")
    shown = tuple(_shown(new, *spans[each.node]) for each in changes)
    return Patched(file, source, mark + new.decode("utf-8"), shown)


def index_at(source: str, extent: Extent) -> Extent | None:
    """Return what the expression at an extent looks up by; None where that is not clear.

    It is `ids` in `table[ids]`, `jnp.take(table, ids, axis=0)` and `embed(ids)`.
    """
    tree = _parsed(source.removeprefix(_BOM).encode("utf-8", "replace"))
    if isinstance(tree, str):
        return None
    match _nodes_at(Code(tree), {extent.place}).get(extent.place):
        case ast.Subscript(slice=found):
            pass
        case ast.Call(func=ast.Attribute(attr="take"), args=[_, found, *_]):
            pass
        case ast.Call(args=[found], keywords=[]):
            pass
        case _:
            return None
    if not isinstance(found, ast.Name | ast.Attribute | ast.Subscript):
        return None
    ends = found.end_lineno or 0, found.end_col_offset or 0
    return Extent(extent.file, found.lineno, found.col_offset, *ends)


def diff_of(patches: Sequence[Patched], folder: str) -> str:
    r"""Return a unified diff for `git apply` and `patch -p1`, run in `folder`.

    Lines end at `\n` alone, as they do for both tools.

    Raises:
      ValueError: a file is outside of the folder.
    """
    parts: list[str] = []
    for patch in patches:
        path = os.path.relpath(patch.file, folder).replace(os.sep, "/")
        if path.startswith("../") or os.path.isabs(path):
            raise ValueError(f"{patch.file} is outside of {folder}")
        if patch.old != patch.new:
            parts += unified(path, patch.old, patch.new)
    return "".join(parts)


class _Change(NamedTuple):
    """One expression, or one `x += ...`, with what to write.

    Attributes:
      behind: the statement that assigns it to `name`, and gets lines behind it; None to wrap it.
      is_argument: whether a call is given it, or a class: parentheses may be theirs.
    """

    node: ast.expr | ast.AugAssign
    idiom: Idiom
    asked: Constrained
    behind: ast.stmt | None = None
    name: str = ""
    is_argument: bool = False

    @property
    def arguments(self) -> list[str]:
        """Return what each call takes behind the value."""
        axes = [self.idiom.axes(names) for names in self.asked.names]
        mapped = [f", mapped={self.idiom.axes(names)}" for names in self.asked.mapped]
        return ["".join(each) for each in zip(axes, mapped or [""] * len(axes), strict=True)]

    def is_grouped(self, raw: bytes, start: int, end: int) -> bool:
        """Say whether the parenthesis at an offset is around the expression, and of no call."""
        before = raw[:start].rstrip()[-1:]
        is_call = self.is_argument and re.match(rb"[\w\x80-\xff)\]]", before)
        return raw[start : start + 1] == b"(" and not is_call and raw[end:].lstrip()[:1] == b")"

    @property
    def calls(self) -> list[str]:
        """Return the lines that go behind the statement."""
        start = f"{self.name} = {self.idiom.callee}({self.name}, "
        return [f"{start}{each})" for each in self.arguments]


class _Insertion(NamedTuple):
    """Text for one offset; at the same offset texts go in order of `rank`."""

    offset: int
    rank: tuple[int, int]
    text: str
    node: ast.AST | None = None


class _Lines:
    """The lines of a file as Python counts them: a lone carriage return ends one, too."""

    def __init__(self, raw: bytes) -> None:
        """Find them once."""
        self.raw = raw
        ends = [found.span() for found in re.finditer(rb"\r\n?|\n", raw)]
        self.starts = [0, *(end for _, end in ends)]
        self.ends = [*(start for start, _ in ends), len(raw)]
        self.newline = raw[slice(*ends[0])].decode() if ends else "\n"
        self.longest = max(map(len, raw.decode().splitlines()), default=0)

    def start_of(self, node: ast.expr | ast.stmt) -> int:
        """Return the offset at which a node starts."""
        return self.starts[node.lineno - 1] + node.col_offset

    def end_of(self, node: ast.expr | ast.stmt) -> int:
        """Return the offset behind a node."""
        return self.starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)

    def end_of_line(self, node: ast.stmt) -> int:
        """Return the offset of the line end behind a statement and its comment."""
        return self.ends[(node.end_lineno or 1) - 1]

    def is_alone(self, node: ast.stmt) -> bool:
        """Say whether a statement has its lines for itself and comments."""
        start = self.starts[node.lineno - 1]
        before = self.raw[start : self.start_of(node)]
        behind = self.raw[self.end_of(node) : self.end_of_line(node)].strip()
        above = self.ends[node.lineno - 2] if node.lineno > 1 else 0
        is_continued = self.raw[max(above - 1, 0) : above] == b"\\"
        return not before.strip() and behind[:1] in (b"", b"#") and not is_continued

    def indent_of(self, node: ast.stmt) -> str:
        """Return the white space before a statement that is alone."""
        return self.raw[self.starts[node.lineno - 1] : self.start_of(node)].decode()


def _parsed(raw: bytes) -> ast.Module | str:
    """Return the tree of a text, or why there is none."""
    try:
        return parsed(raw.decode("utf-8"))
    except SyntaxError as fault:
        return f"the file cannot be parsed: {fault.msg} (line {fault.lineno or 1})"
    except (ValueError, RecursionError, MemoryError) as fault:
        return f"the file cannot be parsed: {str(fault) or 'it is nested too deep'}"


def _changes(
    code: Code, lines: _Lines, constrained: Sequence[Constrained]
) -> list[_Change] | Refused:
    """Return one change for each expression; the same one where it is given twice."""
    found = _nodes_at(code, {each.at.place for each in constrained})
    changes: dict[ast.AST, _Change] = {}
    asked = []
    for each in constrained:
        node = found.get(each.at.place)
        if node is None:
            return Refused("no expression has exactly this place", each.at)
        change = changes.get(node) or _change(code, lines, node, each)
        if isinstance(change, str):
            return Refused(change, each.at)
        if (change.asked.names, change.asked.mapped) != (each.names, each.mapped):
            return Refused("its value is to be constrained in two ways", each.at)
        changes[node] = change
        asked.append(change)
    return asked


def _nodes_at(
    code: Code, places: set[tuple[int, int, int, int]]
) -> dict[tuple[int, int, int, int], ast.expr | ast.AugAssign]:
    """Return the nodes at some places; an exact place counts before one that Python shortens."""
    exact: dict[tuple[int, int, int, int], ast.expr | ast.AugAssign] = {}
    short: dict[tuple[int, int, int, int], ast.expr | ast.AugAssign] = {}
    for node in code.nodes:
        if isinstance(node, ast.expr | ast.AugAssign):
            end = node.end_lineno or 0, node.end_col_offset or 0
            place = node.lineno, node.col_offset, *end
            if place in places:
                exact.setdefault(place, node)
            named = node.func if isinstance(node, ast.Call) else node
            if isinstance(named, ast.Attribute) and named.end_lineno != node.lineno:
                column = (named.end_col_offset or 0) - len(named.attr)
                place = named.end_lineno or 0, column, *end
                if place in places:  # that of a method on a line of its own starts at its name
                    short.setdefault(place, node)
    return short | exact


def _change(
    code: Code, lines: _Lines, node: ast.expr | ast.AugAssign, asked: Constrained
) -> _Change | str:
    """Return what to write for a node, or why nothing can be."""
    parent, field = code.parents[node]
    if isinstance(node, ast.expr) and (reason := _refusal(node, parent, field)):
        return reason
    idiom = code.idiom_at(node, is_own=asked.is_own or bool(asked.mapped))
    if isinstance(idiom, str):
        return idiom
    statement = node if isinstance(node, ast.AugAssign) else parent
    name = _assigned(statement, node)
    root = idiom.callee.partition(".")[0]
    if name not in (None, root) and isinstance(statement, ast.stmt) and lines.is_alone(statement):
        return _Change(node, idiom, asked, statement, name or "")
    if isinstance(node, ast.AugAssign):
        return "an update of this form has no value to wrap, and no line of its own for a name"
    is_argument = isinstance(parent, ast.Call | ast.ClassDef)
    return _Change(node, idiom, asked, is_argument=is_argument)


def _refusal(node: ast.expr, parent: ast.AST, field: str) -> str:
    """Return why an expression has no value that can be wrapped; nothing where it has one."""
    if not isinstance(node, _VALUES):
        return f"it is no array: {type(node).__name__}"
    if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        return "it is assigned to or deleted"
    if isinstance(parent, ast.pattern):
        return "it is a pattern"
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple | ast.List):
        return "it is assigned to several names at once"
    if field in ("decorator_list", "returns"):
        return "it is a decorator or an annotation"
    return _NO_ARRAY.get((type(parent), field), "")


def _assigned(statement: ast.AST, node: ast.AST) -> str | None:
    """Return the one name that a statement gives the value of a node to."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is node:
            return name
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is node:
            return name
        case ast.AugAssign(target=ast.Name(id=name)) if statement is node:
            return name
    return None


def _insertions(
    lines: _Lines, changes: list[_Change], beside: Beside | None
) -> Iterator[_Insertion]:
    """Yield what to write where: at one offset ends, lines, the import, then starts."""
    for change in {each.node: each for each in changes}.values():
        if change.behind is not None:
            line = lines.newline + lines.indent_of(change.behind)
            text = "".join(line + call for call in change.calls)
            yield _Insertion(lines.end_of_line(change.behind), (1, 0), text, change.node)
        else:
            yield from _around(lines, change)
    if beside is not None:
        newlines = lines.newline * (2 if beside.has_gap else 1)
        if beside.is_before:
            at = lines.starts[_first_line(beside.statement) - 1]
            yield _Insertion(at, (2, 0), f"{_IMPORT}{newlines}")
        else:
            yield _Insertion(lines.end_of_line(beside.statement), (2, 0), f"{newlines}{_IMPORT}")


def _around(lines: _Lines, change: _Change) -> Iterator[_Insertion]:
    """Yield the calls around an expression; parentheses around it become those of the first call.

    What makes a line longer than any other of the file goes on a line of its own.
    """
    raw, node = lines.raw, change.node
    start, end = lines.start_of(node), lines.end_of(node)
    opening = f"{change.idiom.callee}(" * len(change.arguments)
    closing = "".join(f", {each})" for each in change.arguments)
    more = len(opening) + len(closing)
    group = _GROUP.search(raw, 0, start)
    is_grouped = change.is_grouped(raw, group.start() if group else 0, end)
    outer = group.start() if group and is_grouped else start
    if is_grouped:
        opening, closing = opening[:-1], closing[:-1]
    row = raw[lines.starts[node.lineno - 1] : lines.ends[node.lineno - 1]].decode()
    if node.lineno == node.end_lineno and len(row) + more > max(lines.longest, _LEAST_WIDTH):
        indent = lines.newline + row[: len(row) - len(row.lstrip())]
        inner = f"{indent}    "
        at = opening.find("(") + 1
        if not is_grouped:
            opening = opening[:at] + inner + opening[at:]
            closing = f"{closing[:-1]}{indent})"
        elif not at:
            yield _Insertion(start, (3, -end), inner)
            closing += indent
    if re.match(rb"[\w\x80-\xff]", raw[max(outer - 1, 0) : outer]):
        opening = f" {opening}"  # `return-x`
    yield _Insertion(outer, (3, -end), opening, node)
    yield _Insertion(end, (0, -start), closing, node)


#: A parenthesis at the end of a text; the width that a file may have whatever its lines are.
_GROUP = re.compile(rb"\(\s*\Z")
_LEAST_WIDTH = 100


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(each.lineno for each in decorators)])


def _written(
    raw: bytes, insertions: Iterator[_Insertion]
) -> tuple[bytes, dict[ast.AST, tuple[int, int]]]:
    """Return the new text, and from where to where in it each node is with what was written."""
    parts: list[bytes] = []
    spans: dict[ast.AST, tuple[int, int]] = {}
    read = size = 0
    for each in sorted(insertions, key=lambda each: each[:2]):
        text = each.text.encode()
        parts += [raw[read : each.offset], text]
        size += each.offset - read + len(text)
        read = each.offset
        if each.node is not None:
            written = size - len(text.lstrip())
            spans[each.node] = spans.get(each.node, (written, size))[0], size
    parts.append(raw[read:])
    return b"".join(parts), spans


def _shown(new: bytes, start: int, end: int) -> str:
    """Return the whole lines of a span, without the indent that they share."""
    start = max(new.rfind(b"\n", 0, start), new.rfind(b"\r", 0, start)) + 1
    stop = re.compile(rb"[\r\n]|\Z").search(new, end)
    text = new[start : stop.start() if stop else end].decode("utf-8")
    return textwrap.dedent(re.sub(r"\r\n?", "\n", text)).strip()


def _is_same(
    old: ast.Module, new: ast.Module, changes: list[_Change], beside: Beside | None
) -> bool:
    """Say whether a new tree is the old one with the added calls and lines, and nothing else."""
    wrapped = {each.node: each for each in changes if each.behind is None}
    behind = {each.behind: "\n".join(each.calls) for each in changes if each.behind is not None}
    before: dict[ast.stmt, str] = {}
    if beside is not None:
        (before if beside.is_before else behind)[beside.statement] = _IMPORT
    stack: list[tuple[object, object]] = [(old, new)]
    while stack:
        one, other = stack.pop()
        if isinstance(one, ast.AST):
            if one in wrapped:
                other = _unwrapped(other, wrapped[one], stack)
            if type(one) is not type(other):
                return False
            stack += ((getattr(one, name, 0), getattr(other, name, 0)) for name in one._fields)
        elif isinstance(one, list):
            wanted: list[object] = []
            for each in one:
                wanted += _statements(before.get(each))
                wanted.append(each)
                wanted += _statements(behind.get(each))
            if not isinstance(other, list) or len(wanted) != len(other):
                return False
            stack += zip(wanted, other, strict=True)
        elif type(one) is not type(other) or one != other:
            return False
    return True


def _statements(text: str | None) -> list[ast.stmt]:
    return parsed(text).body if text else []


def _unwrapped(node: object, change: _Change, stack: list[tuple[object, object]]) -> object:
    """Return the expression in the calls of a change; what is to be the same goes to the stack."""
    for arguments in reversed(change.arguments):
        call = expression(f"{change.idiom.callee}(0, {arguments})")
        if not isinstance(call, ast.Call) or not isinstance(node, ast.Call) or len(node.args) != 2:
            return None
        stack += [
            (call.func, node.func),
            (call.args[1], node.args[1]),
            (call.keywords, node.keywords),
        ]
        node = node.args[0]
    return node


# Two texts that differ in a few lines -> a unified diff, in time that grows with their length.


#: How many lines may differ in a row before the rest of the texts is one change.
_WINDOW = 60

_Opcode = tuple[str, int, int, int, int]


def unified(path: str, old: str, new: str) -> Iterator[str]:
    r"""Yield the lines of a diff that `git apply` and `patch -p1` take.

    A line ends at `\n` alone, as it does for both tools.
    """
    yield f"--- {_header(f'a/{path}')}\n"
    yield f"+++ {_header(f'b/{path}')}\n"
    yield from _hunks(_split(old), _split(new))


def _split(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _header(path: str) -> str:
    """Return a path as git writes it: quoted where it has to be, a tab behind one with spaces."""
    if re.search(r'["\\\x00-\x1f\x7f]', path):
        return '"' + re.sub(r'["\\\x00-\x1f\x7f]', lambda at: f"\\{ord(at[0]):03o}", path) + '"'
    return f"{path}\t" if " " in path else path


def _hunks(old: list[str], new: list[str]) -> Iterator[str]:
    for group in _Matched(list(_opcodes(old, new))).get_grouped_opcodes(3):
        (_, old_from, _, new_from, _), (_, _, old_to, _, new_to) = group[0], group[-1]
        yield f"@@ -{_range(old_from, old_to)} +{_range(new_from, new_to)} @@\n"
        for kind, a, b, c, d in group:
            if kind == "equal":
                yield from (_marked(" ", line) for line in old[a:b])
            else:
                yield from (_marked("-", line) for line in old[a:b])
                yield from (_marked("+", line) for line in new[c:d])


def _range(start: int, end: int) -> str:
    return f"{start + (end > start)},{end - start}"


def _marked(mark: str, line: str) -> str:
    return (
        f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"
    )


class _Matched(difflib.SequenceMatcher[str]):
    """Opcodes that are known, for `difflib` to group."""

    def __init__(self, opcodes: list[_Opcode]) -> None:
        """Keep them."""
        super().__init__()
        self._opcodes: list[Any] = opcodes

    def get_opcodes(self) -> list[Any]:
        """Return them."""
        return self._opcodes


def _opcodes(old: list[str], new: list[str]) -> Iterator[_Opcode]:
    """Yield what is equal and what differs in two texts that differ in a few lines.

    `difflib` takes quadratic time for a file that repeats its lines, so it only gets the places
    where the texts differ.
    """
    at = to = 0
    while at < len(old) or to < len(new):
        start = at
        while at < len(old) and to < len(new) and old[at] == new[to]:
            at, to = at + 1, to + 1
        if at > start:
            yield "equal", start, at, to - at + start, to
        less, more = _resumed(old, new, at, to)
        if less + more > 2 * _WINDOW:
            yield "replace", at, at + less, to, to + more
        else:
            here, there = old[at : at + less], new[to : to + more]
            for kind, a, b, c, d in difflib.SequenceMatcher(None, here, there).get_opcodes():
                yield kind, at + a, at + b, to + c, to + d
        at, to = at + less, to + more


def _resumed(old: Sequence[str], new: Sequence[str], at: int, to: int) -> tuple[int, int]:
    """Return after how few lines of both texts two lines in a row are the same again."""
    for distance in range(_WINDOW):
        for less in range(distance + 1):
            here, there = at + less, to + distance - less
            if (
                here <= len(old)
                and there <= len(new)
                and old[here : here + 2] == new[there : there + 2]
            ):
                return less, distance - less
    return len(old) - at, len(new) - to

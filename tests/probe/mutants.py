"""Mutants of the package's code: one small change each, at one place, in the text of a module.

What changes nothing that a test could see is left out: docstrings, annotations, decorators,
asserts, the words of messages and of errors, `__all__`, and the order of arguments of `min`.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
COMPARISONS |= {"in": "not in", "not in": "in", "is": "is not", "is not": "is"}
ARITHMETIC = {"+": "-", "-": "+", "*": "//", "/": "*", "//": "*", "%": "*", "&": "|", "|": "&"}
BOOLEAN = {"and": "or", "or": "and"}

#: What a function of this annotation returns in place of its value; others return None.
RETURNS = {"bool": "not ({})", "int": "({}) + 1", "float": "({}) * 2", "str": "({})[:-1]"}

#: Functions to which the order of the first two arguments is nothing, or a matter of types.
UNORDERED = {"min", "max", "gcd", "lcm", "isinstance", "issubclass", "cast", "zip", "TypeVar"}

_UNSEEN = (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom, ast.pattern)
_SIGN = re.compile(r"not\s+in|is\s+not|\w+|[<>=!+\-*/%&|]+")


class Mutant(NamedTuple):
    """A change of one module: its bytes from `start` to `end` become `text`.

    A test notices it only if it runs one of `lines`. `function` is "" where the code runs on
    import. `before` and `after` are the lines that differ.
    """

    path: str
    start: int
    end: int
    text: str
    operator: str
    function: str
    lines: range
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        """Return the module with the change made."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return what names this mutant in `unchanged.toml`; a number of a line would move."""
        return self.path, self.function, self.before, self.after

    def __str__(self) -> str:
        where = f"{self.path}:{self.lines.start} {self.function or '(import)'} [{self.operator}]"
        return f"{where}\n    - {self.before}\n    + {self.after}"


def mutants(path: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of its text."""
    source = (ROOT / path).read_bytes()
    found = _Module(path, source).below(ast.parse(source), "", range(0))
    return sorted(dict.fromkeys(found), key=lambda each: each[:4])


def sample(paths: Sequence[str], seed: int, count: int) -> list[Mutant]:
    """Return some mutants of these modules; each is as likely as another.

    A seed gives the same ones when other lines have changed: they are drawn by what they change.
    """

    def rank(mutant: Mutant) -> bytes:
        return hashlib.sha256(repr((seed, *mutant.key)).encode()).digest()

    every = (each for path in sorted(paths) for each in mutants(path))
    return sorted(every, key=rank)[:count]


class _Module:
    """The walk over one module."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def below(self, node: ast.AST, function: str, lines: range) -> Iterator[Mutant]:
        """Yield the mutants at a node and below it.

        `function` runs the node, and `lines` are those of the statement that it is in, from its
        first to the node's last.
        """
        if isinstance(node, ast.stmt):
            lines = range(node.lineno, node.lineno + 1)
        elif isinstance(node, ast.expr):
            lines = range(lines.start, max(lines.stop, (node.end_lineno or 0) + 1))
        for operator, start, end, text in self._changes(node):
            yield self._mutant(start, end, text, operator, function, lines)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for each in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                yield from self.below(each, function, lines)
            function = f"{function}.{node.name}".lstrip(".")
            if isinstance(node, ast.FunctionDef):
                yield from self._returns(node, function)
        for each in _seen(node):
            yield from self.below(each, function, lines)

    def _changes(self, node: ast.AST) -> Iterator[tuple[str, int, int, str]]:
        match node:
            case ast.Compare():
                sides = [node.left, *node.comparators]
                for left, right in pairwise(sides):
                    yield from self._sign("comparison", left, right, COMPARISONS)
            case ast.BinOp() if not _is_text(node.left) and not _is_text(node.right):
                yield from self._sign("arithmetic", node.left, node.right, ARITHMETIC)
            case ast.BoolOp():
                yield from self._sign("boolean", node.values[0], node.values[1], BOOLEAN)
            case ast.UnaryOp(op=ast.Not()):
                yield "removed not", self._at(node)[0], self._at(node)[0] + len("not"), ""
            case ast.Constant(value=bool() | int() | float() as value):
                other = value * 2 or 1.0 if isinstance(value, float) else value + 1
                other = not value if isinstance(value, bool) else other
                yield "constant", *self._at(node), repr(other)
            case ast.Call(args=[one, two, *_]) if _is_ordered(node):
                (start, middle), (after, end) = self._at(one), self._at(two)
                swapped = (after, end), (middle, after), (start, middle)
                text = "".join(self._text(*each) for each in swapped)
                yield "swapped arguments", start, end, text
            case ast.stmt() if _is_dropped(node):
                yield "dropped", *self._at(node), "pass"

    def _sign(
        self, operator: str, left: ast.expr, right: ast.expr, others: dict[str, str]
    ) -> Iterator[tuple[str, int, int, str]]:
        start, end = self._at(left)[1], self._at(right)[0]
        between = self._text(start, end)
        found = _SIGN.search(between)
        other = others.get(" ".join(found[0].split())) if found else None
        if found and other:
            yield operator, start, end, between[: found.start()] + other + between[found.end() :]

    def _returns(self, node: ast.FunctionDef, function: str) -> Iterator[Mutant]:
        form = RETURNS.get(ast.unparse(node.returns) if node.returns else "", "None")
        for value in _returned(node):
            start, end = self._at(value)
            is_empty = isinstance(value, ast.Constant) and value.value == ""
            text = '"?"' if is_empty else form.format(self._text(start, end))
            lines = range(value.lineno, value.lineno + 1)
            if text != self._text(start, end):
                yield self._mutant(start, end, text, "returned", function, lines)

    def _mutant(
        self, start: int, end: int, text: str, operator: str, function: str, lines: range
    ) -> Mutant:
        first = self.source.rfind(b"\n", 0, start) + 1
        last = self.source.find(b"\n", end)
        left, right = self._text(first, start), self._text(end, last)
        shown = (f"{left}{each}{right}" for each in (self._text(start, end), text))
        before, after = (" ".join(each.split()) for each in shown)
        return Mutant(self.path, start, end, text, operator, function, lines, before, after)

    def _at(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        last, column = node.end_lineno or 0, node.end_col_offset or 0
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[last - 1] + column

    def _text(self, start: int, end: int) -> str:
        return self.source[start:end].decode()


def _seen(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that can change what a program computes."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(
            node, ast.Call
        ):
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST) and not isinstance(each, _UNSEEN) and not _is_quiet(each):
                yield each


def _is_quiet(node: ast.AST) -> bool:
    """Return whether a part is of types, of imports, or the words of an error."""
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Raise() | ast.keyword(arg="strict"):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]):
            is_type = isinstance(node.value, ast.BinOp | ast.Subscript) and not name.isupper()
            return name in ("__all__", "__slots__") or (is_type and name.lstrip("_")[:1].isupper())
    return False


def _is_dropped(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
            return False  # no value gets there
        case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()) | ast.AugAssign():
            return True
        case ast.If(
            orelse=[], body=[*_, ast.Return() | ast.Continue() | ast.Break() | ast.Raise()]
        ):
            return True
    return False


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _is_ordered(call: ast.Call) -> bool:
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    one, two = call.args[:2]
    starred = isinstance(one, ast.Starred) or isinstance(two, ast.Starred)
    return name not in UNORDERED and not starred and ast.dump(one) != ast.dump(two)


def _returned(node: ast.AST) -> Iterator[ast.expr]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.Return) and each.value is not None:
            yield each.value
        elif not isinstance(each, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield from _returned(each)

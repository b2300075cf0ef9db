"""The table of collectives: what each is called, and that each has its bytes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from shardspec.ir import operations
from shardspec.ir.operations import IN_HLO, IN_SHARDY, MOVES, SUMS, CollectiveKind, ring_bytes

EVERY = set(CollectiveKind)


@pytest.mark.parametrize(
    ("names", "one"),
    [
        (IN_HLO, "all-to-all"),
        (operations.IN_STABLEHLO, "stablehlo.all_to_all"),
        (IN_SHARDY, "sdy.all_to_all"),
        (operations.IN_MEGASCALE, "ALL_TO_ALL"),
    ],
)
def test_every_language_names_every_kind(names: dict[str, CollectiveKind], one: str) -> None:
    assert set(names.values()) == EVERY
    assert names[one] is CollectiveKind.ALL_TO_ALL


def test_a_kind_sums_or_moves() -> None:
    assert set(SUMS) | set(MOVES) == EVERY
    assert not set(SUMS) & set(MOVES)


@pytest.mark.parametrize("kind", CollectiveKind)
def test_ring_bytes(kind: CollectiveKind) -> None:
    assert ring_bytes(kind, 80, 1) == 0
    assert 0 < ring_bytes(kind, 80, 8) <= 2 * 80


def test_a_sum_is_a_scatter_and_a_gather() -> None:
    parts = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER)
    both = sum(ring_bytes(kind, 80, 8) for kind in parts)
    assert ring_bytes(CollectiveKind.ALL_REDUCE, 80, 8) == both == 140


# a new kind is treated as none of the others

PACKAGE = Path(operations.__file__).parents[1]
_EMPTY = {"None", "False", "()", "[]", "{}", "''", "0", "0.0", "1"}


def _kinds_in(node: ast.AST) -> list[str]:
    """Return the kinds that are named in an expression."""
    named = (each for each in ast.walk(node) if isinstance(each, ast.Attribute))
    return [ast.unparse(each) for each in named if each.attr in CollectiveKind.__members__]


def _default_of(node: ast.AST) -> list[ast.stmt] | list[ast.expr]:
    """Return what an `if` does with every kind that it does not name."""
    if isinstance(node, ast.IfExp) and _kinds_in(node.test):
        return [] if ast.unparse(node.orelse) in _EMPTY else [node.orelse]
    return node.orelse if isinstance(node, ast.If) and _kinds_in(node.test) else []


def faults_of(text: str) -> list[int]:
    """Return the lines that decide what holds for kinds that they do not name."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Match) and any(_kinds_in(case.pattern) for case in node.cases):
            if "assert_never(" not in ast.unparse(node.cases[-1]):
                found.append(node.lineno)
        elif (isinstance(node, ast.Dict) and any(map(_kinds_in, filter(None, node.keys)))) or (
            _default_of(node)
        ):
            found.append(node.lineno)
        elif isinstance(body := getattr(node, "body", None), list):
            picked = [at for at, each in enumerate(body) if _picks_and_leaves(each)]
            found += [body[at].lineno for at in picked if _text(body[at + 1 :]) not in _ENDS]
    return found


_ENDS = {f"return {each}" for each in _EMPTY} | {""}


def _text(body: list[ast.stmt]) -> str:
    return "\n".join(map(ast.unparse, body))


def _picks_and_leaves(node: ast.stmt) -> bool:
    """Say whether a statement is all that is done for one kind: `if kind is X: return ...`."""
    if not isinstance(node, ast.If) or not isinstance(node.body[-1], (ast.Return, ast.Continue)):
        return False
    tests = (each for each in ast.walk(node.test) if isinstance(each, ast.Compare))
    return any(isinstance(t.ops[0], (ast.Is, ast.In, ast.Eq)) and _kinds_in(t) for t in tests)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.stem)
def test_no_kind_is_a_default(path: Path) -> None:
    text = path.read_text()
    assert "CollectiveKind" not in text or faults_of(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "x = a if kind is CollectiveKind.ALL_GATHER else b",
        "if kind is CollectiveKind.ALL_GATHER:\n    f()\nelse:\n    g()",
        "def f(kind):\n    if kind is CollectiveKind.ALL_GATHER:\n        return a\n    return b",
        "x = {CollectiveKind.ALL_GATHER: a}",
        "match kind:\n    case CollectiveKind.ALL_GATHER:\n        f()\n    case _:\n        g()",
    ],
)
def test_a_default_is_seen(text: str) -> None:
    assert faults_of(text)

"""How often loops go round, and which branch of a condition counts."""

from __future__ import annotations

import math
from typing import Any

from shardspec.jax_backend.step_graph import Body, Graph, Node, Value

_CONSTANTS = frozenset(("sdy.constant", "stablehlo.constant"))
_SAME = frozenset(("stablehlo.convert", "stablehlo.reshape", "stablehlo.optimization_barrier"))


def count_rounds(graph: Graph) -> list[Node]:
    """Set how often every loop goes round; return the loops that do not say so.

    Those count as one round.
    """
    unknown = []
    for node in graph.nodes():
        if node.name == "stablehlo.while":
            rounds = rounds_of(node)
            node.bodies[0].rounds = 1 if rounds is None else rounds
            if rounds is None:
                unknown.append(node)
    return unknown


def rounds_of(loop: Node) -> int | None:
    """Return how often a loop goes round, None where the program does not say.

    JAX's scans, and `fori_loop` of known bounds, count from a constant to a constant.
    """
    body, condition = loop.bodies
    test = condition.yields[0].made_by if condition.yields else None
    if test is None or test.name != "stablehlo.compare":
        return None
    counter, limit = (_through(operand) for operand in test.operands)
    if counter not in condition.arguments or "LT" not in str(test.op.attributes[_DIRECTION]):
        return None
    at = condition.arguments.index(counter)
    last = _number(limit, condition, body)
    first = _number(loop.operands[at], None, None)
    step = _step(body, at)
    if last is None or first is None or not step:
        return None
    return max(0, math.ceil((last - first) / step))


_DIRECTION = "comparison_direction"


def _through(value: Value) -> Value:
    while value.made_by is not None and value.made_by.name in _SAME:
        value = value.made_by.operands[
            value.made_by.results.index(value) if len(value.made_by.operands) > 1 else 0
        ]
    return value


def _number(value: Value, condition: Body | None, body: Body | None) -> int | None:
    """Return the number that a value always is; of a loop's argument, where no round changes it."""
    value = _through(value)
    if condition is not None and body is not None and value in condition.arguments:
        at = condition.arguments.index(value)
        kept = body.yields[at] is body.arguments[at]
        return _number(value.given, None, None) if kept and value.given is not None else None
    if value.made_by is None or value.made_by.name not in _CONSTANTS or value.shape:
        return None
    held: Any = value.made_by.op.attributes["value"]
    try:
        return int(held[0])
    except (TypeError, IndexError):
        return None


def _step(body: Body, at: int) -> int | None:
    """Return by how much each round moves the counter."""
    node = _through(body.yields[at]).made_by
    if node is None or node.name != "stablehlo.add":
        return None
    operands = [_through(operand) for operand in node.operands]
    if body.arguments[at] not in operands:
        return None
    others = [operand for operand in operands if operand is not body.arguments[at]]
    return _number(others[0], None, None) if others else None

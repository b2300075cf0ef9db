"""What a collective carries: a weight, the gradient of one, an activation by name, or an einsum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardspec.ir.step import Carried, CollectiveKind
from shardspec.jax_backend.step_blame import root_of
from shardspec.jax_backend.step_graph import Graph, Node, Value
from shardspec.jax_backend.step_ops import stated_einsum
from shardspec.jax_backend.step_places import constraint_names
from shardspec.jax_backend.step_sends import VIEWS, Send
from shardspec.jax_backend.step_trace import Given

#: How many operations a value is followed through.
_FAR = 200
#: How far an update of a parameter is followed back to the state that it starts from.
_NEAR = 8
_SUMS = frozenset((CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER))
_FILLS = frozenset(("stablehlo.dynamic_update_slice", "stablehlo.concatenate"))
_ELEMENTWISE = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("add", "subtract", "multiply", "divide", "negate", "sqrt", "rsqrt", "select", "power"),
        *("maximum", "minimum", "clamp", "abs", "sign", "exponential", "tanh", "logistic"),
    )
)


@dataclass(frozen=True, slots=True)
class Carries:
    """Everything that is needed to name what is sent.

    Attributes:
      results: the path of each result of the function.
    """

    graph: Graph
    arguments: Sequence[Given | None]
    results: Sequence[str]

    def of(self, send: Send) -> Carried:
        """Return what a collective carries."""
        root = root_of(send.source)
        given = self._given(root)
        if given is not None:
            return _of_argument(given)
        if send.kind in _SUMS and send.node.phase != "forward":
            gradient = self._gradient(send.result)
            if gradient:
                return Carried("gradient", gradient)
        name = _activation(send)
        if name:
            return Carried("activation", name)
        einsum = _einsum(send)
        return Carried("einsum", einsum) if einsum else Carried("unknown", _scope(send))

    def _given(self, value: Value) -> Given | None:
        number = value.argument
        if number is None or number >= len(self.arguments):
            return None
        return self.arguments[number]

    def _gradient(self, value: Value) -> str:
        """Return the parameter whose state a value is added to, or as which it is given back."""
        seen: set[int] = set()
        waiting = [value]
        while waiting and len(seen) < _FAR:
            value = waiting.pop(0)
            if id(value) in seen:
                continue
            seen.add(id(value))
            found = self._given_back(value)
            if found:
                return found
            for user in value.users:
                found = self._updated(user, value)
                if found:
                    return found
                waiting += _onward(user, value)
            waiting += _yielded(value)
        return ""

    def _given_back(self, value: Value) -> str:
        if value.body is not self.graph.main or value not in self.graph.main.yields:
            return ""
        at = self.graph.main.yields.index(value)
        path = self.results[at] if at < len(self.results) else ""
        return next(
            (
                each.path
                for number, each in enumerate(self.arguments)
                if each is not None
                and each.role == "parameter"
                and f"/{path}".endswith(f"/{each.path}")
                and self.graph.main.arguments[number].shape == value.shape
            ),
            "",
        )

    def _updated(self, user: Node, value: Value) -> str:
        """Return the parameter whose weight or state an operation brings together with a value."""
        if user.name not in _ELEMENTWISE:
            return ""
        others = (each for each in user.operands if each is not value)
        for other in others:
            given = self._state(other, _NEAR)
            if given is not None and other.shape == value.shape:
                return given.owner or given.path
        return ""

    def _state(self, value: Value, left: int) -> Given | None:
        """Return the weight or state that a value is worked out of, element by element."""
        given = self._given(root_of(value))
        if given is not None:
            return given if given.role in ("parameter", "optimizer") else None
        node = value.made_by
        if node is None or not left or node.name not in _ELEMENTWISE:
            return None
        found = [self._state(each, left - 1) for each in node.operands]
        owners = {each.owner or each.path for each in found if each is not None}
        return next(each for each in found if each is not None) if len(owners) == 1 else None


def _of_argument(given: Given) -> Carried:
    if given.role == "parameter":
        return Carried("weight", given.path)
    return Carried("state" if given.role == "optimizer" else "activation", given.path)


def _onward(user: Node, value: Value) -> list[Value]:
    """Return what a gradient becomes in an operation that reads it."""
    passes = user.name in VIEWS or user.name in _FILLS or user.name.startswith("sdy.")
    if passes and user.results and not user.bodies:
        return [user.results[user.operands.index(value) if len(user.results) > 1 else 0]]
    if user.name in _ELEMENTWISE and user.result.shape == value.shape:
        return [user.result]
    if user.bodies:
        at = user.operands.index(value)
        return [b.arguments[at] for b in user.bodies[:1] if at < len(b.arguments)]
    return []


def _yielded(value: Value) -> list[Value]:
    """Return the results of a loop or a branch that a value is given back as."""
    owner = value.body.owner
    if owner is None:
        return []
    return [
        owner.results[at]
        for at, each in enumerate(value.body.yields)
        if each is value and at < len(owner.results)
    ]


def _activation(send: Send) -> str:
    """Return the name of the constraint that a value is given before anything reads it."""
    for node in (send.node, *_next(send.result)):
        name = constraint_names(node.where.name)
        if name:
            return name
    return ""


def _next(value: Value) -> list[Node]:
    """Return the operations that read a value, and those that read a sum it is added to."""
    found = list(value.users)
    for user in value.users:
        if user.name in VIEWS or user.name == "stablehlo.add":
            found += user.result.users
    return found


def _einsum(send: Send) -> str:
    made_by = send.source.made_by
    for node in (send.node, made_by, *send.result.users):
        if node is not None and stated_einsum(node):
            return stated_einsum(node)
    return ""


def _scope(send: Send) -> str:
    """Return what the code was doing: the last part of the name of an operation."""
    return send.node.where.name.rpartition("/")[2]

"""What a collective carries: a weight, the gradient of one, an activation by name, or an einsum."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardspec.ir.step import Carried
from shardspec.jax_backend.step.blame import Blame, root_of
from shardspec.jax_backend.step.graph import Node, Value
from shardspec.jax_backend.step.ops import einsum_of, stated_einsum
from shardspec.jax_backend.step.sends import Send
from shardspec.jax_backend.step.trace import Given
from shardspec.programs.op_names import constraint_names

#: How many operations a value is followed through.
_FAR = 200
#: How far an update of a parameter is followed back to the state that it starts from.
_NEAR = 8
_FILLS = frozenset(("stablehlo.dynamic_update_slice", "stablehlo.concatenate"))
_SPREADS = "stablehlo.broadcast_in_dim"
_EXCHANGES = frozenset(("sdy.all_reduce", "sdy.all_to_all"))


@dataclass(frozen=True, slots=True)
class Carries:
    """Names what is sent, by the same facts that blame is read from."""

    blame: Blame

    def of(self, send: Send) -> Carried:
        """Return what a collective carries."""
        root = root_of(send.source)
        given = self.blame.argument(root.argument)
        if given is not None:
            return _of_argument(given)
        if send.kind.traits.sums and send.node.phase in ("backward", "update"):
            gradient = self._gradient(send.result)
            if gradient:
                return Carried("gradient", gradient)
        added_to = self._added_to(send)
        if added_to:
            return Carried("gradient", added_to)
        back = self._given_back(send.result)
        if back and send.node.phase == "update":
            return Carried("weight", back)
        table = self._table(send)
        if table:
            return Carried("activation", f"rows of {table}")
        name, einsum = _constrained(send), _einsum(send)
        if name and not (einsum and " " in name):
            return Carried("activation", name)
        if einsum:
            return Carried("einsum", einsum)
        name = self._flows_with(send)
        made_by = _maker(send.source)
        if name:
            return Carried("activation", name)
        einsum = "" if made_by is None else einsum_of(made_by)
        return Carried("einsum", einsum) if einsum else Carried("unknown", _scope(send))

    def _flows_with(self, send: Send) -> str:
        """Return the named activation of this shape from whose constraint an axis came here."""
        for value in (send.result, send.source):
            for origin in value.origins.values():
                constraint = self.blame.constraints.get(origin)
                if constraint is not None and constraint.shape == value.shape:
                    return constraint.names
        return ""

    def _added_to(self, send: Send) -> str:
        """Return the table to whose gradient the rows that are sent are added."""
        users = (*send.source.users, *send.result.users)
        found = (user.result for user in users if user.name == "stablehlo.scatter")
        return next((path for path in map(self._gradient, found) if path), "")

    def _table(self, send: Send) -> str:
        """Return the weight that what is sent was looked up in."""
        made_by = _maker(send.source)
        if made_by is None or made_by.name != "stablehlo.gather":
            return ""
        given = self.blame.argument(root_of(made_by.operands[0]).argument)
        return "" if given is None else given.path

    def _gradient(self, value: Value) -> str:
        """Return the parameter whose state a value is added to, or as which it is given back."""
        seen: set[Value] = set()
        waiting = [value]
        while waiting and len(seen) < _FAR:
            value = waiting.pop(0)
            if value in seen:
                continue
            seen.add(value)
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
        """Return the parameter that a value is given back as, or as whose gradient."""
        if value.body is not self.blame.graph.main or not value.yielded:
            return ""
        given = self.blame.given_back(value.yielded[0])
        return given.path if given is not None and given.role == "parameter" else ""

    def _updated(self, user: Node, value: Value) -> str:
        """Return the parameter whose weight or state an operation brings together with a value."""
        if not user.info.is_elementwise:
            return ""
        others = (each for each in user.operands if each is not value)
        for other in others:
            given = self._state(other, math.prod(value.shape), _NEAR)
            if given is not None:
                return given.owner or given.path
        return ""

    def _state(self, value: Value, size: int, left: int) -> Given | None:
        """Return the weight or state of a size that a value is worked out of by elements."""
        root = root_of(value)
        given = self.blame.argument(root.argument)
        if given is not None:
            is_state = given.role in ("parameter", "optimizer")
            return given if is_state and math.prod(root.shape) == size else None
        node = value.made_by
        if node is None or not left or not node.info.is_elementwise:
            return None
        found = [self._state(each, size, left - 1) for each in node.operands]
        owners = {each.owner or each.path for each in found if each is not None}
        return next(each for each in found if each is not None) if len(owners) == 1 else None


def _maker(value: Value) -> Node | None:
    """Return what made a value, which devices may have exchanged or summed since."""
    made_by = value.made_by
    while made_by is not None and made_by.name in _EXCHANGES:
        made_by = made_by.operands[0].made_by
    return made_by


def _of_argument(given: Given) -> Carried:
    if given.role == "parameter":
        return Carried("weight", given.path)
    return Carried("state" if given.role == "optimizer" else "activation", given.path)


def _onward(user: Node, value: Value) -> list[Value]:
    """Return what a gradient becomes in an operation that reads it.

    A norm that is spread over all elements of a gradient is none itself.
    """
    if user.name == _SPREADS and math.prod(user.result.shape) > math.prod(value.shape):
        return []
    passes = user.info.view or user.name in _FILLS or user.name.startswith("sdy.")
    if passes and user.results and not user.bodies:
        return [user.results[user.operands.index(value) if len(user.results) > 1 else 0]]
    if user.info.is_elementwise and user.result.shape == value.shape:
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
    return [owner.results[at] for at in value.yielded if at < len(owner.results)]


def _constrained(send: Send) -> str:
    """Return the activation's name, or the logical axes, that a value is constrained by next."""
    for node in (send.node, *_next(send.result)):
        name = constraint_names(node.where.name)
        if name:
            return name
    return ""


def _next(value: Value) -> list[Node]:
    """Return the operations that read a value, and those that read a sum it is added to."""
    found = list(value.users)
    for user in value.users:
        if user.info.view or user.name == "stablehlo.add":
            found += user.result.users
    return found


def _einsum(send: Send) -> str:
    made_by = _maker(send.source)
    for node in (send.node, made_by, *send.result.users):
        if node is not None and stated_einsum(node):
            return stated_einsum(node)
    return ""


def _scope(send: Send) -> str:
    """Return what the code was doing: the last part of the name of an operation."""
    return send.node.where.name.rpartition("/")[2]

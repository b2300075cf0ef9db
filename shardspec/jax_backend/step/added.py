"""Sums over devices that a loop only adds up, so that one sum behind the loop would do.

A gradient that is summed in each microbatch is such a sum. What is made of it on its way to the
total has to be linear: where code takes a norm of it, or clips it, each round needs its own sum.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardspec.ir.step import CollectiveKind
from shardspec.jax_backend.step.graph import Body, Node, Value
from shardspec.jax_backend.step.sends import Send

#: Operations that are linear in an operand where the other is made of something else.
_SCALES = frozenset(("stablehlo.multiply", "stablehlo.divide"))
#: How many values are looked at between a sum and its total.
_FAR = 300


def total_of(send: Send, fed: Mapping[int, int]) -> tuple[int, bool, tuple[str, ...]]:
    """Return the bytes of what a sum is only added to, on one device in a step; 0 if more is done.

    Of several loops around it, that is the total of the outermost that does no more. Where the
    step gives the total back, the caller is one more loop.

    Args:
      fed: the arguments of the function that its results take the place of in the next call.

    Returns:
      The bytes, whether the step gives the total back, and the axes that do not split the total.
    """
    if send.kind is not CollectiveKind.ALL_REDUCE:
        return 0, False, ()
    bodies = [body for body in send.node.body.outwards() if body.is_loop or body.owner is None]
    for body in bodies[::-1]:
        total = _total(send.result, body, fed)
        if total is not None:
            axes = tuple(name for name in send.names if name not in total.axes)
            count = 1 if body.owner is None else body.owner.count
            return round(total.bytes * count) if axes else 0, body.owner is None, axes
    return 0, False, ()


def _total(value: Value, loop: Body, fed: Mapping[int, int]) -> Value | None:
    """Return what a loop carries from round to round as the total of a value; None for none."""
    seen: set[Value] = set()
    factors: set[Value] = set()
    totals: set[Value] = set()
    waiting = [value]
    while waiting and len(seen) < _FAR:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        later = _yielded(value, loop, fed)
        if later is None:
            return None
        if value.body is loop:
            totals.update(later)
        waiting += [each for each in later if each not in seen]
        for user in value.users:
            found = _onward(user, value)
            if found is None:
                return None
            factors.update(found[1])
            waiting += found[0]
    if waiting or not seen.isdisjoint(factors):
        return None
    return max(totals, key=lambda each: each.bytes, default=None)


def _onward(user: Node, value: Value) -> tuple[list[Value], list[Value]] | None:
    """Return what an operation makes of a value, and what it multiplies it by; None for no sum."""
    at = user.operands.index(value)
    if user.bodies:
        return [body.arguments[at] for body in user.bodies[:1] if at < len(body.arguments)], []
    if user.name == "stablehlo.optimization_barrier":
        return [user.results[at]], []
    if user.info.is_linear or user.name.startswith("sdy."):
        return user.results, []
    if user.name in _SCALES and (at == 0 or user.name == "stablehlo.multiply"):
        return user.results, user.operands[1:] if at == 0 else user.operands[:1]
    return None


def _yielded(value: Value, loop: Body, fed: Mapping[int, int]) -> list[Value] | None:
    """Return what a value is called in the next round of a loop, and behind inner ones.

    None where the caller is given a value, which no argument is in the next call.
    """
    body = value.body
    if body.owner is None:
        is_fed = all(at in fed for at in value.yielded)
        return [body.arguments[fed[at]] for at in value.yielded] if is_fed else None
    turned = [body.arguments[at] for at in value.yielded] if body.is_loop else []
    return turned if body is loop else turned + [body.owner.results[at] for at in value.yielded]

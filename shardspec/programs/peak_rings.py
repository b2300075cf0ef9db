"""Products that a TPU computes in turns of a ring: what has to be in memory for them, and when.

Each turn multiplies one shard while the next is on its way. The turns are a loop of XLA's own, so
that nothing is fused into it: what it reads and what it makes are in memory. A scheduler that goes
by what an operation frees does not see that the loop is the last to read its operands. The
gradients of weights therefore come last, and what they read stays: for layers that are computed
again, as much as if nothing was. The scheduler of v5e places the loops in time, but has the buffers
of all of the backward pass before that begins.

Source: libtpu 0.0.52 for all TPUs, MLPs of 3 to 12 layers and a decoder of 16 on 16 chips.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal

from shardspec.programs.edit import TURNS
from shardspec.programs.op_names import phase_of
from shardspec.programs.peak_graph import Body, Node, Value
from shardspec.programs.peak_kernels import is_product
from shardspec.programs.peak_units import Unit

#: Which gradients of weights come last: none, those that read what another product in turns made
#: for the layer, or all.
PutsOff = Literal["none", "some", "all"]
PUTS_OFF: dict[str, PutsOff] = {"v4": "all", "v5p": "all", "v6e": "some", "v7x": "some"}


def turned(main: Body) -> Iterator[Node]:
    """Yield the products of a program, outside of its loops, that are computed in turns."""
    for node in main.nodes:
        if node.instruction.attribute(TURNS):
            yield from _before(node)
            yield from filter(is_product, _users(node) if node.operation == "all-gather" else ())


def passed_on(main: Body) -> dict[Value, int]:
    """Return the bytes of the shards that are in memory in place of whole arrays.

    Of an operand that is two, one that is read and one that comes; of a sum it is the part that
    stays, as the other one takes the place of an operand.
    """
    found: dict[Value, int] = {}
    for node in main.nodes:
        if node.instruction.attribute(TURNS):
            if node.operation == "all-gather":
                found[node.results[0]] = 2 * node.operands[0].bytes
            for product in _before(node):
                found[product.results[0]] = node.results[0].bytes
    return found


def early(units: Sequence[Unit], order: Sequence[int], turns: Collection[Node]) -> dict[Value, int]:
    """Return where in an order the buffers of the backward pass are taken, by what is in them.

    That is behind the last product in turns of the forward pass.
    """
    rings = [at for at, one in enumerate(order) if units[one].node in turns]
    phases = {at: phase_of(units[order[at]].node.instruction.op_name) for at in rings}
    first = max((at for at in rings if phases[at] == "forward"), default=-1) + 1
    back = (at for at in rings if phases[at] != "forward" and at > first)
    return {value: first for at in back for value in units[order[at]].made}


def put_off(units: Sequence[Unit], turns: Collection[Node], which: PutsOff) -> list[Unit]:
    """Return units in an order in which gradients of weights come last, with what is made of them.

    Those are put off that are computed in turns, of layers that are computed again.
    """
    makers = {value: unit for unit in units for value in unit.made}
    back = {v for u in units if u.node in turns and _is_backward(u.node) for v in u.made}
    late: set[Value] = set()
    first: list[Unit] = []
    last: list[Unit] = []
    for unit in units:
        is_late = not late.isdisjoint(unit.reads)
        if unit.node in turns and _is_gradient(unit.node):
            near = (makers[value].reads for value in unit.reads if value in makers)
            is_late |= which == "all" or any(not back.isdisjoint(each) for each in near)
        late.update(unit.made if is_late else ())
        (last if is_late else first).append(unit)
    return [*first, *last]


def _is_gradient(product: Node) -> bool:
    """Say whether a product sums over devices, in the backward pass of layers computed again."""
    is_summed = any(each.operation == "reduce-scatter" for each in _users(product))
    return is_summed and _is_backward(product) and "checkpoint" in product.instruction.op_name


def _is_backward(node: Node) -> bool:
    return phase_of(node.instruction.op_name) == "backward"


def _users(node: Node) -> Iterator[Node]:
    """Yield what reads a result, also behind operations that only pass it on."""
    for each in node.results[0].users:
        yield each
        if each.operation in ("convert", "copy", "transpose") and each.results:
            yield from each.results[0].users


def _before(node: Node) -> Iterator[Node]:
    """Yield the product whose sum a collective scatters."""
    maker = node.operands[0].maker if node.operation == "reduce-scatter" else None
    while maker is not None and not is_product(maker) and len(maker.operands) == 1:
        maker = maker.operands[0].maker
    if maker is not None and is_product(maker):
        yield maker

"""Products that a TPU computes in turns of a ring: what has to be in memory for them, and when.

Each turn multiplies one shard while the next is on its way. The turns are a loop of XLA's own, so
that nothing is fused into it: what it reads and what it makes are in memory. For layers that are
computed again, most chips compute gradients of weights last, and what these read stays until then.
v5e computes them in time, but takes the buffers of the backward pass before that begins.

Source: libtpu 0.0.52 for all TPUs, MLPs of 3 to 12 layers and a decoder of 16 on 16 chips.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from shardspec.programs.edit import GATHER, SCATTER, TURNS
from shardspec.programs.op_names import phase_of
from shardspec.programs.peak_graph import Body, Node, Value
from shardspec.programs.peak_kernels import is_product
from shardspec.programs.peak_units import Unit

#: Which gradients of weights come last: none, those that read what another product in turns made
#: for the layer, or all.
PutsOff = Literal["none", "some", "all"]
PUTS_OFF: dict[str, PutsOff] = {"v4": "all", "v5p": "all", "v6e": "some", "v7x": "some"}


#: Products that are computed in turns, by the collective that the ring is in place of.
Turns = Mapping[Node, str]


def turned(main: Body) -> dict[Node, str]:
    """Return the products of a program, outside of its loops, that are computed in turns."""
    gathers, scatters = _rings(main, GATHER), _rings(main, SCATTER)
    readers = (each for gather in gathers for each in _readers(gather) if is_product(each))
    return dict.fromkeys(readers, GATHER) | {
        product: SCATTER for each in scatters if (product := _summed(each))
    }


def passed_on(main: Body) -> dict[Value, int]:
    """Return the bytes of the shards that are in memory in place of whole arrays.

    Of an operand that is two, one that is read and one that comes; of a sum it is the part that
    stays, as the other one takes the place of an operand.
    """
    found = {each.results[0]: 2 * each.operands[0].bytes for each in _rings(main, GATHER)}
    sums = ((_summed(each), each) for each in _rings(main, SCATTER))
    return found | {made.results[0]: each.results[0].bytes for made, each in sums if made}


def early(units: Sequence[Unit], order: Sequence[int], turns: Turns) -> dict[Value, int]:
    """Return where in an order the buffers of the backward pass are taken, by what is in them.

    That is behind the last product in turns of the forward pass.
    """
    rings = [at for at, one in enumerate(order) if units[one].node in turns]
    phases = {at: phase_of(units[order[at]].node.instruction.op_name) for at in rings}
    first = max((at for at in rings if phases[at] == "forward"), default=-1) + 1
    back = (at for at in rings if phases[at] != "forward" and at > first)
    return {value: first for at in back for value in units[order[at]].made}


def put_off(units: Sequence[Unit], turns: Turns, which: PutsOff) -> list[Unit]:
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
        if turns.get(unit.node) == SCATTER and _is_of_layer_again(unit.node):
            near = (makers[value].reads for value in unit.reads if value in makers)
            is_late |= which == "all" or any(not back.isdisjoint(each) for each in near)
        late.update(unit.made if is_late else ())
        (last if is_late else first).append(unit)
    return [*first, *last]


def _is_of_layer_again(node: Node) -> bool:
    return _is_backward(node) and "checkpoint" in node.instruction.op_name


def _is_backward(node: Node) -> bool:
    return phase_of(node.instruction.op_name) == "backward"


def _rings(main: Body, operation: str) -> list[Node]:
    """Return the collectives of a kind in whose place a ring is."""
    kind = (node for node in main.nodes if node.operation == operation)
    return [node for node in kind if node.instruction.attribute(TURNS)]


def _readers(gather: Node) -> Iterator[Node]:
    """Yield what reads an array that is gathered, also behind what only passes it on."""
    for each in gather.results[0].users:
        yield each
        if each.operation in ("convert", "copy", "transpose") and each.results:
            yield from each.results[0].users


def _summed(scatter: Node) -> Node | None:
    """Return the product whose sum is scattered."""
    maker = scatter.operands[0].maker
    while maker is not None and not is_product(maker) and len(maker.operands) == 1:
        maker = maker.operands[0].maker
    return maker if maker is not None and is_product(maker) else None

"""Which values of a program take memory, and from when to when: a floor of what is alive at once.

A compiler fuses chains of operations element by element, so their results never exist; what a
contraction, a loop or a collective makes does. Two rules bring the floor nearer to what libtpu
reports: what two contractions read is kept, and results that take a donated argument's memory
take none of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.ir.step import StepTensor
from shardspec.jax_backend.step_graph import Graph, Node, Value
from shardspec.jax_backend.step_sends import VIEWS
from shardspec.jax_backend.step_trace import Given

#: What makes an array that no consumer can be fused with.
_MAKERS = frozenset(
    (
        *("stablehlo.dot_general", "stablehlo.convolution", "stablehlo.gather"),
        *("stablehlo.scatter", "stablehlo.sort", "stablehlo.custom_call", "stablehlo.reduce"),
        *("sdy.all_gather", "sdy.all_reduce", "sdy.reduce_scatter", "sdy.all_to_all"),
        *("sdy.collective_permute", "stablehlo.all_gather", "stablehlo.all_reduce"),
        *("stablehlo.reduce_scatter", "stablehlo.all_to_all", "stablehlo.collective_permute"),
    )
)
_READERS = frozenset(("stablehlo.dot_general", "stablehlo.convolution"))
#: Fewer bytes than these are not told of.
_LEAST_BYTES = 4096


def tensors_of(graph: Graph, arguments: Sequence[Given | None]) -> Iterator[StepTensor]:
    """Yield the values that take memory, in the order of the program."""
    donated = sum(1 for each in arguments if each is not None and each.is_donated)
    for node in graph.nodes():
        for value in node.results:
            if value.bytes >= _LEAST_BYTES and _is_kept(node, value):
                yield _tensor(graph, node, value, donated > 0)


def _is_kept(node: Node, value: Value) -> bool:
    if node.name == "stablehlo.while":
        at = node.results.index(value)
        body = node.bodies[0]
        return body.yields[at] is not body.arguments[at]
    if node.name in _MAKERS:
        return True
    readers = [user for user in value.users if user.name in _READERS]
    return node.name not in VIEWS and len(readers) > 1


def _tensor(graph: Graph, node: Node, value: Value, donates: bool) -> StepTensor:
    born = _first_tick(node) if node.bodies else node.at
    is_result = _is_result(graph, value)
    dies = graph.end if is_result else max(_last_read(value, set()), node.at)
    held = 0 if _shares(node, value) or (is_result and donates) else value.bytes
    return StepTensor(value.array(), held, born, dies, node.where.place, node.phase)


def _first_tick(node: Node) -> int:
    """Return when a loop starts: its buffers are there from then on."""
    ticks = [inner.at for body in node.bodies for inner in body.nodes]
    return min((*ticks, node.at))


def _shares(node: Node, value: Value) -> bool:
    """Say whether a value is what a loop gives back: the loop's result has the memory."""
    return any(each is value for each in node.body.yields) and node.body.is_loop


def _is_result(graph: Graph, value: Value) -> bool:
    return value.body is graph.main and any(each is value for each in graph.main.yields)


def _last_read(value: Value, seen: set[int]) -> int:
    """Return the last tick that reads a value, or what is only another view of it."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    last = 0
    for user in value.users:
        last = max(last, user.at)
        if user.name in VIEWS:
            last = max(last, *(_last_read(result, seen) for result in user.results))
    if value.body.is_loop and any(each is value for each in value.body.yields):
        owner = value.body.owner
        last = max(last, owner.at if owner is not None else 0)
    return last

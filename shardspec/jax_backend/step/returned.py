"""State that a step gives back, beside how it was given: what differs makes JAX compile anew.

JAX compiles for the types and the layouts of what it is given. The result of a first call is what
the second call is given, so a step that changes a type or a layout of its state compiles twice. Two
trees of the same paths and shapes are the same state where parameters or state in it were donated,
or are worked out of the old ones, element by element.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from shardspec.analysis.memory import relaid_bytes
from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.diagnostics.words import by_key, counted
from shardspec.ir.spec import Shape, jax_entries
from shardspec.ir.step import ON_HOST, Returned, StepArgument, Unreused
from shardspec.jax_backend.batch import names_of
from shardspec.jax_backend.step.graph import Graph, Value
from shardspec.jax_backend.trees import box_test, is_optimizer_variable

#: How many values are looked at between new state and old.
_FAR = 100


@dataclass(frozen=True, slots=True)
class Result:
    """One array that the function gives back.

    Attributes:
      split: the mesh axes of each dimension, where the caller stated them.
      free_shape: the shape of the whole array, where the caller stated nothing: XLA chooses how it
        is sharded.
    """

    path: str
    split: tuple[tuple[str, ...], ...] = ()
    free_shape: Shape | None = None


class Fed(NamedTuple):
    """A result that may be given to the next call in place of an argument.

    Attributes:
      tree: the number of the argument's tree; all of a tree is state, or none is.
      argument: its place among the arguments of the module, and `result` that among the results.
      kinds: as `Returned` has them.
    """

    tree: int
    argument: int
    result: int
    kinds: tuple[str, str] = ("", "")


def fed_of(lowered: Any, told: Mapping[str, int], numbers: set[int], is_wrapped: bool) -> list[Fed]:
    """Return the pairs of arguments and results of a lowered function that may be one state.

    Args:
      told: the place in the module of each argument that something reads, by that in the call.
      numbers: the places of those that are numbers of Python.
      is_wrapped: whether results stand where the arguments do that they replace, as in `nnx.jit`.
    """
    avals = getattr(getattr(lowered, "_lowering", None), "compile_args", {})
    told_of = avals.get("global_out_avals", ())
    fed = []
    for each in passed_on(lowered.args_info, lowered.out_info, is_wrapped=is_wrapped):
        number = told.get(each.path)
        if number is not None and len(told_of) == each.results:
            was = getattr(each.before, "_aval", None)
            kinds = (
                _kind(each.before, was, number in numbers),
                _kind(each.after, told_of[each.at]),
            )
            fed.append(Fed(each.tree, number, each.at, kinds))
    return fed


class PassedOn(NamedTuple):
    """A result that has the place of an argument in a tree of the same paths and shapes.

    Attributes:
      tree: a number that those of one tree share.
      path: of the argument, as JAX writes it.
      before: what JAX says of the argument, and `after` of the result.
      at: the place of the result among all of `results`.
    """

    tree: int
    path: str
    before: Any
    after: Any
    at: int
    results: int


def passed_on(args_info: Any, out_info: Any, *, is_wrapped: bool) -> Iterator[PassedOn]:
    """Yield the arguments of a call and the results that the next call may be given for them."""
    free = dict(_leaves(args_info, 2))
    count = len(jax.tree_util.tree_leaves(out_info))
    groups = [*_leaves(out_info, 2 if is_wrapped else 1).items()]
    groups += [] if is_wrapped else [*_leaves(out_info, 0).items()]
    for head, leaves in groups:
        shown = [(path, info.shape) for path, info, _ in leaves]
        same = [
            key
            for key, own in free.items()
            if [(path, info.shape) for path, info, _ in own] == shown
            and (not is_wrapped or key == head)
        ]
        if not same:
            continue
        key = next((key for key in same if _is_donated(free[key])), same[0])
        for (path, before, _), (_, after, at) in zip(free.pop(key), leaves, strict=True):
            yield PassedOn(len(free), key + path, before, after, at, count)


def _is_donated(leaves: Sequence[tuple[str, Any, int]]) -> bool:
    return any(getattr(info, "donated", False) for _, info, _ in leaves)


def _leaves(tree: Any, depth: int) -> dict[str, list[tuple[str, Any, int]]]:
    """Return the leaves by the first keys of their paths: the rest of it, the leaf, its number."""
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    text = jax.tree_util.keystr
    return by_key(
        (text(keys[:depth]), (text(keys[depth:]), leaf, at)) for at, (keys, leaf) in enumerate(flat)
    )


def _kind(info: Any, aval: Any, is_number: bool = False) -> str:
    """Return what a type and a layout do not show: a weak type, or the memory of the host."""
    if is_number:
        return "a Python number"
    is_weak = getattr(aval, "weak_type", False)
    is_on_host = getattr(getattr(aval, "memory_space", None), "name", "") == "Host"
    kind = f"weakly typed {info.dtype}" if is_weak else ""
    return f"{kind or info.dtype} {ON_HOST}" if is_on_host else kind


def returned(graph: Graph, fed: Sequence[Fed], given: Sequence[StepArgument]) -> Iterator[Returned]:
    """Yield what of a step's state comes back otherwise than it was given."""
    for pairs in by_key((each.tree, each) for each in fed).values():
        is_lone = len(pairs) == 1
        if not any(_is_state(graph, each, given, is_lone=is_lone) for each in pairs):
            continue
        for each in pairs:
            argument = given[each.argument]
            before, after = argument.array, graph.main.yields[each.result].array(argument.path)
            is_same = (before.dtype, before.split) == (after.dtype, after.split)
            if not is_same or each.kinds[0] != each.kinds[1]:
                yield Returned(argument, after, each.kinds)


def free_shapes(results: Sequence[Result]) -> dict[int, Shape]:
    """Return the shapes of whole results whose sharding nobody states, by their numbers."""
    shapes = enumerate(each.free_shape for each in results)
    return {at: shape for at, shape in shapes if shape is not None}


def sharding_of(value: Any) -> Any:
    """Return the sharding over named axes that an array carries, None where it has none."""
    found = getattr(value, "sharding", None)
    return found if isinstance(found, jax.sharding.NamedSharding) else None


def split_of(info: Any) -> tuple[tuple[str, ...], ...]:
    """Return the mesh axes of each dimension that an array's sharding states."""
    own = sharding_of(info)
    if own is None:
        return ()
    stated = jax_entries(own.spec)
    entries = (*stated, *(None,) * (len(info.shape) - len(stated)))
    return tuple(map(names_of, entries))


def unreused(
    graph: Graph, fed: Sequence[Fed], given: Sequence[StepArgument], free: Mapping[int, Shape]
) -> Iterator[Unreused]:
    """Yield the donated state whose memory a TPU cannot give to the result in its place.

    Args:
      free: the shapes of whole results whose sharding nobody states, by their numbers: the layout
        of such a result is that of the whole array.
    """
    for each in fed:
        argument, whole = given[each.argument], free.get(each.result)
        if argument.is_donated and whole is not None:
            after = graph.main.yields[each.result].array(argument.path)
            taken = relaid_bytes(after.shard_shape, after.dtype, whole)
            if taken is not None:
                yield Unreused(argument, taken)


def _is_state(graph: Graph, fed: Fed, given: Sequence[StepArgument], *, is_lone: bool) -> bool:
    argument = given[fed.argument]
    is_meant = argument.role in ("parameter", "optimizer", "cache")
    if not is_meant and (is_lone or not argument.is_donated):
        return False  # an activation, perhaps, whose memory the result takes
    is_taken = is_meant and argument.is_donated
    return is_taken or _reaches(graph.main.yields[fed.result], fed.argument)


def _reaches(value: Value, place: int) -> bool:
    """Say whether a value is worked out, element by element, of an argument of the function."""
    seen: set[Value] = set()
    waiting = [value]
    while waiting and len(seen) < _FAR:
        value = waiting.pop(0)  # the old state is near, and what is added to it goes far back
        if value.argument == place:
            return True
        node = value.made_by
        if value in seen or node is None:
            continue
        seen.add(value)
        if node.name == "stablehlo.while":
            waiting.append(node.operands[node.results.index(value)])
        elif node.info.is_elementwise or node.info.view or node.name.startswith("sdy."):
            waiting += node.operands
        elif node.name in ("stablehlo.dynamic_update_slice", "stablehlo.scatter"):
            waiting.append(node.operands[0])
    return False


def refusing_lost_updates(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is traced by `jax.jit`, which drops what it does to its arguments.

    It raises where an optimizer of NNX is updated and not returned: XLA would leave out the update,
    and the figures would be those of another step.
    """

    @functools.wraps(function)
    def own(*args: Any, **kwargs: Any) -> Any:
        before = list(_of_optimizers((args, kwargs)))
        made = function(*args, **kwargs)
        kept = {id(leaf) for leaf in (*before, *jax.tree_util.tree_leaves(made))}
        lost = [leaf for leaf in _of_optimizers((args, kwargs)) if id(leaf) not in kept]
        if lost:
            arrays = counted(len(lost), "array")
            message = f"the step updates {arrays} of an NNX optimizer, and does not return them"
            help = "return the function of `nnx.jit` itself: `jax.jit` drops updates of arguments"
            raise ShardspecError([Diagnostic(codes.BAD_STEP, message, help=help)])
        return made

    return own


def _of_optimizers(tree: Any) -> Iterator[Any]:
    """Yield the arrays that optimizers of NNX keep."""
    for node in jax.tree_util.tree_leaves(tree, is_leaf=box_test()):
        if is_optimizer_variable(type(node)):
            yield from jax.tree_util.tree_leaves(node)

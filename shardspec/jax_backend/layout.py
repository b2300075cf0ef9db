"""A running tree -> where its arrays lie: what `shardspec import layout` reads.

A function is traced, so no array is made: a model of any size takes seconds and no memory. What
places a traced array is in the program: the last sharding constraint, `device_put` or
`out_shardings` on its way out. Other arrays and shapes have a `sharding`, a PartitionSpec beside an
array is its layout, and boxes of Flax have names.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn, TypeGuard

import jax
from jax.extend.core import Var

from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.foreign.formats import Dims, ForeignRule, NotRead
from shardspec.foreign.layout import Family, LaidOut, Layout, Sizes
from shardspec.ir.spec import Param
from shardspec.jax_backend import trees as pytrees
from shardspec.jax_backend.entry_point import find_entry, run_entry
from shardspec.jax_backend.target_devices import has_target_devices
from shardspec.jax_backend.trees import Leaf, refuse_no_tree

_RETURN = (
    "return arrays or shapes that have a `sharding`, a Flax model with sharding names,"
    " `(tree, PartitionSpecs)` or `(tree, RULES)`"
)
#: What hands an array on, where it is.
_PASSES = frozenset(("convert_element_type", "copy", "copy_p", "optimization_barrier"))
_MOST_STEPS = 1000
_EAGER = "flax_always_shard_variable"
_HOST = "pinned_host"
_Partition = (jax.sharding.PartitionSpec, jax.sharding.Sharding)
_Mesh = (jax.sharding.Mesh, jax.sharding.AbstractMesh)


def read_layout(name: str, mesh: Any = None) -> Layout:
    """Return the layout of what `package.module:function` gives, or of the tree that it is.

    Args:
      mesh: what a function with an argument is called with; None where there is none.

    Raises:
      ShardspecError: there is no such function, its code fails, or what it gives has no arrays.
    """

    def work() -> Layout:
        found = find_entry(name, codes.UNKNOWN_PRESET)
        if not _is_function(found):
            return _layout(name, _taken_apart(name, found), None)
        arguments = _arguments(name, found, mesh)
        kept: list[_Made] = []

        def traced() -> list[Any]:
            kept.append(_taken_apart(name, found(*arguments)))
            return [each.value for each in kept[-1].arrays if _is_traced(each.value)]

        program = _named_at_least(lambda: jax.make_jaxpr(traced)().jaxpr)
        return _layout(name, kept[-1], program)

    return run_entry(name, codes.BAD_MANIFEST, os.getcwd(), work)


def _named_at_least(trace: Callable[[], Any]) -> Any:
    """Return a traced program, where NNX cannot place Variables with those named alone.

    Flax 0.12 places a Variable when it is made, and refuses where no mesh or no rule is known.
    """
    flags: Any = getattr(sys.modules.get("flax"), "config", None)
    try:
        return trace()
    except ValueError:
        if not getattr(flags, _EAGER, False):
            raise
        with contextlib.ExitStack() as stack:
            stack.callback(flags.update, _EAGER, True)
            flags.update(_EAGER, False)
            with contextlib.suppress(ValueError):
                return trace()
        raise


def _is_traced(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer)


def _is_function(found: Any) -> bool:
    """Say whether something is called for its tree; a module that can be called is one itself."""
    return callable(found) and jax.tree_util.tree_leaves(found) == [found]


def _arguments(name: str, function: Callable[..., Any], mesh: Any) -> tuple[Any, ...]:
    """Return what a function is called with: nothing, or the mesh where it needs an argument."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters if each.default is each.empty and each.kind in plain]
    if not needed:
        return ()
    if len(needed) > 1:
        message = f"`{name}` has {len(needed)} arguments; it is called with none, or with the mesh"
        _refuse(message, "wrap it: `def layout(mesh): return ...`")
    if mesh is None:
        message = f"`{name}` takes `{needed[0].name}`, and no mesh is given to call it with"
        _refuse(message, "as in `--mesh 'fsdp=4 tp=2'`")
    return (mesh,)


def _refuse(message: str, help: str) -> NoReturn:
    raise ShardspecError([Diagnostic(codes.BAD_MANIFEST, message, help=help)])


# what a function gives


def _is_partition(leaf: Leaf) -> bool:
    """Say whether a leaf is the layout of another one."""
    return isinstance(leaf.value, _Partition)


def _of_box(leaf: Leaf, key: str) -> Any:
    """Return something that the box of a leaf says; None where it is in none."""
    if leaf.box is not None and pytrees.is_nnx(type(leaf.box)):
        return leaf.box.get_metadata().get(key)
    return getattr(leaf.box, key, None)


class _Made(NamedTuple):
    """What a function gives, taken apart.

    Attributes:
      partitions: PartitionSpecs and shardings beside the arrays, by path, or by one above.
    """

    arrays: tuple[Leaf, ...]
    partitions: Mapping[str, Any]
    mesh: Any = None
    rules: tuple[ForeignRule, ...] = ()


def _taken_apart(name: str, made: Any) -> _Made:
    """Return the arrays of a result, with the partitions, the mesh and the rules beside them."""
    parts: list[Any] = [*made] if type(made) in (tuple, list) else [made]
    meshes = [part for part in parts if isinstance(part, _Mesh)]
    rules = [rules for part in parts if (rules := _rules(part))]
    parts = [part for part in parts if not isinstance(part, _Mesh) and not _rules(part)]
    trees = [_nodes(part) for part in parts]
    if len(trees) == 2 and trees[1] and all(map(_is_partition, trees[1])):
        nodes, partitions = trees[0], {node.path: node.value for node in trees[1]}
    else:
        nodes, partitions = _paired(_nodes(made) if len(parts) > 1 else trees[0] if trees else [])
    arrays = tuple(node for node in nodes if pytrees.shape_of(node.value) is not None)
    if not arrays:
        what = "shardings without their arrays" if partitions else "no arrays"
        _refuse(f"`{name}` gives {what}", _RETURN)
    return _Made(arrays, partitions, next(iter(meshes), None), *rules[:1])


def _nodes(tree: Any) -> list[Leaf]:
    """Return the leaves of a tree; those in boxes with what these say."""
    refuse_no_tree(tree)
    return pytrees.leaves_of(tree)


def _paired(nodes: Sequence[Leaf]) -> tuple[list[Leaf], dict[str, Any]]:
    """Return arrays apart from the partitions that stand behind them, as in (array, P)."""
    arrays: list[Leaf] = []
    partitions: dict[str, Any] = {}
    for node in nodes:
        above, _, last = node.path.rpartition("/")
        if not _is_partition(node):
            arrays.append(node)
            continue
        if last == "1" and arrays and arrays[-1].path == f"{node.path[:-1]}0":
            arrays[-1] = replace(arrays[-1], path=above)
        partitions[above] = node.value
    return arrays, partitions


def _rules(value: Any) -> tuple[ForeignRule, ...]:
    """Return a list or mapping of rules; nothing where it is none."""
    pairs = [*value.items()] if isinstance(value, Mapping) else value
    if not isinstance(pairs, (tuple, list)):
        return ()
    found = []
    for pair in pairs:
        is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], str)
        axes = _entry(pair[1]) if is_pair else None
        if axes is None:
            return ()
        found.append(ForeignRule(pair[0], axes))
    return tuple(found)


def _entry(entry: Any) -> tuple[str, ...] | None:
    """Return the mesh axes of one dimension; None where something else stands there."""
    axes = () if entry is None else entry if isinstance(entry, (tuple, list)) else (entry,)
    return tuple(axes) if all(isinstance(axis, str) for axis in axes) else None


# where its arrays lie


def _layout(name: str, made: _Made, program: Any) -> Layout:
    """Return the layout of what was taken apart.

    Args:
      program: that gives the traced arrays, in their order; None where none are.
    """
    found = list(_shardings(made, program))
    placed = Counter(_sizes(each.mesh) for each in found if _is_named(each))
    boxes = (
        _sizes(mesh) for each in made.arrays if isinstance(mesh := _of_box(each, "mesh"), _Mesh)
    )
    meshes = [] if made.mesh is None else [_sizes(made.mesh)]
    mesh = next(iter((*meshes, *(each for each, _ in placed.most_common(1)), *boxes)), ())
    of_boxes = (
        _rules(_of_box(each, "rules") or _of_box(each, "sharding_rules")) for each in made.arrays
    )
    rules = made.rules or next(filter(None, of_boxes), ())
    pairs = zip(made.arrays, found, strict=True)
    arrays = tuple(_laid_out(each, of, mesh) for each, of in pairs)
    places = (made.mesh, *(getattr(each, "mesh", None) for each in found))
    return Layout(name, arrays, mesh, rules, _numbers(places, mesh))


def _numbers(meshes: Iterable[Any], sizes: Sizes) -> tuple[int, ...]:
    """Return the numbers of the target's devices, in the order of the first mesh of these sizes."""
    for mesh in meshes:
        if has_target_devices(mesh) and _sizes(mesh) == sizes:
            return tuple(each.id for each in mesh.devices.flat)
    return ()


def _shardings(made: _Made, program: Any) -> Iterator[Any]:
    """Yield the sharding or PartitionSpec of each array: beside it, in the program, or its own."""
    places = None if program is None else _Places(program)
    results = iter(() if program is None else program.outvars)
    for node in made.arrays:
        path = node.path
        while path and path not in made.partitions:
            path = path.rpartition("/")[0]
        own = getattr(node.value, "sharding", None)
        if places is not None and _is_traced(node.value):
            own = places.of(next(results))
        yield made.partitions.get(path, own)


def _is_named(sharding: Any) -> TypeGuard[jax.sharding.NamedSharding]:
    return isinstance(sharding, jax.sharding.NamedSharding) and not sharding.mesh.empty


def _sizes(mesh: Any) -> Sizes:
    return tuple((str(axis), int(size)) for axis, size in mesh.shape.items())


def _laid_out(node: Leaf, sharding: Any, mesh: Sizes) -> LaidOut:
    shape = pytrees.shape_of(node.value)
    assert shape is not None
    param = Param(node.path, shape, pytrees.dtype_of(node.value))
    fault = pytrees.uncountable(param)
    if fault is not None:
        raise ShardspecError([fault])
    names = None
    if isinstance(node.names, (tuple, list, jax.sharding.PartitionSpec)):
        names = tuple(map(_entry, node.names))
    family: Family = "partitioned"
    if node.box is not None and pytrees.is_nnx(type(node.box)):
        family = "nnx"
    elif node.box is None or type(node.box).__name__ != "Partitioned":
        family = "logical"
    memory = _HOST if getattr(sharding, "memory_kind", None) == _HOST else None
    return LaidOut(param, _dims(sharding, mesh), names, family, memory)


def _dims(sharding: Any, mesh: Sizes) -> Dims | NotRead | None:
    """Return the mesh axes of each dimension; None where no sharding says them."""
    if isinstance(sharding, jax.sharding.Sharding) and not _is_named(sharding):
        is_one = isinstance(sharding, jax.sharding.SingleDeviceSharding)
        kind = type(sharding).__name__
        help = "place it by a `NamedSharding`"
        return None if is_one else NotRead(kind, f"a {kind} has no PartitionSpec", help)
    if _is_named(sharding) and dict(_sizes(sharding.mesh)) != dict(mesh):
        other = " ".join(f"{axis}={size}" for axis, size in _sizes(sharding.mesh))
        reason = f"they are on another mesh, {other}"
        return NotRead(other, reason, "a spec has one mesh: return the arrays of one")
    spec = getattr(sharding, "spec", sharding)
    if not isinstance(spec, jax.sharding.PartitionSpec):
        return None
    sums = getattr(spec, "unreduced", None) or getattr(spec, "reduced", None)
    if sums:
        axes = ", ".join(sorted(map(str, sums)))
        reason = f"they are sums over {axes}"
        return NotRead(axes, reason, "state them with `overrides:`, `(data, none) unreduced model`")
    dims = [_entry(entry) for entry in spec]
    known = tuple(each for each in dims if each is not None)
    if len(known) < len(dims):
        return NotRead("UNCONSTRAINED", "XLA chooses how they are sharded", "name a mesh axis")
    return known


class _Places:
    """Where the arrays of a traced program are placed."""

    def __init__(self, program: Any) -> None:
        """Find what makes each variable, once for each program inside."""
        self._makers: dict[int, dict[Any, Any]] = {}
        self._program = program

    def of(self, variable: Any) -> Any:
        """Return the sharding of a variable; None where nothing in the program places it."""
        calls: list[tuple[Any, Any]] = []
        program = self._program
        for _ in range(_MOST_STEPS):
            explicit = _explicit(variable)
            if explicit is not None:
                return explicit
            maker = self._maker(program, variable)
            if maker is None and calls and variable in program.invars:
                at = program.invars.index(variable)
                program, call = calls.pop()
                variable = call.invars[at]
                continue
            if maker is None:
                return None
            at = maker.outvars.index(variable)
            found = _placed_by(maker, at)
            if found is not None:
                return found
            inner = maker.params.get("jaxpr")
            if maker.primitive.name in _PASSES or maker.primitive.name == "device_put":
                variable = maker.invars[at]
            elif inner is not None and maker.primitive.name in ("jit", "pjit"):
                calls.append((program, maker))
                program, variable = inner.jaxpr, inner.jaxpr.outvars[at]
            else:
                return None
        return None

    def _maker(self, program: Any, variable: Any) -> Any:
        if not isinstance(variable, Var):
            return None
        if id(program) not in self._makers:
            made = {each: eqn for eqn in program.eqns for each in eqn.outvars}
            self._makers[id(program)] = made
        return self._makers[id(program)].get(variable)


def _explicit(variable: Any) -> Any:
    """Return the sharding in the type of an array, which meshes with explicit axes have."""
    sharding = getattr(getattr(variable, "aval", None), "sharding", None)
    explicit = jax.sharding.AxisType.Explicit
    is_explicit = _is_named(sharding) and explicit in sharding.mesh.axis_types
    return sharding if is_explicit else None


def _placed_by(maker: Any, at: int) -> Any:
    """Return the sharding that an operation gives one of its results; None where it gives none."""
    params = maker.params
    several = params.get("out_shardings", params.get("devices"))
    found = params.get("sharding", params.get("dst_sharding"))
    if isinstance(several, (tuple, list)) and at < len(several):
        found = several[at]
    return found if isinstance(found, jax.sharding.Sharding) else None

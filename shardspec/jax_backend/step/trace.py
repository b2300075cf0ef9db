"""A user's function, traced and lowered on arrays that are not there.

What the function is given is told apart by what the spec says of it: parameters are what it has
names for, optimizer state is what belongs to them, and everything else is a batch. Leaves that
carry no sharding are placed by the spec; leaves with one keep it.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple, Protocol, get_args

import jax
from jax._src.config import traceback_in_locations_limit

from shardspec.diagnostics import ShardspecError
from shardspec.diagnostics.words import by_key
from shardspec.ir.plan import Attempt, DimSharding, Kind, Origin, Outcome, ParamSharding
from shardspec.ir.spec import AxisRule, HostMemory, Spec, Target, host_memory
from shardspec.ir.step import Place, Role, WrongSum
from shardspec.jax_backend import equations
from shardspec.jax_backend import trees as pytrees
from shardspec.jax_backend.constrain import ActivationResolver
from shardspec.jax_backend.on_target import asked_at_import, mesh_in_context, on_target
from shardspec.jax_backend.shardings import TreePlacer
from shardspec.jax_backend.step import graph
from shardspec.jax_backend.step.graph import Fed, Result, mesh_axes_of, passed_on, sharding_of
from shardspec.jax_backend.step.sums import wrong_sums
from shardspec.jax_backend.target_devices import has_target_devices, is_abstract
from shardspec.jax_backend.train_state import contents_of
from shardspec.jax_backend.trees import box_test, is_box, leaves_of, path_of, require_call, shape_of
from shardspec.programs.op_names import is_library, shown
from shardspec.report.plan import Plan
from shardspec.resolve.resolver import ArrayResolver
from shardspec.resolve.state import Relation

#: What JAX lowers for, by the platform of the chips.
_LOWERED_FOR = {"tpu": "tpu", "gpu": "cuda", "cpu": "cpu"}
#: The logical axis that the first dimension of a batch has, unless it says otherwise.
_BATCH = "batch"
#: What an argument or a part of it is called that holds a cache of keys and values.
CACHES = frozenset(("cache", "kv_cache", "kv", "caches"))
#: What the parameters are called in a tree that has optimizer state under other names beside them.
_PARAMS = frozenset(("params", "model", "target", "p", "weights", "parameters"))


class Resolving(Protocol):
    """What a `Resolver` is asked for here; that itself offers `cost`, which comes here."""

    target: Target
    mesh: Any
    _arrays: ArrayResolver
    _placer: TreePlacer
    _activations: ActivationResolver

    def __enter__(self) -> Any:
        """Let `shardspec.constrain` constrain by it."""

    def __exit__(self, *error: object) -> None:
        """End that."""

    def shardings(self, tree: Any) -> Any:
        """Return the shardings of parameters."""

    def state_shardings(self, state: Any, params: Any) -> Any:
        """Return the shardings of optimizer state."""

    def plan(self, tree: Any) -> Plan:
        """Return the plan of parameters."""

    def state_plan(self, state: Any, params: Any) -> Plan:
        """Return the plan of optimizer state."""


class Call(NamedTuple):
    """A step: what to trace, and what to call it with.

    Attributes:
      function: jitted or not.
      args: trees of arrays or of `ShapeDtypeStruct`s; what is neither goes to it as it is.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Given:
    """One array that the function is given, and why it lies as it does.

    Attributes:
      dims: its dimensions with the rules that were tried, where the spec places it.
      owner: the path of the parameter, for optimizer state.
      is_named: whether the spec names its dimensions.
      is_number: whether it is one of Python, and no array.
      is_on_host: whether its sharding is of another memory than the device's.
      shape: that of the array; a wrapper may pass arrays on in another order.
      is_guess: whether nothing says that its first dimension is the batch, for which it is taken.
    """

    path: str
    role: Role
    dims: tuple[DimSharding, ...] = ()
    owner: str = ""
    is_placed: bool = False
    is_named: bool = False
    is_donated: bool = False
    is_number: bool = False
    is_on_host: bool = False
    shape: tuple[int, ...] = ()
    is_guess: bool = False


@dataclass(frozen=True, slots=True)
class Traced:
    """A lowered function.

    Attributes:
      module: in StableHLO, of MLIR.
      arguments: those that the module has, in its order; None for constants of the function.
      place: where the function is defined.
      notes: where it may be another program on the target.
      fed: the results that may be given to the next call in place of arguments.
      wrong_sums: sums over devices that the code leaves out or takes too often.
      program: as a jaxpr, and what that is given, in its order.
      is_filtered: whether it is an `eqx.filter_jit`.
    """

    module: Any
    arguments: tuple[Given | None, ...]
    results: tuple[Result, ...]
    place: Place
    notes: tuple[str, ...] = ()
    fed: tuple[Fed, ...] = ()
    wrong_sums: tuple[WrongSum, ...] = ()
    program: tuple[Any, tuple[Given, ...]] | None = None
    is_filtered: bool = False


@dataclass(frozen=True, slots=True)
class Layouts:
    """How the spec of a resolver lays out what has no path: batches and constrained activations."""

    resolver: Resolving

    @property
    def spec(self) -> Spec:
        """Return the spec."""
        return self.resolver._arrays.spec

    def named(self, dims: Sequence[DimSharding]) -> Any:
        """Return the sharding for an answer."""
        return self.resolver._placer.named(dims)

    def dims(self, names: str, shape: tuple[int, ...]) -> tuple[DimSharding, ...]:
        """Return the answer for logical axes or an activation's name; none if they do not fit."""
        own = {each.name for each in self.spec.activations}
        readings = (self._of_name, self._of_axes)
        for read in readings if names in own else reversed(readings):
            try:
                return tuple(read(names, shape))
            except ShardspecError:
                continue
        return ()

    def _of_axes(self, names: str, shape: tuple[int, ...]) -> Sequence[DimSharding]:
        return self.resolver._activations.dims(names, shape)

    def _of_name(self, activation: str, shape: tuple[int, ...]) -> Sequence[DimSharding]:
        entry = self.resolver._activations.entry(activation)
        if entry.partition is not None:
            return self.resolver._activations.stated(entry, shape).dims
        return self._of_axes(" ".join(name or "_" for name in entry.logical_axes), shape)

    def constrained(
        self, names: str, shape: tuple[int, ...], split: graph.Split
    ) -> tuple[DimSharding, ...]:
        """Return the dimensions of a constrained array with their rules.

        Where the code used a constraint of JAX's own, they are those of the one activation of the
        spec that lies so, or else of the one logical axis that has those mesh axes. Mesh axes of
        size 1 do not count.
        """
        if names:
            return self.dims(names, shape)
        over = self.resolver.target.mesh.splitting
        wanted = tuple(over(axis.name for axis in axes) for axes in split)
        answers = (self.dims(each.name, shape) for each in self.spec.activations)
        alike = [dims for dims in answers if tuple(over(dim.mesh_axes) for dim in dims) == wanted]
        if alike:
            return tuple(_agreed(at, alike) for at in range(len(wanted)))
        return tuple(map(self._alone, wanted))

    def of_mesh_axes(self, wanted: tuple[tuple[str, ...], ...]) -> tuple[DimSharding, ...]:
        """Return dimensions by their mesh axes alone; the first is `batch` if that has them."""
        dims = tuple(map(self._alone, wanted))
        rules = [rule for rule in self._rules_over(wanted[0]) if rule.logical_axis == _BATCH]
        own = DimSharding(None, _BATCH, (self._taken(rules[0]),)) if rules else dims[0]
        return (own, *dims[1:])

    def _alone(self, mesh_axes: tuple[str, ...]) -> DimSharding:
        """Return a dimension of the one logical axis with these mesh axes, nameless if of more."""
        rules = self._rules_over(mesh_axes)
        if len({rule.logical_axis for rule in rules}) != 1:
            return DimSharding(None, None)
        return DimSharding(None, rules[0].logical_axis, (self._taken(rules[0]),))

    def _rules_over(self, mesh_axes: tuple[str, ...]) -> list[AxisRule]:
        """Return the rules that shard over these mesh axes; none where they split nothing."""
        over = self.resolver.target.mesh.splitting
        rules = self.spec.axis_rules if over(mesh_axes) else ()
        return [each for each in rules if over(each.mesh_axes) == over(mesh_axes)]

    def _taken(self, rule: AxisRule) -> Attempt:
        axes = rule.mesh_axes
        at = self.spec.axis_rules.index(rule)
        return Attempt(Kind.RULE, at, axes, axes, Outcome.TAKEN, rule=rule, span=rule.span)


def _agreed(at: int, answers: list[tuple[DimSharding, ...]]) -> DimSharding:
    """Return one dimension where all answers name it alike, a nameless one otherwise."""
    names = {dims[at].logical_axis for dims in answers}
    return answers[0][at] if len(names) == 1 else DimSharding(None, None)


def platform_of(target: Target) -> str:
    """Return the platform of the chips of a target; `cpu` where it names no hardware."""
    return "cpu" if target.hardware is None else target.hardware.chip.platform


def traced(resolver: Resolving, call: Call) -> Traced:
    """Return the lowered function.

    Raises:
      ShardspecError: an argument cannot be laid out by the spec.
    """
    function, *_ = call = _unbound(call)
    with contextlib.ExitStack() as stack:
        here = None
        if is_abstract(resolver.mesh):
            here = stack.enter_context(on_target(resolver.target, resolver._arrays.spec))
        jitted, arrays, named, given = _arranged(resolver, call)
        idle = [] if here is None else here.idle
        lower = partial(_lowered, resolver.target)
        with _passed_on(jitted) as leaves, equations.idle_constraints(idle):
            (outer, sums, program), notes = _traced_in_context(
                resolver, jitted, (arrays, named), lower, is_plain=not hasattr(function, "trace")
            )
        if here is not None:
            here.machine.add(asked_at_import(function, here))
            notes += tuple(each.note for each in here.machine.questions)
        notes += tuple(equations.notes_of(idle))
    if leaves:
        given = _in_order(given, jax.tree_util.tree_leaves([*arrays, *named.values()]), leaves)
    lowered = getattr(outer, "lowered", outer)  # `nnx.jit` has its own around that of JAX
    module = lowered.compiler_ir("stablehlo")
    told = _told(lowered, given)
    is_wrapped = outer is not lowered
    places = tuple(_in_module(lowered, module, len(told)))
    keys, values = [*told], [*told.values()]
    arguments = tuple(None if at is None else values[at] for at in places)
    paths = {keys[at]: place for place, at in enumerate(places) if at is not None}
    numbers = {at for at, each in enumerate(arguments) if each is not None and each.is_number}
    return Traced(
        module,
        arguments,
        tuple(_results(lowered, told if is_wrapped else {})),
        _defined_at(function),
        notes,
        tuple(graph.fed_of(lowered, paths, numbers, is_wrapped)),
        *(sums, (program, tuple(values))),
        is_filtered=hasattr(function, "donate_first"),
    )


def _lowered(target: Target, found: Any) -> tuple[Any, tuple[WrongSum, ...], Any]:
    """Return a traced function lowered for a target, its sums that are wrong, and its jaxpr."""
    inner = getattr(found, "traced", found)  # `nnx.jit` has its own around that of JAX
    program = inner.jaxpr.jaxpr
    sums = wrong_sums(program, [path_of(keys) for keys, _ in _flat(inner.out_info)])
    with traceback_in_locations_limit(_FRAMES):
        return found.lower(lowering_platforms=(_LOWERED_FOR[platform_of(target)],)), sums, program


#: The frames in the location of an operation. jax 0.10.0 has 10 by itself, later ones 100.
_FRAMES = 100


class Program(NamedTuple):
    """A traced function, not lowered.

    Attributes:
      jaxpr: JAX's program, closed over its constants.
      leaves: what it is called with, with shardings: arrays that are not there.
      given: what each of the leaves is.
      results: the paths of what it returns.
      passed_on: the places of results that the next call may be given, and of those leaves.
    """

    jaxpr: Any
    leaves: tuple[Any, ...]
    given: tuple[Given, ...]
    results: tuple[str, ...]
    passed_on: tuple[tuple[int, int], ...]


def program_of(resolver: Resolving, call: Call) -> Program:
    """Return a function as JAX's program, its arguments placed as `traced` places them.

    Raises:
      ShardspecError: an argument cannot be laid out by the spec.
    """
    jitted, arrays, named, given = _arranged(resolver, _unbound(call))
    with _passed_on(jitted) as passed:
        outer, _ = _traced_in_context(resolver, jitted, (arrays, named), lambda found: found)
    found = getattr(outer, "traced", outer)  # `nnx.jit` has its own around that of JAX
    own = jax.tree_util.tree_leaves([*arrays, *named.values()])
    given = _in_order(given, own, passed) if passed else given
    leaves = [
        each for each in passed or own if shape_of(each) is not None and hasattr(each, "dtype")
    ]
    given = [each for each in given if not each.is_number]
    infos = [jax.tree_util.keystr(keys) for keys, _ in _flat(found.args_info)]
    assert len(leaves) == len(given) == len(infos) == len(found.jaxpr.in_avals), "a static argument"
    pairs = [*passed_on(found.args_info, found.out_info, is_wrapped=found is not outer)]
    sizes = Counter(each.tree for each in pairs)
    return Program(
        found.jaxpr,
        tuple(leaves),
        tuple(given),
        tuple(path_of(keys) for keys, _ in _flat(found.out_info)),
        tuple(
            (each.at, at)
            for each in pairs
            for at in (infos.index(each.path),)
            if each.before.dtype == each.after.dtype
            and (sizes[each.tree] > 1 or _is_state(given[at], each.before))
        ),
    )


def _is_state(given: Given, info: Any) -> bool:
    """Say whether a lone array is what the next call is given back, and not a loss of its shape."""
    is_meant = given.role in ("parameter", "optimizer", "cache")
    return is_meant or info.donated or jax.numpy.issubdtype(info.dtype, jax.dtypes.prng_key)


def _flat(tree: Any) -> list[tuple[Any, Any]]:
    return list(jax.tree_util.tree_flatten_with_path(tree)[0])


def _traced_in_context(
    resolver: Resolving,
    jitted: Any,
    given: tuple[list[Any], dict[str, Any]],
    work: Callable[[Any], Any],
    *,
    is_plain: bool = False,
) -> tuple[Any, tuple[str, ...]]:
    """Return what is made of a traced function, under the target's mesh if that can be.

    Code that names logical axes where JAX reads mesh axes runs under no mesh, and so is traced.
    Code with a mesh of its own may have its devices in another order than the resolver's: then the
    arguments are given without devices, and lie as they would on that mesh.

    Args:
      given: the arguments, by place and by name.
      work: makes something of what was traced, under the same mesh: it lowers it.
      is_plain: whether the function of the user is not jitted itself.
    """

    def made(given: tuple[list[Any], dict[str, Any]]) -> Any:
        found = jitted.trace(*given[0], **given[1])
        donated = equations.donated_inside(found, given[0]) if is_plain else []
        if donated:
            found = jax.jit(jitted.__wrapped__, donate_argnums=donated).trace(*given[0], **given[1])
        return work(found)

    order = resolver._arrays.spec.policy.order
    mesh = _mesh_of_code(given, resolver.mesh)
    told: tuple[str, ...] = ()
    if mesh is not resolver.mesh:
        given = _on_mesh(given, resolver.mesh, mesh)
        is_other = has_target_devices(mesh) and _devices(mesh) != _devices(resolver.mesh)
        told = (_OTHER_LINKS,) if is_other else ()
    with resolver, mesh_in_context(mesh, order) as context:
        is_typed = jax.sharding.AxisType.Explicit in mesh.axis_types
        if context is not None and is_typed and not has_target_devices(mesh):
            given = _on_mesh(given, mesh, context)
        try:
            return made(given), told
        except Exception as error:
            is_other_order = _OTHER_ORDER in str(error) and has_target_devices(mesh)
            if (is_typed or context is None) and not is_other_order:
                raise
            raised = error
        if is_other_order:
            return made(_on_mesh(given, mesh, mesh.abstract_mesh)), (_ON_OWN_MESH,)
    with resolver:
        return _without_mesh(lambda: made(given), raised)


def _without_mesh(made: Callable[[], Any], raised: Exception) -> tuple[Any, tuple[str, ...]]:
    """Return what is made of a function without a mesh in context, since under one it raises."""
    first = f"{type(raised).__name__}: {raised}".partition("\n")[0][:200]
    note = f"traced without a mesh in context: under the target's, it raises {first}"
    try:
        return made(), (note,)
    except Exception as error:
        if any(each in str(error) for each in _NEEDS_MESH):
            raise raised from None
        raise


def _mesh_of_code(given: Any, mesh: Any) -> Any:
    """Return the mesh of the code where it has one of the target's axes, else the target's.

    Code with explicit axes cannot take arrays of a mesh where the same axes are automatic, and none
    can take arrays of a mesh with its devices in another order.
    """
    around: Any = jax.sharding.get_abstract_mesh()
    own = filter(None, map(sharding_of, jax.tree_util.tree_leaves(given)))
    for each in (each.mesh for each in own) if around.empty else (around,):
        if _long(each) == _long(mesh) and each not in (mesh, mesh.abstract_mesh):
            return each
    return mesh


def _devices(mesh: Any) -> list[Any]:
    return list(mesh.devices.flat) if has_target_devices(mesh) else []


def _long(mesh: Any) -> tuple[tuple[str, int], ...]:
    """Return the axes of a mesh that split something; code may have many more of size 1."""
    return tuple((name, size) for name, size in mesh.shape_tuple if size > 1)


#: What JAX says where one function has meshes with their devices in several orders.
_OTHER_ORDER = "incompatible devices for jitted computation"
#: What it says where code that needs a mesh in context has none.
_NEEDS_MESH = ("non-empty mesh", "a mesh context", "context mesh cannot be empty")
_OTHER_LINKS = (
    "the mesh of the step has its devices in another order than the spec's, whose links are"
    " counted: use `resolver.mesh` in the step"
)
_ON_OWN_MESH = (
    "the step makes a mesh with another order of devices than the spec's: place its arguments on"
    " that mesh, or use `resolver.mesh` in the step"
)


def _on_mesh(given: Any, mesh: Any, other: Any) -> Any:
    """Return arguments whose shardings are of another mesh in place of this one."""

    def moved(leaf: Any) -> Any:
        own = sharding_of(leaf)
        if getattr(own, "mesh", None) != mesh:
            return leaf
        named = jax.sharding.NamedSharding(other, own.spec, memory_kind=own.memory_kind)
        return _struct(leaf, leaf.shape, named)

    return jax.tree_util.tree_map(moved, given)


@contextlib.contextmanager
def _passed_on(function: Any) -> Iterator[list[Any]]:
    """Return the arrays that a wrapper of `jax.jit` passes on to it, in their order.

    `nnx.jit` groups the arrays of a module by the entries of its `StateSharding`. Empty for what
    is `jax.jit` itself.
    """
    inner: Any = getattr(function, "jitted_fn", None)
    leaves: list[Any] = []
    if not hasattr(inner, "trace"):
        yield leaves
        return

    def trace(*args: Any, **kwargs: Any) -> Any:
        leaves[:] = jax.tree_util.tree_leaves((args, kwargs))
        return inner.trace(*args, **kwargs)

    function.jitted_fn = SimpleNamespace(trace=trace)
    try:
        yield leaves
    finally:
        function.jitted_fn = inner


def _in_order(given: Sequence[Given], own: Sequence[Any], passed: Sequence[Any]) -> list[Given]:
    """Return what the arrays are, in the order in which a wrapper passes them on.

    Args:
      own: the leaves of the arguments, in their order.
      passed: the same objects in another order, some of them perhaps left out.
    """
    arrays = (leaf for leaf in own if shape_of(leaf) is not None)
    known = by_key(zip(map(id, arrays), given, strict=True))
    same = (known.get(id(leaf)) for leaf in passed if shape_of(leaf) is not None)
    return [each.pop(0) if each else _UNNAMED for each in same]


#: An array that nothing is known of.
_UNNAMED = Given("", "other")


def _told(lowered: Any, given: Sequence[Given]) -> dict[str, Given]:
    """Return what each argument of a lowered function is, by the place where JAX has it.

    A number of Python is one that JAX may have been told to take for static.
    """
    waiting = iter(given)
    told = {}
    for keys, info in jax.tree_util.tree_flatten_with_path(lowered.args_info)[0]:
        is_weak = getattr(getattr(info, "_aval", None), "weak_type", True)
        found = next((each for each in waiting if is_weak or not each.is_number), None)
        if found is not None:
            is_donated = bool(getattr(info, "donated", False))
            found = found if found.shape == tuple(info.shape) else _UNNAMED
            told[jax.tree_util.keystr(keys)] = replace(found, is_donated=is_donated)
    return told


def _results(lowered: Any, told: Mapping[str, Given]) -> Iterator[Result]:
    """Yield the results; those of `nnx.jit` that stand where an argument does are that one's."""
    for keys, info in jax.tree_util.tree_flatten_with_path(lowered.out_info)[0]:
        argument = told.get(jax.tree_util.keystr(keys))
        path = path_of(keys) if argument is None else argument.path
        free = tuple(info.shape) if sharding_of(info) is None else None
        yield Result(path, mesh_axes_of(info), free)


def placed(
    resolver: Resolving, function: Callable[..., Any], args: Sequence[Any]
) -> tuple[Any, list[Any]]:
    """Return the function jitted, and its arguments as structs with their shardings."""
    return _arranged(resolver, Call(function, args))[:2]


def lowered_here(resolver: Resolving, call: Call) -> Any:
    """Return the function lowered for the devices of the resolver."""
    jitted, arrays, named, _ = _arranged(resolver, _unbound(call))
    with resolver:
        return jitted.trace(*arrays, **named).lower()


def _unbound(call: Call) -> Call:
    """Return what a partial or a method calls, with all arguments that this is called with.

    What is bound stays bound where nothing inside is jitted and none of it is an array: there it
    is a setting, and code may branch on it.

    Raises:
      TypeError: the function cannot be called so.
    """
    require_call(*call)
    bound: list[Any] = []
    found: Any = call.function
    named = dict(call.kwargs)
    while True:
        if callable(getattr(found, "func", None)) and hasattr(found, "keywords"):
            bound[:0] = found.args
            found, named = found.func, {**found.keywords, **named}
        elif hasattr(found, "__func__") and hasattr(found, "__self__"):
            bound.insert(0, found.__self__)
            found = found.__func__
        else:
            break
    held = jax.tree_util.tree_leaves((bound, [named[each] for each in named.keys() - call.kwargs]))
    if hasattr(found, "trace") or any(hasattr(leaf, "dtype") for leaf in held):
        return Call(found, (*bound, *call.args), named)
    return call


def _arranged(
    resolver: Resolving, call: Call
) -> tuple[Any, list[Any], dict[str, Any], list[Given]]:
    function, args, kwargs = call
    kwargs = dict(sorted(kwargs.items()))  # as JAX flattens them
    trees = _as_stated(function, [*args, *kwargs.values()], len(args))
    names = pytrees.argument_names(function, len(args), list(kwargs))
    plans = _plans(resolver, trees, names)
    seen: dict[int, Any] = {}
    structs = [_placed(tree, plan, seen) for tree, plan in zip(trees, plans, strict=True)]
    given = [each for plan in plans for each in plan.given]
    if not hasattr(function, "trace"):
        donated = equations.donated_by(function, names, len(args))
        structs, function = _closed_over(structs, function, len(args), list(kwargs))
        function = jax.jit(graph.refusing_lost_updates(function), **donated)
    named = dict(zip(kwargs, structs[len(args) :], strict=True))
    return function, structs[: len(args)], named, given


def _as_stated(function: Any, trees: list[Any], count: int) -> list[Any]:
    """Return the arguments with the shardings that `jax.jit` was given, where they carry none.

    Args:
      count: how many of them are given by place.
    """
    info: Any = getattr(function, "_jit_info", None)
    if info is None or not info.in_shardings_leaves:
        return trees

    def placed(leaf: Any, stated: Any) -> Any:
        shape = shape_of(leaf)
        if shape is None or sharding_of(leaf) is not None:
            return leaf
        is_named = isinstance(stated, jax.sharding.NamedSharding)
        return _struct(leaf, shape, stated) if is_named else leaf

    found = list(trees)
    prefix = info.in_shardings_treedef.unflatten(each or 0 for each in info.in_shardings_leaves)
    dynamic = [at for at in range(count) if at not in info.static_argnums]
    prefixes = prefix if isinstance(prefix, tuple | list) else (prefix,) * len(dynamic)
    for at, own in zip(dynamic, prefixes, strict=False):
        with contextlib.suppress(ValueError):  # JAX says itself what does not fit
            whole = jax.tree_util.tree_broadcast(own, trees[at])
            found[at] = jax.tree_util.tree_map(placed, trees[at], whole)
    return found


def _closed_over(
    trees: list[Any], function: Callable[..., Any], count: int, keywords: Sequence[str]
) -> tuple[list[Any], Callable[..., Any]]:
    """Return trees of arrays alone, and a function of those: the other leaves are put back in it.

    A module of Equinox holds its activation functions, which `jax.jit` does not take.
    """
    treedef: Any
    leaves, treedef = jax.tree_util.tree_flatten(trees)
    others = [None if shape_of(leaf) is not None else leaf for leaf in leaves]
    if all(other is None for other in others):
        return trees, function
    places = [at for at, other in enumerate(others) if other is None]

    def of_arrays(*args: Any, **kwargs: Any) -> Any:
        given = jax.tree_util.tree_leaves([*args, *(kwargs[name] for name in keywords)])
        filled = list(others)
        for at, leaf in zip(places, given, strict=True):
            filled[at] = leaf
        whole = treedef.unflatten(filled)
        made = function(*whole[:count], **dict(zip(keywords, whole[count:], strict=True)))
        return jax.tree_util.tree_map(lambda leaf: None if shape_of(leaf) is None else leaf, made)

    alone = [
        None if other is not None else leaf for leaf, other in zip(leaves, others, strict=True)
    ]
    return list(treedef.unflatten(alone)), of_arrays


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one argument of the function is, array by array.

    Attributes:
      shardings: None where the spec places none of it, otherwise those of its arrays.
    """

    given: tuple[Given, ...]
    shardings: tuple[Any, ...] | None


def _plans(resolver: Resolving, trees: Sequence[Any], names: Sequence[str]) -> list[_Plan]:
    params = next((tree for tree in trees if _holds_params(resolver, tree)), None)
    found = []
    for tree, name in zip(trees, names, strict=True):
        plan = _plan(resolver, tree, params, name)
        places = plan.shardings or (None,) * len(plan.given)
        arrays = zip(plan.given, _arrays(tree), places, strict=True)
        given = (
            replace(
                _with_name(each, name),
                is_number=not hasattr(value, "dtype"),
                is_on_host=host_memory(getattr(sharding_of(value) or place, "memory_kind", None))
                in get_args(HostMemory),
                shape=tuple(shape_of(value) or ()),
            )
            for each, (_, value), place in arrays
        )
        found.append(replace(plan, given=tuple(given)))
    values = [value for tree in trees for _, value in _arrays(tree)]
    return _with_guesses(Layouts(resolver), found, values)


def _with_guesses(layouts: Layouts, plans: Sequence[_Plan], values: Sequence[Any]) -> list[_Plan]:
    """Return plans that say what was placed by a guess: what is no batch was taken for one.

    A cache is none, and neither is what has another first size than the tokens of the batch. If one
    other dimension has that size, as that behind the layers of a stacked cache, it is the batch.
    """
    given = [each for plan in plans for each in plan.given]
    rows = [
        (each.shape[0], "int" in str(getattr(value, "dtype", "")))
        for each, value in zip(given, values, strict=True)
        if each.role == "batch" and each.shape
    ]
    sizes = {size for size, is_whole in rows if is_whole} or {size for size, _ in rows}

    def marked(each: Given) -> Given:
        is_stated = not each.shape or each.is_placed or each.is_named
        is_other = each.role == "batch" and not sizes.issuperset(each.shape[:1])
        return replace(each, is_guess=not is_stated and (each.role == "cache" or is_other))

    return [_moved(layouts, plan, map(marked, plan.given), sizes) for plan in plans]


def _moved(layouts: Layouts, plan: _Plan, told: Iterable[Given], sizes: set[int]) -> _Plan:
    """Return a plan whose guesses have the batch where an array is as long as the tokens."""
    given, shardings = list(told), list(plan.shardings or ())
    for at, each in enumerate(given):
        fitting = [dim for dim, size in enumerate(each.shape) if size in sizes]
        if each.is_guess and each.dims and shardings and len(fitting) == 1 and fitting != [0]:
            names = (_BATCH if [dim] == fitting else "_" for dim in range(len(each.shape)))
            dims = layouts.dims(" ".join(names), each.shape)
            given[at], shardings[at] = replace(each, dims=dims), layouts.named(dims)
    return replace(plan, given=tuple(given), shardings=plan.shardings and tuple(shardings))


def _with_name(given: Given, name: str) -> Given:
    if given.role in ("parameter", "optimizer"):
        return given
    return replace(given, path=f"{name}/{given.path}" if given.path else name)


def _holds_params(resolver: Resolving, tree: Any) -> bool:
    found = contents_of(tree)
    return not found.states and (found.held is not None or _is_named(resolver, tree))


def _is_named(resolver: Resolving, tree: Any, params: Any = None) -> bool:
    """Say whether the spec names arrays of a tree.

    What it says of the parameters is not said of another array with the path of one of them: a
    batch has `tokens`, too.
    """
    planned = resolver.plan(tree).arrays if _arrays(tree) else ()
    known = {path: shape_of(value) for path, value in _arrays(params)}
    named = (each.param for each in planned if each.origin is not Origin.NONE)
    return any(each.rank and known.get(each.path, each.shape) == each.shape for each in named)


def _arrays(tree: Any) -> list[tuple[str, Any]]:
    return [(leaf.path, leaf.value) for leaf in leaves_of(tree) if shape_of(leaf.value) is not None]


def _plan(resolver: Resolving, tree: Any, params: Any, name: str) -> _Plan:
    arrays = _arrays(tree)
    found = contents_of(tree)
    is_whole = all(sharding_of(value) is not None or not shape_of(value) for _, value in arrays)
    is_lone = found.held is None and bool(found.states) and params is not None
    if is_lone:
        given = _of_state(resolver.state_plan(tree, params), arrays)
    elif found.held is not None:
        given = _of_state(resolver.plan(tree), arrays)
    elif arrays and _is_named(resolver, tree, params):
        given = _of_params(resolver.plan(tree).arrays, arrays, name)
    else:
        known = _by_argument(resolver, tree, is_whole, name) if arrays else None
        return known or _batch(resolver, arrays, is_whole, name)
    told = tuple(given)
    if is_whole:
        return _Plan(told, None)
    laid_out = resolver.state_shardings(tree, params) if is_lone else resolver.shardings(tree)
    return _Plan(told, tuple(jax.tree_util.tree_leaves(laid_out)))


def _by_argument(resolver: Resolving, tree: Any, is_whole: bool, name: str) -> _Plan | None:
    """Return the plan of an argument that the spec names as the code does.

    Such as `cache/{k,v}` or `latents`, of an entry of `caches:`, or one of `params:` that begins
    with that name. What a pattern says of all arrays is not said of a batch.
    """
    arrays = _arrays(tree)
    named = {name: arrays[0][1] if [path for path, _ in arrays] == [""] else tree}
    planned = resolver.plan(named).arrays
    patterns = (str(getattr(each.matched, "pattern", "")) for each in planned)
    is_own = any(pattern.partition("/")[0] == name for pattern in patterns)
    if not is_own and all(each.origin is not Origin.CACHES for each in planned):
        return None
    given = []
    for each in _of_params(planned, arrays, name):
        role = "batch" if each.role == "parameter" else each.role
        given.append(replace(each, path=each.path[len(name) :].lstrip("/"), role=role))
    places = None if is_whole else tuple(jax.tree_util.tree_leaves(resolver.shardings(named)))
    return _Plan(tuple(given), places)


def _of_state(state: Any, arrays: list[tuple[str, Any]]) -> Iterator[Given]:
    for found, (path, value) in zip(state.arrays, arrays, strict=True):
        owner = "" if found.owner is None else found.owner.param.path
        is_placed = sharding_of(value) is not None
        if found.relation is Relation.PARAMETER:
            yield Given(owner or path, "parameter", found.dims, "", is_placed)
        else:
            yield Given(path, "optimizer", found.dims, owner, is_placed)


def _of_params(
    planned: Sequence[ParamSharding], arrays: list[tuple[str, Any]], name: str
) -> Iterator[Given]:
    owners = _owners([(each.param.path, each.param.shape) for each in planned])
    for each, (_, value) in zip(planned, arrays, strict=True):
        path = each.param.path
        owner = owners.get(path, "")
        is_cache = name in CACHES or each.origin is Origin.CACHES
        role: Role = "optimizer" if owner else "cache" if is_cache else "parameter"
        is_named = each.origin is not Origin.NONE
        yield Given(path, role, each.dims, owner, sharding_of(value) is not None, is_named)


def _owners(arrays: list[tuple[str, tuple[int, ...]]]) -> dict[str, str]:
    """Return the parameter of each array of state that stands beside the parameters.

    So it is with `{"params": ..., "mu": ..., "nu": ...}` of someone's own optimizer: all that is
    below `mu` is below `params`, too, and is most of that. One array of a name that another part
    of the model has as well is no state.
    """
    parts: dict[str, dict[str, tuple[int, ...]]] = {}
    for path, shape in arrays:
        head, _, tail = path.partition("/")
        parts.setdefault(head, {})[tail] = shape
    owned = next((head for head in parts if head in _PARAMS and "" not in parts[head]), None)
    if owned is None:
        return {}
    params = parts[owned]
    return {
        f"{head}/{tail}": f"{owned}/{tail}"
        for head, part in parts.items()
        if head != owned and part.items() <= params.items() and 2 * len(part) > len(params)
        for tail in part
    }


def _batch(resolver: Resolving, arrays: list[tuple[str, Any]], is_whole: bool, name: str) -> _Plan:
    """Return a batch: its first dimension is the logical axis `batch`, where the spec has that."""
    layouts = Layouts(resolver)
    given = []
    shardings = []
    for path, value in arrays:
        own = sharding_of(value)
        role: Role = "cache" if CACHES & {name, *path.split("/")} else "batch"
        dims = _batch_dims(layouts, value)
        shardings.append(None if own is not None or not dims else layouts.named(dims))
        given.append(Given(path, role, dims, "", own is not None))
    return _Plan(tuple(given), None if is_whole else tuple(shardings))


def _batch_dims(layouts: Layouts, value: Any) -> tuple[DimSharding, ...]:
    """Return the dimensions of a batch; those of a sharding that it carries, where it has one."""
    shape = shape_of(value) or ()
    if not shape:
        return ()
    if sharding_of(value) is not None:
        return layouts.of_mesh_axes(mesh_axes_of(value))
    if not any(rule.logical_axis == _BATCH for rule in layouts.spec.axis_rules):
        return ()
    return layouts.dims(" ".join((_BATCH, *("_" for _ in shape[1:]))), shape)


def _placed(tree: Any, plan: _Plan, seen: dict[int, Any]) -> Any:
    """Return a tree of structs in place of arrays, each with its sharding.

    Args:
      seen: the boxes that were made, by the `id` of those that they stand for. `nnx.jit` passes on
        a Variable that two modules share once, if both still hold the same one.
    """
    treedef: Any
    nodes, treedef = jax.tree_util.tree_flatten(tree, is_leaf=box_test())
    places = iter(plan.shardings or itertools.repeat(None))

    def struct(leaf: Any) -> Any:
        shape = shape_of(leaf)
        if shape is None:
            return leaf
        wanted = next(places)
        return _struct(leaf, shape, _with_layout(leaf) or sharding_of(leaf) or wanted)

    made = [jax.tree_util.tree_map(struct, node) for node in nodes]
    return treedef.unflatten(
        seen.setdefault(id(node), each) if is_box(type(node)) else each
        for node, each in zip(nodes, made, strict=True)
    )


def _with_layout(leaf: Any) -> Any:
    """Return the sharding of a struct with its layout in memory, where it states one."""
    stated = leaf.format if isinstance(leaf, jax.ShapeDtypeStruct) else None
    return None if getattr(stated, "layout", None) is None else stated


def _struct(leaf: Any, shape: tuple[int, ...], sharding: Any) -> Any:
    if not hasattr(leaf, "dtype"):
        return leaf
    struct: Any = jax.ShapeDtypeStruct
    weak = {"weak_type": True} if getattr(leaf, "weak_type", False) else {}
    return struct(shape, leaf.dtype, sharding=sharding, **weak)


def _in_module(lowered: Any, module: Any, told: int) -> Iterator[int | None]:
    """Yield which argument of the call each of the module is: JAX drops those that nothing reads.

    Constants that the function closes over come first.
    """
    kept = _kept(lowered, told)
    count = len(graph.functions_of(module)["main"].regions[0].blocks[0].arguments)
    yield from (None for _ in range(count - len(kept)))
    yield from kept


def _kept(lowered: Any, count: int) -> list[int]:
    inner = getattr(lowered, "_lowering", None)
    kept = getattr(inner, "compile_args", {}).get("kept_var_idx")
    return sorted(at for at in kept if at < count) if kept is not None else list(range(count))


def _defined_at(function: Callable[..., Any]) -> Place:
    inner: Any = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    if code is None or is_library(code.co_filename):
        return Place()
    return Place(shown(code.co_filename), code.co_firstlineno)

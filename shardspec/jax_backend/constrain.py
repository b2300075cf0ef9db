"""Logical axes that code asks for by name, and constraints by them: `Resolver.constrain`.

There is no array in the spec behind such names, so everything is checked here: names against the
spec, their number against the rank, sizes against the mesh axes. A size is not held against the
one that `axes` states: the batch of an evaluation, or the one position of a decoding step, is as
good as that of training.

JAX has three kinds of mesh axis. Under automatic axes a constraint is a hint that XLA obeys,
under explicit ones the array is resharded, and along manual ones (inside `shard_map`) the code
already sees its own shard: nothing is left to divide, so there they count as axes of size 1, which
still take their dimension and split it no further. One mesh may mix all three.

A constraint runs for every activation of every layer while JAX traces, so an answer is kept under
all that it depends on, and only the first of a kind is resolved and checked.

Under `vmap` code sees one example, and a constraint of JAX leaves the mapped dimension to XLA,
which is that of the batch. So a constraint with names for what is mapped waits until `vmap` has put
its dimensions in, the innermost first, and is then one on the array that there is. Through `jit`,
`scan` and `jax.checkpoint` it waits as a primitive of its own. What no `vmap` maps has no such
dimension: it is constrained along the others, as it would be beside one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, ShardspecError, codes, quote
from shardspec.diagnostics.words import counted, did_you_mean, listed, near_or_known
from shardspec.ir.plan import ActivationSharding, Dims, Origin, ParamSharding, ShardingPlan
from shardspec.ir.spec import Activation, LogicalAxes, MemoryKind, Mesh, Param, Sums, jax_entries
from shardspec.jax_backend import trees
from shardspec.jax_backend.equations import DEVICE_CONTEXT
from shardspec.jax_backend.shardings import Bare, TreePlacer, raise_errors, refuse_sums
from shardspec.jax_backend.target_devices import is_abstract, need_devices
from shardspec.jax_backend.trees import SCALARS, dtype_of, path_of, uncountable
from shardspec.kept import kept
from shardspec.language.reading import is_dsl
from shardspec.lints.context import Context
from shardspec.programs.op_names import constraint_scope
from shardspec.resolve.resolver import ArrayResolver, activation_for, array_resolver

NOTHING: frozenset[str] = frozenset()


def surroundings(x: Any, own: Any) -> Any:
    """Return the mesh in force around `x`: `own`, or one of the same axes and other types.

    Inside `jax.shard_map`, `jax.set_mesh`, or where `x` lies on explicit axes, that mesh decides
    what kind each axis is.

    Raises:
      ValueError: code runs inside `shard_map` or `jax.set_mesh` over a mesh of other axes: JAX
        would refuse our axes there, or take its own of the same name for them.
    """
    return _around(own) or _typed(x, own)


def _around(own: Any) -> Any:
    """Return the mesh that the code around us has entered; None for no such."""
    mesh: Any = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return None
    is_same = _same_axes(mesh, own)
    if is_same and (mesh.axis_types != own.axis_types or mesh.manual_axes):
        return mesh
    if is_same and not _has_other_devices(own):
        return own
    other = _OTHER_DEVICES if is_same else _sizes(mesh)
    place = "shard_map over" if mesh.manual_axes else "jax.set_mesh of"
    raise ValueError(
        f"constrain() for the mesh {_sizes(own)} inside {place} {other}: "
        f"call it outside, or give {place.split()[0]} the resolver's mesh"
    )


_OTHER_DEVICES = "one with the same axes, and other devices or another order of them"


def _has_other_devices(own: Any) -> bool:
    """Say whether `jax.set_mesh` has another mesh of devices, where `own` has devices, too."""
    mesh: Any = None if DEVICE_CONTEXT is None else DEVICE_CONTEXT.value
    if not isinstance(own, jax.sharding.Mesh) or mesh is None or mesh.empty:
        return False
    return tuple(mesh.devices.flat) != tuple(own.devices.flat)


def _typed(x: Any, own: Any) -> Any:
    """Return `own`, or the mesh of the same axes that the type of `x` has."""
    mesh: Any = jax.typeof(x).sharding.mesh
    if mesh.empty or mesh.axis_types == own.axis_types or not _same_axes(mesh, own):
        return own
    return mesh


def context(x: Any) -> Any:
    """Return the mesh of `jax.set_mesh` around us, with its devices where nothing is traced."""
    mesh: Any = jax.sharding.get_abstract_mesh()
    if mesh.empty or _is_traced(x):
        return mesh
    devices: Any = jax.sharding.get_mesh()
    return mesh if devices.empty else devices


def _is_traced(x: Any) -> bool:
    """Say whether a constraint on `x` is traced; under jit, one on a constant is, too."""
    if isinstance(x, jax.core.Tracer):
        return True
    try:
        jax.sharding.get_mesh()
    except ValueError:  # refused wherever something is traced
        return True
    return False


def manual_axes(mesh: Any, own: Any) -> frozenset[str]:
    """Return the axes of the surroundings along which code sees one shard only."""
    return NOTHING if mesh is own else frozenset(mesh.manual_axes)


def constrained(x: jax.Array, sharding: jax.sharding.NamedSharding, mesh: Any = None) -> jax.Array:
    """Return `x` laid out as `sharding` says, as far as its mesh axes are not manual.

    Args:
      mesh: the surroundings; None to look for them.
    """
    if mesh is None:
        mesh = surroundings(x, sharding.mesh)
    kinds: tuple[Any, ...] = mesh.axis_types
    refuse_sums(trees.mesh_axes_of_sums(sharding), mesh)
    if is_abstract(sharding.mesh) and not _is_traced(x):
        need_devices(sharding.mesh, "constrain() outside of jit")
    if kinds.count(jax.sharding.AxisType.Auto) == len(kinds):
        return _constraint(x, sharding if mesh is sharding.mesh else _named(mesh, sharding.spec))
    if kinds.count(jax.sharding.AxisType.Manual) == len(kinds):
        return x
    is_outside = mesh is sharding.mesh and not _is_manual_here(mesh)
    if is_outside and jax.sharding.AxisType.Manual in kinds:
        return constrained(x, _without_manual(sharding))
    if jax.sharding.AxisType.Explicit in kinds:
        return _explicit(x, sharding, mesh)
    return _constraint(x, _along(mesh, sharding.spec, jax.sharding.AxisType.Auto))


def _explicit(x: jax.Array, sharding: jax.sharding.NamedSharding, mesh: Any) -> jax.Array:
    """Return `x` resharded along explicit axes, and constrained along those that are automatic."""
    is_mixed = jax.sharding.AxisType.Auto in mesh.axis_types
    part = _along(mesh, sharding.spec, jax.sharding.AxisType.Explicit)
    if not is_mixed and mesh is sharding.mesh and _has_no_mesh(x):
        # What is typed with a mesh does not say on which devices; a constraint does.
        automatic = (jax.sharding.AxisType.Auto,) * len(mesh.axis_names)
        x = _constraint(x, _named(retyped(mesh, automatic), sharding.spec))
    resharded: jax.Array = jax.sharding.reshard(x, part)
    if not is_mixed:
        return resharded
    if not isinstance(resharded, jax.core.Tracer):
        # In eager code a constraint forgets what the array's type says.
        closed = jax.sharding.PartitionSpec(
            *(None if _is_open(entry) else entry for entry in jax_entries(sharding.spec))
        )
        placed: jax.Array = jax.device_put(x, _named(sharding.mesh, closed))
        return placed
    return _constraint(resharded, _along(mesh, sharding.spec, jax.sharding.AxisType.Auto))


def _constraint(x: jax.Array, sharding: Any) -> jax.Array:
    result: jax.Array = jax.lax.with_sharding_constraint(x, sharding)
    return result


def _has_no_mesh(x: Any) -> bool:
    """Say whether neither the type of a traced array nor the surroundings have a mesh."""
    around: Any = jax.sharding.get_abstract_mesh()
    traced = isinstance(x, jax.core.Tracer)
    return traced and bool(around.empty) and bool(jax.typeof(x).sharding.mesh.empty)


def retyped(mesh: Any, types: tuple[Any, ...]) -> Any:
    """Return the same mesh, of devices or abstract, with other axis types."""
    if isinstance(mesh, jax.sharding.AbstractMesh):
        return jax.sharding.AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=types)
    return jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=types)


def _is_manual_here(mesh: Any) -> bool:
    """Say whether this is the mesh that code inside `shard_map` sees."""
    around: Any = jax.sharding.get_abstract_mesh()
    return not around.empty and bool(around.manual_axes) and _same_axes(around, mesh)


def _without_manual(sharding: jax.sharding.NamedSharding) -> Any:
    """Return a sharding for code outside of `shard_map`, where no axis is manual yet.

    A dimension that only manual axes split is left to whoever splits it.
    """
    mesh: Any = sharding.mesh
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    entries = []
    for entry in jax_entries(sharding.spec):
        names = _names(entry)
        kept = tuple(name for name in names if kinds[name] != jax.sharding.AxisType.Manual)
        is_open = bool(names) and not kept
        entries.append(jax.sharding.PartitionSpec.UNCONSTRAINED if is_open else kept or None)
    types = jax.sharding.AxisType
    usual = tuple(types.Auto if kind == types.Manual else kind for kind in mesh.axis_types)
    return _named(retyped(mesh, usual), jax.sharding.PartitionSpec(*entries))


def _along(mesh: Any, spec: Any, kind: Any) -> Any:
    """Return the part of a sharding that is along mesh axes of one kind."""
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    axes = {name for name, found in kinds if found == kind}
    keeps_open = kind == jax.sharding.AxisType.Auto
    entries = jax_entries(spec)
    kept = (tuple(name for name in _names(entry) if name in axes) or None for entry in entries)
    kept = (e if keeps_open and _is_open(e) else k for e, k in zip(entries, kept, strict=True))
    make: Any = jax.sharding.PartitionSpec
    sums = {
        name: frozenset(getattr(spec, name, None) or ()).intersection(axes) for name in Sums._fields
    }
    return _named(mesh, make(*kept, **{name: found for name, found in sums.items() if found}))


def moved(x: Any, kind: MemoryKind | None) -> Any:
    """Return `x` in a memory of its devices; as it is where none is asked for.

    A constraint says nothing of memories, and JAX passes over one that does.
    """
    if kind is None:
        return x
    if not isinstance(x, jax.core.Tracer):
        return jax.device_put(x, x.sharding.with_memory_kind(kind))
    spaces: Any = jax.memory.Space
    here = jax.typeof(x).memory_space  # what its gradient comes back to
    return jax.device_put(x, spaces.Device if kind == "device" else spaces.Host, src=here)


def _is_open(entry: Any) -> bool:
    return entry is jax.sharding.PartitionSpec.UNCONSTRAINED


def _named(mesh: Any, spec: Any) -> Any:
    return jax.sharding.NamedSharding(mesh, spec)


def _names(entry: Any) -> tuple[str, ...]:
    """Return the mesh axes in one entry of a `PartitionSpec`."""
    if isinstance(entry, str):
        return (entry,)
    return entry if isinstance(entry, tuple) else ()


def _same_axes(mesh: Any, own: Any) -> bool:
    return bool(mesh.axis_names == own.axis_names and mesh.axis_sizes == own.axis_sizes)


def _sizes(mesh: Any) -> str:
    return " ".join(f"{name}={size}" for name, size in dict(mesh.shape).items())


Names = str | Sequence[str | None]
Shape = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ActivationResolver:
    """A spec and a target, asked for one sharding at a time; answers are remembered."""

    arrays: ArrayResolver
    _known: dict[object, Dims] = field(default_factory=dict, repr=False)
    _kept: dict[object, object] = field(default_factory=dict, repr=False)

    def named(self, activation: str) -> LogicalAxes:
        """Return the logical axes of the entry of `activations` that is for this name.

        Raises:
          ShardspecError: there is none of this name, however loud the spec wants that finding.
        """
        return self.entry(activation).logical_axes

    def entry(self, activation: str) -> Activation:
        """Return the entry of `activations` that is for this name; raise as `named` does."""
        self.refuse_unnamed(activation)
        spec = self.arrays.spec
        found = activation_for(spec.activations, activation)
        if found is None:
            fault = _unknown_activation(activation, [entry.name for entry in spec.activations])
            raise ShardspecError([fault.spelt(is_dsl=is_dsl(spec.source))])
        return found

    def stated(
        self,
        entry: Activation,
        shape: Sequence[Any],
        *,
        manual: frozenset[str] = NOTHING,
        array: Any = None,
    ) -> ActivationSharding:
        """Return the sharding of an activation whose partition the spec states.

        Args:
          manual: the mesh axes along which `shape` is that of one shard.

        Raises:
          ShardspecError: it has another number of dimensions, or its mesh axes do not divide them.
        """
        axes, given = entry.logical_axes, trees.sizes_given(shape)
        label = _Label(entry.name, "f32" if array is None else dtype_of(array))
        if len(given) != len(axes):
            self._raise(_wrong_rank(axes, given, label))
        arrays = self._arrays_inside(manual)
        sizes = tuple(size if isinstance(size, int) else None for size in given)
        found = arrays.constrained(entry, sizes)
        self._raise_uneven(axes, found.dims, arrays, label)
        kept = found.sums.here({*arrays.target.mesh.names} - manual)
        return replace(found, sums=kept)

    def refuse_unnamed(self, activation: Any) -> None:
        """Raise TypeError for what cannot be the name of an activation."""
        if not isinstance(activation, str):
            raise TypeError(
                f"an activation is named by a string, not by {trees.kind_of(activation)}"
            )

    def text(self, activation: str) -> str:
        """Return the logical axes of an entry of the spec's `activations` as it spells them."""
        return _text(self.named(activation))

    def dims(
        self,
        names: Names,
        shape: Sequence[Any] | None = None,
        *,
        manual: frozenset[str] = frozenset(),
        name: str | None = None,
        array: Any = None,
    ) -> Dims:
        """Return the sharding of an array with these names.

        Args:
          shape: None for the sizes that the spec's `axes` state, where they do; so does a size
            that is a symbol, as in `jax.export`.
          manual: the mesh axes along which `shape` is that of one shard.
          name: what a message calls the array.
          array: what a message reads the dtype from.
        """
        asked = trees.names_given(names)
        key = (asked, None if shape is None else trees.sizes_given(shape), manual)
        found = self._known.get(key)
        if found is None:
            axes = axes_of(asked)
            label = _Label(name or "", "f32" if array is None else dtype_of(array))
            self._check_names(axes, key[1], label)
            if key[1] is not None and len(axes) != len(key[1]):  # SHD206, which is allowed
                axes = (None,) * len(key[1])
            found = self._known[key] = self._checked(axes, key[1], manual, label)
        return found

    def _check_names(self, axes: LogicalAxes, shape: Shape | None, label: _Label) -> None:
        known = self._known_axes()
        for name in dict.fromkeys(axes):
            if name is not None and name not in known:
                found = _unknown_axis(name, axes, known, label)
                if axes == (name,):
                    found = replace(found, help=self._of_activation(name) or found.help)
                self._raise(found)
        if shape is not None and len(shape) != len(axes):
            self._raise(_wrong_rank(axes, shape, label))

    def _of_activation(self, name: str) -> str | None:
        """Return the way out for the name of an activation where logical axes are asked for."""
        entry = activation_for(self.arrays.spec.activations, name)
        if entry is None or entry.name != name:
            return None
        by_name = f'`constrain(x, activation="{name}")`'
        if entry.partition is not None:
            return f"that is an activation, and has a partition in place of axes: {by_name}"
        return f"that is an activation, of axes `{_text(entry.logical_axes)}`: those, or {by_name}"

    def _checked(
        self, axes: LogicalAxes, shape: Shape | None, manual: frozenset[str], label: _Label
    ) -> Dims:
        arrays = self._arrays_inside(manual)
        stated = self._stated(axes)
        sizes = tuple(
            size if isinstance(size, int) else known
            for size, known in zip(stated if shape is None else shape, stated, strict=True)
        )
        shown = tuple(size or 1 for size in sizes)
        fault = uncountable(Param(_path(axes, label), shown, label.dtype))
        raise_errors(() if fault is None else (fault,))
        dims = arrays.dims(sizes, axes)
        self._raise_uneven(axes, dims, arrays, label)
        return dims

    @kept
    def _arrays_inside(self, manual: frozenset[str]) -> ArrayResolver:
        """Return the resolver for code that sees one shard along these mesh axes."""
        if not manual:
            return self.arrays
        axes = self.arrays.target.mesh.axes
        mesh = Mesh(tuple(replace(a, size=1) if a.name in manual else a for a in axes))
        return array_resolver(self.arrays.spec, replace(self.arrays.target, mesh=mesh))

    def _raise_uneven(
        self, axes: LogicalAxes, dims: Dims, arrays: ArrayResolver, label: _Label
    ) -> None:
        """Raise where a name is given twice, or mesh axes do not divide a size."""
        spec = arrays.spec
        suspects = {codes.REPEATED_AXIS, codes.CUT_UNIT, codes.CUT_PART, codes.INDIVISIBLE}
        if spec.policy.indivisible == "keep":
            suspects.remove(codes.INDIVISIBLE)
        sizes = tuple(dim.size or 0 for dim in dims)
        sharding = ParamSharding(Param(_path(axes, label), sizes, label.dtype), dims, Origin.ARRAY)
        plan = ShardingPlan(spec, arrays.target, (sharding,))
        found = pipeline.findings(spec, [plan], only=suspects).shown
        raise_errors(_seen_inside(d, arrays.target.mesh, self.arrays.target.mesh) for d in found)

    def _stated(self, axes: LogicalAxes) -> tuple[int | None, ...]:
        sizes = {axis.name: axis.size for axis in self.arrays.spec.logical_axes}
        return tuple(sizes.get(name) if name else None for name in axes)

    def _known_axes(self) -> frozenset[str]:
        context = Context(self.arrays.spec, ())
        return context.axes_in_rules | context.axes_in_use | context.axes.keys()

    def _raise(self, diagnostic: Diagnostic) -> None:
        raise_errors(pipeline.report(self.arrays.spec, [diagnostic]).shown)


@dataclass(frozen=True, slots=True)
class _Label:
    """What a message calls an array, which has no path."""

    name: str
    dtype: str

    def __str__(self) -> str:
        return f"`{self.name}`" if self.name else "the array"


def _seen_inside(diagnostic: Diagnostic, inside: Mesh, whole: Mesh) -> Diagnostic:
    """Return a finding with the mesh axes along which code sees one shard."""
    manual = [axis.name for axis in whole.axes if inside.sizes[axis.name] != axis.size]
    if not manual:
        return diagnostic
    note = f"inside `shard_map` over {listed(manual)}: sizes are those of one shard"
    return replace(diagnostic, notes=(*diagnostic.notes, note))


def axes_of(names: Names) -> LogicalAxes:
    """Return one name per dimension; `_` is a dimension without a name.

    >>> axes_of("batch length _")
    ('batch', 'length', None)
    """
    given = trees.names_given(names)
    entries = given.replace(",", " ").split() if isinstance(given, str) else given
    return tuple(None if entry == "_" else entry for entry in entries)


def _path(axes: LogicalAxes, label: _Label) -> str:
    """Return what stands in a message for the path of the array."""
    return f"{label.name} [{_text(axes)}]" if label.name else _text(axes)


def _text(axes: LogicalAxes) -> str:
    return " ".join(name or "_" for name in axes)


def _unknown_activation(name: str, known: Sequence[str]) -> Diagnostic:
    offer = f"names {listed(known)}" if known else f"has no {quote.section('activations')}"
    says = "batch length embed"
    added = quote.either(f"`{name}: {says}`", f"`activation {name} : {says}`")
    help = did_you_mean(name, known) or f"the spec {offer}; add {added}, say"
    return Diagnostic(codes.UNKNOWN_ACTIVATION, f"no activation is called `{name}`", help=help)


def _unknown_axis(name: str, axes: LogicalAxes, known: frozenset[str], label: _Label) -> Diagnostic:
    whose = f" of {label}" if label.name else ""
    return Diagnostic(
        codes.UNKNOWN_LOGICAL_AXIS,
        f"unknown logical axis `{name}` in `{_text(axes)}`{whose}",
        help=near_or_known(name, sorted(known)),
    )


def _wrong_rank(axes: LogicalAxes, shape: Shape, label: _Label) -> Diagnostic:
    more = '; inside of `jax.vmap`, `mapped="batch"` names what that maps'
    return Diagnostic(
        codes.RANK_MISMATCH,
        f"`{_text(axes)}` names {counted(len(axes), 'dimension')},"
        f" {label} {list(shape)} has {len(shape)}",
        help="give one name per dimension, `_` for one without a name"
        + (more if len(axes) > len(shape) else ""),
    )


#: What a constraint asks for: a layout, and the memory to move to.
_Asked = tuple[jax.sharding.NamedSharding, MemoryKind | None]


@dataclass(frozen=True, slots=True, eq=False)
class Constrainer:
    """The constraints of one spec on one mesh; answers are remembered."""

    mesh: jax.sharding.Mesh
    activations: ActivationResolver
    placer: TreePlacer
    _known: dict[object, _Asked] = field(default_factory=dict, repr=False)

    def constrain(self, x: Any, names: Any, activation: str | None, name: str | None) -> Any:
        """Return an array, or a tree of them, with a constraint; see `Resolver.constrain`."""
        if (names is None) == (activation is None):
            raise TypeError("constrain() takes either names or activation=, and not both")
        if not (name is None or isinstance(name, str)):
            raise TypeError(f"`name` is a string, not {trees.kind_of(name)}")
        if activation is not None:
            self.activations.refuse_unnamed(activation)
        if isinstance(x, str):
            raise TypeError('the array comes first: `constrain(x, "batch embed")`')
        shape = getattr(x, "shape", None)
        if type(shape) is not tuple:
            asked = names if activation is None else self.activations.text(activation)
            if type(x) in SCALARS:
                self.activations.dims(asked, (), name=name or activation, array=x)
                return x
            return self._tree(x, asked, name or activation or "", activation)
        from jax import named_scope

        mesh = self._surroundings(x, name)
        manual = manual_axes(mesh, self.mesh)
        given: Any = names if type(names) is str or names is None else trees.names_given(names)
        key = (given, activation, shape, manual)
        found = self._known.get(key)
        if found is None:
            memory = None if activation is None else self.activations.entry(activation).memory
            sharding = self._sharding(x, given, activation, manual, name or activation)
            found = self._known[key] = (sharding, memory)
        sharding, memory = found
        try:
            with named_scope(constraint_scope(activation or _spelt(given))):
                return moved(constrained(x, sharding, mesh), memory)
        except trees.UNUSABLE as error:
            trees.refuse_unusable(x, name or activation or "", error, "constrain")
            raise

    def _surroundings(self, x: Any, name: str | None) -> Any:
        around = _around(self.mesh)
        if around is not None:
            return around
        try:
            return _typed(x, self.mesh)
        except trees.UNUSABLE as error:  # JAX knows no type for it
            trees.refuse_unusable(x, name or "", error, "constrain")
            raise

    def _sharding(
        self,
        x: Any,
        names: Names,
        activation: str | None,
        manual: frozenset[str],
        name: str | None,
    ) -> jax.sharding.NamedSharding:
        if activation is not None:
            entry = self.activations.entry(activation)
            if entry.partition is not None:
                found = self.activations.stated(entry, x.shape, manual=manual, array=x)
                return self.placer.placed(Bare(found.dims, found.sums))
            names = entry.logical_axes
        dims = self.activations.dims(names, x.shape, manual=manual, name=name, array=x)
        return self.placer.named(dims)

    def _tree(self, tree: Any, names: Any, name: str, activation: str | None) -> Any:
        """Return a tree with each array constrained by the string that stands for it in `names`.

        Args:
          activation: whose names they are.
        """
        trees.refuse_no_tree(tree)

        def is_array(leaf: Any) -> bool:
            return type(getattr(leaf, "shape", None)) is tuple

        def below(above: Any, asked: str | None, node: Any) -> Any:
            is_beside = any(map(is_array, jax.tree_util.tree_leaves(node)))  # numbers stay, then

            def one(keys: Any, leaf: Any) -> Any:
                if isinstance(leaf, str):
                    raise TypeError("the tree of arrays comes first: `constrain(tree, names)`")
                is_asked = is_array(leaf) or (type(leaf) in SCALARS and not is_beside)
                if asked is None or not is_asked:
                    return leaf
                path = path_of((*above, *keys))
                title = "/".join(filter(None, (name, path)))
                return self.constrain(leaf, None if activation else asked, activation, title)

            return jax.tree_util.tree_map_with_path(one, node)

        return jax.tree_util.tree_map_with_path(
            below, names, tree, is_leaf=lambda node: node is None or isinstance(node, str)
        )


def _spelt(names: Names) -> str:
    """Return logical axes as a scope of JAX has them, by which a traced step knows them again."""
    return names if isinstance(names, str) else " ".join(name or "_" for name in names)


# The resolver that code is under, where it has none at hand: `shardspec.constrain`.


Tree = TypeVar("Tree")


class Constraining(Protocol):
    """What a `Resolver` is asked for here."""

    @property
    def constrain(self) -> Callable[..., Any]:
        """Return what puts a constraint on an array."""


#: The resolvers whose `with` blocks code is in, the innermost last.
_CURRENT: ContextVar[tuple[Constraining, ...]] = ContextVar("shardspec.current", default=())
#: The resolver that code was last constrained by here.
_USED: list[Constraining] = []


class _Unconstrained:
    """Stands for a resolver where no array is placed, and leaves arrays as they are."""

    def constrain(self, x: Tree, *names: Any, **options: Any) -> Tree:
        """Return `x` as it is."""
        return x


UNCONSTRAINED = _Unconstrained()


@contextlib.contextmanager
def unconstrained() -> Iterator[None]:
    """Let `shardspec.constrain` return what it is given, for code that only tells shapes."""
    enter(UNCONSTRAINED)
    try:
        yield
    finally:
        leave()


def enter(resolver: Constraining) -> None:
    """Begin a `with` block."""
    _become((*_CURRENT.get(), resolver))


def leave() -> None:
    """End the innermost `with` block."""
    _become(_CURRENT.get()[:-1])


def _become(around: tuple[Constraining, ...]) -> None:
    """Make the last resolver the current one.

    JAX keeps what it has traced, and does not ask under which resolver: where code was constrained
    by another one before, it forgets all.
    """
    if around and _USED and _USED[0] != around[-1]:
        jax.clear_caches()
        _USED.clear()
    _CURRENT.set(around)


def constrain(
    x: Tree,
    names: Any = None,
    *,
    activation: str | None = None,
    name: str | None = None,
    mapped: Any = None,
) -> Tree:
    """Return `x` with a sharding constraint by the resolver whose `with` block this runs in.

    For code that is not given a resolver. Where `--step` traces it, it is under that of the spec.
    In no such block it returns `x` as it is while Flax Linen or Haiku makes the parameters of a
    model, and in a function of which only the shapes of its arrays are used, as `--arrays` has.

        with resolver:
            loss = train_step(state, batch)  # calls `shardspec.constrain(x, "batch embed")`

    Args:
      x: an array, or a tree of them; see `Resolver.constrain` for the other arguments.

    Raises:
      ShardspecError: it runs in no such block, or as `Resolver.constrain` does.
    """
    around = _CURRENT.get()
    if not around and trees.is_initializing():
        around = (UNCONSTRAINED,)
    if not around:
        message = "`shardspec.constrain` runs under no resolver"
        help = "call the step in `with resolver:`, or call `resolver.constrain`"
        raise ShardspecError((Diagnostic(codes.NO_RESOLVER, message, help=help),))
    _USED[:] = around[-1:]
    found: Tree = around[-1].constrain(x, names, activation=activation, name=name, mapped=mapped)
    return found


_waiting = Primitive("shardspec_constrain")


def constrained_mapped(
    constrainer: Constrainer, tree: Any, names: Any, mapped: Any, name: str | None
) -> Any:
    """Return an array, or a tree of them, with a constraint; see `Resolver.constrain`.

    Raises:
      TypeError: names are missing, or those of an array are a tree.
    """
    if names is None:
        raise TypeError("constrain() takes mapped= with names")
    shape = getattr(tree, "shape", None)
    if type(shape) is not tuple:
        raise TypeError(f"constrain() takes mapped= for one array, not {trees.kind_of(tree)}")
    own, outer = axes_of(names), axes_of(mapped)
    _dims(tree, own, outer, name, constrainer)  # faults come at once
    return _wait(tree, names=own, mapped=outer, name=name, constrainer=constrainer)


def _wait(
    x: Any, *, names: LogicalAxes, mapped: LogicalAxes, name: str | None, constrainer: Constrainer
) -> Any:
    if not mapped:
        return constrainer.constrain(x, names, None, name)
    return _waiting.bind(x, names=names, mapped=mapped, name=name, constrainer=constrainer)


def _batched(args: Any, dims: Any, *, names: Any, mapped: Any, **others: Any) -> Any:
    """Give the dimension of the innermost `vmap` the last of the names that wait."""
    (x,), (at,) = args, dims
    names = (*names[:at], mapped[-1], *names[at:])
    return _wait(x, names=names, mapped=mapped[:-1], **others), at


def _beside(
    x: Any, *, names: LogicalAxes, mapped: LogicalAxes, name: str | None, constrainer: Constrainer
) -> Any:
    """Constrain what no `vmap` maps along the dimensions that it has."""
    whole = constrainer.placer.named(_dims(x, names, mapped, name, constrainer))
    own = jax.sharding.PartitionSpec(*jax_entries(whole.spec)[len(mapped) :])
    sharding = jax.sharding.NamedSharding(whole.mesh, own)
    return constrained(x, sharding, surroundings(x, constrainer.mesh))


def _dims(
    x: Any, names: LogicalAxes, mapped: LogicalAxes, name: str | None, constrainer: Constrainer
) -> Dims:
    """Return the sharding of all dimensions, of which whatever splits the mapped ones divides them.

    Raises:
      ShardspecError: as `Resolver.constrain` does.
    """
    manual = manual_axes(surroundings(x, constrainer.mesh), constrainer.mesh)
    sizes = (*(constrainer.mesh.size for _ in mapped), *x.shape)
    return constrainer.activations.dims((*mapped, *names), sizes, manual=manual, name=name, array=x)


_waiting.def_impl(_beside)
_waiting.def_abstract_eval(lambda x, **_: x)
ad.deflinear2(_waiting, lambda cotangent, _, **asked: (_waiting.bind(cotangent, **asked),))
batching.primitive_batchers[_waiting] = _batched
mlir.register_lowering(_waiting, mlir.lower_fun(_beside, multiple_results=False))

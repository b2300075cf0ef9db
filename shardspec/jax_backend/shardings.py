"""Plan -> NamedShardings of a live tree, fast: one walk, and two look-ups an array.

What decides an array's sharding is its key, which is shape and names, and where these are not
enough, its path. A model has a dozen such keys however many layers it has. So every one is resolved
and checked once, and every distinct spec has one `NamedSharding` object, for as long as the
resolver lives.

`decoder/layers_7/mlp/wi/kernel` and `decoder/layers_8/mlp/wi/kernel` get the same answer from
`**/mlp/wi/kernel`, and from every pattern that says nothing about the 7. So each number in a
path is replaced by a mark, unless a pattern names it, and one array stands for all that share
the result: the *template*. This holds only for patterns whose answer cannot depend on a number they
do not name. `*1` does (it takes 21 and not 20), and so does `layer_.` (7 and not 10). Where one
pattern is of that kind there are no templates, and every path is its own.

The walk makes no paths. It goes down the tree and, beside it, down the `Places`: one for all places
that have one template, which remembers what stands in place of each key there. Only where a key is
new is there something to find out. The answers are made on the way and checked at the end, so that
nothing is told of arrays that turn out to be optimizer state. A second walk is needed only where
arrays derive from others, or where it turns out on the way that paths count. JAX's own flattening
and unflattening take most of the time of the whole walk.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import jax

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, ShardspecError, codes, sort_key
from shardspec.diagnostics import codes as c
from shardspec.diagnostics.words import listed
from shardspec.ir import spec as ir
from shardspec.ir.plan import DimSharding, ParamSharding, ShardingPlan
from shardspec.jax_backend import trees
from shardspec.jax_backend.target_devices import is_abstract
from shardspec.jax_backend.trees import COUNT, STATE_NAMES, opened, optax_fields, params_of
from shardspec.report.plan import Plan
from shardspec.resolve.resolver import ArrayResolver

#: Stands for a number; no path has it in a component that JAX or Flax made.
MARK = "\x00"

_NUMBER = re.compile(r"[0-9]+")

#: A glob's component that names numbers: plain text, and braces of plain texts or a range,
#: no digit next to a brace, where two numbers would become one.
_PLAIN = r"[^{}*?\[\]\\,]*"
_NUMBERED = re.compile(rf"{_PLAIN}(?:(?<![0-9}}])\{{[^{{}}*?\[\]\\/]*\}}(?![0-9{{]){_PLAIN})*")
_RANGE = re.compile(r"\{(0|[1-9][0-9]{0,4})\.\.(0|[1-9][0-9]{0,4})\}")

#: A regex between two of its `/`: text without digits, alternatives of such text, anything
#: that may be empty, and at most one piece that takes one character or more.
_TEXT = r"[A-Za-z_\-~]|\\[.\-_]|\(\?:|\(|\)\??|\||\.\*|\\w\*|\\d\*|\[0-9\]\*"
_RUN = r"\.\+|\\w\+|\\d\+|\[0-9\]\+"
_BLIND = re.compile(rf"\^?(?:{_TEXT})*(?:(?:{_RUN})(?:{_TEXT})*)?\$?")


#: The template of a path where no path counts.
_NUMBERS_APART = partial(_NUMBER.sub, MARK)


def template_maker(patterns: Iterable[ir.Pattern]) -> Callable[[str], str] | None:
    """Return the function that makes a path's template, or None where paths must be matched.

    Invariants:
      same_template: paths with one template match the same of `patterns`.
    """
    kept: set[str] = set()
    for pattern in patterns:
        named = numbers_named(pattern)
        if named is None:
            return None
        kept |= named

    free = rf"(?<![0-9])(?!(?:{'|'.join(sorted(kept))})(?![0-9]))[0-9]+" if kept else r"[0-9]+"
    return partial(re.compile(free).sub, MARK)


def numbers_named(pattern: ir.Pattern) -> frozenset[str] | None:
    """Return the numbers a pattern names; None where others may change its answer as well.

    >>> sorted(numbers_named(ir.Pattern("**/mlp/wi_{0,1}/kernel")))
    ['0', '1']
    >>> numbers_named(ir.Pattern("layers_*1/kernel")) is None
    True
    """
    if pattern.dialect == "regex":
        parts = pattern.text.replace("[^/]", r"\w").split("/")
        return frozenset() if all(map(_is_blind, parts)) else None
    named: set[str] = set()
    for part in pattern.text.split("/"):
        if "\\" in part or "?" in part or "[" in part:
            return None
        if not _NUMBER.search(part):
            continue
        if not _NUMBERED.fullmatch(part):
            return None
        for low, high in _RANGE.findall(part):
            named.update(map(str, range(int(low), int(high) + 1)))
        if ".." in _RANGE.sub("", part):
            return None
        named.update(_NUMBER.findall(part))
    return frozenset(named)


def _is_blind(part: str) -> bool:
    """Say whether a regex between two `/` outside of groups takes any number for any other."""
    return part.count("(") == part.count(")") and _BLIND.fullmatch(part) is not None


class Answer(Protocol):
    """What decides how an array lies: a `ParamSharding`, an `ActivationSharding`, or dimensions."""

    @property
    def dims(self) -> Sequence[DimSharding]:
        """Return the dimensions."""

    @property
    def sums(self) -> ir.Sums:
        """Return the mesh axes over which it is a sum."""

    @property
    def memory_kind(self) -> ir.MemoryKind | None:
        """Return its memory, None for that of the device."""


class Bare(NamedTuple):
    """Dimensions alone."""

    dims: Sequence[DimSharding]
    sums: ir.Sums = ir.NO_SUMS
    memory_kind: ir.MemoryKind | None = None


def partition_entries(dims: Sequence[DimSharding]) -> tuple[Any, ...]:
    """Return what `jax.sharding.PartitionSpec` takes, one entry for every dimension.

    One mesh axis is a string, several are a tuple, none is None. Trailing Nones stay, so the
    length is always the rank: JAX holds `P('a', None)` and `P('a')` for different.
    """
    entries = (dim.mesh_axes for dim in dims)
    return tuple(None if not axes else axes[0] if len(axes) == 1 else axes for axes in entries)


def partition_spec(answer: Answer) -> jax.sharding.PartitionSpec:
    """Return JAX's own for an answer, of full rank, with its sums."""
    make: Any = jax.sharding.PartitionSpec
    found: jax.sharding.PartitionSpec = make(
        *partition_entries(answer.dims), **ir.jax_sums(answer.sums)
    )
    return found


def named_sharding(mesh: Any, answer: Answer) -> jax.sharding.NamedSharding:
    """Return the sharding for an answer on a mesh, in its memory.

    Raises:
      ShardspecError: the devices have no such memory, or the mesh can have no sums.
    """
    refuse_sums(answer.sums.mesh_axes, mesh)
    spec = partition_spec(answer)
    kind = answer.memory_kind
    if kind is None:
        return jax.sharding.NamedSharding(mesh, spec)
    if not is_abstract(mesh):
        refuse_unknown_memory(mesh.devices.flat[0], kind)
    return jax.sharding.NamedSharding(mesh, spec, memory_kind=kind)


def refuse_sums(sums: Sequence[str], mesh: Any) -> None:
    """Raise for sums over mesh axes on a mesh that has automatic ones.

    Raises:
      ShardspecError: JAX has sums in the types of arrays alone, on meshes that are all explicit.
    """
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    auto = [name for name, kind in kinds if kind == jax.sharding.AxisType.Auto]
    if sums and auto:
        are = f"{listed(auto)} {'is' if len(auto) == 1 else 'are'}"
        message = f"sums over {listed(sums)}, where {are} left to the compiler"
        help = "JAX computes with sums where all mesh axes are `explicit`, or manual in `shard_map`"
        raise ShardspecError([Diagnostic(codes.SUMS_NOT_EXPLICIT, message, help=help)])


def refuse_unknown_memory(device: Any, kind: str) -> None:
    """Raise for a memory that a device has not.

    Raises:
      ShardspecError: saying which it has.
    """
    known = sorted(memory.kind for memory in device.addressable_memories())
    if kind not in known:
        message = f"{device.platform} devices have no memory `{kind}`"
        raise ShardspecError(
            (Diagnostic(codes.WRONG_TYPE, message, help=f"they have {listed(known)}"),)
        )


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Keep the garbage collector off while a tree is taken apart and put together.

    That makes many containers and no garbage, and the collector would walk the whole model
    several times for nothing.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


#: What an answer is remembered by: the template of its path where that counts, shape and names.
Question = tuple[str, ir.Shape, ir.LogicalAxes | None]


@dataclass(eq=False, slots=True)
class Places:
    """All places of one template in a tree.

    Attributes:
      first: the components of the first of them.
      below: the places there by the component below them, and by the template of that.
      known: the key of an array -> what stands in its place.
      last: the kind of the last box there, that of its array, shape, names, mesh, and the answer.
    """

    first: trees.Place
    below: dict[str, Places] = field(default_factory=dict)
    known: dict[trees.Key, Any] = field(default_factory=dict)
    last: tuple[Any, ...] = (None,) * 6


@dataclass(frozen=True, slots=True)
class TreePlacer:
    """The shardings of trees on one mesh.

    Attributes:
      template: makes a path's template; None where the patterns of the spec allow none.
      known: the answers so far.
    """

    arrays: ArrayResolver
    mesh: Any
    template: Callable[[str], str] | None = field(repr=False)
    known: dict[Question, ParamSharding] = field(default_factory=dict, repr=False)
    _by_spec: dict[Any, jax.sharding.NamedSharding] = field(default_factory=dict, repr=False)

    def named(self, dims: Sequence[DimSharding]) -> jax.sharding.NamedSharding:
        """Return the one sharding object for these dimensions."""
        return self.placed(Bare(dims))

    def placed(self, answer: Answer) -> jax.sharding.NamedSharding:
        """Return the one sharding object for this answer: its dimensions, sums and memory."""
        key = (partition_spec(answer), answer.memory_kind)
        found = self._by_spec.get(key)
        if found is None:
            found = self._by_spec[key] = named_sharding(self.mesh, answer)
        return found


def _no_rules(_: Any) -> None:
    return None


def tree_placer(arrays: ArrayResolver, mesh: Any) -> TreePlacer:
    """Return the shardings of trees on `mesh`, none of them known yet."""
    spec = arrays.spec
    entries: tuple[Any, ...] = (*spec.overrides, *spec.path_rules, *spec.scans, *spec.memory)
    patterns = [entry.pattern for entry in entries]
    is_apart = spec.derives or spec.caches  # with a parent, or a name, of its own
    template = None if is_apart else template_maker(patterns)
    return TreePlacer(arrays, mesh, template)


#: Stands for an answer that is not known yet, or that there is none.
_PENDING = object()


class Walk:
    """A walk down one tree, which puts something in place of every array.

    Attributes:
      is_params: whether the tree has arrays, and nothing in it might be optimizer state.
      has_wide_boxes: whether a box holds other things than one array.
    """

    def __init__(
        self,
        placer: TreePlacer,
        tree: Any,
        made: Callable[[Question, ParamSharding], Any],
        *,
        boxed: bool = True,
        nothing: Any = None,
        by_path: bool = False,
    ) -> None:
        """Take the walk.

        Args:
          made: what stands in place of an array, by its answer.
          boxed: whether the boxes of Flax stay around that.
          nothing: what stands in place of a leaf that is no array.
          by_path: whether arrays whose paths have two templates are never one.

        Raises:
          ShardspecError: JAX cannot take the tree apart.
        """
        spec, needs_paths = placer.arrays.spec, placer.arrays.names.needs_paths
        self._placer, self._made = placer, made
        self._boxed, self._nothing, self._by_path = boxed, nothing, by_path or needs_paths
        self._derives = bool(spec.derives)  # answers then go by the other arrays as well
        self._known, self._beside = {} if self._derives else placer.known, trees.names_beside(tree)
        self.template = placer.template or (str if self._by_path else _NUMBERS_APART)
        if self._beside or spec.policy.whole_below is not None:  # dtypes count, layers may differ
            self.template = str
        self.has_wide_boxes = False
        self._has_arrays = self._has_state = self._has_faults = self._has_odd_keys = False
        self._counting: list[Places] = []
        self._ways: dict[type, Callable[[Any, Places], Any]] = {
            dict: self._dict,
            list: self._list,
            tuple: self._tuple,
        }
        self._result = self._begun(tree)
        if self._needs_paths:
            self.template = str
            self._result = self._begun(tree)
        if self._has_odd_keys:
            trees.refuse_no_tree(tree)
        fields = [set(map(str, each.below)) for each in self._counting]
        is_spread = any(state <= found for found in fields for state in optax_fields())
        self.is_params = self._has_arrays and not self._has_state and not is_spread

    def _begun(self, tree: Any) -> Any:
        self._needs_paths = False
        self._refusal: ShardspecError | None = None
        self._waiting: dict[Question, ir.Param] = {}
        self._fresh: dict[Question, ParamSharding] = {}
        with collector_at_rest():
            return self._down(tree, Places(()))

    def placed(self, tree: Any) -> Any:
        """Return the tree with something for every array, None for a leaf that is none.

        Raises:
          ShardspecError: an array is at fault; it says all that is wrong with the tree.
        """
        if self._has_faults:
            trees.params_of(tree)
        arrays, waiting = self._placer.arrays, self._waiting
        if waiting:
            answers = arrays.resolve_all(waiting.values())
            self._fresh = dict(zip(waiting, answers, strict=True))
        if self._fresh:
            # The resolver keeps equal dims as one object, which lives as long as it does.
            distinct = {kind_of(each): each for each in self._fresh.values()}
            raise_faults(arrays, tuple(distinct.values()), tree)
            self._known.update(self._fresh)
        result = self._begun(tree) if waiting else self._result
        if self._refusal is not None:
            raise self._refusal
        return result

    def _down(self, node: Any, at: Places) -> Any:
        way = self._ways.get(type(node)) or self._met(node)
        return way(node, at)

    def _dict(self, node: dict[Any, Any], at: Places) -> Any:
        ways, below, result = self._ways, at.below, {}
        for name, child in node.items():
            way = ways.get(type(child)) or self._met(child)
            result[name] = way(child, below.get(name) or self._entered(at, name))
        return result

    def _list(self, node: Sequence[Any], at: Places) -> list[Any]:
        return [self._down(child, self._below(at, str(place))) for place, child in enumerate(node)]

    def _tuple(self, node: tuple[Any, ...], at: Places) -> Any:
        return tuple(self._list(node, at))

    def _node(self, node: Any, at: Places) -> Any:
        """Return a node of any other kind with answers; only JAX knows how to open it."""
        flat, structure = opened(node)
        below = [(child, self._below(at, trees.component(keys[0]))) for keys, child in flat]
        return structure.unflatten([self._down(child, inner) for child, inner in below])

    def _below(self, at: Places, name: Any) -> Places:
        return at.below.get(name) or self._entered(at, name)

    def _entered(self, at: Places, name: Any) -> Places:
        """Return the places below a component that was not met before, and take note of it."""
        text = trees.key_text(name)
        found = at.below.setdefault(self.template(text), Places((*at.first, text)))
        if type(name) is str:
            at.below[name] = found
        self._has_state = self._has_state or name in STATE_NAMES
        self._has_odd_keys = self._has_odd_keys or type(name) is not str
        if name == COUNT:
            self._counting.append(at)
        return found

    def _met(self, node: Any) -> Callable[[Any, Places], Any]:
        """Return what places nodes of a type that was not met before."""
        kind = type(node)
        self._has_state = self._has_state or trees.may_be_state(kind)
        self._ways[kind] = way = self._way(node)
        return way

    def _way(self, node: Any) -> Callable[[Any, Places], Any]:
        kind = type(node)
        if trees.is_nnx(kind):
            return self._variables(kind)
        if trees.is_linen(kind):
            return self._linen(kind)
        _, structure = opened(node)
        if structure.num_nodes != structure.num_leaves:
            return self._node
        self._has_state = self._has_state or isinstance(node, Mapping)
        return self._array if trees.is_jaxs(kind) else self._leaf

    def _array(self, node: Any, at: Places) -> Any:
        found = at.known.get(node.shape)
        return self._asked(node.shape, node, None, at) if found is None else found

    def _leaf(self, node: Any, at: Places, names: Any = None) -> Any:
        shape = trees.shape_of(node)
        if shape is None:
            self._has_faults = self._has_faults or isinstance(node, jax.sharding.PartitionSpec)
            return self._nothing
        found = at.known.get(shape) if names is None else None
        return self._asked(shape, node, names, at) if found is None else found

    def _linen(self, kind: type) -> Callable[[Any, Places], Any]:
        """Return what places the boxes of Linen of one type; alike ones share the box around."""
        read, boxed = trees.key_reader(kind), self._boxed
        rules_of = attrgetter("rules") if hasattr(kind, "rules") else _no_rules

        def placed(box: Any, at: Places) -> Any:
            value, names = box.value, box.names
            box_kind, array, shape, known, mesh, found = at.last
            if (
                type(value) is array
                and value.shape == shape
                and type(names) is tuple
                and names == known
                and box.mesh is mesh
                and box_kind is kind
                and rules_of(box) is None
            ):
                return found
            key = read(box)
            if key is None:
                return self._whole(box, at)
            found = at.known.get(key)
            if found is None:
                found = self._asked(key[0], value, names, at)
                found = at.known[key] = box.replace_boxed(found) if boxed else found
            if trees.is_jaxs(type(value)):
                at.last = (kind, type(value), key[0], names, box.mesh, found)
            return found

        return placed

    def _variables(self, kind: type) -> Callable[[Any, Places], Any]:
        """Return what places the boxes of NNX of one type, each in a box of its own."""
        read, make = trees.value_reader(kind), trees.box_maker(kind) if self._boxed else None

        def placed(box: Any, at: Places) -> Any:
            value, metadata = read(box), box.get_metadata()
            names = metadata.get(trees.NNX_NAMES) or trees.nnx_names(metadata)
            box_kind, array, shape, known, _, found = at.last
            if not (
                type(value) is array
                and value.shape == shape
                and type(names) is type(known)
                and names == known
                and box_kind is kind
            ):
                key = trees.variable_key(kind, value, names)
                if key is None:
                    return self._whole(box, at)
                found = at.known.get(key)
                if found is None:
                    found = at.known[key] = self._asked(key[0], value, names, at)
                if trees.is_jaxs(type(value)):
                    at.last = (kind, type(value), key[0], names, None, found)
            return found if make is None or found is _PENDING else make(box, found, metadata)

        return placed

    def _whole(self, box: Any, at: Places) -> Any:
        """Return what stands for a box whose arrays are asked about one by one."""
        self.has_wide_boxes = True
        leaves = [
            self._leaf(value, reduce(self._below, place, at), names)
            for place, value, names in trees.box_leaves(box)
        ]
        structure: Any = jax.tree_util.tree_structure(box if self._boxed else trees.box_value(box))
        return structure.unflatten(leaves)

    def _asked(self, shape: ir.Shape, value: Any, names: Any, at: Places) -> Any:
        """Return what stands for an array that its spot has not met."""
        self._has_arrays = True
        path = ir.tree_path(at.first)
        param = trees.param_or_fault(
            path, shape, value, self._beside.get(path) if names is None else names
        )
        found = self._answered(param)
        if names is None:
            at.known[shape] = found
        return found

    def _answered(self, param: ir.Param | Diagnostic) -> Any:
        if isinstance(param, Diagnostic):
            self._has_faults = True
            return _PENDING
        spec, template = self._placer.arrays.spec, self._placer.template or str
        counts = self._by_path or (param.logical_axes is None and bool(spec.path_rules))
        if counts and self.template is _NUMBERS_APART:
            self._needs_paths = True
            return _PENDING
        mark = template(param.path) if counts else ""
        mark += MARK * spec.policy.keeps_whole(param)
        question = (mark, param.shape, param.logical_axes)
        answer = self._known.get(question) or self._fresh.get(question)
        if answer is None and self._derives:
            self._waiting.setdefault(question, param)
            return _PENDING
        if answer is None:
            answer = self._fresh[question] = self._placer.arrays.resolve(param)
        try:
            return self._made(question, answer)
        except ShardspecError as error:  # told after what is wrong with the arrays
            self._refusal = error
            return _PENDING


# The plan of a live tree, and what is wrong with its arrays, raised once for all of them.
#
# New answers are checked a few at a time, one per distinct pair of shape and names. Only when one
# is at fault is the whole tree planned, so that the message can say how many arrays it touches,
# which is the first, and what it costs.


#: Findings about one array; the others are about the spec, or a tree as a whole.
OF_ONE_ARRAY = frozenset(
    (
        c.UNNAMED_ARRAY,
        c.RANK_MISMATCH,
        c.REPEATED_AXIS,
        c.INDIVISIBLE,
        c.SIZE_MISMATCH,
        c.CUT_UNIT,
        c.CUT_PART,
        c.MISSING_PARENT,
        c.DERIVED_MISFIT,
    )
)


def plan_of(arrays: ArrayResolver, tree: Any) -> Plan:
    """Return the plan for the arrays of a pytree."""
    resolved = arrays.resolve_all(params_of(tree))
    return Plan(arrays.spec, arrays.target, resolved, is_checked=False)


def raise_faults(arrays: ArrayResolver, fresh: Sequence[ParamSharding], tree: Any) -> None:
    """Raise every finding about `tree` if one of `fresh` is an error.

    Args:
      fresh: one array for each answer that was not seen before; paths do not matter.
    """
    if _is_at_fault(arrays, fresh):
        raise_errors(pipeline.tree_findings(plan_of(arrays, tree)))


def plan_faults(arrays: ArrayResolver, plan: ShardingPlan) -> tuple[Diagnostic, ...]:
    """Return the errors about arrays that `shardings` of the tree would raise."""
    # The resolver keeps equal dims as one object, which lives as long as it does.
    distinct = {kind_of(each): each for each in plan.arrays}
    if not distinct or not _is_at_fault(arrays, tuple(distinct.values())):
        return ()
    kept = {*OF_ONE_ARRAY, c.UNKNOWN_LOGICAL_AXIS}
    plan = pipeline.with_lone_named(plan)
    found = pipeline.findings(pipeline.with_axes_of_code(plan), [plan]).loud
    errors = (each for each in found if each.is_error and each.code in kept)
    return tuple(dict.fromkeys(map(pipeline.for_trees, sorted(errors, key=sort_key))))


def kind_of(sharding: ParamSharding) -> tuple[object, ...]:
    """Return what arrays of one answer have in common, as far as findings about one go."""
    derivation = sharding.derivation
    fits = derivation is None or (derivation.parent is not None and not derivation.fault)
    return sharding.dims, sharding.origin, sharding.mismatch, fits


def _is_at_fault(arrays: ArrayResolver, sample: Sequence[ParamSharding]) -> bool:
    plan = ShardingPlan(arrays.spec, arrays.target, tuple(sample))
    unknown = {name for sharding in sample for name in sharding.logical_axes if name}
    unknown -= declared_axes(arrays)
    suspects = OF_ONE_ARRAY | ({c.UNKNOWN_LOGICAL_AXIS} if unknown else set())
    found = pipeline.findings(arrays.spec, [plan]).loud
    return any(diagnostic.is_error and diagnostic.code in suspects for diagnostic in found)


def declared_axes(arrays: ArrayResolver) -> set[str]:
    """Return the logical axes that a rule or an entry of `axes` knows."""
    declared = {axis.name for axis in arrays.spec.logical_axes}
    return declared.union(arrays.table.by_axis)


def raise_errors(diagnostics: Iterable[Diagnostic]) -> None:
    """Raise all of `diagnostics` if one of them is an error."""
    found = tuple(diagnostics)
    if any(diagnostic.is_error for diagnostic in found):
        raise ShardspecError(found)

"""How an array of optimizer state follows from the parameter it was made for.

Optimizers keep arrays of the parameter's shape (moments), and arrays that lost dimensions of it
(Adafactor's rows and columns, SM3's accumulators). Each dimension of such an array *is* a
dimension of the parameter, and is laid out as that one. A *reading* says which; where two
readings would give different answers, the name of the field settles it if the optimizer
documents its rule, and nothing else does.

A pattern that names arrays of the model usually matches the state of those arrays too:
`**/kernel` is the tail of `0/mu/decoder/kernel`. Such an entry says what the parameter is,
and the state follows from that. An entry is about state if it matches the path of the state
array and not that of its parameter.

ZeRO splits optimizer state further than its parameter, over mesh axes that only see data. Devices
that differ in their share of the batch alone hold the same parameters, and would all keep the same
moments. Each of them can keep a part instead. The extra mesh axes come last on the dimension they
split, the most minor ones, so a device's part of the state lies inside its own shard of the
parameter, and nothing but that shard has to move.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, NamedTuple

from shardspec.diagnostics.words import counted
from shardspec.ir import plan as plans
from shardspec.ir.plan import Attempt, Dims, DimSharding, Entry, Kind, Outcome, ParamSharding
from shardspec.ir.spec import DeriveRule, MemoryRule, Mesh, Override, Param, PathRule, Shape, Spec
from shardspec.resolve.derive import derived, laid_out, wanted_paths
from shardspec.resolve.match import PathMatcher
from shardspec.resolve.resolver import ArrayResolver
from shardspec.versions import renamed

#: The logical axis whose mesh axes see different data.
BATCH = "batch"


class Split(NamedTuple):
    """One array split further, or not.

    Attributes:
      mesh_axes: those that the array had left to use; `()` where it is split by all already.
      dim: the dimension that took them, None where none did.
    """

    dims: Dims
    mesh_axes: tuple[str, ...] = ()
    dim: int | None = None

    @property
    def has_failed(self) -> bool:
        """Say whether mesh axes were left and no dimension is divided by them."""
        return bool(self.mesh_axes) and self.dim is None


def extra_axes(dims: Dims, mesh: Mesh, over: Sequence[str]) -> Dims:
    """Return `dims` with the mesh axes `over` on the first dimension they divide.

    Mesh axes that the array uses already, that split nothing or that the mesh lacks are left
    out; the others go together or not at all. Where no dimension is divided by them, in whole
    units and on top of what splits it, `dims` come back as they were.

    Invariants:
      once, divides: as for parameters.
      inside: every shard lies in the shard of `dims` on the same device.
      idempotent: a second time changes nothing.
    """
    return split_further(dims, mesh, over).dims


def split_further(dims: Dims, mesh: Mesh, over: Sequence[str]) -> Split:
    """Return what `extra_axes` makes of `dims`, and why."""
    sizes = mesh.sizes
    used = {axis for dim in dims for axis in dim.mesh_axes}
    free = tuple(
        axis for axis in dict.fromkeys(over) if sizes.get(axis, 1) > 1 and axis not in used
    )
    if not free or dims.is_kept_whole:
        return Split(dims)
    extra = math.prod(sizes[axis] for axis in free)
    for index, dim in enumerate(dims):
        if dim.fits(dim.ways * extra):
            wider = _split(dim, free, extra)
            return Split(Dims((*dims[:index], wider, *dims[index + 1 :])), free, index)
    return Split(dims, free)


def without_axes(dims: Dims, mesh: Mesh, axes: Sequence[str]) -> Dims:
    """Return `dims` as they are where the mesh axes `axes` split nothing."""
    return Dims(
        replace(dim, attempts=tuple(_without(each, mesh, axes) for each in dim.attempts))
        if not set(axes).isdisjoint(dim.mesh_axes)
        else dim
        for dim in dims
    )


def _without(attempt: Attempt, mesh: Mesh, axes: Sequence[str]) -> Attempt:
    if attempt.outcome not in (Outcome.TAKEN, Outcome.ADDED):
        return attempt
    left = tuple(axis for axis in attempt.mesh_axes if axis not in axes)
    return replace(attempt, mesh_axes=left, ways=mesh.ways(left))


def _split(dim: DimSharding, extra: tuple[str, ...], ways: int) -> DimSharding:
    """Return `dim` with more mesh axes on it, behind those that were added before."""
    tried, before = dim.attempts, dim.added
    if before is not None:
        tried, extra, ways = tried[:-1], before.mesh_axes + extra, before.ways * ways
    added = Attempt(Kind.ZERO, 0, extra, extra, Outcome.ADDED, ways)
    return replace(dim, attempts=(*tried, added))


def state_axes(spec: Spec, mesh: Mesh) -> tuple[str, ...]:
    """Return the mesh axes over which the spec's `state:` splits further on this mesh.

    `()` where state is laid out as its parameter, or where the mesh has none of the axes. Without
    `over:` they are those of the first rule of `batch` that has any of this mesh.
    """
    policy = spec.state
    return () if policy is None or policy.optimizer == "same" else data_axes(spec, mesh)


def data_axes(spec: Spec, mesh: Mesh) -> tuple[str, ...]:
    """Return the mesh axes whose devices see different data: `over:` of `state:`, or of `batch`."""
    over = spec.state.over if spec.state is not None else ()
    of_batch = (rule.mesh_axes for rule in spec.axis_rules if rule.logical_axis == BATCH)
    for wanted in (over,) if over else of_batch:
        present = tuple(axis for axis in mesh.in_parts(wanted) if axis in mesh.sizes)
        if present:
            return present
    return ()


#: For each dimension of a state array the dimension of the parameter it is, None for a new one.
Reading = tuple[int | None, ...]


class Relation(StrEnum):
    """What an array of state is to its parameter."""

    #: the parameter itself, in a tree that holds both
    PARAMETER = "parameter"
    #: the shape of the parameter
    SAME = "same"
    #: dimensions of the parameter are gone, or have size 1
    REDUCED = "reduced"
    #: the parameter's dimensions and more
    STACKED = "stacked"
    #: the spec, or the state itself, names its dimensions
    OWN = "own"
    #: an entry of `derive:` says what its dimensions are
    DERIVED = "derived"
    #: one number
    SCALAR = "scalar"
    #: one number that stands where another optimizer or parameter would have an array
    PLACEHOLDER = "placeholder"
    #: its dimensions are none of the parameter's
    UNRELATED = "unrelated"
    #: it belongs to no parameter
    UNOWNED = "unowned"
    #: several readings, which differ in their answers
    AMBIGUOUS = "ambiguous"


@dataclass(frozen=True, slots=True)
class StateSharding(ParamSharding):
    """One array of state with its answer and the reason for it.

    Its dimensions carry the attempts of the parameter's own.

    Attributes:
      owner: the parameter it belongs to.
      field: what the optimizer calls it: `mu`, `v_row`.
      reading: what its dimensions are, where they are the parameter's.
      readings: one of each answer, where several are left.
      split: by ZeRO; None where that is not asked for, or not of this array.
    """

    relation: Relation = Relation.UNOWNED
    owner: ParamSharding | None = None
    field: str = ""
    reading: Reading = ()
    readings: tuple[Reading, ...] = ()
    split: Split | None = None

    @property
    def is_state(self) -> bool:
        """Say whether it is optimizer state, and not the parameter beside it."""
        return self.relation is not Relation.PARAMETER

    @property
    def dropped(self) -> tuple[int, ...]:
        """Return the dimensions of the parameter that the array has not, or has with size 1."""
        if self.owner is None:
            return ()
        sizes = dict(zip(self.reading, self.param.shape, strict=False))
        shape = self.owner.param.shape
        return tuple(dim for dim, size in enumerate(shape) if sizes.get(dim) != size)

    @property
    def relation_text(self) -> str:
        """Return what the array is to its parameter, and what follows from that."""
        whose = "of no parameter"
        if self.owner is not None:
            whose = f"{self.field or 'state'} of {self.owner.path or 'the parameter'}"
        match self.relation:
            case Relation.PARAMETER:
                return "the parameter itself"
            case Relation.SAME:
                return f"{whose}: same shape, its sharding"
            case Relation.REDUCED:
                gone = " and ".join(f"dim {dim}" for dim in self.dropped)
                return f"{whose} without {gone}: its sharding in the others"
            case Relation.STACKED:
                more = counted(sum(place is None for place in self.reading), "more dim")
                return f"{whose} and {more}: its sharding, the rest whole"
            case Relation.OWN:
                return f"{whose}: {_own_text(self)}"
            case Relation.DERIVED:
                return f"{whose}: as {self.derivation}"
            case Relation.SCALAR:
                return f"{whose}: scalar, replicated"
            case Relation.PLACEHOLDER:
                return f"{whose}: placeholder of 1 element, replicated"
            case Relation.UNRELATED:
                return f"{whose}: none of its dimensions, replicated"
            case Relation.UNOWNED:
                return "belongs to no parameter, replicated"
            case Relation.AMBIGUOUS:
                return f"{whose} in {len(self.readings)} ways: replicated  <- SHD408"

    def __str__(self) -> str:
        """Return how the explanation begins: the answer, and what it is to its parameter."""
        if not self.is_state:
            return ParamSharding.__str__(self)
        return f"{self.answer_text}\n\nstate   {self.relation_text}"

    @property
    def sharding(self) -> StateSharding:
        """Return the array itself, by the word of the version before."""
        renamed("state_plan[path].sharding", "state_plan[path]")
        return self


def _own_text(sharding: ParamSharding) -> str:
    """Return who named the array."""
    entry = sharding.matched
    if isinstance(entry, Override):
        return f"override `{entry.pattern}`"
    if isinstance(entry, PathRule):
        return f"params `{entry.pattern}`"
    return f"its own names, {' '.join(name or '_' for name in sharding.logical_axes)}"


def of_state(plan: plans.ShardingPlan) -> list[StateSharding]:
    """Return the arrays of a plan that optimizer state, or a tree with it, is made of."""
    return [each for each in plan.arrays if isinstance(each, StateSharding)]


def as_state(
    sharding: ParamSharding, relation: Relation, owner: ParamSharding | None, field: str = ""
) -> StateSharding:
    """Return an array that has its answer already as one of state."""
    answer: dict[str, Any] = {name: getattr(sharding, name) for name in _ANSWER}
    return StateSharding(**answer, relation=relation, owner=owner, field=field)


#: The fields of an answer, those of state apart.
_ANSWER = tuple(each.name for each in fields(ParamSharding))


def derive(
    owner: ParamSharding, state: Param, field: str = "", rest: tuple[str, ...] = ()
) -> StateSharding:
    """Return the sharding of an array of state from that of the parameter it was made for.

    Args:
      field: what the optimizer calls the array; settles what its shape leaves open.
      rest: components of the path below the parameter's: the index in a list of arrays.

    Invariants:
      once, divides: as for parameters.
      same_shape: an array of the parameter's shape has its dimensions.
      subset: a dimension has the mesh axes of the one it is, or none.
    """
    found = _relation(owner, state, field, rest)
    relation, reading, readings = found
    known = reading or (None,) * state.rank
    dims = read_dims(owner, state.shape, known)
    return StateSharding(
        state,
        dims,
        owner.origin,
        relation=relation,
        owner=owner,
        field=field,
        reading=reading,
        readings=readings,
    )


def parameter(owner: ParamSharding) -> StateSharding:
    """Return a parameter as part of a state, with the sharding it has."""
    return as_state(owner, Relation.PARAMETER, owner)


def unowned(state: Param, placed: MemoryRule | Override | None = None) -> StateSharding:
    """Return the replicated sharding of an array that belongs to no parameter."""
    relation = Relation.UNOWNED if state.rank else Relation.SCALAR
    dims = Dims(DimSharding(size, None) for size in state.shape)
    return StateSharding(state, dims, placed=placed, relation=relation)


#: What the whole of an optimizer's state is called in patterns, wherever it stands in a tree.
OPT_STATE = "opt_state"

#: What arrays of state are called where there is no tree of them: those of `optax.adam`.
MOMENTS = ("0/mu", "0/nu")


def state_name(path: str) -> str:
    """Return what patterns of `memory:` call an array of state.

    >>> state_name("0/mu/wi/kernel"), state_name("state/opt_state/0/nu/wi/kernel")
    ('opt_state/0/mu/wi/kernel', 'opt_state/0/nu/wi/kernel')
    """
    parts = path.split("/")
    start = parts.index(OPT_STATE) + 1 if OPT_STATE in parts else 0
    return "/".join((OPT_STATE, *parts[start:]))


def moment_name(path: str, moment: int) -> str:
    """Return what patterns of `memory:` call a moment of a parameter, the first being 0.

    >>> moment_name("wi/kernel", 1)
    'opt_state/0/nu/wi/kernel'
    """
    name = MOMENTS[moment] if moment < len(MOMENTS) else str(moment)
    return f"{OPT_STATE}/{name}/{path}"


def _relation(
    owner: ParamSharding, state: Param, field: str, rest: tuple[str, ...]
) -> tuple[Relation, Reading, tuple[Reading, ...]]:
    shape, whole = state.shape, owner.param.shape
    if shape == whole:
        return Relation.SAME, tuple(range(len(shape))), ()
    if not shape:
        return Relation.SCALAR, (), ()
    if state.element_count == 1:
        return Relation.PLACEHOLDER, (), ()
    found = distinct(owner, shape, readings_of(shape, whole))
    related = Relation.STACKED if len(shape) > len(whole) else Relation.REDUCED
    if len(found) == 1:
        return related, found[0], ()
    if not found or related is Relation.STACKED:
        return Relation.UNRELATED, (), ()
    settled = documented(shape, whole, field, rest)
    if settled is not None:
        return related, settled, ()
    return Relation.AMBIGUOUS, (), found


def readings_of(shape: Shape, whole: Shape) -> tuple[Reading, ...]:
    """Return every way to see the dimensions of `shape` as those of a parameter, in their order.

    A dimension of size 1 may be any that was reduced. An array of more dimensions than the
    parameter has all of those side by side.

    >>> readings_of((4, 8), (4, 6, 8))
    ((0, 2),)
    >>> readings_of((8,), (8, 8))
    ((0,), (1,))
    >>> readings_of((10, 4, 8), (4, 8))
    ((None, 0, 1),)
    """
    rank, full = len(shape), len(whole)
    if rank > full:
        starts = range(rank - full + 1)
        return tuple(
            (*[None] * start, *range(full), *[None] * (rank - full - start))
            for start in starts
            if shape[start : start + full] == whole
        )
    return tuple(
        kept
        for kept in itertools.combinations(range(full), rank)
        if all(size in (1, whole[dim]) for size, dim in zip(shape, kept, strict=True))
    )


def distinct(
    owner: ParamSharding, shape: Shape, readings: tuple[Reading, ...]
) -> tuple[Reading, ...]:
    """Return the first reading of each answer: the mesh axes that the dimensions get."""
    answers: dict[object, Reading] = {}
    for reading in readings:
        mesh_axes = tuple(dim.mesh_axes for dim in read_dims(owner, shape, reading))
        answers.setdefault(mesh_axes, reading)
    return tuple(answers.values())


def read_dims(owner: ParamSharding, shape: Shape, reading: Reading) -> Dims:
    """Return the dimensions of an array under one reading."""
    return Dims(
        _dim(size, None if place is None else owner.dims[place])
        for size, place in zip(shape, reading, strict=True)
    )


def _dim(size: int, of_owner: DimSharding | None) -> DimSharding:
    if of_owner is None:
        return DimSharding(size, None)
    return of_owner if size == of_owner.size else replace(of_owner, size=size, attempts=())


def documented(shape: Shape, whole: Shape, field: str, rest: tuple[str, ...]) -> Reading | None:
    """Return what an array is by the documented rule of its optimizer, None where none fits.

    Adafactor's `v_row` lacks the largest dimension and `v_col` the second largest. A vector in
    a list of one accumulator per dimension (SM3) is the dimension of its index.

    Source: `optax.scale_by_factored_rms`, `optax.scale_by_sm3`.

    >>> documented((8,), (8, 8), "v_row", ()), documented((8,), (8, 8), "v_col", ())
    ((0,), (1,))
    >>> documented((8,), (8, 8), "mu", ("1",))
    (1,)
    """
    reading: Reading | None = None
    last = rest[-1] if rest else ""
    if {field, last} & {"v_row", "v_col"} and len(whole) > 1:
        second, largest = factored_dims(whole)
        gone = largest if "v_row" in (field, last) else second
        reading = tuple(dim for dim in range(len(whole)) if dim != gone)
    elif len(shape) == 1 and last.isdecimal() and int(last) < len(whole):
        reading = (int(last),)
    return reading if reading in readings_of(shape, whole) else None


def factored_dims(whole: Shape) -> tuple[int, int]:
    """Return the second largest dimension and the largest, a later one being larger on a tie.

    >>> factored_dims((4, 512, 256)), factored_dims((512, 512))
    ((2, 1), (0, 1))
    """
    *_, second, largest = sorted(range(len(whole)), key=lambda dim: whole[dim])
    return second, largest


#: What ZeRO may split further: the others are small, or laid out by hand.
_SPLIT = {Relation.SAME, Relation.REDUCED, Relation.STACKED, Relation.DERIVED}


@dataclass(frozen=True, slots=True)
class StateResolver:
    """A spec on one target, asked for arrays of state.

    Attributes:
      of_params: the entries that name parameters, which thus are not about arrays that belong
        to none.
      over: the mesh axes that ZeRO splits state over.
    """

    arrays: ArrayResolver
    of_params: frozenset[Entry]
    over: tuple[str, ...]
    _known: dict[object, StateSharding] = field(default_factory=dict, compare=False, repr=False)

    def resolve(
        self, state: Param, owner: ParamSharding | None, name: str = "", rest: tuple[str, ...] = ()
    ) -> StateSharding:
        """Return the answer for one array of state.

        Args:
          owner: None where it belongs to no parameter.
          name: what the optimizer calls it.
          rest: components of its path below the parameter's.
        """
        own = self._own(state, owner) if state.rank else None
        placed = self._placed(state.path, owner, own)
        if own is not None and own.derivation is not None:
            own = replace(own, placed=placed)
            return self._split(as_state(own, Relation.DERIVED, owner, name))
        if own is not None:
            return as_state(replace(own, placed=placed), Relation.OWN, owner, name)
        if owner is None:
            return unowned(state, placed)
        key = (owner.dims, owner.param.shape, state.shape, name, rest)
        known = self._known.get(key)
        if known is None:
            self._known[key] = known = self._split(derive(owner, state, name, rest))
        return StateSharding(
            state,
            known.dims,
            owner.origin,
            placed=placed,
            relation=known.relation,
            owner=owner,
            field=name,
            reading=known.reading,
            readings=known.readings,
            split=known.split,
        )

    def _placed(
        self, path: str, owner: ParamSharding | None, own: ParamSharding | None
    ) -> MemoryRule | Override | None:
        """Return what says in which memory an array of state lies: else its parameter's does."""
        is_state = owner is not None or OPT_STATE in path.split("/") or path[:1].isdecimal()
        name = state_name(path) if is_state else path  # the `step` of a train state is none
        found = self.arrays.names.placed(name, None if own is None else own.matched)
        return owner.placed if found is None and owner is not None else found

    def gradient(self, owner: ParamSharding) -> Dims:
        """Return how the gradient of a parameter lies: split further under `zero2`."""
        policy = self.arrays.spec.state
        if policy is None or policy.optimizer != "zero2":
            return owner.dims
        return extra_axes(owner.dims, self.arrays.target.mesh, self.over)

    def _split(self, found: StateSharding) -> StateSharding:
        if not self.over or found.relation not in _SPLIT:
            return found
        split = split_further(found.dims, self.arrays.target.mesh, self.over)
        return replace(found, dims=split.dims, split=split)

    def _own(self, state: Param, owner: ParamSharding | None) -> ParamSharding | None:
        """Return what the spec or the array itself says of it, None where it follows its owner."""
        names, spec = self.arrays.names, self.arrays.spec
        override = self._entry(names.overrides, spec.overrides, state.path, owner)
        if override is not None:
            return self.arrays.resolve(state, override)
        if _has_own_names(state, owner):
            return self.arrays.resolve(state)
        rule = self._entry(names.derives, spec.derives, state.path, owner)
        if isinstance(rule, DeriveRule):
            return self._derived(state, rule, owner)
        entry = self._entry(names.path_rules, spec.path_rules, state.path, owner)
        if entry is None:
            return None
        return self.arrays.resolve(replace(state, logical_axes=None), entry)

    def _derived(
        self, state: Param, rule: DeriveRule, owner: ParamSharding | None
    ) -> ParamSharding:
        """Return what an entry of `derive:` says; its parent is the owner, or found by its path."""
        wanted = wanted_paths(rule, state.path)
        if owner is not None and (not rule.parent or owner.path in wanted):
            return laid_out(state, rule, owner, self.arrays.table, wanted)
        return derived(self.arrays, state, rule)

    def _entry(
        self,
        matcher: PathMatcher,
        entries: tuple[Entry, ...],
        path: str,
        owner: ParamSharding | None,
    ) -> Entry | None:
        """Return the first entry about the state array at `path`."""
        if not entries:
            return None
        matching = matcher.all_matches(path)
        taken = set(matcher.all_matches(owner.param.path)) if owner and matching else set()
        free = (entries[index] for index in matching if index not in taken)
        return next((entry for entry in free if entry not in self.of_params), None)


def state_resolver(arrays: ArrayResolver, params: Iterable[ParamSharding]) -> StateResolver:
    """Return a spec made ready for the state of these parameters."""
    of_params = frozenset(each.matched for each in params if each.matched is not None)
    return StateResolver(arrays, of_params, state_axes(arrays.spec, arrays.target.mesh))


def _has_own_names(state: Param, owner: ParamSharding | None) -> bool:
    """Say whether an array carries names that are meant for it.

    Boxes of Flax stay around the state of what they held. Their names say something new only
    where they are not the parameter's, and are as many as the dimensions.
    """
    names = state.logical_axes
    if names is None:
        return False
    if owner is None:
        return True
    of_owner = owner.param.logical_axes
    return of_owner is not None and names != of_owner and len(names) == state.rank

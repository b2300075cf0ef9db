"""The layout of a whole optimizer state, and why each array lies as it does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shardspec.diagnostics import Diagnostic
from shardspec.ir.mesh import Mesh
from shardspec.ir.plan import DimSharding, ParamSharding, ShardingPlan
from shardspec.ir.spec import Override, PathRule, Spec, Target, target_text
from shardspec.ir.units import binary_bytes
from shardspec.resolve.state import Relation, StateSharding


@dataclass(frozen=True, slots=True)
class StatePlan:
    """The layout of every array of an optimizer state on one target.

    Attributes:
      arrays: in the order in which JAX flattens the state.
      diagnostics: what the checks have to say about them.
    """

    spec: Spec
    target: Target
    arrays: tuple[StateSharding, ...]
    diagnostics: tuple[Diagnostic, ...] = ()
    _by_path: dict[str, StateSharding] = field(
        init=False, compare=False, repr=False, default_factory=dict
    )

    def __getitem__(self, path: str) -> StateSharding:
        """Return the array at `path`; KeyError, with the nearest path, where there is none."""
        if not isinstance(path, str):
            raise TypeError(f"an array is asked for by its path, not by a `{type(path).__name__}`")
        if not self._by_path:
            self._by_path.update({found.path: found for found in self.arrays})
        if path not in self._by_path:
            from shardspec.diagnostics.suggest import did_you_mean

            hint = did_you_mean(path, list(self._by_path)) or f"there are {len(self.arrays)}"
            raise KeyError(f"no array of state `{path}`; {hint}")
        return self._by_path[path]

    def __iter__(self) -> Iterator[str]:
        """Yield the paths."""
        return (found.path for found in self.arrays)

    def __len__(self) -> int:
        """Return the number of arrays."""
        return len(self.arrays)

    @property
    def mesh(self) -> Mesh:
        """Return the mesh of the target."""
        return self.target.mesh

    @property
    def per_device_bytes(self) -> int:
        """Return the bytes one device holds of all arrays of the state."""
        return sum(found.per_device_bytes for found in self.arrays)

    @property
    def plan(self) -> ShardingPlan:
        """Return it as the plan of so many arrays, for whatever reads plans."""
        return ShardingPlan(self.spec, self.target, tuple(found.sharding for found in self.arrays))

    def explain(self, path: str) -> str:
        """Return why the array of state at `path` is laid out as it is."""
        return "\n".join(explanation(self[path], self))

    def __str__(self) -> str:
        """Return a line for each array: path, type, answer, reason."""
        rows = [
            (found.path, str(found.sharding.param), str(found.partition_spec), reason(found, self))
            for found in self.arrays
        ]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
        lines = ("  ".join((*map(str.ljust, row[:3], widths), row[3])).rstrip() for row in rows)
        return "\n".join((*lines, f"{binary_bytes(self.per_device_bytes)} of state per device"))


def explanation(found: StateSharding, plan: StatePlan) -> Iterator[str]:
    """Yield the lines of the explanation: the answer, the reason, what each dimension is."""
    param, sharding = found.sharding.param, found.sharding
    size = binary_bytes(found.per_device_bytes)
    shard = list(sharding.shard_shape)
    yield f"{param.path}   {param}   ->   {found.partition_spec}   shard {shard}, {size} per device"
    yield ""
    yield f"state   {reason(found, plan)}"
    if found.owner is not None:
        owner = found.owner
        yield f"of      {owner.param.path}   {owner.param}   ->   {owner.partition_spec}"
    yield from (f"  dim {line}" for line in map(_dim_text, *_columns(found)))


def _columns(found: StateSharding) -> tuple[range, tuple[DimSharding, ...], tuple[int | None, ...]]:
    dims = found.sharding.dims
    return range(len(dims)), dims, found.reading or (None,) * len(dims)


def _dim_text(index: int, dim: DimSharding, place: int | None) -> str:
    name = dim.logical_axis or "_"
    where = "" if place is None else f", dim {place} of the parameter"
    return f"{index}  {name}={dim.size}  {target_text(dim.mesh_axes)}{where}"


def reason(found: StateSharding, plan: StatePlan) -> str:
    """Return in one line why an array of state has its sharding.

    The first part is what it is to its parameter, the second what ZeRO did.
    """
    return _relation_text(found) + _split_text(found, plan)


def _relation_text(found: StateSharding) -> str:
    """Return what the array is, and what follows from that."""
    whose = _whose(found)
    match found.relation:
        case Relation.PARAMETER:
            return "the parameter itself"
        case Relation.SAME:
            return f"{whose}: same shape, its sharding"
        case Relation.REDUCED:
            gone = " and ".join(f"dim {dim}" for dim in found.dropped)
            return f"{whose} without {gone}: its sharding in the others"
        case Relation.STACKED:
            more = sum(place is None for place in found.reading)
            return f"{whose} and {more} more dim{'s' * (more > 1)}: its sharding, the rest whole"
        case Relation.OWN:
            return f"{whose}: {_own_text(found.sharding)}"
        case Relation.SCALAR:
            return f"{whose}: scalar, replicated"
        case Relation.PLACEHOLDER:
            return f"{whose}: placeholder of 1 element, replicated"
        case Relation.UNRELATED:
            return f"{whose}: none of its dimensions, replicated"
        case Relation.UNOWNED:
            return "belongs to no parameter, replicated"
        case Relation.AMBIGUOUS:
            return f"{whose} in {len(found.readings)} ways: replicated  <- SHD408"


def _whose(found: StateSharding) -> str:
    if found.owner is None:
        return "of no parameter"
    return f"{found.field or 'state'} of {found.owner.param.path or 'the parameter'}"


def _own_text(sharding: ParamSharding) -> str:
    """Return who named the array."""
    entry = sharding.matched
    if isinstance(entry, Override):
        return f"override `{entry.pattern}`"
    if isinstance(entry, PathRule):
        return f"params `{entry.pattern}`"
    return f"its own names, {' '.join(name or '_' for name in sharding.logical_axes)}"


def _split_text(found: StateSharding, plan: StatePlan) -> str:
    split, policy = found.split, plan.spec.state
    if split is None or policy is None:
        return ""
    if split.dim is not None:
        return f"; {policy.optimizer}: + {', '.join(split.mesh_axes)} on dim {split.dim}"
    if not split.mesh_axes:
        return f"; {policy.optimizer}: split by all its mesh axes already"
    sizes = plan.mesh.sizes
    by = " x ".join(f"{axis}={sizes[axis]}" for axis in split.mesh_axes)
    return f"; {policy.optimizer}: no dimension is divided by {by}"

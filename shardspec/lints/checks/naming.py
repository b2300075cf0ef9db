"""Names of dimensions: missing, in conflict, or read otherwise by Flax NNX."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, Label, Span, codes, labels_at, point
from shardspec.diagnostics.words import (
    binary_bytes,
    by_key,
    collapsed,
    counted,
    described,
    listed,
    template,
)
from shardspec.ir.plan import Alike, DimSharding, Origin, ParamSharding, ShardingPlan, alike
from shardspec.ir.spec import AxisRule, LogicalAxes, Mesh, PartitionSpec, Spec, Target, target_text
from shardspec.language.removal import is_first_alternative
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import shared_folder
from shardspec.lints.evidence.entries import Entry, Section, first_word, sections
from shardspec.lints.evidence.rules import answers_under, linen_table, rules_of_nnx, rules_text
from shardspec.resolve.assign import assign_axes
from shardspec.resolve.resolver import ArrayResolver, array_resolver

# conflicting-names


@dataclass(slots=True)
class _Overlaps:
    """Which entries match together.

    Attributes:
      kinds: each set of entries that match one path, with the paths that they decide.
      members: entry -> the kinds it is in, as bits.
    """

    kinds: dict[tuple[int, ...], list[str]] = field(default_factory=dict)
    members: dict[int, int] = field(default_factory=dict)

    def add(self, matches: tuple[int, ...]) -> list[str]:
        """Return the paths of a kind, and note a new one."""
        if matches not in self.kinds:
            bit = 1 << len(self.kinds)
            self.kinds[matches] = []
            for at in matches:
                self.members[at] = self.members.get(at, 0) | bit
        return self.kinds[matches]

    def is_within(self, one: int, other: int) -> bool:
        """Say whether an entry matches no path that another does not."""
        return not self.members[one] & ~self.members[other]


def conflicting_names(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each two entries of the spec itself whose order decides on names."""
    overrides, params = sections(context)[:2]
    for section, origin in ((overrides, Origin.OVERRIDE), (params, Origin.PARAMS)):
        if len(section.own) < 2 or all(len(matches) < 2 for matches in set(section.matches)):
            continue
        entries, overlaps = section.entries, _overlaps(section, context.first, origin)
        conflicts: dict[tuple[int, int], list[str]] = {}
        for (first, *others), paths in overlaps.kinds.items():
            for other in others:
                is_own = {first, other} <= section.own
                if paths and is_own and _differ(entries, first, other, overlaps):
                    conflicts.setdefault((first, other), []).extend(paths)
        for (first, other), paths in sorted(conflicts.items()):
            yield _conflicting_names_finding(entries[first], entries[other], paths)


def _overlaps(section: Section, shardings: Sequence[ParamSharding], origin: Origin) -> _Overlaps:
    """Return which entries match together."""
    overlaps = _Overlaps()
    for sharding, matches in zip(shardings, section.matches, strict=True):
        if matches:
            paths = overlaps.add(matches)
            if sharding.origin is origin and sharding.mismatch is None:
                paths.append(sharding.param.path)
    return overlaps


def _differ(entries: Sequence[Entry], first: int, other: int, overlaps: _Overlaps) -> bool:
    """Say whether two entries give other names of one rank, and neither is within the other."""
    one, two = entries[first].answer, entries[other].answer
    if one == two or len(one) != len(two):
        return False
    return not (overlaps.is_within(first, other) or overlaps.is_within(other, first))


def _conflicting_names_finding(first: Entry, other: Entry, paths: Sequence[str]) -> Diagnostic:
    count = counted(len(paths), "array")
    verb = "matches" if len(paths) == 1 else "match"
    return Diagnostic(
        codes.CONFLICTING_NAMES,
        f"{count} {verb} `{first.pattern}` and `{other.pattern}`, which name"
        f" {'it' if len(paths) == 1 else 'them'} differently; the first one wins, and neither is"
        " narrower",
        labels_at(
            (other.pattern.span, f"would say {_said(other)}"),
            (first.pattern.span, f"says {_said(first)}"),
        ),
        notes=(described(paths),),
        help=_help(paths),
    )


def _said(entry: Entry) -> str:
    parts = (
        "_" if name is None else name if isinstance(name, str) else target_text(_axes(name))
        for name in entry.answer
    )
    return f"`{' '.join(parts)}`"


def _axes(dim: object) -> tuple[str, ...]:
    return tuple(map(str, dim)) if isinstance(dim, tuple) else ()


def _help(paths: Sequence[str]) -> str:
    alike = len({template(path) for path in paths}) == 1
    shown = collapsed(paths) if alike else None
    entry = f" an entry for `{shown}`" if shown else " an entry for these arrays alone"
    return f"put{entry} before both, or make one of them narrower"


# nnx-differs


class NnxReading(NamedTuple):
    """What NNX makes of the names of one array; JAX may refuse it.

    Attributes:
      dims: mesh axes of each dimension.
    """

    dims: tuple[tuple[str, ...], ...]

    @property
    def partition_spec(self) -> PartitionSpec:
        """Return the partition, as NNX hands it to JAX."""
        return PartitionSpec(self.dims)

    @property
    def repeated(self) -> tuple[str, ...]:
        """Return mesh axes that stand more than once: JAX refuses those."""
        counts = Counter(axis for dim in self.dims for axis in dim)
        return tuple(axis for axis, count in counts.items() if count > 1)


@dataclass(slots=True)
class _Difference:
    """One rule that NNX follows and Linen does not, with the arrays it is about.

    Attributes:
      taken: the rule that Linen follows, if any.
      target: the first that it shows on.
      linen, nnx: the answers of both for the first of the arrays there.
    """

    rule: AxisRule
    taken: AxisRule | None
    target: Target
    linen: PartitionSpec
    nnx: NnxReading
    paths: dict[str, None] = field(default_factory=dict)


def nnx_differs(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each rule by which NNX gives some array another answer."""
    found: dict[tuple[object, ...], _Difference] = {}
    for plan in context.plans:
        for difference in _differences(plan):
            taken = difference.taken
            key = (difference.rule.logical_axis, difference.rule.span, taken and taken.span)
            found.setdefault(key, difference).paths.update(difference.paths)
    for case in found.values():
        yield _nnx_differs_finding(case, context) if _is_apart(case, context) else _pedantic(case)


def _is_apart(case: _Difference, context: Context) -> bool:
    """Say whether two separate rules of the spec itself decide, and not a rule's alternatives."""
    rule, taken = case.rule, case.taken
    if taken is None or not (rule.is_read and taken.is_read):
        return False
    if not (context.is_own(rule.span) and context.is_own(taken.span)):
        return False
    spans = [
        each.span for each in context.spec.axis_rules if each.logical_axis == rule.logical_axis
    ]
    between = spans[spans.index(taken.span) + 1 : spans.index(rule.span) + 1]
    return any(span is not None and is_first_alternative(span) for span in between)


def _differences(plan: ShardingPlan) -> Iterator[_Difference]:
    """Yield a difference for each group of arrays that has one on this target."""
    table, rules = linen_table(plan), rules_of_nnx(plan)
    for group in plan.alike:
        names = group.logical_axes
        if len(set(names) - {None}) < len(names) - names.count(None):
            continue
        dims = assign_axes((None,) * len(names), names, table)
        nnx = read_as_nnx(names, rules)
        pair = _first_difference(dims, rules, plan.mesh, nnx.repeated)
        if pair is not None:
            linen = PartitionSpec(tuple(dim.mesh_axes for dim in dims))
            yield _Difference(*pair, plan.target, linen, nnx, dict.fromkeys(group.paths))


def _first_difference(
    dims: tuple[DimSharding, ...],
    rules: Mapping[str, AxisRule],
    mesh: Mesh,
    repeated: Sequence[str],
) -> tuple[AxisRule, AxisRule | None] | None:
    """Return NNX's rule and Linen's for the first dimension that they treat differently.

    A mesh axis of size 1 makes no difference, except to JAX, which refuses it twice in one array.
    """

    def counted(mesh_axes: Sequence[str]) -> list[str]:
        return [axis for axis in mesh_axes if mesh.sizes[axis] > 1 or axis in repeated]

    for dim in dims:
        rule = rules.get(dim.logical_axis or "")
        if rule is not None and counted(rule.mesh_axes) != counted(dim.mesh_axes):
            return rule, dim.rule
    return None


def _nnx_differs_finding(case: _Difference, context: Context) -> Diagnostic:
    axis = case.rule.logical_axis
    joined = _joined(axis, context)
    meant = f"for a fallback, write one rule: `{axis} -> {joined}`"
    if joined is None:
        meant = "if Flax Linen alone reads the rules, set `lints: {nnx-differs: allow}`"
    return Diagnostic(
        codes.NNX_DIFFERS,
        f"`{axis}` has separate rules with different answers: `{next(iter(case.paths))}` is"
        f" {case.linen} in Linen and here, and {case.nnx.partition_spec} in Flax NNX",
        _labels(case),
        notes=_notes(case),
        help=f"{meant}; otherwise remove the wrong rule",
        arrays=tuple(case.paths),
    )


def _joined(axis: str, context: Context) -> str | None:
    """Return the rules of an axis as alternatives of one; None where that changes an answer."""
    rules = context.spec.axis_rules
    own = [rule for rule in rules if rule.logical_axis == axis and context.is_own(rule.span)]
    rest = [rule for rule in rules if all(rule is not each for each in own)]
    before = next(at for at, rule in enumerate(rules) if rule is own[0])
    moved = [*rest[:before], *own, *rest[before:]]
    axes = frozenset((axis,))
    answers = (each for plan in context.plans for each in answers_under(plan, moved, axes))
    return None if any(each.is_changed for each in answers) else rules_text(own).split(" -> ")[1]


def _pedantic(case: _Difference) -> Diagnostic:
    """Return the finding for what the spec says plainly, and NNX does not read."""
    return Diagnostic(
        replace(codes.NNX_DIFFERS, is_pedantic=True),
        f"Flax NNX reads `{case.rule.logical_axis}` as `{case.rule.right}`:"
        f" `{next(iter(case.paths))}` is {case.nnx.partition_spec} there, and"
        f" {case.linen} in Linen",
        _labels(case),
        notes=_notes(case),
        help="let shardspec lay out the model (`Resolver.shardings`), or write one rule an axis,"
        " of which no array uses a mesh axis twice",
    )


def _labels(case: _Difference) -> tuple[Label, ...]:
    taken = case.taken.span if case.taken is not None else None
    return labels_at((case.rule.span, "NNX follows this"), (taken, "Linen follows this"))


def _notes(case: _Difference) -> tuple[str, ...]:
    sizes, nnx, linen = case.target.mesh, case.nnx.partition_spec, case.linen
    shards = f"{sizes.ways(nnx.mesh_axes)} shards there, {sizes.ways(linen.mesh_axes)} in Linen"
    if case.nnx.repeated:
        shards = f"JAX refuses NNX's: it has {listed(case.nnx.repeated)} twice"
    return (f"{described(case.paths)}; {shards} on target `{case.target.name}`",)


def read_as_nnx(logical_axes: LogicalAxes, rules: Mapping[str, AxisRule]) -> NnxReading:
    """Return the mesh axes that NNX gives an array with these names.

    Each name is renamed by its rule, whatever the array uses already; one without a rule is taken
    for a mesh axis as it stands. Source: flax 0.12.8, `flax.core.spmd.apply_rules`.

    Invariants:
      same: equal to `nnx.get_partition_spec` under the same rules.
    """
    dims = tuple(
        () if axis is None else rules[axis].mesh_axes if axis in rules else (axis,)
        for axis in logical_axes
    )
    return NnxReading(dims)


# nameless-dimension


class _Place(NamedTuple):
    """One dimension of the arrays that one entry names."""

    span: Span | None
    dim: int
    size: int


class _Gain(NamedTuple):
    """What a name would save on one target."""

    saved: int
    axis: str
    target: str = ""
    paths: tuple[str, ...] = ()


def nameless_dimension(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each dimension that a name would split."""
    best: dict[_Place, _Gain] = {}
    for plan in context.plans:
        for place, gain in _gains(context, plan):
            if gain.saved > best.get(place, (0,))[0]:
                best[place] = gain
    for place, gain in best.items():
        yield _nameless_dimension_finding(place, gain)


def _gains(context: Context, plan: ShardingPlan) -> Iterator[tuple[_Place, _Gain]]:
    """Yield each dimension and the name that would save most, where that is enough."""
    spec = context.spec
    nameless = _nameless(spec, plan.alike)
    if not nameless:
        return
    resolver = array_resolver(spec, plan.target)
    homes = _homes(plan)
    known = {name for each in plan.arrays for name in each.logical_axes}
    for place, members in nameless.items():
        paths = tuple(member.param.path for member in members)
        names = [each.name for each in spec.logical_axes if each.size == place.size]
        gains = (
            _Gain(sum(_saved(resolver, each, place.dim, name) for each in alike(members)), name)
            for name in names
            if name in known
            and name not in members[0].logical_axes
            and not _is_next_door(members[0].param.path, homes.get(name, ()))
        )
        best = max(gains, key=lambda gain: gain.saved, default=None)
        if best is not None and context.is_large(best.saved, plan.target.name):
            yield place, best._replace(target=plan.target.name, paths=paths)


def _homes(plan: ShardingPlan) -> dict[str, tuple[str, ...]]:
    """Return the module that all arrays with a logical axis are in, as components, by axis."""
    paths: dict[str, set[tuple[str, ...]]] = {}
    for sharding in plan.arrays:
        for axis in filter(None, sharding.logical_axes):
            paths.setdefault(axis, set()).add(_components(sharding.param.path))
    found = ((axis, each) for axis, each in paths.items() if len(each) > 1)
    return {axis: shared_folder(path[:-1] for path in each) for axis, each in found}


def _is_next_door(path: str, home: tuple[str, ...]) -> bool:
    """Say whether an array is in the same layer as all that have the axis, in another module."""
    depth = len(home)
    parts = _components(path)
    return depth > 1 and parts[: depth - 1] == home[:-1] and parts[:depth] != home


def _components(path: str) -> tuple[str, ...]:
    return tuple(re.split(r"[/.]", template(path)))


def _nameless(spec: Spec, groups: Sequence[Alike]) -> dict[_Place, list[ParamSharding]]:
    """Return the dimensions without a name that are as long as some axis, with their arrays."""
    sizes = {axis.size for axis in spec.logical_axes if axis.size}
    return by_key(
        (_Place(sharding.named_at, index, dim.size or 0), sharding)
        for group in groups
        for index, dim in enumerate(group.dims)
        if dim.logical_axis is None and dim.size in sizes
        for sharding in filter(_is_named, group.shardings)
    )


def _is_named(sharding: ParamSharding) -> bool:
    """Say whether an entry gives this array names, and says `_` among them."""
    is_named = sharding.origin is not Origin.NONE and sharding.mismatch is None
    return is_named and not sharding.is_stated


def _saved(resolver: ArrayResolver, arrays: Alike, dim: int, name: str) -> int:
    """Return the bytes per device that arrays would save under another name."""
    names = arrays.first.logical_axes
    dims = resolver.dims(arrays.shape, (*names[:dim], name, *names[dim + 1 :]))
    return arrays.device_bytes - arrays.laid_out(dims).device_bytes


def _nameless_dimension_finding(place: _Place, gain: _Gain) -> Diagnostic:
    return point(
        codes.NAMELESS_DIMENSION,
        f"dim {place.dim} of `{gain.paths[0]}` has no name, and is as long as `{gain.axis}`"
        f" = {place.size}",
        None if place.span is None else first_word(place.span, "_"),
        "replicated on every device",
        notes=(
            f"{described(gain.paths)}; named `{gain.axis}`, they take"
            f" {binary_bytes(gain.saved)} less per device on target `{gain.target}`",
        ),
        help=f"write `{gain.axis}` for `_`; or give the dimension its own axis: `AXIS -> none`",
    )

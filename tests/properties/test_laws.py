"""The laws of the resolver, one test each. `Invariants:` in the docstrings name them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate

from hypothesis import assume, given
from hypothesis import strategies as st

from shardspec.foreign.proof import spelt_out
from shardspec.ir.plan import Kind, Outcome
from shardspec.ir.spec import (
    Activation,
    AxisRule,
    LogicalAxis,
    Mesh,
    MeshAxis,
    Override,
    Param,
    Parts,
    Pattern,
    Policy,
    Spec,
    Target,
)
from shardspec.resolve.match import assign_axes, rule_table
from shardspec.resolve.resolver import resolve
from shardspec.resolve.state import derive, extra_axes
from tests.strategies import (
    ABSENT,
    LOGICAL,
    MESH,
    any_rule_lists,
    families,
    meshes,
    params,
    rule_lists,
    specs,
)

arrays = families()

Partition = tuple[tuple[str, ...], ...]

stated_partitions = st.lists(
    st.lists(st.sampled_from((*MESH, ABSENT)), unique=True, max_size=2).map(tuple), max_size=3
).map(tuple)


@given(specs(), arrays)
def test_once(spec: Spec, given_params: tuple[Param, ...]) -> None:
    """No array uses a mesh axis twice."""
    for target in spec.targets:
        for sharding in resolve(spec, target, given_params).arrays:
            used = sharding.partition_spec.mesh_axes
            assert len(set(used)) == len(used)
            assert set(used) <= set(target.mesh.names)


@given(specs(), arrays)
def test_divides(spec: Spec, given_params: tuple[Param, ...]) -> None:
    """Under `next`, whatever is split is split evenly and in whole units."""
    spec = replace(spec, policy=Policy("next"))
    units = {axis.name: axis.unit for axis in spec.logical_axes}
    for sharding in resolve(spec, spec.targets[0], given_params).arrays:
        for dim in sharding.dims:
            assert dim.is_even
            if dim.ways > 1:
                assert dim.size is not None
                assert dim.size // dim.ways % units.get(dim.logical_axis or "", 1) == 0
                assert dim.size % dim.ways == 0


@given(specs(), arrays, st.none() | st.lists(st.sampled_from(MESH), unique=True))
def test_complete(spec: Spec, given_params: tuple[Param, ...], over: list[str] | None) -> None:
    """Attempts are that axis's rules in order, up to the one taken; what ZeRO adds comes last."""
    target = spec.targets[0]
    for sharding in resolve(spec, target, given_params).arrays:
        dims = sharding.dims
        if dims.is_kept_whole or dims.is_of_any or sharding.derivation is not None:
            continue
        for axis in over or ():
            dims = extra_axes(dims, target.mesh, (axis,))
        for dim in dims:
            places = [
                at for at, r in enumerate(spec.axis_rules) if r.logical_axis == dim.logical_axis
            ]
            by_rule = [attempt for attempt in dim.attempts if attempt.kind is Kind.RULE]
            tried = [attempt.position for attempt in by_rule]
            assert tried == places[: len(tried)]
            assert [attempt.rule for attempt in by_rule] == [spec.axis_rules[at] for at in tried]
            taken = [attempt for attempt in dim.attempts if attempt.outcome is Outcome.TAKEN]
            assert taken == by_rule[-1:] if dim.taken else not taken
            assert dim.taken is not None or len(tried) == len(places)
            added = [attempt for attempt in dim.attempts if attempt.kind is not Kind.RULE]
            assert [*by_rule, *added] == list(dim.attempts)
            assert [attempt.outcome for attempt in added] in ([], [Outcome.ADDED])


@given(specs(), arrays, st.lists(stated_partitions, min_size=1, max_size=3))
def test_stated(spec: Spec, given_params: tuple[Param, ...], parts: list[Partition]) -> None:
    """An override that states a partition is one attempt a dimension, and says its position."""
    overrides = tuple(Override(Pattern(f"a{at}"), partition=part) for at, part in enumerate(parts))
    spec = replace(spec, overrides=overrides)
    for sharding in resolve(spec, spec.targets[0], given_params).arrays:
        if sharding.derivation is not None or sharding.dims.is_of_any:
            continue
        if not sharding.is_stated or sharding.mismatch is not None:
            kinds = {a.kind for dim in sharding.dims for a in dim.attempts}
            assert kinds <= ({Kind.SMALL} if sharding.dims.is_kept_whole else {Kind.RULE})
            continue
        at = overrides.index(sharding.matched)
        for dim, axes in zip(sharding.dims, parts[at], strict=True):
            (attempt,) = dim.attempts
            assert (attempt.kind, attempt.position, attempt.asked) == (Kind.STATED, at, axes)
            assert attempt.rule is None
            assert dim.logical_axis is None


@given(specs(), arrays, st.lists(st.sampled_from(MESH), unique=True))
def test_unit(spec: Spec, given_params: tuple[Param, ...], over: list[str]) -> None:
    """The unit of a dimension is what the spec states for its logical axis, 1 without a name."""
    spec = replace(spec, activations=(Activation("all", (*LOGICAL, None)),))
    target = spec.targets[0]
    plan = resolve(spec, target, given_params)
    units = {axis.name: axis.unit for axis in spec.logical_axes}
    found = [sharding.dims for sharding in (*plan.arrays, *plan.activations)]
    found += [extra_axes(sharding.dims, target.mesh, over) for sharding in plan.arrays]
    ones = (replace(p, path="x", shape=(*p.shape[:-1], 1)[: p.rank]) for p in given_params)
    found += [derive(owner, one).dims for owner, one in zip(plan.arrays, ones, strict=True)]
    for dim in (dim for dims in found for dim in dims):
        assert dim.unit == units.get(dim.logical_axis or "", 1)


@given(specs(), arrays, st.integers(0, 1 << 16), st.lists(st.sampled_from(MESH), unique=True))
def test_whole_below(
    spec: Spec, given_params: tuple[Param, ...], least: int, over: list[str]
) -> None:
    """Arrays below it stay whole, under ZeRO as well, and all others are as without it."""
    target = spec.targets[0]
    spec, without = (
        replace(spec, policy=replace(spec.policy, whole_below=bound)) for bound in (least, None)
    )
    found = resolve(spec, target, given_params).arrays
    for sharding, usual in zip(found, resolve(without, target, given_params).arrays, strict=True):
        if sharding.derivation is not None:  # it goes with its parent, however small it is
            continue
        assert sharding.dims.is_kept_whole == (sharding.param.bytes < least and bool(sharding.dims))
        if not sharding.dims.is_kept_whole:
            assert sharding == usual
            continue
        assert sharding.is_replicated
        assert sharding.logical_axes == usual.logical_axes
        assert extra_axes(sharding.dims, target.mesh, over) == sharding.dims
        assert [len(dim.attempts) for dim in sharding.dims] == [1] * sharding.param.rank


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.sampled_from((1, 2, 3)),
    st.booleans(),
    st.integers(1, 24),
)
def test_parts(sizes: list[int], unit: int, is_interleaved: bool, ways: int) -> None:
    """A rule fires where no shard has pieces of two parts, or where each has a share of all."""
    parts = Parts(tuple((f"p{at}", size) for at, size in enumerate(sizes)), unit, is_interleaved)
    axis = LogicalAxis("qkv", parts.size, parts.group, parts=parts)
    table = rule_table((AxisRule("qkv", ("x",)),), Mesh((MeshAxis("x", ways),)), axes=(axis,))
    (dim,) = assign_axes((parts.size,), ("qkv",), table)
    if is_interleaved:
        fits = all(size % (ways * unit) == 0 for size in sizes)
    else:
        shard, rest = divmod(parts.size, ways)
        ends = list(accumulate(sizes))
        fits = rest == 0 and shard % unit == 0 and all(end % shard == 0 for end in ends)
    assert (dim.taken is not None) == (fits or ways == 1)


@given(specs(), arrays, any_rule_lists)
def test_any(spec: Spec, given_params: tuple[Param, ...], rules: tuple[AxisRule, ...]) -> None:
    """Rules for `*` split at most the largest dimension that divides, of arrays without names."""
    target = spec.targets[0]
    spec, without = (replace(spec, any_rules=each) for each in (rules, ()))
    own = tuple(each for each in given_params if each.logical_axes is not None)
    nameless = tuple(replace(each, logical_axes=None) for each in own)
    named = resolve(spec, target, own).arrays
    assert named == resolve(without, target, own).arrays
    for sharding in resolve(spec, target, nameless).arrays:
        if sharding.dims.is_kept_whole or not sharding.dims or sharding.derivation is not None:
            continue
        assert sharding.dims.is_of_any
        split = [dim for dim in sharding.dims if dim.mesh_axes]
        assert len(split) <= 1
        for dim in split:
            taken = dim.taken
            fitting = [each for each in sharding.dims if (each.size or 0) % taken.ways == 0]
            assert dim is max(fitting, key=lambda each: each.size)
        if not split:
            fired = [a for d in sharding.dims for a in d.attempts if a.outcome is Outcome.TAKEN]
            assert all(attempt.is_none for attempt in fired)


@given(specs(), arrays, rule_lists())
def test_append(spec: Spec, given_params: tuple[Param, ...], more: tuple[AxisRule, ...]) -> None:
    """Rules added at the end never move a placed dimension."""
    before = resolve(spec, spec.targets[0], given_params)
    longer = replace(spec, axis_rules=spec.axis_rules + more)
    after = resolve(longer, spec.targets[0], given_params)
    for old, new in zip(before.arrays, after.arrays, strict=True):
        for old_dim, new_dim in zip(old.dims, new.dims, strict=True):
            if old_dim.taken is not None:
                assert new_dim.mesh_axes == old_dim.mesh_axes


@given(specs(), arrays, st.permutations(["data", "fsdp", "tensor", "expert", "stage"]))
def test_rename(spec: Spec, given_params: tuple[Param, ...], order: list[str]) -> None:
    """Renaming mesh axes renames the answer and does no more."""
    names = dict(zip(["data", "fsdp", "tensor", "expert", "stage"], order, strict=True))

    def renamed(axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names[axis] for axis in axes)

    def mesh(target: Target) -> Mesh:
        return Mesh(tuple(replace(axis, name=names[axis.name]) for axis in target.mesh.axes))

    other = replace(
        spec,
        axis_rules=tuple(replace(r, mesh_axes=renamed(r.mesh_axes)) for r in spec.axis_rules),
        any_rules=tuple(replace(r, mesh_axes=renamed(r.mesh_axes)) for r in spec.any_rules),
        targets=tuple(replace(target, mesh=mesh(target)) for target in spec.targets),
    )
    before = resolve(spec, spec.targets[0], given_params)
    after = resolve(other, other.targets[0], given_params)
    for old, new in zip(before.arrays, after.arrays, strict=True):
        assert tuple(map(renamed, old.partition_spec.dims)) == new.partition_spec.dims


@given(specs(), arrays, st.randoms(use_true_random=False))
def test_order(spec: Spec, given_params: tuple[Param, ...], random: object) -> None:
    """Permuting the arrays permutes the plan."""
    shuffled = list(given_params)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    plan = resolve(spec, spec.targets[0], given_params)
    again = resolve(spec, spec.targets[0], shuffled)
    assert [plan[param.path] for param in shuffled] == list(again.arrays)
    assert [s.path for s in plan.arrays] == [param.path for param in given_params]


@given(specs(), arrays)
def test_bytes(spec: Spec, given_params: tuple[Param, ...]) -> None:
    """Shards times shard size is the whole array where it is split evenly."""
    spec = replace(spec, policy=Policy("next"))
    target = spec.targets[0]
    for sharding in resolve(spec, target, given_params).arrays:
        shard_elements = math.prod(sharding.shard_shape)
        assert sharding.shard_count * shard_elements == sharding.param.element_count
        assert target.mesh.device_count % sharding.shard_count == 0
        assert sharding.per_device_bytes <= sharding.param.bytes


@given(rule_lists(), params(), meshes(names=("data", "fsdp", "expert")))
def test_factor(rules: tuple[AxisRule, ...], param: Param, mesh: Mesh) -> None:
    """A mesh axis of 4 and two axes of 2 in its place give the same shard shape.

    Not so under `(tensor, ...)?`, which may take one of the two.
    """
    rules = tuple(replace(rule, in_part=False) for rule in rules)
    whole = Mesh((*mesh.axes, MeshAxis("tensor", 4)))
    halves = Mesh((*mesh.axes, MeshAxis("t0", 2), MeshAxis("t1", 2)))

    def split(axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(n for axis in axes for n in (("t0", "t1") if axis == "tensor" else (axis,)))

    factored = tuple(replace(rule, mesh_axes=split(rule.mesh_axes)) for rule in rules)
    names = param.logical_axes or ()
    one = assign_axes(param.shape, names, rule_table(rules, whole))
    two = assign_axes(param.shape, names, rule_table(factored, halves))
    assert [dim.shard_size for dim in one] == [dim.shard_size for dim in two]


@given(specs(), arrays)
def test_part(spec: Spec, given_params: tuple[Param, ...]) -> None:
    """`(a, b)?` takes its axes in order; none that it leaves out fits beside those before it."""
    target = spec.targets[0]
    sizes, keep = target.mesh.sizes, spec.policy.indivisible == "keep"
    for sharding in resolve(spec, target, given_params).arrays:
        keeps = keep and not sharding.dims.is_of_any  # `*` is the largest dimension that divides
        for at, dim in enumerate(sharding.dims):
            for attempt in dim.attempts:
                if not attempt.in_part:
                    assert attempt.left_out == ()
                    continue
                if attempt.outcome in (Outcome.ABSENT, Outcome.UNKNOWN):
                    continue
                gone = {each.mesh_axis: each for each in attempt.left_out}
                kept = attempt.mesh_axes if attempt.outcome is Outcome.TAKEN else ()
                assert kept == tuple(axis for axis in attempt.asked if axis not in gone)
                ways = 1
                for axis in attempt.asked:
                    fits = dim.fits(ways * sizes.get(axis, 1)) or keeps
                    match gone[axis].outcome if axis in gone else None:
                        case None:
                            assert fits
                            ways *= sizes[axis]
                        case Outcome.ABSENT:
                            assert axis not in sizes
                        case Outcome.INDIVISIBLE:
                            assert not fits
                        case _:
                            other = gone[axis].blocked_by
                            assert other not in (None, at)
                            assert axis in sharding.dims[other or 0].mesh_axes


@given(specs(), arrays)
def test_spelt_out(spec: Spec, given_params: tuple[Param, ...]) -> None:
    """Where sizes are not looked at, `(a, b)?` is all of its parts, the largest first."""
    known = [r for r in spec.axis_rules if spec.mesh_axis_names.issuperset(r.mesh_axes)]
    spec = replace(spec, policy=Policy("keep"), axis_rules=tuple(known))
    plain = replace(
        spec, axis_rules=tuple(each for rule in spec.axis_rules for each in spelt_out(rule))
    )
    assert not any(rule.in_part for rule in plain.axis_rules)
    for target in spec.targets:
        one, two = (resolve(each, target, given_params).arrays for each in (spec, plain))
        assert [a.partition_spec for a in one] == [a.partition_spec for a in two]


@given(rule_lists(), params(), meshes(names=("data", "fsdp", "expert")))
def test_whole(rules: tuple[AxisRule, ...], param: Param, mesh: Mesh) -> None:
    """A rule that names a whole says what it would say of its parts."""
    halves = (MeshAxis("t0", 4), MeshAxis("t1", 2))
    mesh = Mesh((*mesh.axes, *halves), (("tensor", ("t0", "t1")),))
    named = tuple(replace(rule, mesh_axes=mesh.in_parts(rule.mesh_axes)) for rule in rules)
    names = param.logical_axes or ()
    known = frozenset((*MESH, ABSENT))
    by_whole, by_parts = (
        assign_axes(param.shape, names, rule_table(each, mesh, known_mesh_axes=known))
        for each in (rules, named)
    )
    assert [dim.mesh_axes for dim in by_whole] == [dim.mesh_axes for dim in by_parts]


@given(specs(), arrays)
def test_total_and_pure(spec: Spec, given_params: tuple[Param, ...]) -> None:
    """Resolving twice gives equal plans, whatever the spec says."""
    for target in spec.targets:
        assert resolve(spec, target, given_params) == resolve(spec, target, given_params)


@given(specs(), params())
def test_rule_order_decides(spec: Spec, param: Param) -> None:
    """Turning the dimensions of an array around turns the answer around."""
    names = param.logical_axes or ()
    assume(len({n for n in names if n}) == len([n for n in names if n]))
    turned = replace(param, shape=param.shape[::-1], logical_axes=names[::-1])
    one = resolve(spec, spec.targets[0], (param,)).arrays[0]
    two = resolve(spec, spec.targets[0], (turned,)).arrays[0]
    assert one.partition_spec.dims == two.partition_spec.dims[::-1]


@given(specs(), params(), meshes())
def test_absent_axes_drop_out(spec: Spec, param: Param, other: Mesh) -> None:
    """An axis that only another target has leaves its tuple, and never splits anything here."""
    both = replace(spec, targets=(spec.targets[0], Target("other", other)))
    target = both.targets[0]
    known = both.mesh_axis_names
    sharding = resolve(both, target, (param,)).arrays[0]
    for dim in sharding.dims:
        for attempt in dim.attempts:
            asked = attempt.asked
            present = tuple(axis for axis in asked if axis in target.mesh.names)
            if attempt.outcome is Outcome.UNKNOWN:
                assert set(asked) - known
            elif attempt.outcome is Outcome.ABSENT:
                assert asked
                assert not present
            elif attempt.in_part:
                assert set(attempt.mesh_axes) <= set(present)
            else:
                assert attempt.mesh_axes == present

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardspec.ir.spec import Param, Spec
from shardspec.resolve.resolver import resolve
from tests import strategies

arrays = st.lists(strategies.params(), max_size=6).map(
    lambda many: tuple(
        Param(f"a{i}", param.shape, param.dtype, param.logical_axes)
        for i, param in enumerate((*many, *many))
    )
)


@given(strategies.specs(), arrays)
def test_groups_hold_every_array_once_and_agree_with_it(
    spec: Spec, params: tuple[Param, ...]
) -> None:
    for target in spec.targets:
        plan = resolve(spec, target, params)
        groups = plan.alike
        paths = [sharding.param.path for group in groups for sharding in group.shardings]
        assert sorted(paths) == sorted(param.path for param in params)
        for group in groups:
            for sharding in group.shardings:
                assert group.shape == sharding.param.shape
                assert group.shard_shape == sharding.shard_shape
                assert group.bytes == sharding.param.bytes
                assert group.shard_bytes == sharding.per_device_bytes
                assert group.is_replicated == sharding.is_replicated
                assert group.mesh_axes == sharding.partition_spec.mesh_axes


@given(strategies.specs(), arrays)
def test_arrays_of_one_shape_names_dtype_memory_and_training_are_one_group(
    spec: Spec, params: tuple[Param, ...]
) -> None:
    plan = resolve(spec, spec.targets[0], params)
    distinct = {
        (p.shape, p.logical_axes, p.dtype, plan[p.path].memory_kind, plan[p.path].is_trained)
        for p in params
    }
    assert len(plan.alike) <= len(distinct)

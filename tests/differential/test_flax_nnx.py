"""Flax NNX's own reading of rule lists as the oracle, and Linen's where the two part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from flax import nnx
from flax.core.spmd import get_pspec
from hypothesis import given, target
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from shardspec.diagnostics import SourceFile
from shardspec.ir.spec import AxisRule, Mesh, MeshAxis, Param, PartitionSpec, Spec, Target
from shardspec.lints.checks.nnx_differs import check, read_as_nnx
from shardspec.lints.context import Context
from shardspec.resolve.resolver import resolve

NAMES = ("batch", "embed", "mlp", "heads", "Embed")
MESH_AXES = ("data", "model", "expert")

names = st.lists(st.one_of(st.sampled_from(NAMES), st.none()), max_size=5).map(tuple)
values = st.one_of(
    st.sampled_from(MESH_AXES),
    st.none(),
    st.lists(st.sampled_from(MESH_AXES), max_size=3, unique=True).map(tuple),
)
rule_lists = st.lists(st.tuples(st.sampled_from(NAMES), values), max_size=8)


def axis_rules(rules: Any) -> tuple[AxisRule, ...]:
    return tuple(
        AxisRule(name, (value,) if isinstance(value, str) else tuple(value or ()))
        for name, value in rules
    )


def jax_spec(spec: PartitionSpec) -> P:
    return P(*(dim or None for dim in spec.dims))


def nnx_rules(rules: Sequence[AxisRule]) -> dict[str, AxisRule]:
    return {rule.logical_axis: rule for rule in rules}


@given(names, rule_lists)
def test_same(names: Any, rules: Any) -> None:
    ours = read_as_nnx(names, nnx_rules(axis_rules(rules)))
    assert jax_spec(ours.partition_spec) == get_pspec(P(*names), rules)


@given(names, rule_lists)
def test_same_on_a_variable_in_a_context(names: Any, rules: Any) -> None:
    with nnx.use_eager_sharding(False):
        variable = nnx.Param(jnp.zeros((1,) * len(names)), out_sharding=names)
    with nnx.logical_axis_rules(rules):
        spec = nnx.get_partition_spec(nnx.State({"x": variable}))["x"]
    ours = read_as_nnx(names, nnx_rules(axis_rules(rules)))
    assert jax_spec(ours.partition_spec) == (spec.get_value() if names else P())


def test_linen_and_nnx_read_one_list_in_two_ways() -> None:
    rules = [("head", "model"), ("embed", "model"), ("embed", "data"), ("vocab", "model")]
    assert nn.logical_to_mesh_axes(("vocab", "embed"), rules) == P(None, "model")
    ours = read_as_nnx(("vocab", "embed"), nnx_rules(axis_rules(rules)))
    assert (
        jax_spec(ours.partition_spec) == P("model", "data") == get_pspec(P("vocab", "embed"), rules)
    )


own_names = st.lists(st.sampled_from(NAMES), max_size=4, unique=True).map(tuple)


@given(own_names, rule_lists)
def test_it_is_told_exactly_where_flax_gives_two_answers(names: Any, rules: Any) -> None:
    ruled = {name for name, _ in rules}
    names = tuple(name for name in names if name in ruled)
    mesh = Mesh(tuple(MeshAxis(axis, 2) for axis in MESH_AXES))
    spec = Spec(SourceFile("s.yaml", ""), axis_rules=axis_rules(rules))
    spec = Spec(spec.source, axis_rules=spec.axis_rules, targets=(Target("t", mesh),))
    plan = resolve(spec, spec.targets[0], [Param("x", (8,) * len(names), "f32", names)])
    found = list(check(Context(spec, (plan,))))
    linen, nnx_answer = nn.logical_to_mesh_axes(names, rules), get_pspec(P(*names), rules)
    target(float(len(found)))
    assert bool(found) == (linen != nnx_answer)
    for diagnostic in found:
        reading = read_as_nnx(names, nnx_rules(spec.axis_rules))
        assert str(reading.partition_spec) in diagnostic.message
        assert jax_spec(plan["x"].partition_spec) == linen
        assert str(plan["x"].partition_spec) in diagnostic.message

"""Law **same answer**: one model gets one layout, whichever framework holds its arrays.

The same arrays are built as Linen boxes, as NNX Variables with metadata, and as a plain dict
whose names come from `params:` by path; under random rules all three get the same specs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import Severity, SourceFile, codes
from shardspec.diagnostics.codes import LintLevel
from shardspec.ir.spec import AxisRule, Mesh, MeshAxis, PathRule, Pattern, Spec, Target
from shardspec.jax_backend.resolver import Resolver

AXES = ("embed", "mlp", "heads", "vocab", "kv")
MESH = {"data": 2, "model": 4}
TARGETS = ((), ("data",), ("model",), ("data", "model"), ("model", "data"))
PARTS = ("layers_0", "layers_11", "mlp", "wi", "kernel", "decoder", "bias")

names = st.lists(st.sampled_from(AXES), max_size=4, unique=True).flatmap(
    lambda axes: st.tuples(*(st.sampled_from([axis, None]) for axis in axes))
)
arrays = names.flatmap(
    lambda names: st.tuples(
        st.just(names), st.tuples(*(st.sampled_from([1, 2, 3, 8, 24, 64]) for _ in names))
    )
)
paths = st.lists(st.sampled_from(PARTS), min_size=1, max_size=3).map(tuple)
models = st.dictionaries(paths, arrays, min_size=1, max_size=6).filter(
    lambda model: (
        not any(path != other and path == other[: len(path)] for path in model for other in model)
    )
)
rules = st.lists(st.builds(AxisRule, st.sampled_from(AXES), st.sampled_from(TARGETS)), max_size=8)

Model = dict[tuple[str, ...], tuple[tuple[str | None, ...], tuple[int, ...]]]


def tree(model: Model, leaf: Any) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, (axes, sizes) in model.items():
        node = nested
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = leaf(axes, jax.ShapeDtypeStruct(sizes, jnp.float32))
    return nested


def spec_of(axis_rules: list[AxisRule]) -> Spec:
    """Return a spec that lets every array pass; what is placed is the question here."""
    mesh = Mesh(tuple(MeshAxis(name, size) for name, size in MESH.items()))
    levels = tuple(LintLevel(code.name, Severity.ALLOW) for code in codes.ALL)
    return Spec(
        SourceFile("spec.yaml", ""),
        axis_rules=tuple(axis_rules),
        targets=(Target("here", mesh),),
        lint_levels=levels,
    )


def specs(found: Resolver, tree: Any, *, boxed: bool) -> list[Any]:
    return [sharding.spec for sharding in jax.tree.leaves(found.shardings(tree, boxed=boxed))]


@given(models, rules, st.booleans())
def test_same_answer(model: Model, axis_rules: list[AxisRule], boxed: bool) -> None:
    spec = spec_of(axis_rules)
    by_names = Resolver(spec)
    named_paths = tuple(
        PathRule(Pattern("/".join(path)), axes) for path, (axes, _) in model.items()
    )
    by_path = Resolver(replace(spec, path_rules=named_paths))
    linen = tree(model, lambda axes, array: nn.LogicallyPartitioned(array, axes))
    variables = tree(
        model, lambda axes, array: nnx.Param(array, out_sharding=axes, eager_sharding=False)
    )
    plain = tree(model, lambda axes, array: array)
    expected = specs(by_path, plain, boxed=boxed)
    assert len(expected) == len(model)
    for found, tree_of_it in (
        (by_names, {"params": linen}),
        (by_names, nnx.State(variables)),
        (by_path, {"params": linen}),
        (by_path, nnx.State(variables)),
    ):
        assert specs(found, tree_of_it, boxed=boxed) == expected
    plans = [by_path.plan(plain), by_names.plan({"params": linen}), by_names.plan(variables)]
    traces = [[(p.param.path, p.dims) for p in plan.arrays] for plan in plans]
    assert traces[0] == traces[1] == traces[2]

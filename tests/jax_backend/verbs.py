"""Every verb over one tree: they all see the same arrays and give the same specs."""

from __future__ import annotations

from typing import Any

import jax

import shardspec
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.trees import SCALARS, leaves_of

#: Rules for the models of these tests, on eight devices.
TEXT = """\
shardspec: 1
mesh: {data: 2, model: 4}
rules:
  - layers -> none
  - vocab, mlp, heads -> model
  - embed -> data
lints: {unnamed-array: allow, unknown-logical-axis: allow, axis-without-array: allow}
"""


def specs_by_every_verb(tree: Any, text: str = TEXT) -> dict[str, str]:
    """Return path -> spec, the same by `compile`, `plan`, `shardings`, and `put` where it can."""
    spec = shardspec.loads(text)
    found = Resolver(spec)
    compiled = spec.compile(tree)
    expected = {path: str(compiled[path].partition_spec) for path in compiled}
    plan = found.plan(tree)
    assert {p.param.path: str(p.partition_spec) for p in plan.arrays} == expected
    assert not [finding for finding in found.findings(tree) if finding.is_error]
    arrays = [leaf for leaf in leaves_of(tree) if leaf.shape is not None]
    assert [leaf.path for leaf in arrays] == list(expected)
    by_path = {
        param.param.path: jax.sharding.PartitionSpec(*(dim.mesh_axes or None for dim in param.dims))
        for param in plan.arrays
    }
    for boxed in (True, False):
        placed = jax.tree.leaves(found.shardings(tree, boxed=boxed))
        specs = {leaf.path: s.spec for leaf, s in zip(arrays, placed, strict=True)}
        assert specs == by_path
    if not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(tree)):
        assert_put(found, tree, by_path)
    return expected


def assert_put(found: Resolver, tree: Any, specs: dict[str, Any]) -> None:
    """Check that `put` keeps the tree and moves every array where the plan wants it."""
    moved = found.put(tree)
    assert jax.tree.structure(moved) == jax.tree.structure(tree)
    for leaf in leaves_of(moved):
        if leaf.shape is None or type(leaf.value) in SCALARS:
            continue
        wanted = jax.sharding.NamedSharding(found.mesh, specs[leaf.path])
        assert leaf.value.sharding.is_equivalent_to(wanted, len(leaf.shape)), leaf.path


def assert_jit_obeys(init: Any, *args: Any, text: str = TEXT) -> Any:
    """Check that the shardings of what `init` makes serve as its `out_shardings`; return it."""
    found = Resolver(shardspec.loads(text))
    abstract = jax.eval_shape(init, *args)
    shardings = found.shardings(abstract)
    live = jax.jit(init, out_shardings=shardings)(*args)
    specs = {
        param.param.path: jax.sharding.PartitionSpec(*(dim.mesh_axes or None for dim in param.dims))
        for param in found.plan(abstract).arrays
    }
    for leaf in leaves_of(live):
        wanted = jax.sharding.NamedSharding(found.mesh, specs[leaf.path])
        assert leaf.value.sharding.is_equivalent_to(wanted, leaf.value.ndim), leaf.path
    again = jax.jit(lambda tree: jax.tree.map(lambda x: x, tree), in_shardings=(shardings,))(live)
    assert jax.tree.structure(again) == jax.tree.structure(live)
    return live

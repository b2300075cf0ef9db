"""What every model has to show, under every preset."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import numpy as np

from shardspec import assets, pipeline
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.trees import leaves_of
from tests.jax_backend.presets import STRATEGIES, example_text, loaded
from tests.jax_backend.training import (
    LOSS,
    PARAMETER,
    REMATERIALIZATION,
    Run,
    batch,
    collectives,
    reference,
    run_of,
    share_of_one_device,
    trained,
)
from tests.models.layers import BATCH, EMBED, LENGTH, RESIDUAL, Wiring

MATRIX = ("layers", "embed", "mlp")
EXPERTS = ("layers", "expert", "embed", "mlp")


def trains_as_on_one_device(model: ModuleType, preset: str) -> None:
    """Compare every loss, and the parameters after ten steps."""
    compare(run_of(model, preset)[1], reference(model))


def compare(run: Run, expected: Run) -> None:
    """Compare losses and parameters, to the tolerance of f32."""
    assert expected.losses[-1] < 0.5 * expected.losses[0]
    np.testing.assert_allclose(run.losses, expected.losses, rtol=LOSS)
    pairs = zip(jax.tree.leaves(run.params), jax.tree.leaves(expected.params), strict=True)
    for found, wanted in pairs:
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=0, atol=PARAMETER)


def splits_what_it_is_for(model: ModuleType, preset: str) -> None:
    """Compare the live arrays with what the preset is for, as the table has it."""
    resolver, run = run_of(model, preset)
    strategy = STRATEGIES[preset]
    meant = {MATRIX: strategy.matrix, EXPERTS: strategy.experts}
    matrices = [leaf for leaf in leaves_of(run.params) if leaf.names in meant]
    assert len(matrices) >= 2
    for leaf in matrices:
        expected = jax.sharding.PartitionSpec(*meant[leaf.names])
        assert leaf.value.sharding.spec == expected, leaf.path
    assert share_of_one_device(run.params) <= strategy.share
    residual = resolver.sharding(RESIDUAL, (BATCH, LENGTH, EMBED))
    assert residual.spec == jax.sharding.PartitionSpec(*strategy.residual)


def nothing_is_made_whole(model: ModuleType, preset: str) -> None:
    """Look for the warning of XLA that it knows no way from one sharding to another."""
    assert REMATERIALIZATION not in run_of(model, preset)[1].log


def has_its_collectives(model: ModuleType, preset: str) -> None:
    """Look for the collectives that the preset works by, and for none where it needs none."""
    found = collectives(run_of(model, preset)[1].program).keys()
    assert found >= STRATEGIES[preset].collectives
    if preset == "data-parallel":
        assert found == {"all-reduce"}


def example_lists_the_model(model: ModuleType) -> None:
    """Compare arrays and activations of the example with those of the code."""
    spec = loaded(example_text(model.EXAMPLE))
    abstract = jax.eval_shape(model.init, jax.random.key(0))
    in_code = {(leaf.path, leaf.shape, leaf.names) for leaf in leaves_of(abstract)}
    assert in_code == {(each.path, each.shape, each.logical_axes) for each in spec.params}

    seen = {"batch length"}

    def record(x: Any, names: str) -> Any:
        assert len(x.shape) == len(names.split())
        seen.add(names)
        return x

    jax.eval_shape(lambda params: model.loss(params, batch(), Wiring(record)), abstract)
    named = (" ".join(name or "_" for name in each.logical_axes) for each in spec.activations)
    assert set(named) == seen


def example_trains(model: ModuleType) -> None:
    """Train with the example as it is, on the target that these devices are."""
    path = assets.spec_path("examples", model.EXAMPLE)
    assert path is not None
    resolver = Resolver(path)
    assert resolver.target.name == "cpu-8"
    run = trained(model, resolver)
    assert REMATERIALIZATION not in run.log
    assert share_of_one_device(run.params) < 0.15
    compare(run, reference(model))
    plan, *_ = pipeline.compile_plans(loaded(example_text(model.EXAMPLE)))
    assert [each.partition_spec for each in resolver.plan(run.params).arrays] == [
        plan[leaf.path].partition_spec for leaf in leaves_of(run.params)
    ]

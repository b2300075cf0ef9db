"""What a subclass asks of `PjitPartitioner`, as T5X's `MoePjitPartitioner` does.

That class (google-research/t5x, contrib/moe/partitioning.py) puts an axis `expert` into the mesh,
so it makes its own mesh, data layout, names of states and jitted function out of what the class
below it keeps. `Experts` asks for the same things in the same ways; it is ours.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.experimental.pjit
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import freeze
from flax.linen.partitioning import AxisMetadata
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from shardspec.compat import t5x
from tests.compat.test_peer_t5x import Adafactor, InferenceState, TrainState
from tests.differential.test_t5x_vectors import machine, tpu_devices

AXES = ("data", "expert", "model")


def rules() -> list[Any]:
    """Return T5X's standard rules with those of experts; it asks whether a mesh is around."""
    assert t5x.global_mesh_defined() in (True, False)
    more = [("expert", "expert"), ("expert_mlp", "model"), ("expert_replicas", "data")]
    standard = [*t5x.standard_logical_axis_rules(2, 1), *more, ("unmodeled", None)]
    return [(name, ("expert", "data") if name == "batch" else axes) for name, axes in standard]


class Experts(t5x.PjitPartitioner):
    jit: Any = staticmethod(jax.jit)

    def __init__(
        self,
        num_expert_partitions: int,
        num_partitions: int | None = None,
        model_parallel_submesh: t5x.HardwareMesh | None = None,
        params_on_devices: bool = True,
        logical_axis_rules: t5x.LogicalAxisRules | None = None,
    ) -> None:
        super().__init__(
            num_partitions=num_partitions,
            model_parallel_submesh=model_parallel_submesh,
            params_on_devices=params_on_devices,
            logical_axis_rules=rules() if logical_axis_rules is None else logical_axis_rules,
        )
        self._num_expert_partitions = num_expert_partitions

    @property
    def data_partition_spec(self) -> Any:
        return t5x.PartitionSpec(("expert", "data"))

    @functools.cached_property
    def mesh(self) -> Mesh:
        base = t5x.default_mesh(self._num_partitions, self._model_parallel_submesh, self._backend)
        data, model = base.devices.shape
        experts = next(n for n in range(self._num_expert_partitions, 0, -1) if not data % n)
        return Mesh(base.devices.reshape(-1, experts, model), AXES)

    def get_data_layout(self, batch_size: Any = None, host_index: Any = None) -> t5x.DataLayout:
        chunker = self._local_chunker
        sizes = chunker.global_mesh.shape
        batch_size = batch_size or sizes["data"] * sizes["expert"]
        shape = (sizes["expert"], batch_size // sizes["expert"])
        return t5x.DataLayout(
            batch_size=batch_size,
            shard_id=chunker.chunk_ids["data"]
            + chunker.chunk_ids["expert"] * chunker.num_chunks["data"],
            num_shards=chunker.num_chunks["data"] * chunker.num_chunks["expert"],
            is_first_host_in_replica_set=not chunker.get_local_chunk_info(
                shape, ("expert", "data")
            ).replica_id,
        )

    def get_logical_axes(self, train_state: Any) -> Any:
        axes = train_state.as_logical_axes()
        if isinstance(axes, InferenceState):
            return axes
        state = axes._optimizer.state_dict()
        moments = state["state"]["param_states"]["expert"]["kernel"]
        for key, spec in moments.items():
            moments[key] = t5x.PartitionSpec("expert", *(spec or ()))
        return train_state.restore_state(state)

    def partition(
        self, fn: Any, in_axis_resources: Any, out_axis_resources: Any, *more: Any, **kw: Any
    ) -> t5x.PjittedFnWithContext:
        def over_experts(resources: Any) -> Any:
            if isinstance(resources, tuple):
                return tuple(map(over_experts, resources))
            return P(("expert", "data")) if resources == P("data") else resources

        jitted = self.jit(
            fn,
            in_shardings=over_experts(in_axis_resources),
            out_shardings=over_experts(out_axis_resources),
            **kw,
        )
        return t5x.PjittedFnWithContext(jitted, self.mesh, self._logical_axis_rules)


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ((16, 1), (1, 8, 1)),
        ((8, 1), (1, 8, 1)),
        ((4, 1), (2, 4, 1)),
        ((8, 4), (1, 2, 4)),
        ((8, None, (1, 1, 1, 2)), (1, 4, 2)),
    ],
)
def test_the_mesh_comes_from_what_the_class_below_keeps(arguments: Any, sizes: Any) -> None:
    with machine(tpu_devices("TPU v3", [2, 2, 1, 2], [2, 2, 1, 2])):
        mesh = Experts(*arguments).mesh
    assert mesh.devices.shape == sizes
    assert mesh.axis_names == AXES


def test_a_host_reads_its_rows_of_both_axes() -> None:
    shards = []
    for process in range(4):
        with machine(tpu_devices("TPU v3", [4, 4, 1, 2], [2, 2, 1, 2]), process):
            partitioner = Experts(8, 1)
            layout = partitioner.get_data_layout(32)
            assert partitioner.data_mesh_size == 32
            assert partitioner.data_shards == layout.num_shards == 4
            assert layout.is_first_host_in_replica_set
            shards.append(layout.shard_id)
    assert shards == [0, 2, 1, 3]  # as T5X's own test of the class has them


@pytest.fixture
def model() -> Any:
    names = {
        "expert": {"kernel_axes": AxisMetadata(names=("expert", "embed", "expert_mlp"))},
        "logits_axes": AxisMetadata(names=("embed", "vocab")),
    }
    params = {"expert": {"kernel": np.ones((8, 16, 8))}, "logits": np.ones((16, 16))}
    return freeze({"params": params, "params_axes": names})


def test_names_and_layouts_go_through_what_the_subclass_says(model: Any) -> None:
    partitioner = Experts(8, 1)
    inference = InferenceState.create(model)
    assert partitioner.get_logical_axes(inference).params["logits"] == P("embed", "vocab")
    axes = partitioner.get_mesh_axes(inference).params
    assert axes["expert"]["kernel"] == P("expert", "model", None)  # embed comes first
    state = TrainState.create(Adafactor(), model)
    moments = partitioner.get_logical_axes(state).param_states["expert"]["kernel"]
    assert moments.v_row == P("expert")
    assert moments.v == P("expert", "expert", "embed", "expert_mlp")


@pytest.mark.parametrize("older", [True, False], ids=["pjit", "jit"])
def test_a_partitioned_call_of_the_subclass_runs_on_its_mesh(older: bool) -> None:
    partitioner = Experts(8, 1)
    if older and (jitted := getattr(jax.experimental.pjit, "pjit", None)):
        partitioner.jit = jitted
    assert dict(partitioner.mesh.shape) == {"data": 1, "expert": 1, "model": 8}  # as CPUs have it
    seen = []

    def step(x: Any, scale: Any) -> Any:
        seen.append((jax.sharding.get_abstract_mesh().axis_names, t5x.global_mesh_defined()))
        return x * scale

    call = partitioner.partition(step, (P("data"), None), P("data"))
    assert isinstance(call, t5x.PjittedFnWithContext)
    y = call(jnp.ones((8, 4)), 2.0)
    assert y.sharding.spec in (P(("expert", "data")), P(("expert", "data"), None))
    assert seen == [(AXES, True)]
    assert partitioner.compile(call, jnp.ones((8, 4)), 2.0)(jnp.ones((8, 4)), 2.0).shape == (8, 4)
    assert not t5x.global_mesh_defined()
    with partitioner.mesh:
        assert t5x.global_mesh_defined()


def test_what_the_class_keeps_has_t5xs_names() -> None:
    own = rules()
    partitioner = t5x.PjitPartitioner(2, None, False, "cpu", None, None, iter(own))
    assert partitioner._num_partitions == 2
    assert partitioner._model_parallel_submesh is None
    assert partitioner._backend == "cpu"
    assert partitioner._ici_mesh_shape is partitioner._dcn_mesh_shape is None
    assert partitioner._data_axis == ("expert", "data")
    assert partitioner._logical_axis_rules == partitioner.logical_axis_rules == tuple(own)
    assert partitioner.params_on_devices is False
    assert partitioner.data_partition_spec == P(("expert", "data"))
    assert isinstance(partitioner.use_shardy_partitioner, bool)
    slices = t5x.PjitPartitioner(1, ici_mesh_shape=(1, 4, 1), dcn_mesh_shape=(2, 1, 1))
    assert slices._data_axis == ("replica", "data")
    assert t5x.PjitPartitioner(1, logical_axis_rules=[("a", "model")])._data_axis is None


def test_one_axis_is_a_name_not_its_letters() -> None:
    with machine(tpu_devices("TPU v3", [4, 4, 1, 2], [2, 2, 1, 2]), 1):
        chunker = t5x.LocalChunker(t5x.default_mesh(4))
    assert chunker.get_shard_id("data") == chunker.get_shard_id(("data",)) == 2
    assert chunker.get_replica_id("data") == chunker.get_replica_id({"data"}) == 0

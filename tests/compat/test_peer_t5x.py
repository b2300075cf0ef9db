"""What T5X's own tests of partitioning and name overrides hold to.

The behaviours are those that `partitioning_test.py` and `utils_test.py` of T5X (google-research)
check (the latter: overrides of names); the tests are ours. Train states and optimizers are T5X's
own and no part of the drop-in: small ones with the methods that a partitioner asks for stand in.
"""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax.core import freeze, unfreeze
from flax.linen.partitioning import AxisMetadata, get_axis_names
from flax.serialization import from_state_dict, to_state_dict
from jax.sharding import PartitionSpec as P

from shardspec.compat import t5x
from tests.differential.test_t5x_vectors import machine, tpu_devices

V3_32 = tpu_devices("TPU v3", [4, 4, 1, 2], [2, 2, 1, 2])


# partitioning_test: devices and meshes


def test_extents_and_coordinates() -> None:
    corner = mock.Mock(coords=(3, 3, 3), core_on_chip=1)
    assert t5x.bounds_from_last_device(corner) == (4, 4, 4, 2)
    assert t5x.get_coords(mock.Mock(coords=(1, 0, 1), core_on_chip=1)) == (1, 0, 1, 1)
    with (
        mock.patch("jax.process_count", return_value=1),
        mock.patch("jax.local_device_count", return_value=4),
    ):
        assert t5x.bounds_from_last_device(mock.Mock(spec=[])) == (1, 4)
    other = mock.Mock(spec=["process_index", "id"], process_index=1, id=9)
    with mock.patch("jax.local_device_count", return_value=8):
        assert t5x.get_coords(other) == (1, 1)


def test_the_default_mesh_and_each_hosts_part_of_it() -> None:
    with machine(V3_32):
        mesh = t5x.default_mesh(4)
    assert mesh.axis_names == ("data", "model")
    assert dict(mesh.shape) == {"data": 8, "model": 4}
    for process in range(4):
        mine = [[d for d in row if d.process_index == process] for row in mesh.devices]
        assert [len(row) for row in mine if row] == [4, 4]
    own = [
        [(*d.coords, d.core_on_chip) for d in row]
        for row in mesh.devices
        if row[0].process_index == 0
    ]
    assert own == [
        [(0, 0, 0, 0), (0, 0, 0, 1), (1, 0, 0, 0), (1, 0, 0, 1)],
        [(0, 1, 0, 0), (0, 1, 0, 1), (1, 1, 0, 0), (1, 1, 0, 1)],
    ]


def test_each_hosts_chunk() -> None:
    with machine(V3_32):
        mesh = t5x.default_mesh(4)
    order = list(dict.fromkeys(device.process_index for device in mesh.devices[:, 0]))
    for process in range(4):
        chunker = t5x.LocalChunker(mesh, process)
        assert chunker.num_chunks == {"data": 4, "model": 1}
        place = order.index(process)
        assert chunker.chunk_ids == {"data": place, "model": 0}
        both = chunker.get_local_chunk_info((128, 16), ["data", "model"])
        assert both.replica_id == 0
        assert both.slice == (slice(32 * place, 32 * (place + 1)), slice(0, 16))
        columns = chunker.get_local_chunk_info((128, 16), [None, "model"])
        assert columns.replica_id == place
        assert columns.slice == (slice(None), slice(0, 16))


# partitioning_test: rules


@pytest.mark.parametrize("activation_dims", [1, 2])
@pytest.mark.parametrize("param_dims", [1, 2])
def test_additional_rules_go_to_the_end(activation_dims: int, param_dims: int) -> None:
    standard = t5x.standard_logical_axis_rules(activation_dims, param_dims)
    more = (("new", "data"), ("another", None), ("third", "model"))
    rules = t5x.standard_logical_axis_rules(activation_dims, param_dims, additional_rules=more)
    assert rules == [*standard, *more]


def test_updated_rules_keep_their_place() -> None:
    old = (("a", None), ("b", "model"), ("c", "data"))
    new = (("a", "model"), ("d", None), ("c", None))
    assert t5x.update_logical_axis_rules(old, new) == (
        ("a", "model"),
        ("b", "model"),
        ("c", None),
        ("d", None),
    )


def test_updated_rules_take_every_rule_of_a_name_along() -> None:
    old = (("a", "x"), ("b", "x"), ("a", "y"), ("b", "y"))
    assert t5x.update_logical_axis_rules(old, (("a", "z"), ("a", None))) == (
        ("a", "z"),
        ("a", None),
        ("b", "x"),
        ("b", "y"),
    )
    assert t5x.update_logical_axis_rules(iter(old), ()) == old


# stand-ins for T5X's optimizers and train states


@flax.struct.dataclass
class OptimizerState:
    step: Any
    param_states: Any


@flax.struct.dataclass
class Moments:
    m: Any
    v: Any
    v_row: Any
    v_col: Any


class Optimizer(flax.struct.PyTreeNode):
    optimizer_def: Any = flax.struct.field(pytree_node=False)
    state: Any
    target: Any

    def state_dict(self) -> Any:
        return to_state_dict({"target": unfreeze(self.target), "state": self.state})

    def restore_state(self, state: Any) -> Any:
        return self.replace(
            target=from_state_dict(self.target, state["target"]),
            state=from_state_dict(self.state, state["state"]),
        )


@dataclasses.dataclass(eq=False)
class Adafactor:
    """As T5X's: rows and columns are never split; moments are where there are any."""

    factored: bool = False
    momentum: bool = False

    def create(self, params: Any) -> Optimizer:
        states = jax.tree.map(self.moments, params)
        return Optimizer(self, OptimizerState(jnp.array(0), states), params)

    def moments(self, param: Any) -> Moments:
        none, rows, columns = np.zeros(1), param.shape[:-1], param.shape[1:]
        factored = self.factored and param.ndim == 2
        return Moments(
            np.zeros(param.shape) if self.momentum else none,
            none if factored else np.zeros(param.shape),
            np.zeros(rows) if factored else none,
            np.zeros(columns) if factored else none,
        )

    def derive_logical_axes(self, optimizer: Optimizer, names: Any) -> Optimizer:
        def derived(spec: Any, state: Moments) -> Moments:
            of_moment = spec if self.momentum else None
            return Moments(of_moment, None if state.v.shape == (1,) else spec, None, None)

        states = jax.tree.map(
            derived,
            unfreeze(names),
            unfreeze(optimizer.state.param_states),
            is_leaf=lambda node: isinstance(node, (P, Moments)),
        )
        return optimizer.replace(state=OptimizerState(None, states), target=unfreeze(names))


class TrainState(flax.struct.PyTreeNode):
    """Parameters with their optimizer: what the partitioner asks of T5X's `FlaxOptimTrainState`."""

    _optimizer: Any
    params_axes: Any = None

    @classmethod
    def create(cls, definition: Adafactor, model: Any) -> Any:
        return cls(definition.create(model["params"]), model["params_axes"])

    @property
    def step(self) -> Any:
        return self._optimizer.state.step

    @property
    def params(self) -> Any:
        return self._optimizer.target

    @property
    def param_states(self) -> Any:
        return self._optimizer.state.param_states

    def state_dict(self) -> Any:
        return self._optimizer.state_dict()

    def restore_state(self, state: Any) -> Any:
        return self.replace(_optimizer=self._optimizer.restore_state(state))

    def as_logical_axes(self) -> Any:
        names = get_axis_names(self.params_axes)
        derived = self._optimizer.optimizer_def.derive_logical_axes(self._optimizer, names)
        return TrainState(derived)


class InferenceState(flax.struct.PyTreeNode):
    """The same of parameters alone."""

    step: Any
    params: Any
    params_axes: Any = None

    @classmethod
    def create(cls, model: Any) -> Any:
        return cls(jnp.array(0), model["params"], model["params_axes"])

    def state_dict(self) -> Any:
        return {"target": unfreeze(self.params), "state": {"step": self.step}}

    def restore_state(self, state: Any) -> Any:
        return self.replace(params=freeze(state["target"]), step=state["state"]["step"])

    def as_logical_axes(self) -> Any:
        return InferenceState(None, get_axis_names(self.params_axes))


# partitioning_test: layouts of train states


@pytest.mark.parametrize("factored", [True, False])
@pytest.mark.parametrize("momentum", [True, False])
def test_mesh_axes_of_a_train_state(factored: bool, momentum: bool) -> None:
    model = freeze(
        {
            "params": {
                "logits_dense": np.ones((16, 16)),
                "mlp": {"wo": {"kernel": np.ones((32, 16))}},
            },
            "params_axes": {
                "logits_dense_axes": AxisMetadata(names=("vocab", "embed")),
                "mlp": {"wo": {"kernel_axes": AxisMetadata(names=("embed", "mlp"))}},
            },
        }
    )
    state = TrainState.create(Adafactor(factored, momentum), model)
    rules = (("batch", "data"), ("embed", None), ("vocab", "model"), ("mlp", "model"))
    partitioner = t5x.PjitPartitioner(num_partitions=1, logical_axis_rules=rules)
    axes = partitioner.get_mesh_axes(state)
    logits, kernel = P("model", None), P(None, "model")
    assert axes.params == {"logits_dense": logits, "mlp": {"wo": {"kernel": kernel}}}
    assert axes.step is None

    def moments(spec: Any) -> Moments:
        return Moments(spec if momentum else None, None if factored else spec, None, None)

    assert axes.param_states["logits_dense"] == moments(logits)
    assert axes.param_states["mlp"]["wo"]["kernel"] == moments(kernel)


def test_names_that_cannot_be_mapped_say_whose_they_are() -> None:
    twice = {"dense": {"kernel_axes": AxisMetadata(names=("embed", "embed"))}}
    params = {"dense": {"kernel": np.zeros((2, 4))}}
    state = InferenceState.create({"params": params, "params_axes": twice})
    with pytest.raises(ValueError, match="Failed to map logical axes for target/dense/kernel") as e:
        t5x.PjitPartitioner(num_partitions=1).get_mesh_axes(state)
    assert "occur more than once" in str(e.value.__cause__)


def test_a_state_is_placed_and_its_constraints_hold() -> None:
    model = freeze(
        {
            "params": {"w": np.ones((8, 8), np.float32)},
            "params_axes": {"w_axes": AxisMetadata(names=("embed", "mlp"))},
        }
    )
    partitioner = t5x.PjitPartitioner(
        num_partitions=8, logical_axis_rules=(("batch", "data"), ("mlp", "model"))
    )
    state = InferenceState.create(model)
    axes = partitioner.get_mesh_axes(state)
    moved = partitioner.move_params_to_devices(state, axes)
    assert moved.params["w"].sharding.spec == P(None, "model")
    assert moved.step.sharding.is_fully_replicated

    def apply(state: Any, x: Any) -> Any:
        return nn.with_logical_constraint(x @ state.params["w"], ("batch", "mlp"))

    step = partitioner.partition(apply, (axes, P("data")), P("data", "model"))
    x = jnp.ones((4, 8))
    assert step(moved, x).sharding.spec == P("data", "model")
    text = step.lower(moved, x).as_text()
    assert text.count("sharding_constraint") == 1
    assert partitioner.compile(step, moved, x)(moved, x).shape == (4, 8)


def test_train_states_are_t5xs_own() -> None:
    with pytest.raises(AttributeError, match=r"import it from `t5x\.train_state`"):
        _ = t5x.FlaxOptimTrainState
    with pytest.raises(AttributeError, match=r"has no attribute 'optimizers'$"):
        _ = t5x.optimizers


# utils_test: overrides of names


def same(left: Any, right: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, unfreeze(left), unfreeze(right))


def test_overridden_names() -> None:
    model = freeze(
        {
            "params": {
                "logits_dense": np.zeros((2, 4)),
                "mlp": {"wo": {"kernel": np.zeros((4, 6)), "bias": np.zeros(6)}},
            },
            "params_axes": {
                "logits_dense_axes": AxisMetadata(names=("vocab", "embed")),
                "mlp": {"wo": {"kernel_axes": AxisMetadata(names=("embed", "mlp"))}},
            },
        }
    )
    override = t5x.override_params_axes_names
    with pytest.raises(ValueError, match="do not contain a 'params_axes' collection"):
        override({"params": model["params"]}, [("mlp/wo/kernel", ("embed",))])
    with pytest.raises(ValueError, match="for mlp/wo/kernel does not match") as error:
        override(model, [("mlp/wo/kernel", ("embed",))])
    assert str(error.value).endswith("param rank (2): ('embed',)")
    found = override(
        model,
        [
            ("wo/kernel", ("batch",)),  # not the whole name
            (".*/wo/kernel", ("batch", "embed")),
            ("mlp/wo/kernel", ("embed",)),  # has its names already
            ("mlp/wo/bias", ("embed",)),  # had none
        ],
    )
    same(found["params"], model["params"])
    assert unfreeze(found["params_axes"]) == {
        "logits_dense_axes": AxisMetadata(names=("vocab", "embed")),
        "mlp": {
            "wo": {
                "kernel_axes": AxisMetadata(names=("batch", "embed")),
                "bias_axes": AxisMetadata(names=("embed",)),
            }
        },
    }

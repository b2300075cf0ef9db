"""What T5X's own tests of partitioning, train states and name overrides hold to.

The behaviours are those that `partitioning_test.py`, `train_state_test.py` and `utils_test.py` of
google-research/t5x check (overrides of names, in the last); the tests are ours. T5X's optimizers
are T5X's own and not part of the drop-in, so small ones with their methods stand in.
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
from flax.linen.partitioning import AxisMetadata
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


# train_state_test: stand-ins for T5X's optimizers


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

    def apply_gradient(self, grads: Any, learning_rate: Any) -> Any:
        target = jax.tree.map(lambda p, g: p - learning_rate * g, self.target, grads)
        return self.replace(target=target, state=self.state.replace(step=self.state.step + 1))


@dataclasses.dataclass(eq=False)
class Sgd:
    def create(self, params: Any) -> Optimizer:
        states = jax.tree.map(lambda _: (), params)
        return Optimizer(self, OptimizerState(jnp.array(0), states), params)


@dataclasses.dataclass(eq=False)
class Adafactor:
    """As T5X's: rows and columns are never split; moments are where there are any."""

    factored: bool = False
    momentum: bool = False
    names: Any = None

    def set_param_axes(self, names: Any) -> None:
        self.names = names

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


DENSE = {"dense": {"bias": np.zeros(4), "kernel": np.zeros((2, 4))}}
AXES = {
    "dense": {
        "bias_axes": AxisMetadata(names=("embed",)),
        "kernel_axes": AxisMetadata(names=("vocab", "embed")),
    }
}
SPECS = {"dense": {"bias": P("embed"), "kernel": P("vocab", "embed")}}
GRADS = {
    "grads": {"dense": {"output_grad": np.zeros(4)}},
    "grads_axes": {"dense": {"output_grad": AxisMetadata(names=("embed",))}},
}


def variables(**more: Any) -> Any:
    return freeze({"params": DENSE, "params_axes": AXES, **more})


def same(left: Any, right: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, unfreeze(left), unfreeze(right))


both_states = pytest.mark.parametrize(
    "create",
    [
        lambda variables: t5x.FlaxOptimTrainState.create(Adafactor(), variables),
        t5x.InferenceState.create,
    ],
    ids=["train", "inference"],
)


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
    state = t5x.FlaxOptimTrainState.create(Adafactor(factored, momentum), model)
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
    model = variables(params_axes={**AXES, "dense": {**AXES["dense"]}})
    twice = {"dense": {**AXES["dense"], "kernel_axes": AxisMetadata(names=("embed", "embed"))}}
    state = t5x.InferenceState.create(model.copy({"params_axes": twice}))
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
    state = t5x.InferenceState.create(model)
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


# train_state_test


def test_a_state_around_an_optimizer() -> None:
    params = nn.Dense(10).init(jax.random.key(0), np.ones((2, 3), np.float32))["params"]
    mutables = freeze({"mutable": np.ones(10)})
    optimizer = Sgd().create(params)
    state = t5x.FlaxOptimTrainState(optimizer, flax_mutables=mutables)
    assert state.step == 0
    assert state._optimizer is optimizer
    same(state.state_dict()["flax_mutables"], mutables)
    same(state.params, params)
    same(state.param_states, optimizer.state.param_states)


def test_created_without_names() -> None:
    definition = Sgd()
    state = t5x.FlaxOptimTrainState.create(
        definition, freeze({"params": DENSE, "mutables": np.ones(3)})
    )
    assert state._optimizer.optimizer_def is definition
    assert state.step == 0
    assert state.params_axes is None
    same(state.params, DENSE)
    same(state.flax_mutables, {"mutables": np.ones(3)})


def test_created_with_names_that_the_optimizer_sees() -> None:
    definition = Adafactor()
    state = t5x.FlaxOptimTrainState.create(definition, variables())
    assert unfreeze(definition.names) == SPECS
    assert unfreeze(state.params_axes) == AXES
    assert state.flax_mutables == freeze({})
    same(state.params, DENSE)


@both_states
def test_other_collections_and_their_names(create: Any) -> None:
    state = create(variables(**GRADS, plain={"dense": {"kernel": np.zeros(4)}}))
    same(state.flax_mutables, {"grads": GRADS["grads"], "plain": {"dense": {"kernel": [0] * 4}}})
    assert unfreeze(state.flax_mutables_axes) == {"grads": GRADS["grads_axes"]}
    assert unfreeze(state.params_axes) == AXES


def test_an_optimizer_that_wants_names_and_gets_none() -> None:
    with pytest.raises(ValueError, match="The optimizer supports params_axes for model-based"):
        t5x.FlaxOptimTrainState.create(Adafactor(), freeze({"params": DENSE}))


@both_states
@pytest.mark.parametrize("collection", ["params", "grads"])
def test_names_that_are_missing(create: Any, collection: str) -> None:
    model = variables(**GRADS)
    short = {"params": {"dense": {"bias_axes": AxisMetadata(("embed",))}}, "grads": {}}
    missing = {"params": "dense/kernel", "grads": "dense/output_grad"}[collection]
    with pytest.raises(ValueError, match="Missing axis names") as error:
        create(model.copy({f"{collection}_axes": short[collection]}))
    assert str(error.value) == f"Missing axis names for parameters: {{'{missing}'}}"


@both_states
def test_parameters_and_step_are_replaced(create: Any) -> None:
    state = create(variables())
    ones = jax.tree.map(np.ones_like, DENSE)
    new = state.replace_params(ones)
    same(new.params, ones)
    expected = {**state.state_dict(), "target": ones}
    same(new.state_dict(), expected)
    assert state.replace_step(jnp.array(1)).step == 1
    assert state.replace_flax_mutables({"a": 1}).flax_mutables == {"a": 1}


def test_a_gradient_is_the_optimizers_to_apply() -> None:
    updated = object()
    optimizer = mock.Mock(apply_gradient=mock.Mock(return_value=updated))
    state = t5x.FlaxOptimTrainState(optimizer)
    new = state.apply_gradient(42, learning_rate=43, flax_mutables={"test": 44})
    optimizer.apply_gradient.assert_called_once_with(42, learning_rate=43)
    assert new == t5x.FlaxOptimTrainState(updated, flax_mutables={"test": 44})


@both_states
@pytest.mark.parametrize("more", [{}, GRADS, {"plain": {"dense": {"kernel": np.zeros(4)}}}])
def test_names_in_place_of_arrays(create: Any, more: Any) -> None:
    axes = create(variables(**more)).as_logical_axes()
    assert axes.step is None
    assert axes.params_axes is None
    assert unfreeze(axes.params) == SPECS
    expected = {"grads": {"dense": {"output_grad": P("embed")}}} if more is GRADS else {}
    assert unfreeze(axes.flax_mutables) == expected


def test_an_optimizer_that_cannot_name_its_state() -> None:
    state = t5x.FlaxOptimTrainState.create(Sgd(), variables())
    with pytest.raises(ValueError, match="Optimizer 'Sgd' requires a `derive_logical_axes` method"):
        state.as_logical_axes()


def test_state_dicts_there_and_back() -> None:
    state = t5x.FlaxOptimTrainState.create(Adafactor(), variables(mutables=np.ones(3)))
    none = np.zeros(1)
    moments = {
        name: {"m": none, "v": np.zeros_like(param), "v_row": none, "v_col": none}
        for name, param in DENSE["dense"].items()
    }
    expected = {
        "state": {"step": np.array(0), "param_states": {"dense": moments}},
        "target": DENSE,
        "flax_mutables": {"mutables": np.ones(3)},
    }
    same(state.state_dict(), expected)
    other = jax.tree.map(lambda leaf: leaf + 2, expected)
    restored = state.restore_state(other)
    assert restored.step == 2
    assert restored._optimizer.optimizer_def is state._optimizer.optimizer_def
    same(restored.state_dict(), other)
    assert unfreeze(restored.params_axes) == AXES


def test_state_dicts_of_inference() -> None:
    state = t5x.InferenceState.create(variables(mutables=np.ones(3)))
    expected = {
        "state": {"step": np.array(0)},
        "target": DENSE,
        "flax_mutables": {"mutables": np.ones(3)},
    }
    same(state.state_dict(), expected)
    assert "flax_mutables" not in t5x.InferenceState.create(variables()).state_dict()
    other = jax.tree.map(lambda leaf: leaf + 10, expected)
    restored = state.restore_state(other)
    assert restored.step == 10
    same(restored.flax_mutables, other["flax_mutables"])
    bare = t5x.InferenceState(np.array(0), {}).restore_state({**other, "flax_mutables": {}})
    assert bare.flax_mutables == freeze({})
    assert bare.params_axes is None
    same(bare.params, other["target"])


def test_inference_has_no_optimizer() -> None:
    state = t5x.InferenceState.create(variables())
    with pytest.raises(NotImplementedError, match="no optimizer states"):
        _ = state.param_states
    with pytest.raises(NotImplementedError, match="does not support `apply_gradient`"):
        state.apply_gradient({}, 0.1)


# utils_test: overrides of names


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

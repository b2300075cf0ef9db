"""T5X's train states: an optimizer, or parameters alone, with the names of every array in it.

A thin stand-in for code that asks `PjitPartitioner.get_mesh_axes` about a state: they hold whatever
optimizer has T5X's methods (`create`, `derive_logical_axes`, and `set_param_axes` where it wants
names), so T5X's own optimizers fit in. Source: google-research/t5x, train_state.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.struct
import jax.numpy as jnp
from flax import traverse_util
from flax.core import freeze, unfreeze
from flax.linen.partitioning import get_axis_names

EMPTY_DICT = freeze({})
_AXES = "_axes"


class _WithMutables:
    """What both states do with the collections beside the parameters.

    Attributes:
      params_axes: the `params_axes` collection of the model; None where it has none.
      flax_mutables: the other collections.
      flax_mutables_axes: collection -> names of its arrays; None where none has any.
    """

    replace: Any
    flax_mutables: Any
    flax_mutables_axes: Any

    def replace_flax_mutables(self, flax_mutables: Any) -> Any:
        """Return the state with other collections."""
        return self.replace(flax_mutables=flax_mutables)

    def _with_mutables(self, state: dict[str, Any]) -> dict[str, Any]:
        mutables = self.flax_mutables
        return {**state, "flax_mutables": unfreeze(mutables)} if mutables else state

    def _mutable_names(self) -> Any:
        return get_axis_names(self.flax_mutables_axes or EMPTY_DICT)


class FlaxOptimTrainState(_WithMutables, flax.struct.PyTreeNode):  # type: ignore[misc]
    """Parameters and optimizer state, with what names their dimensions."""

    _optimizer: Any
    params_axes: Any = None
    flax_mutables: Any = EMPTY_DICT
    flax_mutables_axes: Any = None

    @classmethod
    def create(cls, optimizer_def: Any, model_variables: Mapping[str, Any]) -> Any:
        """Return the state of a model that is about to be trained."""
        params, params_axes, *mutables = _taken_apart(model_variables)
        if hasattr(optimizer_def, "set_param_axes"):
            if params_axes is None:
                raise ValueError(
                    "The optimizer supports params_axes for model-based partitioning, but the "
                    "model is not emitting them."
                )
            optimizer_def.set_param_axes(get_axis_names(params_axes))
        return cls(optimizer_def.create(params), params_axes, *mutables)

    @property
    def step(self) -> Any:
        """Return how many steps were taken."""
        return self._optimizer.state.step

    @property
    def params(self) -> Any:
        """Return the parameters."""
        return self._optimizer.target

    @property
    def param_states(self) -> Any:
        """Return what the optimizer keeps for them."""
        return self._optimizer.state.param_states

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a checkpoint holds."""
        return self._with_mutables(self._optimizer.state_dict())

    def restore_state(self, state_dict: Mapping[str, Any]) -> Any:
        """Return the state with the leaves of a state dict."""
        return self.replace(
            _optimizer=self._optimizer.restore_state(state_dict),
            flax_mutables=freeze(state_dict.get("flax_mutables", {})),
        )

    def replace_params(self, params: Any) -> Any:
        """Return the state with other parameters."""
        return self.replace(_optimizer=self._optimizer.replace(target=params))

    def replace_step(self, step: Any) -> Any:
        """Return the state at another step."""
        state_dict = self.state_dict()
        state_dict["state"]["step"] = step
        return self.restore_state(state_dict)

    def apply_gradient(
        self, grads: Any, learning_rate: Any, flax_mutables: Any = EMPTY_DICT
    ) -> Any:
        """Return the state one step on."""
        optimizer = self._optimizer.apply_gradient(grads, learning_rate=learning_rate)
        return self.replace(_optimizer=optimizer, flax_mutables=flax_mutables)

    def as_logical_axes(self) -> Any:
        """Return the state with names, as a `PartitionSpec`, or None for every array."""
        definition = self._optimizer.optimizer_def
        if not hasattr(definition, "derive_logical_axes"):
            raise ValueError(
                f"Optimizer '{type(definition).__name__}' requires a `derive_logical_axes` method "
                "to be used with named axis partitioning."
            )
        optimizer = definition.derive_logical_axes(
            self._optimizer, get_axis_names(self.params_axes)
        )
        return FlaxOptimTrainState(optimizer, None, self._mutable_names(), self.flax_mutables_axes)


class InferenceState(_WithMutables, flax.struct.PyTreeNode):  # type: ignore[misc]
    """The same without an optimizer."""

    step: Any
    params: Any
    params_axes: Any = None
    flax_mutables: Any = EMPTY_DICT
    flax_mutables_axes: Any = None

    @classmethod
    def create(cls, model_variables: Mapping[str, Any]) -> Any:
        """Return the state of a model that is not trained."""
        return cls(jnp.array(0), *_taken_apart(model_variables))

    @property
    def param_states(self) -> Any:
        """Raise NotImplementedError, as T5X does."""
        raise NotImplementedError("InferenceState has no optimizer states.")

    def apply_gradient(self, *args: Any, **kwargs: Any) -> Any:
        """Raise NotImplementedError, as T5X does."""
        raise NotImplementedError("InferenceState does not support `apply_gradient`.")

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a checkpoint holds."""
        return self._with_mutables({"target": unfreeze(self.params), "state": {"step": self.step}})

    def restore_state(self, state_dict: Mapping[str, Any]) -> Any:
        """Return the state with the leaves of a state dict."""
        return self.replace(
            params=freeze(state_dict["target"]),
            step=state_dict["state"]["step"],
            flax_mutables=freeze(state_dict.get("flax_mutables", {})),
        )

    def replace_params(self, params: Any) -> Any:
        """Return the state with other parameters."""
        return self.replace(params=params)

    def replace_step(self, step: Any) -> Any:
        """Return the state at another step."""
        return self.replace(step=step)

    def as_logical_axes(self) -> Any:
        """Return the state with names, as a `PartitionSpec`, or None for every array."""
        names = get_axis_names(self.params_axes)
        return InferenceState(None, names, flax_mutables=self._mutable_names())


def _taken_apart(variables: Mapping[str, Any]) -> tuple[Any, Any, Any, Any]:
    """Return parameters, their names, the other collections, and the names of those."""
    others = dict(variables)
    params, params_axes = others.pop("params"), others.pop("params_axes", None)
    axes = {key.removesuffix(_AXES): others.pop(key) for key in [*others] if key.endswith(_AXES)}
    for names, arrays in ((params_axes, params), *((axes[key], others[key]) for key in axes)):
        if names is not None:
            _refuse_missing(names, arrays)
    return params, params_axes, freeze(others), freeze(axes) or None


def _refuse_missing(axes: Any, arrays: Any) -> None:
    named = traverse_util.flatten_dict(get_axis_names(axes), sep="/")
    missing = set(traverse_util.flatten_dict(unfreeze(arrays), sep="/")) - set(named)
    if missing:
        raise ValueError(f"Missing axis names for parameters: {missing}")

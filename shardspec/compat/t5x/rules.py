"""T5X's rules and names: its standard rules, rules that replace others, names by expression."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from shardspec.diagnostics.words import grouped
from shardspec.jax_backend.extras import required
from shardspec.language.loader import T5X_PRESETS, preset_rules

LogicalAxisRules = list[tuple[str, str | tuple[str, ...] | None]]


def standard_logical_axis_rules(
    activation_partitioning_dims: int = 1,
    parameter_partitioning_dims: int = 1,
    additional_rules: Iterable[tuple[str, str | tuple[str, ...] | None]] | None = None,
) -> LogicalAxisRules:
    """Return the rules for activations and parameters split along one or two dimensions.

    Args:
      additional_rules: added at the end, so they never beat a standard rule.
    """
    preset = T5X_PRESETS.get((activation_partitioning_dims, parameter_partitioning_dims))
    if preset is None:
        raise ValueError(
            f"`activation_partitioning_dims` = {activation_partitioning_dims} "
            f"`parameter_partitioning_dims` = {parameter_partitioning_dims} is not supported."
        )
    standard = ((rule.logical_axis, *(rule.mesh_axes or (None,))) for rule in preset_rules(preset))
    return [*((name, axis) for name, axis in standard), *(additional_rules or ())]


def update_logical_axis_rules(
    old_rules: Iterable[tuple[str, str | tuple[str, ...] | None]],
    new_rules: Iterable[tuple[str, str | tuple[str, ...] | None]],
) -> tuple[tuple[str, str | tuple[str, ...] | None], ...]:
    """Return the old rules with those of a name replaced, where the name first stood.

    New names go to the end.

    >>> update_logical_axis_rules([("a", None), ("b", "model")], [("a", "model"), ("c", None)])
    (('a', 'model'), ('b', 'model'), ('c', None))
    """
    updates = grouped(new_rules, lambda rule: rule[0])
    replaced = frozenset(updates)
    rules = []
    for rule in old_rules:
        rules.extend(updates.pop(rule[0], []) if rule[0] in replaced else [rule])
    return (*rules, *(rule for left in updates.values() for rule in left))


def override_params_axes_names(
    model_variables: Mapping[str, Any],
    params_axes_names_override: Iterable[tuple[str, Any]] = (),
) -> Any:
    """Return the variables with the axis names of matching parameters replaced.

    The first pattern that matches the whole of `mlp/wo/kernel` wins; a value of None leaves the
    parameter as it is and ends the search.
    """
    required("flax", extra="flax", for_what="`override_params_axes_names`")
    from flax.core import freeze, unfreeze
    from flax.linen.partitioning import AxisMetadata
    from flax.traverse_util import flatten_dict, unflatten_dict

    patterns = [(re.compile(pattern), names) for pattern, names in params_axes_names_override]
    if "params_axes" not in model_variables:
        raise ValueError(
            "Model variables do not contain a 'params_axes' collection to apply an override to."
        )
    variables = unfreeze(model_variables)
    axes = flatten_dict(variables["params_axes"])
    for path, param in flatten_dict(variables["params"]).items():
        name = "/".join(path)
        names = next((names for pattern, names in patterns if pattern.fullmatch(name)), None)
        if names is None:
            continue
        key = (*path[:-1], f"{path[-1]}_axes")
        if key in axes and not isinstance(axes[key], AxisMetadata):
            raise AssertionError
        if len(names) != param.ndim:
            raise ValueError(
                f"Provided axis name override for {name} does not match param rank "
                f"({param.ndim}): {names}"
            )
        axes[key] = AxisMetadata(names=names)
    variables["params_axes"] = unflatten_dict(axes)
    return freeze(variables)

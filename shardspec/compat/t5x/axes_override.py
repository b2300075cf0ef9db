"""`override_params_axes_names` of T5X: axis names for parameters, by regular expression."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from shardspec.jax_backend.extras import required


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

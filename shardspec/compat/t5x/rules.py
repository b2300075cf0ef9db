"""T5X's four standard rule sets, as one function with its arguments."""

from __future__ import annotations

from collections.abc import Iterable

LogicalAxisRules = list[tuple[str, str | tuple[str, ...] | None]]

_BEFORE_EMBED = "batch:data vocab:model"
_AFTER_EMBED = "mlp:model heads:model kv: joined_kv:model"
_NEVER_SPLIT = ("relpos_buckets", "abspos_buckets", "length", "layers", "stack", "mlp_activations")

#: (activation dims, parameter dims) -> the rules above those that never split.
_HEADS = {
    (1, 1): f"{_BEFORE_EMBED} embed: {_AFTER_EMBED}",
    (2, 1): f"{_BEFORE_EMBED} {_AFTER_EMBED} embed:model",
    (1, 2): f"{_BEFORE_EMBED} {_AFTER_EMBED} embed:data",
    (2, 2): f"{_BEFORE_EMBED} {_AFTER_EMBED} embed:model embed:data",
}


def standard_logical_axis_rules(
    activation_partitioning_dims: int = 1,
    parameter_partitioning_dims: int = 1,
    additional_rules: Iterable[tuple[str, str | tuple[str, ...] | None]] | None = None,
) -> LogicalAxisRules:
    """Return the rules for activations and parameters split along one or two dimensions.

    Args:
      additional_rules: added at the end, so they never beat a standard rule.
    """
    wanted = (activation_partitioning_dims, parameter_partitioning_dims)
    head = next((text for dims, text in _HEADS.items() if dims == wanted), None)
    if head is None:
        raise ValueError(
            f"`activation_partitioning_dims` = {activation_partitioning_dims} "
            f"`parameter_partitioning_dims` = {parameter_partitioning_dims} is not supported."
        )
    pairs = (pair.split(":") for pair in head.split())
    rules: LogicalAxisRules = [(name, axis or None) for name, axis in pairs]
    rules.extend((name, None) for name in _NEVER_SPLIT)
    if additional_rules:
        rules.extend(additional_rules)
    return rules

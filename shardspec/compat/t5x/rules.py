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


def update_logical_axis_rules(
    old_rules: Iterable[tuple[str, str | tuple[str, ...] | None]],
    new_rules: Iterable[tuple[str, str | tuple[str, ...] | None]],
) -> tuple[tuple[str, str | tuple[str, ...] | None], ...]:
    """Return the old rules with those of a name replaced, where the name first stood.

    New names go to the end.

    >>> update_logical_axis_rules([("a", None), ("b", "model")], [("a", "model"), ("c", None)])
    (('a', 'model'), ('b', 'model'), ('c', None))
    """
    updates: dict[str, list[tuple[str, str | tuple[str, ...] | None]]] = {}
    for rule in new_rules:
        updates.setdefault(rule[0], []).append(rule)
    replaced = frozenset(updates)
    rules = []
    for rule in old_rules:
        rules.extend(updates.pop(rule[0], []) if rule[0] in replaced else [rule])
    return (*rules, *(rule for left in updates.values() for rule in left))

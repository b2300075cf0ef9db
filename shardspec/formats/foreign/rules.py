"""Rule lists of Flax and its users: pairs of logical axis and mesh axes, read and answered.

`linen_axes` and `nnx_axes` are the two readings of one list, written down from what Flax does;
they share nothing with our own resolver, which they are the witnesses of.
Source: flax 0.12.8, `flax.linen.spmd.logical_to_mesh_axes`, `flax.core.spmd.apply_rules`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from shardspec.diagnostics import Diagnostic, Span
from shardspec.formats.foreign.imported import NoAnswer, bad, is_name, lost, rule_text
from shardspec.formats.foreign.node import Node

MeshAxes = tuple[str, ...]
Dims = tuple[MeshAxes, ...]

_FORM = 'a rule is a pair: ("embed", "data"), ("embed", ("data", "model")) or ("embed", None)'


@dataclass(frozen=True, slots=True)
class ForeignRule:
    """One rule of a list.

    Attributes:
      name: the logical axis; None for a rule whose key is None, which never fires.
      is_free: whether its value is UNCONSTRAINED: the compiler chooses.
    """

    name: str | None
    mesh_axes: MeshAxes
    is_free: bool = False
    span: Span | None = field(default=None, compare=False, repr=False)


def read_rules(node: Node, what: str) -> tuple[tuple[ForeignRule, ...], tuple[Diagnostic, ...]]:
    """Return the rules of a list, and what in it is no rule.

    Args:
      what: what the list is called, for messages: "`RULES`".
    """
    if not node.is_list:
        why = node.text if node.kind == "unreadable" else f"it is {node.described()}"
        return (), (bad(f"{what} is no list of rules: {why}", node.span, help=_FORM),)
    read = [_rule(item) for item in node.items]
    rules = tuple(each for each in read if isinstance(each, ForeignRule))
    return rules, tuple(each for each in read if isinstance(each, Diagnostic))


def _rule(node: Node) -> ForeignRule | Diagnostic:
    if node.kind == "unreadable":
        return bad(f"a rule cannot be read: {node.text}", node.span, help=_FORM)
    if not node.is_list or len(node.items) != 2:
        return bad(f"a rule is a pair, and this is {node.described()}", node.span, help=_FORM)
    key, value = node.items
    if key.kind not in ("text", "nothing"):
        message = f"a rule starts with a logical axis, and this is {key.described()}"
        return bad(message, key.span, help=_FORM)
    name = key.text if key.kind == "text" else None
    if value.kind == "name" and value.last_name in ("UNCONSTRAINED", "_UNCONSTRAINED_PARTITION"):
        return ForeignRule(name, (), True, node.span)
    axes = _mesh_axes(value)
    if isinstance(axes, Diagnostic):
        return axes
    return ForeignRule(name, axes, span=node.span)


def _mesh_axes(value: Node) -> MeshAxes | Diagnostic:
    """Return the mesh axes of a rule's right side; an empty text is none, as in JAX."""
    if value.kind == "nothing":
        return ()
    if value.kind == "text":
        return (value.text,) if value.text else ()
    if value.is_list and all(item.kind == "text" and item.text for item in value.items):
        return tuple(item.text for item in value.items)
    wrong = next((item for item in value.items if item.kind != "text"), value)
    why = f": {wrong.text}" if wrong.kind == "name" else ""
    message = f"a mesh axis is a name, and this is {wrong.described()}{why}"
    return bad(message, wrong.span, help=_FORM)


def writable(rules: Iterable[ForeignRule], tool: str) -> Iterator[ForeignRule | Diagnostic]:
    """Yield the rules that the language can say, and why each other one is left out."""
    for rule in rules:
        reason = _unwritable(rule)
        yield rule if reason is None else lost(f"{reason} in {tool}", rule.span, help=_WAY_OUT)


_WAY_OUT = "the rule is left out; rename the axis over there first if arrays have it"


def _unwritable(rule: ForeignRule) -> str | None:
    if rule.name is None:
        return "a rule for None is no rule for any name, and never fires"
    if not is_name(rule.name):
        return f"`{rule.name}` is a logical axis that cannot be a name in a spec, though it is"
    strange = next((axis for axis in rule.mesh_axes if not is_name(axis)), None)
    if strange is not None:
        return f"`{strange}` is a mesh axis that cannot be a name in a spec, though it is"
    if len(set(rule.mesh_axes)) < len(rule.mesh_axes):
        text = rule_text(rule.name, rule.mesh_axes)
        return f"`{text}` has a mesh axis twice, which JAX refuses later, though it is a rule"
    return None


def linen_axes(names: Sequence[str | None], rules: Sequence[ForeignRule]) -> Dims | NoAnswer:
    """Return what Linen gives an array: the first rule of a name whose mesh axes are all free.

    Invariants:
      same: equal to `flax.linen.logical_to_mesh_axes`, or both refuse.
    """
    counts = Counter(name for name in names if name is not None)
    twice = tuple(name for name, count in counts.items() if count > 1)
    if twice:
        listed = ", ".join(map(repr, twice))
        return NoAnswer(f"dimensions ({listed}) occur more than once in array names (ValueError)")
    found: dict[str, ForeignRule] = {}
    used: set[str] = set()
    for rule in rules:
        name = rule.name
        if name is None or name not in counts or name in found:
            continue
        if used.isdisjoint(rule.mesh_axes):
            found[name] = rule
            used.update(rule.mesh_axes)
    chosen = [found.get(name) if name is not None else None for name in names]
    return _dims(chosen)


def nnx_axes(names: Sequence[str | None], rules: Sequence[ForeignRule]) -> Dims | NoAnswer:
    """Return what NNX gives an array: the last rule of each name, or the name as a mesh axis.

    Invariants:
      same: equal to `nnx.get_partition_spec` under the same rules.
    """
    last = {rule.name: rule for rule in rules}
    chosen = [
        None if name is None else last.get(name) or ForeignRule(name, (name,)) for name in names
    ]
    return _dims(chosen)


def _dims(chosen: Sequence[ForeignRule | None]) -> Dims | NoAnswer:
    free = next((index for index, rule in enumerate(chosen) if rule and rule.is_free), None)
    if free is not None:
        return NoAnswer(f"UNCONSTRAINED leaves dim {free} to the compiler")
    return tuple(rule.mesh_axes if rule else () for rule in chosen)

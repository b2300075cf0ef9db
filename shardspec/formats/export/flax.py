"""A Python module with one list of rules, for Flax Linen: `nn.logical_axis_rules(RULES)`."""

from __future__ import annotations

from shardspec.formats.export.exported import Request, Written, origin, source_name
from shardspec.formats.export.losses import absent, losses, unproved
from shardspec.formats.export.proof import proof
from shardspec.formats.export.reduced import rules_for
from shardspec.formats.foreign.imported import Options
from shardspec.ir.spec import AxisRule

_TOOL = "a rule list of Flax"


def write(request: Request) -> Written:
    """Return the rules of a spec in their flat order."""
    lines = [f"    {rule_literal(rule)},{origin(rule.span)}" for rule in rules_for(request)]
    text = "\n".join((*_head(request), "RULES = (", *lines, ")")) + "\n"
    found = [*losses(request, _TOOL), *unproved(request, _TOOL)]
    if not request.is_resolved:
        found += absent(request, _TOOL)
    return text, (*found, *proof(request, text, "flax", Options(name="RULES", semantics="linen")))


def rule_literal(rule: AxisRule) -> str:
    """Return a rule as Python and gin spell it.

    >>> rule_literal(AxisRule("batch", ("replica", "data")))
    '("batch", ("replica", "data"))'
    """
    return f"({quoted(rule.logical_axis)}, {axes_literal(rule.mesh_axes)})"


def quoted(name: str) -> str:
    """Return a name as a literal of Python; arrays may bring names that no spec could spell."""
    is_plain = name.isprintable() and name.isascii() and not set(name) & set('"\\')
    return f'"{name}"' if is_plain else ascii(name)


def axes_literal(mesh_axes: tuple[str, ...]) -> str:
    """Return mesh axes as a PartitionSpec takes them: `None`, `"data"`, `("replica", "data")`."""
    if not mesh_axes:
        return "None"
    names = ", ".join(f'"{axis}"' for axis in mesh_axes)
    return names if len(mesh_axes) == 1 else f"({names})"


def _head(request: Request) -> tuple[str, ...]:
    made_of = source_name(request.spec)
    what = f"# Reduced to {request.target_title}." if request.is_resolved else None
    return (
        f'"""Logical axis rules for Flax Linen, exported by shardspec from {made_of}.',
        "",
        "The first rule of a name whose mesh axes are free wins. NNX reads a list otherwise.",
        '"""',
        "",
        *(() if what is None else (what,)),
    )

"""A Python module with one list of rules, for Flax NNX: each name once, the same in every array."""

from __future__ import annotations

from shardspec.formats.export.by_name import as_rules, by_name
from shardspec.formats.export.exported import Request, Written, source_name
from shardspec.formats.export.flax import rule_literal
from shardspec.formats.export.losses import losses
from shardspec.formats.export.proof import proof
from shardspec.formats.foreign.imported import Options

_TOOL = "NNX"


def write(request: Request) -> Written:
    """Return the rules under which NNX gives the plan's answers."""
    mapping, faults = by_name(request, _TOOL)
    lines = [f"    {rule_literal(rule)}," for rule in as_rules(mapping)]
    made_of = source_name(request.spec)
    head = (
        f'"""Logical axis rules for Flax NNX, exported by shardspec from {made_of}.',
        "",
        "Each name stands once: NNX gives it these mesh axes in every array.",
        '"""',
        "",
        f"# {request.target_title}",
    )
    text = "\n".join((*head, "RULES = (", *lines, ")")) + "\n"
    found = [*faults, *losses(request, "a rule list of Flax")]
    if not faults:
        found += proof(request, text, "nnx", Options(name="RULES"))
    return text, tuple(found)

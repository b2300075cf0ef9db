"""Rule lists as Flax NNX reads them: a dictionary, in which the last rule of a name counts.

Written is a Python module with one list of rules: each name once, the same in every array.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardspec.diagnostics import SourceFile
from shardspec.foreign import flax
from shardspec.foreign.exported import Request, Written, as_rules, by_name, losses, source_name
from shardspec.foreign.flax import answer, rule_literal
from shardspec.foreign.imported import Options, Outcome
from shardspec.foreign.proof import proof

__all__ = ["answer", "read", "write"]

_TITLE = "NNX"


def read(sources: Sequence[SourceFile], options: Options) -> Outcome:
    """Return the spec that says what a rule list does under NNX."""
    return flax.read(sources, options._replace(semantics="nnx"))


def write(request: Request) -> Written:
    """Return the rules under which NNX gives the plan's answers."""
    mapping, faults = by_name(request, _TITLE)
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

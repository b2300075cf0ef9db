"""Rule lists as Flax NNX reads them: a dictionary, in which the last rule of a name counts.

Written is a Python module with one list of rules: each name once, the same in every array.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardspec.diagnostics import SourceFile
from shardspec.foreign import flax, formats
from shardspec.foreign.flax import answer, rule_lines
from shardspec.foreign.formats import Options, Outcome, Request, Written, by_name, losses
from shardspec.foreign.proof import proof
from shardspec.ir.spec import AxisRule

__all__ = ["answer", "read", "write"]

_TITLE = "NNX"


def read(sources: Sequence[SourceFile], options: Options) -> Outcome:
    """Return the spec that says what a rule list does under NNX."""
    return flax.read(sources, options._replace(semantics="nnx"))


def write(request: Request) -> Written:
    """Return the rules under which NNX gives the plan's answers."""
    mapping, faults = by_name(request, _TITLE)
    rules = (AxisRule(name, axes) for name, axes in mapping.items())
    about = "Each name stands once: NNX gives it these mesh axes in every array."
    body = (f"# {request.target_title}", "RULES = (", *rule_lines(rules), ")")
    text = formats.python_module(request, "Logical axis rules for Flax NNX", [about], body)
    found = [*faults, *losses(request, "a rule list of Flax")]
    if not faults:
        found += proof(request, text, "nnx", Options(name="RULES"))
    return text, tuple(found)

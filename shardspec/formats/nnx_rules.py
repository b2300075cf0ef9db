"""Rule lists as Flax NNX reads them: a dictionary, in which the last rule of a name counts."""

from __future__ import annotations

from collections.abc import Sequence

from shardspec.diagnostics import SourceFile
from shardspec.formats import flax_rules
from shardspec.formats.flax_rules import answer
from shardspec.formats.foreign.imported import Options, Outcome

__all__ = ["answer", "read"]


def read(sources: Sequence[SourceFile], options: Options) -> Outcome:
    """Return the spec that says what a rule list does under NNX."""
    return flax_rules.read(sources, options._replace(semantics="nnx"))

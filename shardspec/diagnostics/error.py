"""The one exception that leaves shardspec because of what a user wrote."""

from __future__ import annotations

from collections.abc import Iterable

from shardspec.diagnostics.diagnostic import Diagnostic
from shardspec.diagnostics.render import render_all


class ShardspecError(Exception):
    """Raised at the public edge with every fault that was found.

    Attributes:
      diagnostics: all findings, errors and warnings, in reading order.
    """

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Keep the findings; the rendered text is made when it is asked for."""
        self.diagnostics = tuple(diagnostics)
        super().__init__(self.diagnostics)

    def __str__(self) -> str:
        """Return the findings as the command line would print them, without colour."""
        return "\n" + render_all(self.diagnostics)

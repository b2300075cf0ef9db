"""How much work one file may cost where nobody asked for it: in `check`, and in an editor.

Work is counted, not timed, so that a file has the same answer on every machine: a unit stands for
less than a microsecond. What reads, parses, places and reports says what it does (`spend`), and
where in the text. Elsewhere, as in training, nothing is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from shardspec.diagnostics import codes
from shardspec.diagnostics.diagnostic import Diagnostic, SourceFile, Span, point

#: Half a minute of one core, or a million arrays.
MOST = 100_000_000

_left: ContextVar[list[int] | None] = ContextVar("left", default=None)


class SpentError(Exception):
    """The budget of a file is spent.

    Attributes:
      span: what was worked on; None where that is no text.
    """

    def __init__(self, span: Span | None) -> None:
        """Keep the place."""
        super().__init__("the budget is spent")
        self.span = span

    def finding(self, name: str) -> Diagnostic:
        """Return the finding about the file of this name, which was checked."""
        place = self.span or SourceFile(name, "").whole
        message = f"`{name}` is too much work: given up after {MOST // 10**6:,} M steps"
        help = "make several specs of it, with fewer entries, targets or arrays each"
        return point(codes.TOO_MUCH_WORK, message, place, "given up here", help=help)


@contextmanager
def limited() -> Iterator[None]:
    """Bound the work that is done within."""
    token = _left.set([MOST])
    try:
        yield
    finally:
        _left.reset(token)


def spend(units: int, source: SourceFile | None = None, at: int = 0) -> None:
    """Count work, on a place in a text.

    Raises:
      SpentError: the budget is spent.
    """
    left = _left.get()
    if left is None:
        return
    left[0] -= units
    if left[0] < 0:
        raise SpentError(None if source is None else Span(source, at, at))

"""What can still be read of a text with a syntax error in it.

YAML ends at its first error. Here the line, or the section, that holds the error is blanked, and
the rest is read: one slip is told, and so is everything else that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from shardspec.diagnostics import Diagnostic
from shardspec.frontend.sections import section_at
from shardspec.frontend.yaml_text.composer import Composer

#: Errors that are passed over, one after another.
MOST_ERRORS = 8

_TOP_LEVEL = re.compile(r"^[^\s#]", re.MULTILINE)
_NOT_BLANK = re.compile(r"[^\n]")


def read_rest(
    composer: Composer, compose: Callable[[Composer], bool]
) -> tuple[Composer | None, tuple[Diagnostic, ...]]:
    """Return what is left of a text when its syntax errors are blanked, and those errors.

    Args:
      composer: one that stopped at an error.
      compose: reads the text of a composer; says whether it came to the end.

    Returns:
      A composer that came to the end, None where no blanks help; and the errors, each with the
      section that it took something, or all, of.
    """
    errors: list[Diagnostic] = []
    while len(errors) < MOST_ERRORS:
        error = composer.faults[-1]
        found = _without(error, composer, compose)
        if found is None:
            return None, (*errors, error)
        composer, is_whole, is_read = found
        errors.append(_placed(error, is_whole))
        if is_read:
            return composer, tuple(errors)
    return None, tuple(errors)


def _without(
    error: Diagnostic, composer: Composer, compose: Callable[[Composer], bool]
) -> tuple[Composer, bool, bool] | None:
    """Return a composer that got past an error, whether a section went, and if it is done."""
    for start, end, is_whole in _regions(composer.text, error):
        rest = Composer(composer.source, text=_blanked(composer.text, start, end))
        is_read = compose(rest)
        if is_read or not _is_again(error, rest.faults[-1]):
            return rest, is_whole, is_read
    return None


def _is_again(error: Diagnostic, other: Diagnostic) -> bool:
    """Say whether an error is the same slip, met elsewhere."""
    return not {label.span for label in error.labels}.isdisjoint(
        label.span for label in other.labels
    )


def _regions(text: str, error: Diagnostic) -> Iterator[tuple[int, int, bool]]:
    """Yield what may be blanked for an error, the least first, and whether a section goes whole."""
    starts = [label.span.start for label in error.labels]
    for at in dict.fromkeys((min(starts, default=0), *starts)):
        line = text.rfind("\n", 0, at) + 1
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        top, below = _section(text, at)
        others = f"{text[top:line]}{text[end:below]}".strip()
        if (line <= top and not others) or (line > top and not others.endswith(":")):
            yield line, end, line <= top
        yield top, below, True


def _section(text: str, at: int) -> tuple[int, int]:
    """Return from where to where the top-level entry around an offset goes."""
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    top = 0
    for found in _TOP_LEVEL.finditer(text, 0, end):
        top = found.start()
    below = _TOP_LEVEL.search(text, end)
    return top, below.start() if below else len(text)


def _blanked(text: str, start: int, end: int) -> str:
    """Return the text with blanks in a range; lines and offsets stay."""
    return text[:start] + _NOT_BLANK.sub(" ", text[start:end]) + text[end:]


def _placed(error: Diagnostic, is_whole: bool) -> Diagnostic:
    """Return the error with the section of its first label, where the slip is."""
    span = min((label.span for label in error.labels), key=lambda span: span.start, default=None)
    section = None if span is None else section_at(span)
    return replace(error, section=section, subject=section if is_whole else None)

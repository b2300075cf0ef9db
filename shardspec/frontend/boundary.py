"""Which files a message may quote: those of the project that a spec belongs to.

A spec may name any file as its base or its arrays. Where that file is something else, a list of
passwords or a key, to say what is wrong with it would be to show it. So of files outside the
project, and of hidden ones in it, a finding has the place and what kind of fault it is, and
nothing that the file says.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from shardspec.diagnostics import Diagnostic, Label, SourceFile, Span
from shardspec.diagnostics.codes import UNREADABLE

#: What the top folder of a project holds.
_MARKS = (".git", ".hg", "pyproject.toml")


@dataclass(frozen=True, slots=True)
class Boundary:
    """The project of a file that a person has named.

    Attributes:
      folder: the top folder of the project, without links.
      named: where the file would lie if nothing below `folder` were a link.
    """

    folder: str
    named: str

    def holds(self, path: str) -> bool:
        """Say whether the file that `path` leads to, links followed, may be quoted."""
        real = real_path(path)
        if real == self.named:
            return True
        tops = (os.path.dirname(self.named), self.folder)
        return any(_is_open(os.path.relpath(real, top)) for top in tops)


def _is_open(below: str) -> bool:
    """Say whether a relative path neither leads out nor is hidden."""
    return not any(part.startswith(".") for part in below.split(os.sep))


def real_path(path: str) -> str:
    """Return a path without links; a name that no file can have stays as it is."""
    try:
        return os.path.realpath(path)
    except ValueError:
        return os.path.abspath(path)


def boundary_of(path: str) -> Boundary:
    """Return the boundary of the project of a file that a person has named.

    Its top is the nearest folder above the file with a `.git` or a `pyproject.toml`; else this
    folder, where the file lies below it; else the folder of the file. The home folder and the root
    are no projects, whatever they hold.
    """
    absolute = os.path.abspath(path)
    top = _top(os.path.dirname(absolute), os.path.abspath(os.curdir))
    folder = real_path(top)
    return Boundary(folder, os.path.join(folder, os.path.relpath(absolute, top)))


@lru_cache(maxsize=64)
def _top(folder: str, here: str) -> str:
    too_wide = {os.path.expanduser("~"), os.path.abspath(os.sep)}
    above = folder
    while above not in too_wide and above != os.path.dirname(above):
        if any(os.path.lexists(os.path.join(above, mark)) for mark in _MARKS):
            return above
        above = os.path.dirname(above)
    is_below = os.path.commonpath((folder, here)) == here
    return here if is_below and here not in too_wide else folder


def leads_out(path: str) -> bool:
    """Say whether a link on the way to a file that a person names leads out of the project."""
    return not boundary_of(path).holds(path)


def marked(source: SourceFile, boundary: Boundary, path: str) -> SourceFile:
    """Return a text that knows whether it may be quoted."""
    return source if boundary.holds(path) else replace(source, is_outside=True)


def veiled(faults: Iterable[Diagnostic], shown_by: str) -> Iterator[Diagnostic]:
    """Yield faults of a file outside the project: the kind and the place of each, no more.

    Args:
      shown_by: the command that shows them whole.
    """
    for fault in faults:
        if fault.code is UNREADABLE and not fault.labels:
            yield fault
            continue
        label = fault.primary
        message = f"{fault.code.summary}; the file is outside the project, so its text is not shown"
        labels = () if label is None else (Label(_unseen(label.span)),)
        yield Diagnostic(fault.code, message, labels, help=f"`{shown_by}` shows it")


def _unseen(span: Span) -> Span:
    return replace(span, source=replace(span.source, is_outside=True))

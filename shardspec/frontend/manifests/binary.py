"""A checkpoint in one file -> its arrays, by the reader of its format."""

from __future__ import annotations

from importlib import import_module

from shardspec.diagnostics import Diagnostic
from shardspec.frontend.manifests.arrays import Outcome, damaged, foreign, refused
from shardspec.frontend.manifests.frugal_file import DamageError, FrugalFile
from shardspec.frontend.manifests.kinds import HEAD, Kind, kind_of


def kind_at(path: str, name: str) -> Kind | Diagnostic:
    """Return the format of the file at `path`, or why it cannot be read.

    Args:
      name: what messages call it.
    """
    with FrugalFile(path) as file:
        return kind_of(file.read(HEAD), name)


def read_checkpoint(path: str, name: str) -> Outcome:
    """Return the arrays of a file that is no text."""
    kind = kind_at(path, name)
    if isinstance(kind, Diagnostic):
        return refused(kind)
    if kind.is_text:
        return refused(foreign(f"`{name}` is text, not a checkpoint", "name a checkpoint"))
    return read_as(kind, path, name)


def read_as(kind: Kind, path: str, name: str) -> Outcome:
    """Return the arrays of a file of a known format."""
    module = import_module(f"{__package__}.{kind.module}")
    try:
        outcome: Outcome = module.read(path, name)
    except DamageError as damage:
        return refused(damaged(f"`{name}` {damage}"))
    return outcome

"""One spec checked: loaded, compiled for its targets, looked at, and silenced where asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shardspec import pipeline
from shardspec.cli.session import params_or_exit
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.levels import LevelTable
from shardspec.ir.spec import Spec


class Wishes(NamedTuple):
    """What the command line asks for.

    Attributes:
      manifest: arrays in place of the spec's own.
      table: `--select`, `--ignore`, `--pedantic`.
    """

    target: str | None
    manifest: str | None
    settings: Mapping[str, str]
    table: LevelTable

    @property
    def is_whole(self) -> bool:
        """Say whether specs are checked as they stand, on all their targets."""
        return self.target is None and self.manifest is None and not self.settings


class Checked(NamedTuple):
    """What was found, in how much.

    Attributes:
      hidden: how many errors the command line alone does not want to hear of.
    """

    diagnostics: tuple[Diagnostic, ...]
    arrays: int = 0
    targets: int = 0
    hidden: int = 0
    activations: int = 0

    @property
    def is_bare(self) -> bool:
        """Say whether there was nothing to lay out, so that only the text was checked."""
        return not self.arrays and not self.activations


def check_file(file: str, wishes: Wishes, texts: Mapping[str, str] | None = None) -> Checked:
    """Return all findings of one spec.

    Args:
      texts: by real path, edits that are not yet written.
    """
    spec, faults = pipeline.load_path(
        file,
        wishes.settings,
        with_manifests=wishes.manifest is None,
        texts=texts,
        asked=wishes.table,
    )
    return Checked(faults) if spec is None else _checked(spec, faults, wishes)


def _checked(spec: Spec, faults: tuple[Diagnostic, ...], wishes: Wishes) -> Checked:
    params = params_or_exit(spec, wishes.manifest)
    told = pipeline.check(spec, faults, params, wishes.target, is_whole=wishes.is_whole)
    return Checked(told.shown, len(params), told.targets, told.hidden, len(spec.activations))

"""One spec checked: loaded, compiled for its targets, looked at, and silenced where asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shardspec import pipeline
from shardspec.cli.discovery import project_table
from shardspec.cli.session import (
    params_or_exit,
    spec_tables,
    warn_of_slow_regexes,
    with_levels,
)
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.levels import Levels, LevelTable
from shardspec.ir.spec import Spec
from shardspec.lints.follow_on import without_follow_ons


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
    """What was found, in how much."""

    diagnostics: tuple[Diagnostic, ...]
    arrays: int = 0
    targets: int = 0


def check_file(file: str, wishes: Wishes, texts: Mapping[str, str] | None = None) -> Checked:
    """Return all findings of one spec.

    Args:
      texts: by real path, edits that are not yet written.
    """
    table, faults = project_table(file)
    tables = (wishes.table,) if table is None else (table, wishes.table)
    spec, diagnostics = pipeline.load_path(
        file, wishes.settings, with_manifests=wishes.manifest is None, texts=texts
    )
    if spec is None:
        return Checked(tuple(Levels(tables).heard((*faults, *diagnostics))))
    spec = with_levels(spec, Levels((*tables[:-1], *spec_tables(spec), wishes.table)))
    return _checked(spec, (*faults, *diagnostics), wishes)


def _checked(spec: Spec, diagnostics: tuple[Diagnostic, ...], wishes: Wishes) -> Checked:
    params = params_or_exit(spec, wishes.manifest)
    targets = spec.targets
    if wishes.target is not None or (params and not targets):
        chosen = pipeline.find_target(spec, wishes.target)
        if isinstance(chosen, Diagnostic):
            return Checked(without_follow_ons((*pipeline.leveled(spec, diagnostics), chosen)))
        targets = (chosen,)
    warn_of_slow_regexes(spec)
    plans = pipeline.compile_plans(spec, params, targets)
    diagnostics = pipeline.about(diagnostics, wishes.target)
    found = pipeline.checked(spec, diagnostics, plans, is_whole=wishes.is_whole)
    return Checked(found, len(params), len(targets))

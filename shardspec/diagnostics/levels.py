"""How loud each finding is: its code says, the project, then the spec, then the command line.

Each of these is a table of settings, and a later table beats an earlier one. Within a table what
names a finding in full beats the start of its id, and a longer start a shorter one: of `SHD3` and
`SHD30`, the second counts for SHD301. Of two that are equally exact, the later one counts, and
`ignore` beats `select`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from shardspec.diagnostics.diagnostic import Code, Diagnostic, Severity, Span, point

_EXACT = 100


class LevelTable(NamedTuple):
    """What one place asks for.

    Attributes:
      settings: severities by the id or name of a finding, or the start of an id.
      select: findings to be told of, and no others; empty for all.
      ignore: findings not to be told of.
      is_pedantic: whether pedantic findings are wanted.
    """

    settings: tuple[tuple[str, Severity], ...] = ()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    is_pedantic: bool = False

    def names(self, code: Code) -> bool:
        """Say whether the table names a finding in full, to set its level or select it."""
        named = (*(finding for finding, _ in self.settings), *self.select)
        return any(_rank(finding, code) == _EXACT for finding in named)

    def severity(self, code: Code, before: Severity) -> Severity:
        """Return how loud a finding is for this table, after those before it."""
        set_by, level = _setting(self.settings, code)
        selected = max((_rank(finding, code) for finding in self.select), default=0)
        ignored = max((_rank(finding, code) for finding in self.ignore), default=0)
        if ignored and ignored >= max(selected, set_by):
            return Severity.ALLOW
        if self.select and not selected and set_by < _EXACT:
            return Severity.ALLOW
        if set_by:
            return level
        return code.severity if selected and before is Severity.ALLOW else before


#: The table of a place that asks for nothing: it changes no level.
NOTHING_ASKED = LevelTable()


class Levels(NamedTuple):
    """What is asked for in all places, the strongest last.

    Invariants:
      undeniable: a fault is as loud as its code says, whatever the tables hold.
      exact: within one table, what names a finding in full decides.
    """

    tables: tuple[LevelTable, ...] = ()

    def severity(self, code: Code, before: Severity | None = None) -> Severity:
        """Return how loud a finding is.

        Args:
          before: how loud the finding itself is; None for its code's severity.
        """
        severity = code.severity if before is None else before
        if code.is_fault:
            return severity
        if code.is_pedantic and not any(t.is_pedantic or t.names(code) for t in self.tables):
            return Severity.ALLOW
        for table in self.tables:
            severity = table.severity(code, severity)
        return severity

    def heard(self, diagnostics: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
        """Yield the diagnostics as loud as they are wanted, without those that are allowed."""
        for diagnostic in diagnostics:
            severity = self.severity(diagnostic.code, diagnostic.severity)
            if severity is diagnostic.severity is not Severity.ALLOW:
                yield diagnostic
            elif severity is not Severity.ALLOW:
                yield diagnostic.with_level(severity)


#: The words for severities, in `lints:`, in pyproject.toml and in `levels=`.
WORDS = {"allow": Severity.ALLOW, "warn": Severity.WARNING, "error": Severity.ERROR}


def level_table(levels: Mapping[str, str] | None) -> LevelTable:
    """Return what a caller asks for in words: `{"indivisible": "warn", "SHD4": "allow"}`.

    Raises:
      TypeError: it is no mapping.
      ValueError: a finding or a level is not known.
    """
    given: Any = levels
    if not (given is None or isinstance(given, Mapping)):
        kind = type(given).__name__
        raise TypeError(f'levels are a dict such as {{"indivisible": "warn"}}, not a `{kind}`')
    settings = []
    for finding, word in (given or {}).items():
        if not isinstance(finding, str) or not known(finding):
            from shardspec.diagnostics import codes
            from shardspec.diagnostics.words import did_you_mean

            hint = did_you_mean(str(finding), [code.name for code in codes.ALL])
            message = f"levels: no finding is called `{finding}`"
            raise ValueError(f"{message}; {hint}" if hint else message)
        if not isinstance(word, str) or word not in WORDS:
            raise ValueError(f"levels: `{finding}` is `allow`, `warn` or `error`, not `{word}`")
        if word != "error" and (fault := fault_named(finding)):
            raise ValueError(f"levels: {fault}")
        settings.append((finding, WORDS[word]))
    return LevelTable(tuple(settings))


def known(finding: str) -> bool:
    """Say whether `finding` is the id or name of a finding, or the start of ids.

    >>> known("SHD301"), known("indivisible"), known("SHD3"), known("SHD8"), known("indi")
    (True, True, True, False, False)
    """
    from shardspec.diagnostics import codes

    return any(_rank(finding, code) for code in codes.ALL)


#: What helps where a level names a fault.
MEND_IT = "mend what it is about; only what was read, resolved and counted has a level"


def fault_named(finding: str) -> str | None:
    """Return what is wrong with silencing `finding`; None where that is possible.

    >>> fault_named("wrong-type")
    '`wrong-type` (SHD004) is a fault, and cannot be silenced: what it is about was left out'
    >>> fault_named("indivisible"), fault_named("SHD0")
    (None, None)
    """
    from shardspec.diagnostics import codes

    code = next((each for each in codes.ALL if finding in (each.id, each.name)), None)
    if code is None or not code.is_fault:
        return None
    called = f"`{code.name}` ({code.id})"
    return f"{called} is a fault, and cannot be silenced: what it is about was left out"


def fault_found(finding: str, span: Span | None) -> Diagnostic | None:
    """Return the finding that `finding` cannot be silenced; None where it can."""
    from shardspec.diagnostics import codes

    message = fault_named(finding)
    return point(codes.UNKNOWN_LINT, message, span, help=MEND_IT) if message else None


def _rank(finding: str, code: Code) -> int:
    """Return how exactly `finding` names `code`; 0 where it names others."""
    if finding in (code.id, code.name):
        return _EXACT
    return len(finding) if finding.startswith("SHD") and code.id.startswith(finding) else 0


def _setting(settings: Iterable[tuple[str, Severity]], code: Code) -> tuple[int, Severity]:
    """Return the most exact setting for a code, the last of several."""
    best, level = 0, code.severity
    for finding, severity in settings:
        rank = _rank(finding, code)
        if rank and rank >= best:
            best, level = rank, severity
    return best, level

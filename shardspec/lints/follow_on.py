"""What is only said because an entry could not be read.

A rule with a slip in it is reported, and lost: no rule names its axis, nothing is split over its
mesh axis, and memory overflows. These findings are true of what is left and of no use, since they
go when the slip does. So a fault of reading hides those that an absent entry would explain, and
no others: what two entries say that were read is told in the same run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardspec.diagnostics import Diagnostic, Span
from shardspec.diagnostics.suggest import nearest

#: Findings of reading after which an entry, or a whole section, is missing.
_LOSSES = frozenset(
    {"SHD002", "SHD003", "SHD004", "SHD006", "SHD008", "SHD012"}
    | {"SHD015", "SHD016", "SHD101", "SHD208", "SHD211"}
)
_RULES = frozenset({"rules", "drop", "extends"})
_NAMES = frozenset({"params", "overrides", "scan", "extends"})
_ARRAYS = frozenset({"arrays", "manifest"})
_MACHINES = frozenset({"targets", "mesh", "hardware"})
_AXES = frozenset({"axes"})
_ALL = _RULES | _NAMES | _ARRAYS | _MACHINES | _AXES
_SINGULAR = {"axis": "axes", "target": "targets", "override": "overrides"}

#: Findings that speak of what nothing does, and the sections that might have done it.
_EXPLAINED_BY: dict[str, frozenset[str]] = {
    "SHD203": _RULES,
    "SHD205": _NAMES,
    "SHD206": frozenset({"scan"}),
    "SHD204": _ARRAYS,
    "SHD217": _NAMES | _ARRAYS,
    "SHD102": _MACHINES,
    "SHD104": _MACHINES,
    "SHD106": _MACHINES,
    "SHD201": _MACHINES,
    "SHD202": _RULES | _NAMES | _ARRAYS | _AXES,
    "SHD211": _AXES,
    "SHD110": _RULES | _NAMES | _ARRAYS,
    "SHD112": _RULES | _NAMES,
    "SHD225": _RULES | _NAMES,
    **dict.fromkeys(("SHD401", "SHD402", "SHD403", "SHD404", "SHD405", "SHD407"), _RULES | _NAMES),
}

#: Of these, an entry that was lost explains those whose name it has; a lost section, all.
_NAMED = frozenset({"SHD201", "SHD202", "SHD203", "SHD211"})
_OF_ONE_TARGET = frozenset({"SHD102", "SHD104"})

_SECTION = re.compile(r"^\"?([A-Za-z]\w*)", re.MULTILINE)
_NAME = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class _Loss:
    """What a fault of reading took away.

    Attributes:
      section: where; the nearest section for a key that is none.
      line: the text of its line.
      is_whole: whether all of the section is gone.
    """

    span: Span
    section: str
    line: str
    is_whole: bool


def without_follow_ons(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return the diagnostics without those that an entry explains which could not be read."""
    found = tuple(diagnostics)
    losses = tuple(loss for each in found if (loss := _loss(each)) is not None)
    if not losses:
        return found
    return tuple(each for each in found if not _is_explained(each, losses))


def _loss(diagnostic: Diagnostic) -> _Loss | None:
    label = diagnostic.primary
    if label is None or diagnostic.code.id not in _LOSSES or not diagnostic.is_error:
        return None
    key = _key_above(label.span)
    section = None if key is None else _section(key.text)
    if key is None or section is None:
        return None
    is_whole = section == "extends" or key.start == label.span.start
    return _Loss(label.span, section, label.span.source.line_text(label.span.line), is_whole)


def _key_above(span: Span) -> Span | None:
    """Return the word at the start of the last line that is not indented, up to the span's own."""
    source = span.source
    end = source.text.find("\n", span.start)
    keys = list(_SECTION.finditer(source.text, 0, len(source.text) if end < 0 else end))
    return Span(source, keys[-1].start(1), keys[-1].end(1)) if keys else None


def _section(key: str) -> str | None:
    key = _SINGULAR.get(key, key)
    near = nearest(key, _ALL, cutoff=0.75)
    return near[0] if near else None


def _is_explained(diagnostic: Diagnostic, losses: Sequence[_Loss]) -> bool:
    code, label = diagnostic.code.id, diagnostic.primary
    sections = _EXPLAINED_BY.get(code)
    if sections is None or label is None:
        return False
    if code == "SHD202":
        sections -= _own_side(label.span)
    lost = [loss for loss in losses if loss.section in sections and loss.span != label.span]
    if code in _OF_ONE_TARGET:
        return any(_is_within_one_entry(label.span, loss.span) for loss in lost)
    if code not in _NAMED:
        return bool(lost)
    name = _NAME.search(diagnostic.message)
    return any(loss.is_whole or (name and _has_word(loss.line, name[1])) for loss in lost)


def _own_side(span: Span) -> frozenset[str]:
    """Return the sections that say no more of a name in a rule, or of one elsewhere."""
    key = _key_above(span)
    return _RULES if key is not None and _section(key.text) == "rules" else frozenset()


def _is_within_one_entry(one: Span, other: Span) -> bool:
    """Say whether two places are on one line, or in one block that starts at either of them."""
    if one.source is not other.source:
        return False
    first, last = sorted((one, other), key=lambda span: span.start)
    lines = [one.source.line_text(line) for line in range(first.line, last.line + 1)]
    depth = _indent(lines[0])
    return all(_indent(line) > depth for line in lines[1:] if line.strip())


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" -"))


def _has_word(line: str, word: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", line) is not None

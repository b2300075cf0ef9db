"""Source text -> its canonical spelling, in YAML or the DSL, comments kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardspec.diagnostics import Diagnostic, SourceFile, codes, point
from shardspec.language.loader import File, read
from shardspec.language.phases import lowered
from shardspec.language.reading import is_dsl
from shardspec.language.yaml_text.printer import find_foreign_characters, print_yaml


def formatted(
    source: SourceFile, spelling: str | None = None
) -> tuple[str | None, tuple[Diagnostic, ...]]:
    """Return the canonical text, or None with the faults that stand in the way.

    Args:
      spelling: `yaml` or `dsl`; None keeps that of the source.
    """
    from shardspec.language.dsl_text.printer import print_dsl
    from shardspec.language.grammar.print_expressions import canonical

    from_dsl = is_dsl(source)
    reading, diagnostics = read(File(source, "", source.name, from_dsl), with_comments=True)
    if reading is None:
        return None, diagnostics
    to_dsl = from_dsl if spelling is None else spelling == "dsl"
    made = lowered(reading)
    diagnostics += made.shape
    if not diagnostics or from_dsl:  # whose reader leaves expressions unread
        is_written = bool(diagnostics) or all(
            _is_written(*each, to_dsl) for each in _entries(reading.data)
        )
        told = {codes.SYNTAX} if is_written else {codes.SYNTAX, codes.WRONG_TYPE}
        diagnostics += tuple(d for d in made.lost if d.code in told)
    if diagnostics:
        return None, diagnostics
    data = canonical(reading.data)
    if not isinstance(data, dict):
        return None, (point(codes.SYNTAX, "there is nothing to format", source.whole),)
    text = (print_dsl if to_dsl else print_yaml)(data, reading.comments)
    if to_dsl and (foreign := find_foreign_characters(SourceFile(source.name, text), "the DSL")):
        return None, tuple(foreign)
    return with_line_ends_of(source, text), ()


def with_line_ends_of(source: SourceFile, text: str) -> str:
    """Return a text whose lines end as most of the source's do."""
    crlf = source.text.count("\r\n")
    return text.replace("\n", "\r\n") if 2 * crlf > source.text.count("\n") else text


def _entries(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield the entries that need a pattern or an answer, each with its section."""
    for section in ("overrides", "replicate"):
        yield from ((section, entry) for entry in data.get(section, ()))
    yield from (("activations", entry) for entry in data.get("activations", {}).values())
    for phase in data.get("phases", {}).values():
        yield from _entries(phase)


def _is_written(section: str, entry: Any, to_dsl: bool) -> bool:
    """Say whether an entry has what it cannot be written without: in the DSL an answer, too."""
    if section == "activations":
        found = entry if isinstance(entry, dict) else {"axes": entry}
        return not to_dsl or any(found.get(key) is not None for key in ("axes", "spec"))
    if {"path", "match"}.isdisjoint(entry):
        return False
    is_answered = section != "overrides" or not {"axes", "spec"}.isdisjoint(entry)
    return is_answered or not to_dsl

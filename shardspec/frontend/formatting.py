"""Source text -> its canonical spelling, in YAML or the DSL, comments kept."""

from __future__ import annotations

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.diagnostics.codes import SYNTAX
from shardspec.diagnostics.diagnostic import point
from shardspec.frontend.loader import File, read
from shardspec.frontend.lower import lower
from shardspec.frontend.spelling import looks_like_dsl
from shardspec.frontend.validate import validate


def formatted(
    source: SourceFile, spelling: str | None = None
) -> tuple[str | None, tuple[Diagnostic, ...]]:
    """Return the canonical text, or None with the faults that stand in the way.

    Args:
      spelling: `yaml` or `dsl`; None keeps that of the source.
    """
    from shardspec.frontend.dsl_text.printer import print_dsl
    from shardspec.frontend.grammar.print_expressions import canonical
    from shardspec.frontend.yaml_text.printer import print_yaml

    is_dsl = source.name.endswith(".shard") or (
        not source.name.endswith((".yaml", ".yml", ".json")) and looks_like_dsl(source.text)
    )
    reading, diagnostics = read(File(source, "", source.name, is_dsl), with_comments=True)
    if reading is None:
        return None, diagnostics
    document, faults = validate(reading)
    diagnostics += faults
    if not diagnostics:
        diagnostics += tuple(d for d in lower(document, reading.source_map)[1] if d.code is SYNTAX)
    if diagnostics:
        return None, diagnostics
    data = canonical(reading.data)
    if not isinstance(data, dict):
        return None, (point(SYNTAX, "there is nothing to format", source.whole),)
    to_dsl = is_dsl if spelling is None else spelling == "dsl"
    text = (print_dsl if to_dsl else print_yaml)(data, reading.comments)
    return text, ()

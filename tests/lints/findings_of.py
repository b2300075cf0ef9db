"""What the checks find in a spec."""

from __future__ import annotations

from types import ModuleType

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic
from shardspec.lints.context import Context


def findings_of(text: str, *, only: str | None = None) -> tuple[Diagnostic, ...]:
    """Return what the checks find in a spec that loads without a fault."""
    spec, diagnostics = pipeline.load_text(text, "s.yaml")
    assert spec is not None
    assert diagnostics == ()
    found = pipeline.findings(spec, pipeline.compile_plans(spec)).shown
    return tuple(d for d in found if only is None or d.code.name == only)


def marked(diagnostic: Diagnostic) -> list[str]:
    """Return the text under the labels, the culprit first."""
    labels = sorted(diagnostic.labels, key=lambda label: not label.primary)
    return [label.span.text for label in labels]


def found_by(module: ModuleType, text: str) -> list[Diagnostic]:
    """Return what one check finds, pedantic or not, in a spec that loads without a fault."""
    spec, diagnostics = pipeline.load_text(text, "s.yaml")
    assert spec is not None
    assert diagnostics == ()
    return list(module.check(Context(spec, pipeline.compile_plans(spec))))

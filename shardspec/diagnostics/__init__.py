"""What is wrong, and where: source text, spans, diagnostics and their rendering."""

from shardspec.diagnostics.diagnostic import (
    Code,
    Diagnostic,
    Edit,
    Fix,
    Label,
    Severity,
    labels_at,
    parted,
    point,
    sort_key,
)
from shardspec.diagnostics.render import ShardspecError
from shardspec.diagnostics.source import Excerpt, SourceFile, Span

__all__ = [
    "Code",
    "Diagnostic",
    "Edit",
    "Excerpt",
    "Fix",
    "Label",
    "Severity",
    "ShardspecError",
    "SourceFile",
    "Span",
    "labels_at",
    "parted",
    "point",
    "sort_key",
]

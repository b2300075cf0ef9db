"""What is wrong, and where: source text, spans, diagnostics and their rendering."""

from shardspec.diagnostics.diagnostic import Code, Diagnostic, Label, Severity
from shardspec.diagnostics.error import ShardspecError
from shardspec.diagnostics.source import Excerpt, SourceFile, Span

__all__ = [
    "Code",
    "Diagnostic",
    "Excerpt",
    "Label",
    "Severity",
    "ShardspecError",
    "SourceFile",
    "Span",
]

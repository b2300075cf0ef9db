"""What is wrong, and where: source text, spans, diagnostics and their rendering."""

from shardspec.diagnostics.diagnostic import Code as Code
from shardspec.diagnostics.diagnostic import Diagnostic as Diagnostic
from shardspec.diagnostics.diagnostic import Edit as Edit
from shardspec.diagnostics.diagnostic import Excerpt as Excerpt
from shardspec.diagnostics.diagnostic import Fix as Fix
from shardspec.diagnostics.diagnostic import Label as Label
from shardspec.diagnostics.diagnostic import Severity as Severity
from shardspec.diagnostics.diagnostic import SourceFile as SourceFile
from shardspec.diagnostics.diagnostic import Span as Span
from shardspec.diagnostics.diagnostic import labels_at as labels_at
from shardspec.diagnostics.diagnostic import parted as parted
from shardspec.diagnostics.diagnostic import point as point
from shardspec.diagnostics.diagnostic import sort_key as sort_key
from shardspec.diagnostics.render import ShardspecError as ShardspecError

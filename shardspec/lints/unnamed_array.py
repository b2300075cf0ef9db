"""Nothing names the dimensions of an array.

No override, no names of its own, no entry of `params:`. Without names no rule applies, and
every device holds the whole array. What `replicate:` allows to be whole needs no names: plain data
parallelism is `replicate: [{path: "**", because: data parallel}]`.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - mlp -> tensor
    params:
      "**/wi/kernel": _ mlp
    arrays:
      mlp/wi/kernel: bf16[64, 128]
      mlp/wi/bias: bf16[128]

Good:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - mlp -> tensor
    params:
      "**/wi/kernel": _ mlp
      "**/wi/bias": mlp
    arrays:
      mlp/wi/kernel: bf16[64, 128]
      mlp/wi/bias: bf16[128]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from shardspec.analysis.coverage import allowed_paths
from shardspec.diagnostics import Diagnostic, Span
from shardspec.diagnostics.codes import UNNAMED_ARRAY as CODE
from shardspec.diagnostics.diagnostic import point
from shardspec.ir.grouping import collapsed, described, template
from shardspec.ir.plan import Origin, ParamSharding
from shardspec.ir.units import binary_bytes
from shardspec.lints.context import Context


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for the layers of an array that nothing names."""
    unnamed = [
        sharding
        for sharding in context.first
        if sharding.origin is Origin.NONE and sharding.param.rank and not sharding.mismatch
    ]
    allowed = allowed_paths(context.spec, (sharding.param.path for sharding in unnamed))
    written = Counter(param.span for param in context.params if param.span is not None)
    missed = Counter(sharding.param.span for sharding in unnamed)
    groups: dict[object, list[ParamSharding]] = {}
    for sharding in unnamed:
        span, path = sharding.param.span, sharding.param.path
        is_range = span is not None and missed[span] == written[span] > 1
        if path not in allowed:
            alike = (template(path), sharding.param.shape)
            groups.setdefault(span if is_range else alike, []).append(sharding)
    for key, group in groups.items():
        paths = [sharding.param.path for sharding in group]
        shown = key.text.strip("\"'") if isinstance(key, Span) else collapsed(paths) or paths[0]
        size = sum(sharding.param.bytes for sharding in group)
        names = " ".join("AXIS" for _ in group[0].param.shape)
        yield point(
            CODE,
            f"nothing names the dimensions of `{shown}` {group[0].param}",
            group[0].param.span,
            "no override and no entry of `params` matches it",
            notes=(f"{described(paths)}; replicated: {binary_bytes(size)} on every device",),
            help=f'add to `params`: `"{shown}": {names}` (`_` for a dimension without a name);'
            " or to `replicate`, with the reason, what is meant to be whole",
        )

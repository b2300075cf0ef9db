"""A pattern or override matches no array.

It does nothing, and nobody notices: the arrays it was for keep other names or none. Patterns
match whole paths: `wo/kernel` is not `mlp/wo/kernel`. Patterns in what a spec extends may be
for other models, and are not looked at.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - mlp -> tensor
    params:
      "wi/kernel": _ mlp
      "**/wi/kernel": _ mlp
    arrays:
      mlp/wi/kernel: bf16[64, 128]

Good:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - mlp -> tensor
    params:
      "**/wi/kernel": _ mlp
    arrays:
      mlp/wi/kernel: bf16[64, 128]
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, Span
from shardspec.diagnostics.codes import UNMATCHED_PATTERN as CODE
from shardspec.diagnostics.diagnostic import point
from shardspec.diagnostics.suggest import nearest
from shardspec.ir.grouping import template
from shardspec.ir.spec import Pattern
from shardspec.lints.context import Context
from shardspec.resolve.match import PathMatcher


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each pattern of the spec itself that matches no array."""
    if not context.first:
        return
    spec = context.spec
    sections: tuple[tuple[str, tuple[Pattern, ...]], ...] = (
        ("override", tuple(override.pattern for override in spec.overrides)),
        ("params", tuple(rule.pattern for rule in spec.path_rules)),
        ("scan", tuple(scan.pattern for scan in spec.scans)),
    )
    for section, patterns in sections:
        unmatched = set(range(len(patterns)))
        matcher = PathMatcher(patterns)
        for path in context.paths:
            unmatched.difference_update(matcher.all_matches(path))
            if not unmatched:
                break
        for index in sorted(unmatched):
            if context.is_own(patterns[index].span):
                yield _finding(section, patterns[index], context.paths)


def _finding(section: str, pattern: Pattern, paths: tuple[str, ...]) -> Diagnostic:
    span: Span | None = pattern.span
    return point(
        CODE,
        f"{section} pattern `{pattern}` matches none of {len(paths)} arrays",
        span,
        "must match a whole path",
        help=_nearest_path(pattern.text, paths),
    )


def _nearest_path(text: str, paths: tuple[str, ...]) -> str | None:
    examples = {template(path): path for path in reversed(paths)}
    ending = [path for path in paths if path.endswith("/" + text)]
    if ending:
        return f"`**/{text}` matches `{ending[0]}`"
    found = nearest(template(text), examples, cutoff=0.3)
    return f"the nearest path is `{examples[found[0]]}`" if found else None

"""A pattern or override matches no array.

It does nothing, and nobody notices: the arrays it was for keep other names or none. Patterns
match whole paths: `wo/kernel` is not `mlp/wo/kernel`; and `.*` belongs in a regex (`re:`), `**`
in a glob. Patterns in what a spec extends may be for other models, and are not looked at.

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

from collections.abc import Iterator, Sequence

from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.codes import UNMATCHED_PATTERN as CODE
from shardspec.diagnostics.diagnostic import point
from shardspec.diagnostics.suggest import nearest
from shardspec.ir.grouping import counted, template
from shardspec.ir.spec import Pattern
from shardspec.lints.context import Context
from shardspec.lints.entries import Entry, sections
from shardspec.lints.other_spellings import fix_for, looks, working
from shardspec.resolve.match import path_matcher


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each pattern of the spec itself that matches no array."""
    paths = context.paths
    if not paths:
        return
    unmatched = [
        entry
        for entries in sections(context.spec)
        for entry in _unmatched(entries, paths)
        if context.is_own(entry.pattern.span)
    ]
    offers = working([entry.pattern for entry in unmatched], paths)
    for entry, offer in zip(unmatched, offers, strict=True):
        yield point(
            CODE,
            f"{entry.section} pattern `{entry.pattern}` matches none of"
            f" {counted(len(paths), 'array')}",
            entry.pattern.span,
            "must match a whole path",
            help=offer.text if offer else _guess(entry.pattern, paths),
            fix=fix_for(entry.pattern, offer.spelling) if offer else None,
        )


def _unmatched(entries: Sequence[Entry], paths: Sequence[str]) -> list[Entry]:
    unmatched = set(range(len(entries)))
    matcher = path_matcher(tuple(entry.pattern for entry in entries))
    for path in paths:
        if not unmatched:
            break
        unmatched.difference_update(matcher.all_matches(path))
    return [entries[at] for at in sorted(unmatched)]


def _guess(pattern: Pattern, paths: Sequence[str]) -> str | None:
    examples = {template(path): path for path in reversed(paths)}
    found = nearest(template(pattern.text), examples, cutoff=0.3)
    near = f"the nearest path is `{examples[found[0]]}`" if found else None
    return "; ".join(filter(None, (looks(pattern), near))) or None

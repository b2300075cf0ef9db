"""A pattern or override matches no array.

It does nothing, and nobody notices: the arrays it was for keep other names or none. Patterns
match whole paths: `wo/kernel` is not `mlp/wo/kernel`; and `.*` belongs in a regex (`re:`), `**`
in a glob. Patterns in what a spec extends may be for other models, and are not looked at; entries
of `derive:` without `from` are about optimizer state alone.

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

from collections.abc import Iterator, Mapping, Sequence

from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.diagnostics.suggest import nearest
from shardspec.diagnostics.words import counted, grouped, template
from shardspec.ir.spec import Pattern, Spec
from shardspec.language.patterns.backtracking import ran_out
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import with_cost
from shardspec.lints.evidence.entries import Entry, sections
from shardspec.lints.evidence.spellings import fix_for, looks, working


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each pattern of the spec itself that matches no array."""
    paths = context.paths
    if not paths:
        return
    unmatched = [
        section.entries[at]
        for section in sections(context)
        for at in sorted(section.own.difference(*set(section.matches)))
        if section.entries[at].pattern.text not in ran_out()  # these have a finding of their own
        and not _is_of_state(section.entries[at])
    ]
    offers = working([entry.pattern for entry in unmatched], paths)
    groups = grouped(paths if unmatched else (), template)
    alike = {each: tuple(members) for each, members in groups.items()}
    templates = frozenset(alike)
    whole: dict[tuple[str, ...], tuple[str, ...]] = {}
    for entry, offer in zip(unmatched, offers, strict=True):
        meant = tuple(offer.paths) if offer else _near(entry.pattern, templates, alike)
        fix = fix_for(entry.pattern, offer.spelling) if offer else None
        help = offer.text if offer else _guess(entry.pattern, meant)
        if offer and str(offer.spelling.pattern) in _keys(context.spec, entry.section):
            fix = None
            help = f"take it out: `{offer.spelling.pattern}` is an entry already"
        finding = point(
            codes.UNMATCHED_PATTERN,
            f"{entry.section} pattern `{entry.pattern}` matches none of"
            f" {counted(len(paths), 'array')}",
            entry.pattern.span,
            "must match a whole path",
            help=help,
            fix=fix,
        )
        if meant not in whole:
            whole[meant] = _whole(context, meant)
        yield with_cost(finding, context, whole[meant], "meant for them, maybe: ")


def _is_of_state(entry: Entry) -> bool:
    """Say whether an entry is about optimizer state, which is not among the arrays."""
    return entry.section == "derive" and not entry.answer[0]


def _keys(spec: Spec, section: str) -> frozenset[str]:
    """Return the patterns that are keys of a section, which stand there once."""
    if section == "params":
        return frozenset(str(rule.pattern) for rule in spec.path_rules)
    if section == "derive":
        return frozenset(str(rule.pattern) for rule in spec.derives)
    return frozenset(str(scan.pattern) for scan in spec.scans if section == "scan")


def _whole(context: Context, paths: Sequence[str]) -> tuple[str, ...]:
    """Return those of the arrays that every device of a target of several holds whole."""
    plans = context.shared_plans
    return tuple(path for path in paths if any(plan[path].is_replicated for plan in plans))


def _near(
    pattern: Pattern, templates: frozenset[str], alike: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Return the arrays whose path is most like the pattern, of all layers."""
    found = nearest(template(pattern.text), templates, cutoff=0.3)
    return alike[found[0]] if found else ()


def _guess(pattern: Pattern, meant: Sequence[str]) -> str | None:
    near = f"the nearest path is `{meant[0]}`" if meant else None
    return "; ".join(filter(None, (looks(pattern), near))) or None

"""Two patterns overlap and give the same array different names.

Make the patterns disjoint. The first match wins, so a special entry can come before a general one.
Here neither is more special: each also matches arrays that the other does not, so the order of the
lines decides. Reported if both fit the array's rank.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - embed -> none
      - mlp -> tensor
    params:
      "decoder/**": embed mlp
      "**/wo/kernel": mlp embed
    arrays:
      encoder/wo/kernel: bf16[128, 64]
      decoder/wi/kernel: bf16[64, 128]
      decoder/wo/kernel: bf16[128, 64]

Good:
    -  "decoder/**": embed mlp
    +  "**/wi/kernel": embed mlp
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import collapsed, counted, described, template
from shardspec.ir.plan import Origin, ParamSharding
from shardspec.ir.spec import target_text
from shardspec.lints.context import Context
from shardspec.lints.evidence.entries import Entry, Section, sections


@dataclass(slots=True)
class _Overlaps:
    """Which entries match together.

    Attributes:
      kinds: each set of entries that match one path, with the paths that they decide.
      members: entry -> the kinds it is in, as bits.
    """

    kinds: dict[tuple[int, ...], list[str]] = field(default_factory=dict)
    members: dict[int, int] = field(default_factory=dict)

    def add(self, matches: tuple[int, ...]) -> list[str]:
        """Return the paths of a kind, and note a new one."""
        if matches not in self.kinds:
            bit = 1 << len(self.kinds)
            self.kinds[matches] = []
            for at in matches:
                self.members[at] = self.members.get(at, 0) | bit
        return self.kinds[matches]

    def is_within(self, one: int, other: int) -> bool:
        """Say whether an entry matches no path that another does not."""
        return not self.members[one] & ~self.members[other]


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each two entries of the spec itself whose order decides on names."""
    overrides, params = sections(context)[:2]
    for section, origin in ((overrides, Origin.OVERRIDE), (params, Origin.PARAMS)):
        if len(section.own) < 2 or all(len(matches) < 2 for matches in set(section.matches)):
            continue
        entries, overlaps = section.entries, _overlaps(section, context.first, origin)
        conflicts: dict[tuple[int, int], list[str]] = {}
        for (first, *others), paths in overlaps.kinds.items():
            for other in others:
                is_own = {first, other} <= section.own
                if paths and is_own and _differ(entries, first, other, overlaps):
                    conflicts.setdefault((first, other), []).extend(paths)
        for (first, other), paths in sorted(conflicts.items()):
            yield _finding(entries[first], entries[other], paths)


def _overlaps(section: Section, shardings: Sequence[ParamSharding], origin: Origin) -> _Overlaps:
    """Return which entries match together."""
    overlaps = _Overlaps()
    for sharding, matches in zip(shardings, section.matches, strict=True):
        if matches:
            paths = overlaps.add(matches)
            if sharding.origin is origin and sharding.mismatch is None:
                paths.append(sharding.param.path)
    return overlaps


def _differ(entries: Sequence[Entry], first: int, other: int, overlaps: _Overlaps) -> bool:
    """Say whether two entries give other names of one rank, and neither is within the other."""
    one, two = entries[first].answer, entries[other].answer
    if one == two or len(one) != len(two):
        return False
    return not (overlaps.is_within(first, other) or overlaps.is_within(other, first))


def _finding(first: Entry, other: Entry, paths: Sequence[str]) -> Diagnostic:
    count = counted(len(paths), "array")
    verb = "matches" if len(paths) == 1 else "match"
    return Diagnostic(
        codes.CONFLICTING_NAMES,
        f"{count} {verb} `{first.pattern}` and `{other.pattern}`, which name"
        f" {'it' if len(paths) == 1 else 'them'} differently; the first one wins, and neither is"
        " narrower",
        labels_at(
            (other.pattern.span, f"would say {_said(other)}"),
            (first.pattern.span, f"says {_said(first)}"),
        ),
        notes=(described(paths),),
        help=_help(paths),
    )


def _said(entry: Entry) -> str:
    parts = (
        "_" if name is None else name if isinstance(name, str) else target_text(_axes(name))
        for name in entry.answer
    )
    return f"`{' '.join(parts)}`"


def _axes(dim: object) -> tuple[str, ...]:
    return tuple(map(str, dim)) if isinstance(dim, tuple) else ()


def _help(paths: Sequence[str]) -> str:
    alike = len({template(path) for path in paths}) == 1
    shown = collapsed(paths) if alike else None
    entry = f" an entry for `{shown}`" if shown else " an entry for these arrays alone"
    return f"put{entry} before both, or make one of them narrower"

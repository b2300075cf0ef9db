"""All that a text belongs to: the specs that it is part of, also closed ones, and the code.

A base has no arrays and no machine: what it means is what the specs mean that extend it. So it is
hovered over and searched for names through each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from shardspec.diagnostics import SourceFile, Span
from shardspec.diagnostics.words import counted
from shardspec.language.files import real_path
from shardspec.lsp import types
from shardspec.lsp.names import Use
from shardspec.lsp.navigation import located, use_at
from shardspec.lsp.project import Unread
from shardspec.lsp.python_calls import Called, Calls, is_named
from shardspec.lsp.snapshot import Snapshot


class Family(NamedTuple):
    """A text with the specs that it is part of.

    Attributes:
      own: what was asked about.
      tops: the specs that read it, or it alone.
      total: how many read it; of many, `tops` has the first.
      code: the Python that could be about them.
      specs: by real path, all specs of the project.
      unread: what could not be read.
    """

    own: Snapshot
    tops: tuple[Snapshot, ...]
    total: int = 1
    code: tuple[Calls, ...] = ()
    specs: Mapping[str, SourceFile] = {}
    unread: tuple[Unread, ...] = ()

    @property
    def members(self) -> tuple[Snapshot, ...]:
        """Return the specs, and the text itself."""
        return tuple(dict.fromkeys((self.own, *self.tops)))

    @property
    def is_part(self) -> bool:
        """Say whether the text is looked at as a part of other specs."""
        return [*self.tops] != [self.own]

    @property
    def counted(self) -> str:
        """Return how many specs are looked at: `3 specs`, or `64 of 400 specs`."""
        found = counted(len(self.tops), "spec")
        return found if self.total <= len(self.tops) else f"{len(self.tops)} of {self.total} specs"

    def alike(self, use: Use) -> list[Use]:
        """Return the uses of the same name for the same thing, in all specs; each place once."""
        found = {
            (real_path(each.span.source.name), each.span.start): each
            for member in self.members
            for each in member.all_uses
            if (each.kind, each.name) == (use.kind, use.name)
        }
        return [*found.values()]

    @property
    def reals(self) -> frozenset[str]:
        """Return the real paths of all files of the specs."""
        return frozenset(real for member in self.members for real in member.reads)

    def calls(self) -> list[Calls]:
        """Return the code that may be about these specs: it names one of them, or none at all."""
        return [each for each in self.code if not each.specs or self._is_named(each.specs)]

    def _is_named(self, specs: tuple[str, ...]) -> bool:
        return any(is_named(real, specs) for real in self.reals)

    def alike_in_code(self, use: Use) -> Iterator[tuple[Called, bool]]:
        """Yield the uses of the same name in code, and whether a spec is named there."""
        for code in self.calls():
            for each in code.uses:
                is_of = not each.specs or self._is_named(each.specs)
                if is_of and each.is_sure and (each.kind, each.name) == (use.kind, use.name):
                    yield each, bool(code.specs)

    def unseen(self, name: str) -> list[Span]:
        """Return the calls that could hold a name, and whose names code works out."""
        doubtful = [
            each.span
            for code in self.calls()
            for each in code.uses
            if not each.is_sure and each.name == name
        ]
        return [*(span for each in self.calls() for span in each.unknown), *doubtful]


def references(family: Family, offset: int, *, with_stated: bool) -> list[types.Location]:
    """Return where the name at an offset stands, in specs and in code."""
    use = use_at(family.own, offset)
    if use is None:
        return []
    spans = [each.span for each in family.alike(use) if with_stated or not each.is_definition]
    spans += [each.span for each, _ in family.alike_in_code(use)]
    return located(spans, family.own)

"""What a reader gives back: plain data, and beside it where every piece came from.

The data of a YAML file and of a DSL file that say the same are equal. Positions live in the
`SourceMap`, by route: the keys and indices from the root down, which is also what pydantic
calls `loc`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardspec.diagnostics import Excerpt, SourceFile, Span

#: Digits of a number: more are of no array, and Python refuses to read thousands.
DIGITS = 15

Route = tuple[str | int, ...]
Data = None | bool | int | float | str | list["Data"] | dict[str, "Data"]


@dataclass(frozen=True, slots=True)
class SourceMap:
    """Route -> place in the source.

    Attributes:
      keys: excerpt of the key at each route that ends in a key.
      values: excerpt of the value at each route. For a list or mapping its text is "" and
        its span covers the whole.
    """

    source: SourceFile
    keys: Mapping[Route, Excerpt] = field(default_factory=dict, repr=False)
    values: Mapping[Route, Excerpt] = field(default_factory=dict, repr=False)

    def value(self, route: Route) -> Excerpt:
        """Return the value at `route`, or at the nearest route above it that is known."""
        while route not in self.values and route:
            route = route[:-1]
        return self.values.get(route) or Excerpt("", self.source.whole)

    def key(self, route: Route) -> Excerpt:
        """Return the key at `route`; for a list item, the item."""
        return self.keys.get(route) or self.value(route)

    def entry(self, route: Route) -> Span:
        """Return the span from the key to the end of the value."""
        key, value = self.key(route).span, self.value(route).span
        if key.source is not value.source:
            return value
        return Span(key.source, min(key.start, value.start), max(key.end, value.end))


@dataclass(frozen=True, slots=True)
class Comments:
    """The comments that belong to one entry, each line without its `#`.

    Attributes:
      before: own-line comments above it; an empty string is an empty line between them, below
        them, or above them where they start a group inside a list or mapping.
      trailing: the comment on the entry's first line.
      after: own-line comments at the end of the block that the entry holds, below the last of
        what stands in it.
    """

    before: tuple[str, ...] = ()
    trailing: str | None = None
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """One file, read: data, positions and comments.

    Attributes:
      comments: by route of the entry; `()` holds those after the last entry.
      is_whole: False where an error of syntax took lines away.
    """

    data: Data
    source_map: SourceMap
    comments: Mapping[Route, Comments] = field(default_factory=dict)
    is_whole: bool = True

    @property
    def source(self) -> SourceFile:
        """Return the file that was read."""
        return self.source_map.source


def is_dsl(source: SourceFile) -> bool:
    """Say whether a file is in the DSL: by its name, or where that says nothing, its text."""
    is_yaml = source.name.endswith((".yaml", ".yml", ".json"))
    return source.name.endswith(".shard") or (not is_yaml and looks_like_dsl(source.text))


def looks_like_dsl(text: str) -> bool:
    """Say whether `text` is the DSL: its first line of substance is no `key:`."""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            first = stripped.split("#", 1)[0]
            return ":" not in first and not first.startswith(("-", "{", "%", "["))
    return False


def number_or_text(text: str) -> int | str:
    """Return a size as YAML would read it: a number where it is one of few digits."""
    plain = text.isascii() and text.isdecimal() and len(text) <= DIGITS
    return int(text) if plain and (text == "0" or text[0] != "0") else text

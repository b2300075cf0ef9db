"""Names of the values of a traced program, and of their dimensions, as lines of `step:` know them.

Values that are alive at once have different names; those of one layer have the same as those of
the next, so that their lines are alike.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from shardspec.jax_backend.step_lines.dims import WHOLE, Dim, DimFlow, flat
from shardspec.jax_backend.step_lines.streams import Row, Stream

#: Parts of a path that say what kind of array it is, and not which.
_KINDS = frozenset(("kernel", "weight", "w", "embedding", "params", "proj"))
_WORD = re.compile(r"[A-Za-z][A-Za-z_]*")


class Known(NamedTuple):
    """A dimension of a value, as lines know it.

    Attributes:
      place: by which rules place it; None where nothing does.
      name: by which lines count it.
      size: where `axes` has another, or none.
    """

    place: str | None
    name: str
    size: int | None

    @property
    def text(self) -> str:
        """Return `batch`, `_ as d1=640`."""
        shown = self.name if self.place == self.name else f"{self.place or '_'} as {self.name}"
        return shown if self.size is None else f"{shown}={self.size}"


class Naming:
    """Names values.

    Attributes:
      sizes: of the logical axes, as the step has them.
    """

    def __init__(self, flow: DimFlow, sizes: dict[str, int]) -> None:
        """Take the dimensions of values."""
        self.flow = flow
        self.sizes = sizes
        self.first_reads: dict[Stream, int] = {}
        self._names: dict[Stream, str] = {}
        self._dims: dict[Stream, tuple[Known, ...]] = {}
        self._numbers: dict[tuple[int, ...], str] = {}

    def name_all(
        self, rows: Sequence[Row], activations: Mapping[str, tuple[str | None, ...]]
    ) -> None:
        """Give every value a name; those that are alive at once have different ones.

        What is given has no name of an activation that leaves dimensions without one.
        """
        streams = list(dict.fromkeys(each for row in rows for each in _streams(row)))
        spans = _spans(rows)
        self.first_reads = {
            each: next(r.at for r in rows if each in _streams(r))
            for each in streams
            if each.is_input
        }
        taken: dict[str, list[Stream]] = {}
        for stream in streams:
            wanted = self._wanted(stream)
            if stream.is_input and None in activations.get(wanted, ()):
                wanted = f"{wanted}_in"
            words = [self._own_word(stream), _apart(stream, taken.get(wanted, ()), wanted)]
            for other in words if len(stream.rows) == 1 else words[::-1]:
                if any(_meet(spans[each], spans[stream]) for each in taken.get(wanted, ())):
                    wanted = other or wanted
            name, number = wanted, 2
            while any(_meet(spans[each], spans[stream]) for each in taken.get(name, ())):
                name, number = f"{wanted}_{number}", number + 1
            taken.setdefault(name, []).append(stream)
            self._names[stream] = name

    def _own_word(self, stream: Stream) -> str:
        """Return what a value is called by the array that it is made with."""
        weight = stream.rows[0].weight if stream.rows else None
        return "" if weight is None or stream.rows[0].call else _path_word(weight.path)

    def _wanted(self, stream: Stream) -> str:
        first = stream.rows[0] if stream.rows else None
        if first is not None and first.call == "flash":
            query = first.reads[0][0]
            return (
                "context"
                if not isinstance(query, Stream) or stream.name in ("", query.found().name)
                else _word(stream.name)
            )
        if stream.name or first is None:
            return _word(stream.name)
        if first.weight is not None:
            is_added_to = len({row.call for row in stream.rows}) > 1 or len(stream.rows) > 2
            return "residual" if is_added_to else _path_word(first.weight.path)
        sources = [each.found() for each, _ in first.reads if isinstance(each, Stream)]
        if first.call == "route":
            return f"{self._wanted(sources[0])}_choice"
        return f"{self._wanted(sources[0])}_part" if len(sources) == 1 else "product"

    def name(self, stream: Stream) -> str:
        """Return the name of a value."""
        return self._names[stream.found()]

    def dims(self, stream: Stream) -> tuple[Known, ...]:
        """Return the dimensions of a value; those of size 1 that nothing names are left out."""
        stream = stream.found()
        found = self._dims.get(stream)
        if found is None:
            found = self._dims[stream] = tuple(self._known(stream))
        return found

    def rename(self, stream: Stream, names: Mapping[str, str]) -> tuple[Known, ...]:
        """Give dimensions of an input other names: those by which the first line reads it."""
        found = []
        for each in self.dims(stream):
            name = names.get(each.name, each.name)
            size = each.size or self.sizes[each.name]
            found.append(Known(name, name, None if self.sizes.get(name) == size else size))
        self._dims[stream.found()] = tuple(found)
        return tuple(found)

    def _known(self, stream: Stream) -> Iterator[Known]:
        used: set[str] = set()
        for dim in kept(stream):
            size = math.prod(atom.size for atom in dim.atoms)
            called = self.called(dim)
            place = (
                None if dim.label == WHOLE else dim.label or self._from_source(stream, dim, called)
            )
            name = place or called
            if name is None or (name in used and stream.is_input):
                name, place = self._number(dim), None
            base, number = place or called or name, 2
            while name in used:
                name, number = f"{base}_{number}", number + 1
            used.add(name)
            if stream.is_input:
                place = name
            yield Known(place, name, None if self.sizes.get(name) == size else size)

    def _from_source(self, stream: Stream, dim: Dim, called: str | None) -> str | None:
        """Return the name of a dimension in what a value is worked out of; or what it is called."""
        reads = stream.rows[0].reads if stream.rows else ()
        source = reads[0][0] if len(reads) == 1 else None
        if not isinstance(source, Stream) or source.found() is stream:
            return called
        source, leaves = source.found(), flat(dim.atoms)
        pairs = zip(kept(source), self.dims(source), strict=True)
        return next((known.place for own, known in pairs if flat(own.atoms) == leaves), called)

    def _number(self, dim: Dim) -> str:
        """Return what a dimension without a name is called, the same wherever it is."""
        leaves = tuple(map(id, flat(dim.atoms)))
        return self._numbers.setdefault(leaves, f"d{len(self._numbers) + 1}")

    def called(self, dim: Dim) -> str | None:
        """Return what a dimension is called by most of what meets in it."""
        leaves = flat(dim.atoms)
        names: Counter[str] = leaves[0].names if len(leaves) == 1 else Counter()
        return names.most_common(1)[0][0] if names else None


def kept(stream: Stream) -> list[Dim]:
    """Return the dimensions that lines know: those of size 1 without a name are none."""
    return [dim for dim in stream.dims if dim.atoms or dim.label not in (None, WHOLE)]


def _streams(row: Row) -> Iterator[Stream]:
    for each, _ in row.reads:
        if isinstance(each, Stream):
            yield each.found()
    yield row.result.found()


def _spans(rows: Sequence[Row]) -> dict[Stream, tuple[int, int]]:
    """Return the first and the last row of each value; an input is there from the start."""
    found: dict[Stream, tuple[int, int]] = {}
    for at, row in enumerate(rows):
        for stream in _streams(row):
            first = -1 if stream.is_input else found.get(stream, (at, at))[0]
            found[stream] = first, at
    return found


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Say whether two values are alive at once; one may end where the other begins."""
    return one[0] < other[1] and other[0] < one[1]


def _apart(stream: Stream, others: Sequence[Stream], wanted: str) -> str:
    """Return a name with the word of the paths of a value that those of others do not have."""
    mine, theirs = (
        {
            part
            for each in streams
            for row in each.rows
            if row.weight
            for part in row.weight.path.split("/")
        }
        for streams in ([stream], others)
    )
    paths = [row.weight.path for row in stream.rows if row.weight is not None]
    parts = [part for path in paths for part in path.split("/")]
    common = Counter(part for part in parts if part in mine - theirs and _WORD.search(part))
    return f"{_word(common.most_common(1)[0][0])}_{wanted}" if common else ""


def _word(text: str) -> str:
    """Return a text as a name; what begins with a number, as `*args` have them, is `given_3`."""
    word = re.sub(r"\W+", "_", text).strip("_") or "value"
    return f"given_{word}" if word[0].isdigit() else word


def _path_word(path: str) -> str:
    words = [_word(re.sub(r"(?:_|(?<!\d))\d++$", "", part)) for part in re.split(r"[/.]", path)]
    named = [word for word in words if word not in _KINDS and _WORD.fullmatch(word)]
    return named[-1] if named else "value"

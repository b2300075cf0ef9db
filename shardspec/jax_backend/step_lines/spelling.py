"""Rows of a traced program as lines of `step:`: by which names, and what many layers have alike.

A line has an index for each dimension that a product counts. Its name is that of the result's
dimension, else that of the array's; what reads it by another name says so, `[router as expert]`.
A dimension that nothing names keeps its size: `_ as d1=640`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shardspec.analysis.step_attention import is_position
from shardspec.diagnostics.words import as_one, grouped, template
from shardspec.ir.spec import Pattern, Spec
from shardspec.jax_backend.step_lines.dims import Atom, Dim, flat
from shardspec.jax_backend.step_lines.naming import Known, Naming, kept
from shardspec.jax_backend.step_lines.streams import Row, Stream, Weight
from shardspec.resolve.match import path_matcher

#: The names of what is given stand between these, where it is read first.
_FIRST = re.compile("\1[^\1\2\n]*+\2")
#: What an index of a line counts: one atom, or several that lines do not tell apart.
Keys = tuple[object, ...]


@dataclass(slots=True)
class Entry:
    """A line of the program, with the arrays of all the rows that it stands for.

    Attributes:
      before: the text up to the pattern; `after`: behind it.
      rows: one for each time that it is written in the program.
      width: how many of them stand side by side in a layer.
    """

    before: str
    after: str
    rows: list[Row]
    paths: list[str] = field(default_factory=list)
    width: int = 1

    @property
    def key(self) -> tuple[object, ...]:
        """Return what is alike in the same line of another layer."""
        alike = sorted(set(map(template, self.paths)))
        texts = (_FIRST.sub("", text) for text in (self.before, self.after))
        return (*texts, *alike, self.rows[0].node.count)


class Spelling:
    """Spells rows."""

    def __init__(self, spec: Spec, naming: Naming, paths: Sequence[str]) -> None:
        """Take what names and patterns are held against."""
        named = [each for each in spec.activations if each.pattern is None]
        self.activations = {each.name: each.logical_axes for each in named}
        self.naming = naming
        self.flow, self.sizes = naming.flow, naming.sizes
        self.of_weights = {
            factor
            for rule in spec.path_rules
            for name in rule.logical_axes
            for factor in ((name, *naming.flow.factors(name)) if name else ())
        }
        self.paths = paths

    # lines

    def entry(self, row: Row) -> Entry:
        """Return the line of a row."""
        renamed = self._renamed(row)
        if renamed is None:
            return self._as_op(row)
        terms = []
        for at, (source, _) in enumerate(row.reads):
            if isinstance(source, Weight):
                terms.append(f"\0{self._brackets_of_weight(row, source, renamed)}")
            else:
                terms.append(self._operand(source.found(), row, at, renamed))
        return self._put_together(row, terms, "")

    def _put_together(self, row: Row, terms: list[str], behind: str) -> Entry:
        terms.sort(key=lambda term: "\0" in term and row.call != "flash")
        left = ", ".join(terms)
        call = row.call
        text = f"{call}({left})" if call else left
        before, _, after = text.partition("\0")
        after = f"{after} -> {self._result(row)}{behind}"
        weight = row.weight
        if weight is None:
            return Entry(before + after, "", [row])
        return Entry(before, after, [row], [weight.path])

    def _as_op(self, row: Row) -> Entry:
        """Return a row that no einsum says: with its FLOPs, by the names of its result."""
        row.call = "op"
        terms = [
            "\0" if isinstance(each, Weight) else self._operand(each.found(), row, at, {})
            for at, (each, _) in enumerate(row.reads)
        ]
        names = [each.name for each in self.naming.dims(row.result) if each.size is None]
        left = row.flops // max(1, math.prod(self.sizes[name] for name in names))
        exact = left * math.prod(self.sizes[name] for name in names) == row.flops
        product = " * ".join([str(left), *names]) if exact else str(row.flops)
        return self._put_together(row, terms, f", flops {product}")

    def _operand(
        self, stream: Stream, row: Row, at: int, renamed: dict[tuple[int, str], str]
    ) -> str:
        name = self.naming.name(stream)
        dims = self.naming.dims(stream)
        changed = [each for each in dims if renamed.get((at, each.name), each.name) != each.name]
        if stream.is_input and row.at == self.naming.first_reads[stream]:
            dims = self.naming.rename(stream, {d.name: renamed[at, d.name] for d in changed})
            own = self.activations.get(name)
            if own is not None and [each.text for each in dims] == [*own]:
                return name
            return f"{name}\1[{_joint(each.text for each in dims)}]\2"
        if not changed:
            return name
        return f"{name}[{', '.join(f'{d.name} as {renamed[at, d.name]}' for d in changed)}]"

    def _brackets_of_weight(
        self, row: Row, weight: Weight, renamed: dict[tuple[int, str], str]
    ) -> str:
        at = next(at for at, (each, _) in enumerate(row.reads) if each is weight)
        names = [_weight_name(dim, place) for place, dim in enumerate(used(row, weight))]
        if all(renamed.get((at, name), name) == name for name in names):
            return ""
        shown = []
        for name in names:
            other = renamed.get((at, name), name)
            own = "_" if name.startswith("?") else name
            shown.append(name if other == name else f"{own} as {other}")
        return f"[{', '.join(shown)}]"

    def _result(self, row: Row) -> str:
        stream = row.result.found()
        name = self.naming.name(stream)
        dims = self.naming.dims(stream)
        own = self.activations.get(name)
        plain = all(each.place == each.name and each.size is None for each in dims)
        names = [each.name for each in dims]
        if plain and own is not None and [*own] == names:
            return name
        if plain and own is None and row.call in ("", "gather") and names == self._inferred(row):
            return name
        if row.call == "flash" and dims == self.naming.dims(_stream(row.reads[0][0])):
            return name
        return f"{name}[{_joint(each.text for each in dims)}]"

    def _inferred(self, row: Row) -> list[str] | None:
        """Return the names that a line without brackets would give its result."""
        weight = row.weight
        streams = [each.found() for each, _ in row.reads if isinstance(each, Stream)]
        if weight is None or len(streams) != 1:
            return None
        left = [each.name for each in self.naming.dims(streams[0])]
        right = [str(dim.label) for dim in used(row, weight)]
        if row.call == "gather":
            return [*left, *right[1:]]
        parts = (
            [{*self.flow.factors(name)} for name in left],
            [{*self.flow.factors(name)} for name in right],
        )
        both = set().union(*parts[0]) & set().union(*parts[1])
        pairs = [*zip(left, parts[0], strict=True), *zip(right, parts[1], strict=True)]
        return [name for name, own in pairs if not own & both]

    # indices

    def _renamed(self, row: Row) -> dict[tuple[int, str], str] | None:
        """Return the names that a line needs other than those of what it reads, by operand.

        None where no names say what it does: a dimension that is one index here is two there.
        """
        if row.call in ("flash", "op"):
            return self._kept_apart(row) if row.call == "flash" else None
        maps = _keys(row)
        if maps is None:
            return None
        proposed: list[tuple[int, str, list[tuple[str, Keys]]]] = []
        for at in sorted(
            range(len(row.reads)), key=lambda at: isinstance(row.reads[at][0], Stream)
        ):
            for name, dim in self._named_dims(row, at):
                proposed.append((at, name, self._indices(name, dim, maps[at])))
        groups = self._groups(row, maps[-1], proposed)
        parts: Counter[object] = Counter(key for keys in groups for key in keys)
        if any(count > 1 for count in parts.values()) or self._sums_alone(row, maps[-1], proposed):
            return None
        renamed: dict[tuple[int, str], str] = {}
        for at, whole, indices in proposed:
            changed = [groups[keys] for name, keys in indices if keys and groups[keys] != name]
            if changed and len(indices) > 1:
                return None
            if changed:
                renamed[at, whole] = changed[0]
        return renamed

    def _kept_apart(self, row: Row) -> dict[tuple[int, str], str]:
        """Return other names for the positions of keys that have all the names of the queries.

        Which of them are positions their own names may say (`length`); else it is the one that no
        parameter has.
        """
        query, key, value = ([each.name for each in self._known(row, at)] for at in range(3))
        if {*query} != {*key} or any(map(is_position, key)):
            return {}
        own = [name for name in key[1:] if name in value and name not in self.of_weights]
        return {(at, own[0]): f"{own[0]}_positions" for at in (1, 2)} if len(own) == 1 else {}

    def _known(self, row: Row, at: int) -> Sequence[Known]:
        source = row.reads[at][0]
        return self.naming.dims(source) if isinstance(source, Stream) else ()

    def _sums_alone(
        self,
        row: Row,
        made: dict[Atom, object],
        proposed: Sequence[tuple[int, str, list[tuple[str, Keys]]]],
    ) -> bool:
        """Say whether a product would sum over what only one side of it has."""
        pairs = zip(self.naming.dims(row.result), kept(row.result.found()), strict=True)
        given = {keys for known, dim in pairs for _, keys in self._indices(known.name, dim, made)}
        sides: dict[Keys, set[int]] = {}
        for at, _, indices in proposed:
            for _, keys in indices:
                sides.setdefault(keys, set()).add(at)
        lone = (keys for keys, found in sides.items() if len(found) == 1 and keys)
        return row.call == "" and len(row.reads) == 2 and any(keys not in given for keys in lone)

    def _groups(
        self,
        row: Row,
        made: dict[Atom, object],
        proposed: Sequence[tuple[int, str, list[tuple[str, Keys]]]],
    ) -> dict[Keys, str]:
        """Return a name for each index of a line: that of the result's dimension goes first."""
        groups: dict[Keys, str] = {}
        pairs = zip(self.naming.dims(row.result), kept(row.result.found()), strict=True)
        for known, dim in pairs:
            for name, keys in self._indices(known.name, dim, made):
                groups.setdefault(keys, name)
        taken = set(groups.values())
        for at, _, indices in proposed:
            for name, keys in indices:
                if keys in groups or not keys:
                    continue
                groups[keys] = name
                if len(row.reads) > 1 and (name in taken or name.startswith("?")):
                    source = row.reads[at][0]
                    whose = self.naming.name(source) if isinstance(source, Stream) else "other"
                    groups[keys] = f"{whose}_{name.lstrip('?')}"
                taken.add(groups[keys])
        return groups

    def _named_dims(self, row: Row, at: int) -> list[tuple[str, Dim]]:
        source = row.reads[at][0]
        if isinstance(source, Weight):
            dims = used(row, source)
            return [(_weight_name(dim, place), dim) for place, dim in enumerate(dims)]
        names = [known.name for known in self.naming.dims(source)]
        return list(zip(names, kept(source.found()), strict=True))

    def _indices(self, name: str, dim: Dim, keys: dict[Atom, object]) -> list[tuple[str, Keys]]:
        """Return a dimension as a line counts it: as its factors, where it has some."""
        leaves = flat(dim.atoms)
        found = [keys.get(atom, atom) for atom in leaves]
        factors = self.flow.factors(name)
        if len(factors) > 1:
            sizes = [self.sizes.get(each, 0) for each in factors]
            cut = _cut(sizes, [atom.size for atom in leaves])
            if cut is not None:
                parts = [tuple(found[start:end]) for start, end in cut]
                return list(zip(factors, parts, strict=True))
        return [(name, tuple(found))]

    # patterns

    def pattern(self, paths: Sequence[str]) -> str:
        """Return one glob for exactly these arrays."""
        paths = sorted(set(paths))
        kinds = grouped(paths, template)
        globs = [self._of_kind(key, each) for key, each in kinds.items()]
        return globs[0] if len(globs) == 1 else _alternatives(globs)

    def _of_kind(self, key: str, paths: list[str]) -> str:
        if len(paths) == 1:
            return paths[0]
        wide = key.replace("#", "*")
        return wide if self._matches(wide, paths) else self._spelt_out(paths)

    def _spelt_out(self, paths: list[str]) -> str:
        found = as_one(paths)
        return found if self._matches(found, paths) else f"{{{','.join(paths)}}}"

    def _matches(self, glob: str, paths: list[str]) -> bool:
        matcher = path_matcher((Pattern(glob, "glob", None),))
        return {path for path in self.paths if matcher.first_match(path) is not None} == {*paths}


def first_read(text: str) -> str:
    """Return a line with the names of what is given."""
    return text.replace("\1", "").replace("\2", "")


def used(row: Row, weight: Weight) -> list[Dim]:
    """Return the dimensions of an array that a row uses: not those of which each round has one."""
    read = next(dims for each, dims in row.reads if each is weight)
    here = {atom for dim in read for atom in flat(dim.atoms)}
    return [
        dim for dim in weight.dims if all(atom in here for atom in flat(dim.atoms)) and dim.atoms
    ]


def _stream(source: Stream | Weight) -> Stream:
    assert isinstance(source, Stream)
    return source.found()


def _weight_name(dim: Dim, place: int) -> str:
    return dim.label or f"?{place}"


def _joint(texts: Iterable[str]) -> str:
    found = list(texts)
    return (" " if all(text.isidentifier() for text in found) else ", ").join(found)


def _cut(wanted: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return which of some sizes make up each of those that are wanted."""
    cuts, at = [], 0
    for size in wanted:
        start, product = at, 1
        while at < len(sizes) and product < size:
            product *= sizes[at]
            at += 1
        if product != size:
            return None
        cuts.append((start, at))
    return cuts if at == len(sizes) else None


def _keys(row: Row) -> list[dict[Atom, object]] | None:
    """Return what each atom of an operand, and of the result, counts; the result's is the last."""
    if not row.pairs and row.call in ("gather", "route", "") and len(row.reads) < 2:
        return [{} for _ in range(len(row.reads) + 1)]
    if row.call == "gather":
        return [{}, {}, {}]
    (_, left), (_, right) = row.reads
    keys: dict[Atom, object] = {}
    paired = {two: one for one, two in row.pairs}
    own = {atom for dim in left for atom in flat(dim.atoms)}
    for at, dim in enumerate(right):
        leaves = flat(dim.atoms)
        if at in paired:
            others = flat(left[paired[at]].atoms)
            if [atom.size for atom in others] != [atom.size for atom in leaves]:
                return None
            keys |= zip(leaves, others, strict=True)
        else:
            keys |= {atom: ("right", atom) for atom in leaves if atom in own}
    made: dict[Atom, object] = {}
    for atom, source, side in zip(*_result_atoms(row), strict=True):
        if atom.size != source.size:
            return None
        made[atom] = keys.get(source, source) if side else source
    return [{}, keys, made]


def _result_atoms(row: Row) -> tuple[list[Atom], list[Atom], list[int]]:
    """Return the atoms of the result of a product, what they come from, and of which side."""
    (_, left), (_, right) = row.reads
    batch, gone = row.pairs[row.summed :], row.pairs
    dims = [(left[one], 0) for one, _ in batch]
    dims += [(dim, 0) for at, dim in enumerate(left) if at not in [one for one, _ in gone]]
    dims += [(dim, 1) for at, dim in enumerate(right) if at not in [two for _, two in gone]]
    sources = [(atom, side) for dim, side in dims for atom in flat(dim.atoms)]
    made = [atom for dim in row.dims for atom in flat(dim.atoms)]
    if len(made) != len(sources):
        return [Atom(0)], [Atom(1)], [0]
    return made, [atom for atom, _ in sources], [side for _, side in sources]


def _alternatives(globs: Sequence[str]) -> str:
    """Return one glob for several: `layers_*/mlp/{gate,up}/kernel` where one part differs."""
    parts = [glob.split("/") for glob in globs]
    if len({len(each) for each in parts}) == 1:
        columns = [list(dict.fromkeys(column)) for column in zip(*parts, strict=True)]
        apart = [at for at, column in enumerate(columns) if len(column) > 1]
        if len(apart) == 1 and not any("{" in part for part in columns[apart[0]]):
            shown = [column[0] for column in columns]
            shown[apart[0]] = f"{{{','.join(columns[apart[0]])}}}"
            return "/".join(shown)
    return f"{{{','.join(globs)}}}"

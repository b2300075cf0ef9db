"""The layout of a running tree -> a spec with names for dimensions and one rule for each name.

A tree states mesh axes array by array; a person states them once for each kind of dimension. So the
dimensions get names, the tree's own or those that paths and sizes propose, and each name a rule:
the mesh axes that most of its bytes have. A dimension that lies otherwise gets a name of its own,
`lm_head_embed`. The draft is resolved and compared with the tree, and arrays that names do not
explain state their partition in `overrides:`.

Names in boxes of Flax may be mesh axes or logical ones. They are logical where rules know them, or
where an array with such names lies otherwise. An array that carries mesh axes as names is named by
`overrides:`, because `params:` is for arrays that carry none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Literal, NamedTuple

from shardspec import pipeline
from shardspec.arrays.listing import array_entries
from shardspec.diagnostics import Diagnostic, SourceFile, parted
from shardspec.diagnostics.words import by_key, counted, listed, template
from shardspec.foreign import formats
from shardspec.foreign.formats import Dims, ForeignRule, MeshAxes, NoAnswer, NotRead, Options
from shardspec.ir.spec import Mesh, Param, Params, PartitionSpec, Target, axis_of, override_text
from shardspec.language.layer import distinct
from shardspec.language.reading import Comments, Data, Route
from shardspec.naming.guessing import Guesses, Names, guess
from shardspec.naming.patterns import exact, patterns_for
from shardspec.topology.by_hand import device_coordinates
from shardspec.topology.placement import placed

Sizes = tuple[tuple[str, int], ...]
#: Whose names an array carries: `Partitioned` and `LogicallyPartitioned` of Linen, or NNX.
Family = Literal["partitioned", "logical", "nnx"]
#: Lines of arrays that a spec may hold itself.
_MOST_INSIDE = 60
_LONGEST_PART = 16
#: Kinds of paths; each takes a pattern, and time to find one.
_MOST_KINDS = 10_000
_SAY_RULES = "return `(tree, RULES)` with the rules that the model runs under"
_NO_SHARDING = NotRead(
    "no sharding", "nothing says where they are", "return them with a `NamedSharding`"
)


class LaidOut(NamedTuple):
    """An array and what its tree says of it.

    Attributes:
      dims: the mesh axes of each dimension, from its sharding; None where it has none.
      names: what its box says of each dimension, None for what is no name; None without names.
      memory: where that is not its device's own.
    """

    param: Param
    dims: Dims | NotRead | None = None
    names: tuple[MeshAxes | None, ...] | None = None
    family: Family = "nnx"
    memory: str | None = None


class Layout(NamedTuple):
    """Where the arrays of a tree are.

    Attributes:
      name: of the function that gives the tree.
      mesh: axes and sizes; empty where nothing says them.
      rules: that the names of the arrays go by, where the tree came with some.
      devices: of the mesh, row by row, by their numbers on the machine; empty if not known.
    """

    name: str
    arrays: tuple[LaidOut, ...]
    mesh: Sizes = ()
    rules: tuple[ForeignRule, ...] = ()
    devices: tuple[int, ...] = ()

    @property
    def params(self) -> Params:
        """Return the arrays without names."""
        return tuple(each.param for each in self.arrays)


class _Array(NamedTuple):
    """An array with its answer.

    Attributes:
      param: with the logical names that it carries.
      answer: its mesh axes, or why nothing is known.
      has_mesh_axes: whether it carries mesh axes as names.
    """

    param: Param
    answer: Dims | NoAnswer | NotRead
    has_mesh_axes: bool = False

    @property
    def dims(self) -> Dims | None:
        """Return the mesh axes of all its dimensions; None where they are not known."""
        if not isinstance(self.answer, tuple) or isinstance(self.answer, (NoAnswer, NotRead)):
            return None
        missing = self.param.rank - len(self.answer)
        return (*self.answer, *((),) * missing) if missing >= 0 else None


Reading = Mapping[str, _Array]


def read(layout: Layout, options: Options) -> formats.Outcome:
    """Return the spec that lays arrays out as a tree does."""
    _, twice = distinct(layout.params, f" of `{layout.name}`")
    axes = [axis for axis, _ in options.mesh or layout.mesh]
    arrays = tuple(_told(layout, axes))
    faults = twice or _faults(layout, arrays, axes)
    if faults:
        return None, faults
    reading = {each.param.path: each for each in arrays}
    draft, faults = _drafted(layout, reading, options)
    if any(each.is_error for each in faults):
        return None, faults
    order = _order_text(layout, options)
    data = {**draft.data, "devices": order} if order else draft.data
    return replace(draft, data=data, reading=reading), faults


def _order_text(layout: Layout, options: Options) -> str:
    """Return the order of the devices of the tree; nothing where a spec has it of its own."""
    sizes = tuple((axis, str(size)) for axis, size in layout.mesh)
    target = formats.target_asked(options._replace(mesh=sizes)) if layout.devices else None
    found = placed(target) if isinstance(target, Target) else None
    if found is None or options.mesh not in ((), sizes):
        return ""
    numbers = {place: at for at, place in enumerate(device_coordinates(found.hardware))}
    own = tuple(numbers[place] for place in found.coordinates())
    return "" if own == layout.devices else " ".join(map(str, layout.devices))


def answer(reading: Reading, params: Params, mesh: Mesh) -> tuple[formats.Answer, ...]:
    """Return where the tree has each array."""
    return tuple(formats.placed(reading[each.path].answer, each, mesh) for each in params)


def _faults(
    layout: Layout, arrays: Sequence[_Array], axes: Sequence[str]
) -> tuple[Diagnostic, ...]:
    """Return why no spec can be made; nothing where one can."""
    used = dict.fromkeys(axis for each in arrays for dim in each.dims or () for axis in dim)
    unknown = [each.answer for each in arrays if isinstance(each.answer, (NoAnswer, NotRead))]
    if unknown and not used:
        why = unknown[0]
        message = f"`{layout.name}` says of no array how it is sharded: {why.reason}"
        return (formats.bad(message, None, help=getattr(why, "help", None)),)
    if not axes:
        message = f"nothing says how large the mesh axes are: {listed(used) or 'none is used'}"
        sizes = " ".join(f"{axis}=2" for axis in used) or "data=2"
        return (formats.bad(message, None, help=f"say so: --mesh '{sizes}'"),)
    kinds = len({template(each.param.path) for each in arrays})
    if kinds > _MOST_KINDS:
        message = f"`{layout.name}` has {kinds:,} arrays whose paths differ in more than numbers"
        help = f"a spec has room for {_MOST_KINDS:,}: return a part of the tree, or list layers"
        return (formats.bad(message, None, help=help),)
    if any(not each.param.path for each in arrays):
        message = f"`{layout.name}` has an array without a path"
        return (formats.bad(message, None, help='return it by name: `{"w": array}`'),)
    odd = next((axis for axis in (*axes, *used) if not formats.is_name(axis)), None)
    if odd is not None:
        return (formats.bad(f"`{odd}` cannot be the name of a mesh axis in a spec", None),)
    return ()


# what each array says


def _told(layout: Layout, axes: Sequence[str]) -> Iterator[_Array]:
    """Yield the arrays with their answers."""
    named = [each for each in layout.arrays if each.names is not None and any(each.names)]
    are_mesh_axes = not layout.rules and _are_mesh_axes(named, axes)
    by_names = bool(named) and all(each.dims is None for each in layout.arrays)
    for each in layout.arrays:
        if each.names is None or not any(each.names):
            unplaced: Dims | NotRead = () if by_names or not each.param.rank else _NO_SHARDING
            yield _Array(each.param, unplaced if each.dims is None else each.dims)
        elif are_mesh_axes or (each.family == "partitioned" and not layout.rules):
            own = tuple(dim for dim in each.names if dim is not None)
            is_odd = len(own) < len(each.names)
            told = NotRead("names", "its names are no mesh axes", _SAY_RULES) if is_odd else own
            yield _Array(each.param, told if each.dims is None else each.dims, has_mesh_axes=True)
        else:
            yield _by_rules(each, layout.rules)


def _are_mesh_axes(named: Sequence[LaidOut], axes: Sequence[str]) -> bool:
    """Say whether the names of arrays are mesh axes: no array lies otherwise than it is named."""
    told = {axis for each in named for dim in each.names or () for axis in dim or ()}
    if axes and told.isdisjoint(axes):
        return False
    if not axes and all(each.family == "logical" for each in named):
        return False
    return all(each.dims is None or _full(each.dims) == _full(each.names) for each in named)


def _full(dims: Sequence[MeshAxes | None] | NotRead | None) -> tuple[MeshAxes | None, ...]:
    """Return dimensions without the whole ones at the end, which a PartitionSpec may leave out."""
    found: list[MeshAxes | None] = [] if isinstance(dims, NotRead) else [*(dims or ())]
    while found and found[-1] == ():
        found.pop()
    return tuple(found)


def _by_rules(each: LaidOut, rules: Sequence[ForeignRule]) -> _Array:
    """Return an array by the logical names that it carries."""
    names = tuple(
        None if dim == () else dim[0] if dim and len(dim) == 1 else "" for dim in each.names or ()
    )
    can_be = len(names) == each.param.rank and all(n is None or formats.is_name(n) for n in names)
    param = replace(each.param, logical_axes=names) if can_be else each.param
    if each.dims is not None:
        return _Array(param, each.dims, not can_be)
    if not rules or "" in names:
        what = next((f"`{name}`" for name in names if name), "a name")
        return _Array(param, NotRead(what, f"no rule says where {what} goes", _SAY_RULES))
    read_as = formats.nnx_axes if each.family == "nnx" else formats.linen_axes
    return _Array(param, read_as(names, rules), not can_be)


# names and rules


class _Draft(NamedTuple):
    """What a spec is made of.

    Attributes:
      names: by path, of arrays that are named.
      targets: the mesh axes of each name, in the order of the rules.
      stated: paths of arrays whose partition is stated.
      late: names of dimensions that are whole where others have their mesh axes.
    """

    names: Mapping[str, Names]
    targets: Mapping[str, MeshAxes]
    stated: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()


def _drafted(
    layout: Layout, reading: Reading, options: Options
) -> tuple[formats.Imported, tuple[Diagnostic, ...]]:
    """Return the document that explains most arrays by names, and states the others."""
    arrays = tuple(reading.values())
    guesses = guess(tuple(each.param for each in arrays if each.dims is not None))
    strict: frozenset[str] = frozenset()
    stated: frozenset[str] = frozenset()
    while True:
        draft = _ruled(arrays) if layout.rules else _lifted(arrays, guesses, strict)
        draft = draft._replace(stated=draft.stated | stated)
        made, faults = _document(layout, reading, draft)
        wrong = _wrong(made, reading, options) if len(stated) < len(arrays) else ()
        if isinstance(wrong, tuple):
            return made, (*faults, *wrong)
        if layout.rules or wrong <= strict:
            stated |= wrong
        strict |= wrong


def _wrong(
    made: formats.Imported, reading: Reading, options: Options
) -> frozenset[str] | tuple[Diagnostic, ...]:
    """Return the arrays that a draft lays out otherwise; findings, or (), where that is all."""
    text, faults = formats.spec_text(made, options, [SourceFile(made.tool, "")], "<imported>")
    spec = None if text is None else pipeline.load_text(text, "<imported>")[0]
    if spec is None or not spec.targets:
        return faults
    params = tuple(each.param for each in reading.values())
    (plan,) = pipeline.compile_plans(spec, params, spec.targets[:1])
    found = frozenset(
        ours.param.path
        for ours, theirs in zip(plan.arrays, answer(reading, params, plan.mesh), strict=True)
        if isinstance(theirs, PartitionSpec) and ours.partition_spec != theirs
    )
    return found or ()


def _ruled(arrays: Sequence[_Array]) -> _Draft:
    """Return the names that arrays carry; those without any state where they are."""
    bare = (each for each in arrays if each.param.logical_axes is None)
    stated = frozenset(each.param.path for each in bare if each.dims is not None)
    names = {each.param.path: each.param.logical_axes for each in arrays if each.param.logical_axes}
    return _Draft(names, {}, stated)


def _lifted(arrays: Sequence[_Array], guesses: Guesses, strict: frozenset[str]) -> _Draft:
    """Return names for dimensions, each with one answer in all arrays.

    Args:
      strict: arrays in which no rule passes a dimension over because another one has its axes.
    """
    dims_of = {each.param.path: each.dims for each in arrays if each.dims is not None}
    guessed = ((each.params, each.names) for each in guesses.arrays if each.names)
    named = {param.path: names for params, names in guessed for param in params}
    votes: dict[str, list[_Vote]] = {}
    for each in arrays:
        for vote in _votes(each, named.get(each.param.path), each.param.path in strict):
            votes.setdefault(axis_of(vote.name), []).append(vote)
    targets = {name: _elected(several) for name, several in votes.items()}
    apart = dict(_apart(votes, targets))
    names: dict[str, Names] = {}
    stated = set()
    for path, dims in dims_of.items():
        own = named.get(path)
        if own is None:
            stated.add(path)
            continue
        found = []
        for name, axes, others in _beside(own, dims):
            if name is None and axes:
                stated.add(path)
            is_usual = name is None or _goes(targets[axis_of(name)], axes, others, path in strict)
            found.append(name if is_usual else apart[axis_of(str(name)), axes])
        names[path] = tuple(found)
    all_targets = targets | {name: axes for (_, axes), name in apart.items()}
    used = {axis_of(n) for path, each in names.items() if path not in stated for n in each if n}
    kept = {name: axes for name, axes in all_targets.items() if name in used}
    ruled = {path: each for path, each in names.items() if path not in stated}
    order, late = _in_order(kept, ruled, dims_of)
    return _Draft(names, order, frozenset(stated), late)


def _in_order(
    targets: Mapping[str, MeshAxes], names: Mapping[str, Names], dims_of: Mapping[str, Dims]
) -> tuple[dict[str, MeshAxes], frozenset[str]]:
    """Return the rules, a name before those that are whole because it has their mesh axes.

    These come second.
    """
    first: dict[tuple[str, str], None] = {}
    for path, own in names.items():
        named = zip((name and axis_of(name) for name in own), dims_of[path], strict=True)
        dims = {name: axes for name, axes in named if name and name in targets}
        for late in (name for name, axes in dims.items() if not axes):
            wanted = set(targets[late])
            first |= {(each, late): None for each, axes in dims.items() if wanted & set(axes)}
    order = list(targets)
    for _ in order:
        wrong = [each for each in first if order.index(each[0]) > order.index(each[1])]
        if not wrong:
            break
        for early, late in wrong:
            order.remove(early)
            order.insert(order.index(late), early)
    return {name: targets[name] for name in order}, frozenset(late for _, late in first)


class _Vote(NamedTuple):
    """A dimension of some name.

    Attributes:
      others: the mesh axes of the other dimensions of the array.
    """

    name: str
    axes: MeshAxes
    others: frozenset[str]
    path: str
    weight: int
    is_strict: bool


def _beside(names: Names, dims: Dims) -> Iterator[tuple[str | None, MeshAxes, frozenset[str]]]:
    """Yield the dimensions of an array, each with the mesh axes that the others have."""
    used = Counter(axis for dim in dims for axis in dim)
    for name, axes in zip(names, dims, strict=True):
        yield name, axes, frozenset(used - Counter(axes))


def _votes(each: _Array, names: Names | None, is_strict: bool) -> Iterator[_Vote]:
    if names is None or each.dims is None:
        return
    weight = max(each.param.bytes, 1)
    for name, axes, others in _beside(names, each.dims):
        if name is not None:
            yield _Vote(name, axes, others, each.param.path, weight, is_strict)


def _goes(target: MeshAxes, axes: MeshAxes, others: frozenset[str], is_strict: bool) -> bool:
    """Say whether a rule gives a dimension these mesh axes: its own, or none where it is busy."""
    return target == axes or (not is_strict and not axes and not others.isdisjoint(target))


def _elected(votes: Sequence[_Vote]) -> MeshAxes:
    """Return the mesh axes of a name that are right for the most bytes."""
    options = dict.fromkeys(vote.axes for vote in votes)

    def right(axes: MeshAxes) -> tuple[int, int]:
        fits = [v for v in votes if _goes(axes, v.axes, v.others, v.is_strict)]
        return sum(vote.weight for vote in fits), len(axes)

    return max(options, key=right)


def _apart(
    votes: Mapping[str, Sequence[_Vote]], targets: Mapping[str, MeshAxes]
) -> Iterator[tuple[tuple[str, MeshAxes], str]]:
    """Yield a name for the dimensions of each name that go another way than most."""
    taken = set(votes)
    for name, several in votes.items():
        ways = by_key((vote.axes, vote) for vote in several)
        for axes, group in ways.items():
            target = targets[name]
            those = {v.path for v in group if not _goes(target, axes, v.others, v.is_strict)}
            if not those:
                continue
            others = [vote.path for vote in several if vote.path not in those]
            part = _own_part(those, others)
            new = f"{part}_{name}" if part else f"{name}_{'_'.join(axes) or 'whole'}"
            while new in taken:
                new += "_"
            taken.add(new)
            yield (name, axes), new


def _own_part(paths: Iterable[str], others: Iterable[str]) -> str | None:
    """Return a component that all of some paths have and no other: `lm_head`."""
    rows = [template(path).split("/") for path in dict.fromkeys(map(template, paths))]
    there = {part for path in dict.fromkeys(map(template, others)) for part in path.split("/")}
    for part in rows[0][:-1][::-1] + rows[0][-1:]:
        is_common = all(part in row for row in rows)
        if is_common and part not in there and len(part) <= _LONGEST_PART and formats.is_name(part):
            return part
    return None


# the document


def _document(
    layout: Layout, reading: Reading, draft: _Draft
) -> tuple[formats.Imported, tuple[Diagnostic, ...]]:
    """Return the document of a draft, and what it leaves out."""
    comments: dict[Route, Comments] = {("policy",): Comments(trailing=formats.AS_JAX)}
    many = counted(len(reading), "array")
    data: dict[str, Data] = {"doc": f"The layout of {layout.name}: {many}"}
    data["mesh"] = dict(layout.mesh)
    lines, faults = _rule_lines(layout, reading, draft)
    data["axes"] = dict(_axes(reading, draft))
    data["rules"] = [text for text, _ in lines]
    comments |= {("rules", at): comment for at, (_, comment) in enumerate(lines)}
    entries = _entries(reading, draft)
    for section, wanted in entries.items():
        found = patterns_for(wanted, [path for path in reading if path not in wanted])
        for at, (group, _) in enumerate(found):
            place = group.pattern if section == "params" else at
            comments[section, place] = Comments(trailing=counted(len(group.paths), "array"))
        named: dict[str, Data] = {group.pattern: text for group, text in found}
        entered: list[Data] = [_entry(group.pattern, text) for group, text in found]
        data[section] = named if section == "params" else entered
    memory = {each.param.path: each.memory for each in layout.arrays if each.memory}
    kept = patterns_for(memory, [path for path in reading if path not in memory])
    data["memory"] = {group.pattern: kind for group, kind in kept}
    data["policy"] = {"indivisible": "keep"}
    arrays = tuple(p for p in (each.param for each in reading.values()) if p.dtype.isidentifier())
    if all(exact(param.path) == param.path for param in arrays):
        inside: dict[str, Data] = dict(islice(array_entries(arrays), _MOST_INSIDE + 1))
        data["arrays"] = inside if len(inside) <= _MOST_INSIDE else {}
    if layout.rules:
        data["lints"] = formats.lints_of_rules(lines, is_linen=_is_of_linen(layout))
    sections = {key: value for key, value in data.items() if value not in ({}, [])}
    return formats.Imported(sections, comments, None, layout.name), faults


def _entries(reading: Reading, draft: _Draft) -> dict[str, dict[str, str]]:
    """Return what is said of arrays by path: names or a partition that win, names, whole."""
    found: dict[str, dict[str, str]] = {"overrides": {}, "params": {}, "replicate": {}}
    for path, each in reading.items():
        if each.dims is None or not each.param.rank:
            continue
        names = None if path in draft.stated else draft.names.get(path)
        has_names = names is not None and any(names)
        carries = each.has_mesh_axes or each.param.logical_axes is not None
        text = " ".join(name or "_" for name in names or ())
        if has_names and carries and names != each.param.logical_axes:
            found["overrides"][path] = f"axes {text}"
        elif has_names and not carries:
            found["params"][path] = text
        elif not has_names and (carries or any(each.dims)):
            found["overrides"][path] = f"spec {override_text(each.dims)}"
        elif not has_names:
            found["replicate"][path] = ""
    return found


def _entry(pattern: str, text: str) -> dict[str, Data]:
    """Return an entry of `overrides:`, of `replicate:` where there is nothing to state."""
    key, _, value = text.partition(" ")
    return {"path": pattern, key or "because": value or "replicated in the layout"}


def _axes(reading: Reading, draft: _Draft) -> Iterator[tuple[str, int]]:
    """Yield the size of each axis that has one."""
    sizes: dict[str, set[int]] = {}
    for path, names in draft.names.items():
        for name, size in zip(names, reading[path].param.shape, strict=True):
            if name is not None and path not in draft.stated:
                sizes.setdefault(axis_of(name), set()).add(size)
    yield from ((name, next(iter(each))) for name, each in sizes.items() if len(each) == 1)


def _rule_lines(
    layout: Layout, reading: Reading, draft: _Draft
) -> tuple[list[formats.RuleLine], tuple[Diagnostic, ...]]:
    """Return the rules: those that came with the tree, or one for each name."""
    if not layout.rules:
        ruled = (names for path, names in draft.names.items() if path not in draft.stated)
        count = Counter(axis_of(name) for names in ruled for name in names if name is not None)
        split = [(name, axes) for name, axes in draft.targets.items() if axes]
        whole = [name for name, axes in draft.targets.items() if not axes]
        many = (Comments(trailing=counted(count[name], "dimension")) for name, _ in split)
        texts = (
            f"{formats.rule_text(name, axes)}{' | none' if name in draft.late else ''}"
            for name, axes in split
        )
        lines = list(zip(texts, many, strict=True))
        return [*lines, *([(f"{', '.join(whole)} -> none", Comments())] if whole else [])], ()
    kept, faults = parted(formats.writable(_as_read(layout), layout.name))
    texts = (formats.rule_text(str(rule.name), rule.mesh_axes) for rule in kept)
    return [(text, Comments()) for text in texts], faults


def _as_read(layout: Layout) -> tuple[ForeignRule, ...]:
    """Return the rules in an order that Flax's own reader of them agrees with.

    NNX takes the last rule of a name, and a name without one for a mesh axis.
    """
    if _is_of_linen(layout):
        return layout.rules
    last = {rule.name: rule for rule in layout.rules}
    used = {dim[0] for each in layout.arrays for dim in each.names or () if dim and len(dim) == 1}
    here = (axis for axis, _ in layout.mesh if axis in used and axis not in last)
    return (*last.values(), *(ForeignRule(axis, (axis,)) for axis in here))


def _is_of_linen(layout: Layout) -> bool:
    """Say whether an array has names, and not those of a Variable of NNX."""
    return any(each.family != "nnx" for each in layout.arrays if each.names is not None)

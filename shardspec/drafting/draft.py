"""Arrays, machines and presets -> the text of a first spec that passes `check`.

Each line says in a comment why it is there. What could not be guessed is a QUESTION: such arrays
are whole by entries of `replicate:` that say so, so the spec is sound and they are not forgotten.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

from shardspec import pipeline
from shardspec.analysis import coverage
from shardspec.arrays.listing import array_entries
from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.diagnostics.diagnostic import printable
from shardspec.diagnostics.words import (
    binary_bytes,
    by_key,
    collapsed,
    counted,
    listed,
    percent,
    template,
)
from shardspec.drafting import machines as choices
from shardspec.drafting.machines import Base, Machine
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import AxisRule, Hardware, Param, Params, Spec, axis_of, target_text
from shardspec.language.formatting import formatted
from shardspec.language.loader import known_derives
from shardspec.language.reading import Comments, Data, Route
from shardspec.language.yaml_text.printer import print_yaml
from shardspec.lints.context import Context
from shardspec.lints.evidence.sizes import uneven
from shardspec.naming import roles
from shardspec.naming.caches import axes_of, dims_of, named_caches, type_of
from shardspec.naming.guessing import UNKNOWN, Guess, GuessedAxis, Guesses, guess
from shardspec.naming.patterns import patterns_for
from shardspec.resolve.derive import wanted_paths
from shardspec.resolve.match import path_matcher

QUESTION = "QUESTION"
#: What the language can spell: names that arrays carry may be anything.
_NAME = re.compile(r"(?!(?:none|_)$)[^\W\d]\w*(?:[-.]\w+)*")
#: Widths of a head that models have; the first that divides is the guess, wide models first.
_HEAD_WIDTHS = (128, 64, 32)
_WIDE_MODEL = 2048


@dataclass(frozen=True, slots=True)
class Asked:
    """What a first spec is asked for.

    Attributes:
      source: what the arrays came from, as comments say it.
      machines: the targets; none for a laptop and a machine that has room for the model.
      presets: what to extend; none for what suits the machines.
      manifest: the file that the spec names for its arrays; None where they stand in the spec.
      is_serving: whether they are those of a step that reads caches and computes no gradients.
      caches: those caches.
      rows: how many rows the other arguments of such a step have.
      tokens: batch and length of a step of code; None where they are not known.
      has_step: whether the arrays are those of a step of code.
    """

    params: Params
    source: str
    machines: tuple[Hardware, ...] = ()
    presets: tuple[str, ...] = ()
    manifest: str | None = None
    is_serving: bool = False
    caches: Params = ()
    rows: frozenset[int] = frozenset()
    tokens: tuple[int, ...] | None = None
    has_step: bool = False


class Draft(NamedTuple):
    """A first spec.

    Attributes:
      guesses: what is made of each array that has dimensions, except those that derive from others.
      remarks: what was chosen, and what is left to ask.
    """

    text: str
    guesses: tuple[Guess, ...]
    remarks: tuple[str, ...]


def draft(asked: Asked, spelling: str = "yaml") -> Draft | tuple[Diagnostic, ...]:
    """Return a first spec; why the language cannot say it, where it cannot.

    Args:
      spelling: `yaml` or `dsl`.

    Invariants:
      sound: `check` finds no error in the text.
      all: each array with dimensions has names, or a question.
      same: equal arguments give equal texts.
    """
    whole = _whole(asked)
    spec, faults = _loaded(whole, asked)
    if spec is None:
        return faults
    plans = pipeline.compile_plans(spec, asked.params)
    cases = [each.case for each in uneven(Context(spec, plans))]
    whole.uneven = {case.axis: (case.size, case.mesh_text) for case in cases}
    whole.used = frozenset(name for plan in plans for name in _used(plan))
    whole.lost = frozenset(name for plan in plans for name in _lost(plan))
    spec, faults = _loaded(whole, asked)
    if spec is None:
        return faults
    found = pipeline.check(spec, faults, asked.params).shown
    whole.too_loud = {each.code.name: each.message for each in found if each.is_error}
    whole.proposed = _proposed(whole, asked)
    text, faults = formatted(SourceFile("spec.yaml", whole.text(spelling)), spelling)
    if text is None:
        return faults
    return Draft(text, whole.guesses.arrays, tuple(whole.remarks()))


def _loaded(
    whole: _Whole, asked: Asked, **more: Data
) -> tuple[Spec | None, tuple[Diagnostic, ...]]:
    """Return the spec without its arrays, which are there already, and with more of it."""
    data = {key: value for key, value in whole.data().items() if key not in ("arrays", "manifest")}
    own, added = data.get("axes"), more.get("axes")
    if isinstance(own, dict) and isinstance(added, dict):
        more["axes"] = {**own, **added}
    data |= more
    return pipeline.load_text(print_yaml(data), "spec.yaml")


def _used(plan: ShardingPlan) -> Iterator[str]:
    """Yield the axes that some mesh axis splits in some array."""
    dims = (dim for group in plan.alike for dim in group.dims if dim.mesh_axes)
    yield from (axis_of(dim.logical_axis) for dim in dims if dim.logical_axis is not None)


def _lost(plan: ShardingPlan) -> Iterator[str]:
    """Yield the axes of large arrays that every device holds whole."""
    held = coverage.held_bytes(plan)
    groups = by_key(
        (template(each.param.path), each) for each in coverage.coverage(plan).replicated
    )
    for alike in groups.values():
        if coverage.is_large(sum(each.param.bytes for each in alike), held):
            yield from (axis_of(name) for name in alike[0].logical_axes if name is not None)


def _proposed(whole: _Whole, asked: Asked) -> dict[str, dict[str, Data]]:
    """Return what arrays do not tell, by section, so that taking it brings no error.

    The first step of the library that reads the arrays is part of it, and training where a machine
    has room for it.
    """
    sections = whole.usual()
    if any(each.is_error for each in _findings(whole, asked, sections)):
        sections.pop("state", None)
    for words in whole.steps():
        found = _findings(whole, asked, {**sections, "step": {**words}})
        if not any(each.is_error or each.code.id.startswith("SHD24") for each in found):
            return {**sections, "step": {**words}}
    return sections


def _findings(
    whole: _Whole, asked: Asked, more: Mapping[str, dict[str, Data]]
) -> tuple[Diagnostic, ...]:
    """Return what `check` finds where the sections of the last question are taken."""
    spec, faults = _loaded(whole, asked, **more)
    return faults if spec is None else pipeline.check(spec, faults, asked.params).shown


def _whole(asked: Asked) -> _Whole:
    """Return all that a spec is made of."""
    derives, derived = _derived(asked.params)
    plain = tuple(param for param in asked.params if param.path not in derived)
    guesses = guess(plain)
    caches = named_caches(asked.caches, asked.params, guesses.axes, asked.rows)
    guesses = guesses._replace(axes=(*guesses.axes, *axes_of(caches, guesses.axes)))
    hardware = [(each, "") for each in asked.machines]
    hardware = hardware or list(choices.usual_hardware(asked.params))
    names = {axis.kind for axis in guesses.axes}
    if asked.presets:
        base = choices.base_of(asked.presets)
    else:
        has_tensor = any(choices.part_of(name) == "tensor" for name in _own(guesses))
        has_experts = any("expert" in (name, choices.part_of(name)) for name in names)
        every = [each for each, _ in hardware]
        base = choices.usual_base(
            asked.params, every, has_experts, has_tensor, is_serving=asked.is_serving
        )
    base = base._replace(presets=(*base.presets, *derives))
    units = dict(_units(guesses, {*_widths_of_heads(caches)}))
    widths = _widths(guesses, units)
    found = [choices.machine(each, why, base, asked.params, widths) for each, why in hardware]
    machines = tuple(choices.distinct(found))
    return _Whole(asked, guesses, base, machines, units, derived, caches)


def _derived(params: Params) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the presets by which arrays lie as others do, and the paths of such arrays."""
    rules = known_derives()
    every = {param.path for param in params}
    matcher = path_matcher(tuple(rule.pattern for _, rule in rules))
    found: dict[str, set[str]] = {}
    for path in every:
        for at in matcher.all_matches(path):
            name, rule = rules[at]
            if any(each in every for each in wanted_paths(rule, path)):
                found.setdefault(name, set()).add(path)
    if not found:
        return (), frozenset()
    best = max(sorted(found), key=lambda name: len(found[name]))
    return (best,), frozenset(found[best])


def _own(guesses: Guesses) -> Iterator[str]:
    """Yield the names of arrays that are none of the table."""
    yield from (axis.name for axis in guesses.axes if axis.kind not in roles.axes())


def _widths_of_heads(caches: Params) -> Iterator[int]:
    """Yield how wide one head is in caches."""
    for each in caches:
        yield from (size for name, size in dims_of(each) if name == "kv")


def _units(guesses: Guesses, cached: Set[int]) -> Iterator[tuple[str, tuple[int, bool]]]:
    """Yield how wide one head is where heads stand side by side, and whether that is known.

    It is known where an array of the same module has an axis of that width: towers differ.

    Args:
      cached: how wide the heads in caches are.
    """
    kinds = {axis.name: axis for axis in guesses.axes}
    heads: dict[str, set[int]] = {}
    modules: dict[str, set[str]] = {}
    for each in guesses.arrays:
        for name, path in product(each.names or (), {_module(each.params[0].path)}):
            if name in kinds and kinds[name].kind == "kv":
                heads.setdefault(path, set()).add(kinds[name].size)
            elif name in kinds and kinds[name].kind in roles.JOINED.values():
                modules.setdefault(name, set()).add(path)
    width = max((axis.size for axis in guesses.axes if axis.kind == "embed"), default=0)
    for name, paths in modules.items():
        size = kinds[name].size
        known = sorted({each for path in paths for each in heads.get(path, ())} | cached)
        usual = _HEAD_WIDTHS if width >= _WIDE_MODEL else _HEAD_WIDTHS[1:]
        sure = next((each for each in known if each and size % each == 0), None)
        unit = sure or next((each for each in usual if size and size % each == 0), None)
        if unit is not None:
            yield name, (unit, sure is not None)


def _module(path: str) -> str:
    """Return the module around that of an array, in any layer: `attn` of `attn/query/kernel`."""
    return template(roles.place_of(path).module).rpartition("/")[0]


def _widths(guesses: Guesses, units: Mapping[str, tuple[int, bool]]) -> dict[str, int]:
    """Return of how many pieces the axes are that mesh axes split: heads, experts."""
    axes = guesses.axes
    heads = [axis.size for axis in axes if axis.kind in ("heads", "kv_heads")]
    heads += [axis.size // units[axis.name][0] for axis in axes if axis.name in units]
    mlp = [axis.size for axis in axes if axis.kind == "mlp"]
    split = [each for each in (*heads, *mlp) if each > 1]  # one head of keys is on every device
    own: Counter[int] = Counter()
    for each in guesses.arrays:
        for name, size in zip(each.names or (), each.params[0].shape, strict=bool(each.names)):
            if each.is_own and name is not None and choices.part_of(name) == "tensor":
                own[size] += each.bytes
    widths = {"tensor": choices.ways_for(own) if own else min(split, default=0)}
    experts = [axis.size for axis in axes if axis.kind == "expert"]
    return widths | ({"expert": min(experts)} if experts else {})


Line = tuple[str, Data, str]


@dataclass(slots=True)
class _Whole:
    """The parts of a spec, and the document that they make.

    Attributes:
      units: by axis; how wide one head is, and whether that is known.
      derived: the paths of arrays that lie as others do.
      caches: with names.
      used: the axes that some mesh axis splits; None where that is not known yet.
      lost: the axes of large arrays that every device holds whole.
      proposed: what arrays do not tell, by section.
      uneven: axes that a mesh does not divide; their size, and the mesh axis with its own.
      too_loud: findings that are errors and cannot be helped here, with what they say.
      params: the names of arrays by pattern, with the reasons.
      questions: entries for the arrays that nothing is known of.
    """

    asked: Asked
    guesses: Guesses
    base: Base
    machines: tuple[Machine, ...]
    units: Mapping[str, tuple[int, bool]]
    derived: frozenset[str]
    caches: Params
    uneven: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    used: frozenset[str] | None = None
    lost: frozenset[str] = frozenset()
    too_loud: Mapping[str, str] = field(default_factory=dict)
    proposed: Mapping[str, dict[str, Data]] = field(default_factory=dict)
    params: tuple[Line, ...] = ()
    questions: tuple[Line, ...] = ()

    def __post_init__(self) -> None:
        """Find the patterns, which do not change any more."""
        self.params = tuple(self._find_params())
        self.questions = tuple(self._find_questions())

    def text(self, spelling: str) -> str:
        """Return the document as YAML; its comments propose lines in the spelling to come."""
        return print_yaml(self.data(), self._comments(spelling))

    def data(self) -> dict[str, Data]:
        """Return the document."""
        sections: dict[str, Data] = {"shardspec": 1, "doc": self._doc()}
        sections["extends"] = [*self.base.presets]
        sections["axes"] = {name: value for name, value, _ in self._axes()}
        sections["targets"] = {each.name: _target(each) for each in self.machines}
        sections["rules"] = [rule for _, rule, _ in self._rules()]
        sections["params"] = {name: value for name, value, _ in self.params}
        sections["replicate"] = [entry for _, entry, _ in self.questions]
        sections["lints"] = dict.fromkeys(self.too_loud, "warn")
        sections["caches"] = dict(self._cache_entries())
        if self.asked.manifest is not None:
            sections["manifest"] = self.asked.manifest
        else:
            sections["arrays"] = dict(array_entries(tuple(map(_written, self.asked.params))))
        return {key: value for key, value in sections.items() if value not in ({}, [])}

    def _cache_entries(self) -> Iterator[tuple[str, str]]:
        """Yield caches as the spec lists them, layers as ranges."""
        sizes = {axis.name: axis.size for axis in self.guesses.axes}
        kinds = ((type_of(each, sizes), template(each.path)) for each in self.caches)
        groups = by_key(zip(kinds, (each.path for each in self.caches), strict=True))
        for (kind, _), paths in groups.items():
            glob = collapsed(paths)
            yield from ((path, kind) for path in (paths if glob is None else (glob,)))

    def _doc(self) -> str:
        total = sum(param.bytes for param in self.asked.params)
        arrays = counted(len(self.asked.params), "array")
        return f"{printable(self.asked.source)}: {arrays}, {binary_bytes(total)}"

    def _comments(self, spelling: str) -> dict[Route, Comments]:
        comments: dict[Route, Comments] = {("shardspec",): Comments(tuple(_HEAD))}
        if self.base.why:
            comments["extends",] = Comments(trailing=f"guess: {self.base.why}")
        for machine in self.machines:
            why = f"guess: {machine.why}; " if machine.why else ""
            place = "targets", machine.name
            comments[place] = Comments(trailing=why + machine.hardware.title)
            if len(machine.mesh) > 1:
                comments["targets", machine.name, "mesh"] = Comments(trailing=_SIZES)
        for section, lines in (("axes", self._axes()), ("params", self.params)):
            comments |= {(section, name): Comments(trailing=why) for name, _, why in lines}
        for section, lines in (("rules", self._rules()), ("replicate", self.questions)):
            for at, (_, _, why) in enumerate(lines):
                comments[section, at] = Comments((why,))
        for name, message in self.too_loud.items():
            why = f"{QUESTION}: only a warning here: {message}"
            comments["lints", name] = Comments(trailing=why)
        comments[()] = Comments(tuple(self._tail(spelling)))
        return comments

    def usual(self) -> dict[str, dict[str, Data]]:
        """Return what a spec usually says of activations and training, by section."""
        devices = math.lcm(*(each.hardware.device_count for each in self.machines))
        usual = devices * math.ceil(_LEAST_BATCH / devices), _LENGTH
        batch, length = self.asked.tokens or usual
        if self.asked.is_serving:
            return {"axes": {"length": 1}, "activations": {"residual": "batch length embed"}}
        return {
            "axes": {"batch": batch, "length": length},
            "activations": {"residual": "batch length embed"},
            "state": {"optimizer": "same", "moments": 2, "dtype": "f32"},
        }

    def steps(self) -> Iterator[dict[str, str]]:
        """Yield the steps that such a model may have: with experts, one table for both ends."""
        kinds = {axis.kind for axis in self.guesses.axes}
        if self.asked.is_serving:
            yield {"extends": "decode"}
            return
        if "expert" in kinds or "router" in kinds:
            yield {"extends": "moe", "experts": "top 2 capacity 1.25"}
            return
        tables = [each for each in self.guesses.arrays if "vocab" in (each.names or ())]
        is_tied = sum(len(each.params) for each in tables) == 1
        yield from ({"extends": name} for name in (*_STEPS[is_tied], *_STEPS[2]))

    def _tail(self, spelling: str) -> Iterator[str]:
        """Yield what arrays do not tell, as lines that can be taken as they stand."""
        sections = dict(self.proposed)
        ask = f"{QUESTION}: what is in a step? Arrays do not tell. With your own numbers"
        if self.asked.has_step:
            ask = "`--step` reads the step from your code. For figures without it, put your numbers"
        elif "step" not in sections:
            yield "No step of the library reads all these arrays: see `shardspec explain step`."
        yield f"{ask}:" if spelling == "dsl" else f"{ask}, in `axes:`"
        front = "axis {} = {}" if spelling == "dsl" else "  {}: {}"
        yield from (front.format(*each) for each in sections.pop("axes", {}).items())
        if spelling == "dsl":
            yield "activation residual : batch length embed"
            for name, value in sections.get("state", {}).items():
                yield f"state {name} {value}{_TRAINING if name == 'optimizer' else ''}"
            if step := sections.get("step"):
                lines = (f"  {name} {value}" for name, value in step.items())
                yield from ("step {", *lines, f"}}  {_COUNTED}")
            return
        yield "and at the end:"
        notes = {"state": _TRAINING, "step": f"  {_COUNTED}"}
        for key, value in sections.items():
            inside = ", ".join(f"{name}: {each}" for name, each in value.items())
            yield f"{key}: {{{inside}}}{notes.get(key, '')}"

    def _axes(self) -> Iterator[Line]:
        """Yield the axes of arrays that carry no names, with what they are."""
        counts = Counter(
            axis_of(name)
            for each in self.guesses.arrays
            for name in each.names or ()
            if name is not None
            for _ in each.params
        )
        counts.update(name for each in self.caches for name, _ in dims_of(each) if name)
        yield from self._heads()
        for axis in self.guesses.axes:
            if not axis.has_one_size or not _NAME.fullmatch(axis.name):
                continue
            doc = self._doc_of(axis)
            why = f"{doc}; in {counted(counts[axis.name], 'array')}"
            _, is_known = self.units.get(axis.name, (None, True))
            value = self._axis(axis)
            ask = "" if is_known else f"; {QUESTION}: is one head {self.units[axis.name][0]} wide?"
            yield axis.name, value, f"{why}{ask}"

    def _doc_of(self, axis: GuessedAxis) -> str:
        """Return what an axis is."""
        if axis.kind == UNKNOWN:
            return f"{QUESTION}: what is it? {_near(axis.size, self.guesses.axes)}"
        if axis.kind in roles.axes():
            return roles.axes()[axis.kind].doc
        return _OF_CACHES.get(axis.kind, "named by its arrays")

    def _heads(self) -> Iterator[Line]:
        """Yield the axes that query, key and value in one array are split into by a step."""
        sizes = {axis.name: axis.size for axis in self.guesses.axes}
        if not {"joined_kv", "joined_qkv"} <= sizes.keys() or "joined_kv" not in self.units:
            return
        width = self.units["joined_kv"][0]
        keys = (sizes["joined_qkv"] - sizes["joined_kv"]) // 2
        counts = {"heads": sizes["joined_kv"] // width, "kv_heads": keys // width, "kv": width}
        if counts["kv_heads"] > 0 and keys % width == 0:
            found = ((name, size) for name, size in counts.items() if name not in sizes)
            yield from ((name, size, roles.axes()[name].doc) for name, size in found)

    def _axis(self, axis: GuessedAxis) -> Data:
        """Return the size of an axis, with its unit, or with the two halves that it is made of."""
        if axis.name == "joined_kv" and any(name == "kv" for name, _, _ in self._heads()):
            return {"size": "heads * kv", "unit": "kv"}
        if axis.name in self.units:
            return {"size": axis.size, "unit": self.units[axis.name][0]}
        halves = roles.axes()[axis.kind].halves if axis.kind in roles.axes() else ()
        if halves and axis.size and axis.size % len(halves) == 0:
            part = axis.size // len(halves)
            whole = roles.axes()[axis.kind].like
            names = [each.name for each in self.guesses.axes if each.size == part]
            return {"parts": dict.fromkeys(halves, whole if whole in names else part)}
        return axis.size

    def _rules(self) -> Iterator[Line]:
        """Yield the rules that the presets lack, and those that they have for other sizes."""
        known = by_key((rule.logical_axis, rule) for rule in self.base.spec.axis_rules)
        batch = known.get("batch")
        if batch and any("replica" in each.mesh for each in self.machines):
            first = batch[0].mesh_axes
            if "replica" not in first:
                text = f"batch -> {target_text(('replica', *first))}"
                yield "", text, "guess: slices or nodes have examples of their own"
        whole: dict[str, list[str]] = {}
        for axis in self.guesses.axes:
            if not _NAME.fullmatch(axis.name):
                continue
            likes = [axis.name, *_likes(axis.kind)]
            like = next(filter(known.__contains__, likes), None)
            rules: Sequence[AxisRule] = known[like] if like is not None else ()
            if like == axis.name and axis.name not in self.uneven:
                continue
            is_own = axis.kind not in (*roles.axes(), UNKNOWN)
            mesh_axis = choices.mesh_axis_for(axis.name, self.base.mesh_axes) if is_own else None
            if like is None and mesh_axis is not None:
                none = " | none" if axis.name in self.uneven else ""
                why = f"guess: arrays name the mesh axis `{axis.name}`"
                why += ", and are replicated where it does not divide" if none else ""
                yield "", f"{axis.name} -> {mesh_axis}{none}", why
            elif like is None or rules[0].is_none or self._is_idle(axis.name):
                usual = _WHOLE if like is None or rules[0].is_none else _IDLE
                usual = _UNNAMED if axis.kind == UNKNOWN else usual
                why = _OWN_WHOLE if is_own else _LOST if axis.name in self.lost else usual
                whole.setdefault(why, []).append(axis.name)
            else:
                rule, why = self._rule(axis.name, like, rules)
                yield "", rule, why
        for why, names in whole.items():
            yield "", f"{', '.join(names)} -> none", why

    def _is_idle(self, axis: str) -> bool:
        """Say whether no mesh axis splits an axis, though each would divide it."""
        return self.used is not None and axis not in self.used and axis not in self.uneven

    def _rule(self, axis: str, like: str, rules: Sequence[AxisRule]) -> tuple[Data, str]:
        """Return the rule of an axis, as those of `like` are, and why it is there."""
        text = f"{axis} -> {' | '.join(rule.right for rule in rules)}"
        uneven = self.uneven.get(axis)
        if uneven is not None and not rules[-1].is_none:
            text += " | none"
        if rules[0].priority:
            text += f" @ {rules[0].priority}"
        why = [f"goes as `{like}` does"] if like != axis else []
        if uneven is not None:
            mesh = uneven[1].replace("`", "")
            why.append(f"{uneven[0]} does not divide by {mesh}: whole there, on every device")
        place: Data = text if like == axis else {"rule": text, "at": f"after {like}"}
        return place, f"guess: {'; '.join(why)}"

    def _named(self) -> dict[str, tuple[str | None, ...]]:
        """Return the names that `params` has, by path: guessed ones, and those beside arrays."""
        return {
            param.path: each.names
            for each in self.guesses.arrays
            for param in each.params
            if each.names is not None and (not each.is_own or param.is_named_beside)
        }

    def _find_params(self) -> Iterator[Line]:
        """Yield the names of arrays by pattern, with the reason."""
        wanted = self._named()
        reasons = {param.path: each for each in self.guesses.arrays for param in each.params}
        own = {path for path, each in reasons.items() if each.is_own}
        skipped = own | self.derived
        others = [
            param.path
            for param in self.asked.params
            if param.path not in wanted and param.path not in skipped
        ]
        for group, names in patterns_for(wanted, others):
            every = [reasons[path] for path in group.paths]
            found = [each for each in every if not each.is_own]
            text = " ".join(name or "_" for name in names)
            reason = f"guess: {_reason(found)}" if found else "the names beside the arrays"
            why = f"{reason}; {counted(len(every), 'array')}"
            ask = "" if all(each.what for each in found) else f"; {QUESTION}: are these the names?"
            yield group.pattern, text, why + ask

    def _find_questions(self) -> Iterator[Line]:
        """Yield entries for the arrays that nothing is known of, by shape."""
        asked = {
            param.path: each
            for each in self.guesses.arrays
            if each.names is None
            for param in each.params
        }
        shapes = {path: each.params[0].shape for path, each in asked.items()}
        others = [param.path for param in self.asked.params if param.path not in asked]
        for group, shape in patterns_for(shapes, others):
            text = "[" + ", ".join(map(str, shape)) + "]"
            entry: Data = {"path": group.pattern, "because": f"not guessed: {text}"}
            total = sum(each.params[0].bytes for each in map(asked.__getitem__, group.paths))
            many = f"{counted(len(group.paths), 'array')}, {binary_bytes(total)}"
            near = "; ".join(_near(size, self.guesses.axes) for size in dict.fromkeys(shape))
            yield "", entry, f"{QUESTION}: what are the dimensions of {text} ({many})? {near}"

    def remarks(self) -> Iterator[str]:
        """Yield what a person is told beside the text."""
        arrays = self.guesses.arrays
        total = sum(each.bytes for each in arrays)
        named = sum(each.bytes for each in arrays if each.names is not None and not each.is_own)
        count = sum(len(each.params) for each in arrays if each.names and not each.is_own)
        yield (
            f"guessed the dimensions of {count} of {counted(len(self.asked.params), 'array')},"
            f" {percent(named, total)} of their bytes"
        )
        own = sum(len(each.params) for each in arrays if each.is_own)
        if own:
            yield f"{counted(own, 'array')} with names of their own"
        if self.derived:
            many = counted(len(self.derived), "array")
            yield f"{many} by `{self.base.presets[-1]}`, as their parents"
        questions = [each for each in arrays if each.names is None]
        if questions:
            many = counted(sum(len(each.params) for each in questions), "array")
            left = percent(sum(each.bytes for each in questions), total)
            yield f"{many} not guessed, {left} of the bytes: replicated, see {QUESTION} in the spec"
        kinds = {axis.name: axis.kind for axis in self.guesses.axes}
        in_part = [e for e in arrays if any(kinds.get(n or "") == UNKNOWN for n in e.names or ())]
        if in_part:
            many = counted(sum(len(each.params) for each in in_part), "array")
            names = listed([name for name, kind in kinds.items() if kind == UNKNOWN])
            yield f"{many} named in part: see {names} in the spec"
        if self.base.why:
            yield f"extends {listed(self.base.presets)}: {self.base.why}"
        for each in self.machines:
            title = each.hardware.title
            what = f" ({title}): {each.why}" if each.why else f": {title}"
            yield f"target {each.name}{what}"
        if self.too_loud:
            yield f"errors that only warn in this spec, each a {QUESTION}: {listed(self.too_loud)}"


#: Axes that no parameter has.
_OF_CACHES = {
    "batch": "sequences that are answered at once",
    "cache_length": "tokens that a cache has room for",
    "pages": "pages of all requests together",
    "page_size": "tokens of a page",
}
_HEAD = (
    "Written by `shardspec init`. Names of dimensions are guesses: from what arrays are called in",
    "common models (`by name`), and from sizes that other arrays share (`and size`). Correct them,",
    f"answer each {QUESTION}, and delete the comments.",
)
_SIZES = "guess: the axes that the presets name, in sizes that divide"
_TRAINING = "  # training with Adam"
_COUNTED = "# what `cost` and `search` count"
#: Steps of the library to try: of two tables for tokens, of one, of any.
_STEPS = (("decoder",), ("decoder-tied", "decoder"), ("t5", "t5-tied", "vit"))
_LEAST_BATCH, _LENGTH = 64, 2048
_IDLE = "guess: other dimensions of these arrays take the mesh axes before them"
_WHOLE = "guess: the presets have no rule for these"
_LOST = (
    f"{QUESTION}: which mesh axis takes these? Large arrays have no other, so they are replicated"
)
_OWN_WHOLE = f"{QUESTION}: which mesh axes take these? Arrays name them, and no preset does"


_UNNAMED = f"{QUESTION}: which mesh axes take these? No name is known of them"


def _target(machine: Machine) -> Data:
    return {"hardware": str(machine.hardware), "mesh": dict(machine.mesh)}


def _likes(kind: str) -> Iterator[str]:
    """Yield the axes by whose rules an axis may go, the nearest first."""
    while kind:
        yield kind
        kind = roles.axes()[kind].like if kind in roles.axes() else ""


def _written(param: Param) -> Param:
    """Return an array as `arrays` has it: without names that are beside it, which `params` has."""
    return replace(param, logical_axes=None) if param.is_named_beside else param


def _reason(found: Sequence[Guess]) -> str:
    """Return what arrays are, and by what that was told."""
    whats = list(dict.fromkeys(each.what for each in found if each.what))
    if not whats:
        return "by size alone"
    by = "by name and size" if all(each.by_size for each in found) else "by name alone"
    return f"{', '.join(whats)}, {by}"


def _near(size: int, axes: Sequence[GuessedAxis]) -> str:
    """Return which axes are as long: `4096 is embed or joined_kv`."""
    names = [axis.name for axis in axes if axis.size == size and axis.kind != UNKNOWN]
    return f"{size} is {' or '.join(names)}" if names else f"{size} is no axis"

"""Document -> Layer: expressions parsed, every node with the span it came from.

An expression that cannot be parsed is reported and skipped; the others are still read.

Entries of `derive:` only reach this module if their parent can be determined.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from shardspec.diagnostics import Code, Diagnostic, Excerpt, Label, Span, codes, point, quote
from shardspec.diagnostics.codes import WORDS, fault_found, known
from shardspec.diagnostics.words import did_you_mean, listed, respelt
from shardspec.ir import spec as ir
from shardspec.ir.program import REGEX, CodePlace, Line, Product, Term, TermDim
from shardspec.ir.spec import AxisRule, Hardware, Override
from shardspec.language.catalogue import find_hardware, machine_fault
from shardspec.language.glob import braces_of, glob_literal, template_of
from shardspec.language.grammar import expressions, step_lines, syntax
from shardspec.language.grammar.expressions import NO_LETS
from shardspec.language.grammar.syntax import Name, NamesExpr, SizeExpr, SizeTerm, SyntaxFault
from shardspec.language.layer import ArrayDecl, AxisDecl, Layer, Place, PlacedRule
from shardspec.language.meshes import TargetDecl
from shardspec.language.reading import Route, SourceMap, is_dsl, marks_of
from shardspec.language.sections import RULES, SECTIONS
from shardspec.language.validate import PATTERN, Choice, Validated, Walk, axes_of, mesh_axes
from shardspec.topology.sizes import StatedAxis, StatedMesh

if TYPE_CHECKING:
    from pydantic import BaseModel

    from shardspec.language import document as doc
    from shardspec.language.document import Document, StepEntry, TargetEntry
    from shardspec.topology.by_hand import DeviceRun

T = TypeVar("T")


_ANSWER = Choice(
    "answer", "axes", "spec", "names (`embed mlp`), or the partition itself (`(none, model)`)"
)

#: The axes of a rule that goes wrong further on.
_AXES = r"(?:[\w.]|-(?!>))++"
_LEFT_SIDE = rf"\s*+({_AXES}(?:\s*+,\s*+{_AXES})*+)(?:\s|-*+>|=|:|→|$)"


#: Sections that a walk over a document yields the entries of, in the order that faults come in.
_WALKED = ("lets", "axes", "rules", "overrides", "activations", "lint_levels", "arrays")

#: How expressions of rules are read, and what the rules hold of them.
_HELD: dict[str, tuple[Callable[[str], Any], Callable[[Any], object]]] = {
    "names": (expressions.parse_names, axes_of),
    "scan": (expressions.parse_scan, lambda scan: tuple((name.text, at) for name, at in scan.axes)),
}


def layer_of(valid: Validated, source_map: SourceMap) -> tuple[Layer, tuple[Diagnostic, ...]]:
    """Return what a document says, without what cannot be read, and why that is."""
    document = valid.document
    walk = _Sections(valid, source_map)
    layer = Layer(
        source=source_map.source,
        doc=document.doc,
        **{name: tuple(getattr(walk, name)()) for name in _WALKED},
        drops=tuple(walk.excerpt(("drop", i), name) for i, name in enumerate(document.drop)),
        targets=tuple(stated_targets(walk)),
        matched={name: tuple(walk.matched(name)) for name in RULES},
        policy=_policy(walk),
        state=_state(walk, document.state),
        coverage=_coverage(walk, document.coverage),
        replicate=tuple(_replicate(walk, document.replicate)),
        step=_step(walk, document.step),
    )
    return layer, tuple(walk.diagnostics)


class _Sections(Walk):
    """The walk, section by section."""

    def axes(self) -> Iterator[AxisDecl]:
        """Yield the axes, sizes still as expressions."""
        for name, entry in self.document.axes.items():
            route: Route = ("axes", name)
            if not self.name(route):
                continue
            size = self._size((*route, "size"), entry.size)
            unit = self._size((*route, "unit"), None if entry.unit == "1" else entry.unit)
            parts = tuple(self._parts(route, entry))
            if parts:
                size = SizeExpr(tuple(SizeTerm((part,)) for _, part in parts))
            stated = _as_stated(entry, "size", "unit", "parts", "interleaved")
            place = self.source_map.entry(route)
            yield AxisDecl(name, size, unit, place, stated, parts, entry.interleaved)

    def _size(self, route: Route, text: str | None) -> SizeExpr | None:
        return (
            None if text is None else self.parse(expressions.parse_size, self.excerpt(route, text))
        )

    def _parts(self, route: Route, entry: doc.AxisEntry) -> Iterator[tuple[str, SizeExpr]]:
        """Yield the parts of an axis with their sizes; none where they cannot be read."""
        message = None
        if entry.parts is None and entry.interleaved:
            message, where = "`interleaved` is about `parts`, and there are none", "interleaved"
        elif entry.parts is not None and entry.size is not None:
            message, where = "an axis has a `size` or `parts`, and this has both", "size"
        elif entry.parts is not None and not entry.parts:
            message, where = "`parts` is empty", "parts"
        if message is not None:
            span = self.source_map.value((*route, where)).span
            help = "an axis is as long as its parts: `{parts: {gate: mlp, up: mlp}}`"
            self.fault(message, span, help)
            return
        for part, text in (entry.parts or {}).items():
            inner = (*route, "parts", part)
            size = self._size(inner, text)
            if self.name(inner) and size is not None:
                yield part, size

    def lets(self) -> Iterator[AxisDecl]:
        """Yield the names of `let`, their numbers still as expressions."""
        for name, text in self.document.let.items():
            route: Route = ("let", name)
            if name in NO_LETS:
                message = f"`{name}` is a word of the language where the size of a mesh axis stands"
                self.fault(message, self.key(route).span, f"call it otherwise: `{name}_size`")
            elif self.name(route):
                size = self._size(route, text)
                yield AxisDecl(name, size, None, self.source_map.entry(route), is_let=True)

    def rules(self) -> Iterator[PlacedRule]:
        """Yield one rule for each alternative of each name, in order."""
        for index, entry in enumerate(self.document.rules):
            route: Route = ("rules", index)
            if route in self.faulty:
                continue
            excerpt = self.excerpt((*route, "rule"), entry.rule)
            parsed = self.parse(expressions.parse_axis_rule, excerpt)
            place = self._place(route, entry.at)
            if parsed is None:
                yield from self._unread_rule(excerpt)
                continue
            for name, to in product(parsed.names, parsed.targets):
                fixed = (mesh_axes(to), parsed.priority, excerpt.at(to.start, to.end))
                stated = _as_stated(entry, "rule", "at")
                yield PlacedRule(AxisRule(name.text, *fixed, in_part=to.in_part, **stated), place)

    def _unread_rule(self, excerpt: Excerpt) -> Iterator[PlacedRule]:
        """Yield `none` for the axes of a faulty rule: one fault, and not also axes without rule."""
        left = re.match(_LEFT_SIDE, excerpt.text)
        names = expressions.parse_names(left[1].rstrip("-")) if left else None
        if left is None or not isinstance(names, NamesExpr):
            return
        span = excerpt.at(left.end(1), len(excerpt.text))
        for name in filter(None, names.names):
            yield PlacedRule(AxisRule(name.text, (), span=span, is_read=False))

    def _place(self, route: Route, text: str | None) -> Place | None:
        if text is None:
            return None
        excerpt = self.excerpt((*route, "at"), text)
        parsed = self.parse(expressions.parse_place, excerpt)
        if parsed is None:
            return None
        axis = parsed.axis
        span = excerpt.at(axis.start, axis.end) if axis else excerpt.span
        return Place(parsed.kind, axis.text if axis else None, span)

    def matched(self, section: str) -> Iterator[Any]:
        """Yield the entries of a section of patterns: each with its value, and where it stands."""
        entries = getattr(self.document, section)
        if section == "derive":
            yield from stated_derives(self, entries)
            return
        kind, make = SECTIONS[section].value, getattr(ir, RULES[section][1])
        for key, text in entries.items():
            route: Route = (section, key)
            pattern = self.key_pattern(route)
            stated = text
            if kind:
                parse, held = _HELD[kind]
                parsed = self.parse(parse, self.excerpt(route, text))
                stated = None if parsed is None else held(parsed)
            if pattern is not None and stated is not None:
                yield make(pattern, stated, self.source_map.entry(route))

    def activations(self) -> Iterator[ir.Activation]:
        """Yield the named activations; one whose name means others is a pattern."""
        for name, entry in self.document.activations.items():
            route: Route = ("activations", name)
            if not name.strip():
                self.fault("an activation needs a name", self.key(route).span)
            elif self.has_one(route, entry, "activation", _ANSWER):
                pattern, answer = self.key_pattern(route), self._answer(route, entry)
                place, is_read = self._code_place(route, entry)
                if pattern is None or answer is None or not is_read:
                    continue
                named = {"logical_axes": (None,) * len(answer.get("partition", ())), **answer}
                literal = glob_literal(name) if pattern.dialect == "glob" else None
                known = {"name": name, "pattern": pattern} if literal is None else {"name": literal}
                yield ir.Activation(**known, span=self.source_map.entry(route), at=place, **named)

    def _code_place(
        self, route: Route, entry: doc.ActivationEntry
    ) -> tuple[CodePlace | None, bool]:
        """Return where in code an activation is constrained, and whether it can be read."""
        if entry.at is None:
            return None, True
        excerpt = self.excerpt((*route, "at"), entry.at)
        place = self.parse(parse_code_place, excerpt)
        if place is None or not place.scope:
            return place, place is not None
        at = excerpt.text.index(place.pattern)
        stated = excerpt.part(at, at + len(place.pattern))
        is_read = self.pattern(stated, is_regex=place.is_regex) is not None
        return place, is_read

    def _answer(
        self, route: Route, entry: doc.ActivationEntry | doc.OverrideEntry
    ) -> dict[str, Any] | None:
        """Return what an entry says of its arrays: names or a partition with its sums; memory."""
        known = _as_stated(entry, "path", "match", "optional", "axes", "spec", "at")
        if entry.axes is not None:
            names = self.parse(expressions.parse_names, self.excerpt((*route, "axes"), entry.axes))
            return None if names is None else {"logical_axes": axes_of(names), **known}
        stated = self.excerpt((*route, "spec"), entry.spec or "")
        found = self.parse(expressions.parse_partition, stated)
        if found is None:
            return None
        sums = ir.Sums(*(tuple(axis.text for axis in axes) for axes in found.sums))
        return {"partition": tuple(map(mesh_axes, found.dims)), "sums": sums, **known}

    def overrides(self) -> Iterator[Override]:
        """Yield the overrides that say one pattern and one answer."""
        stated = self.document.overrides
        for route, entry in self.entries("overrides", "override", stated, PATTERN, _ANSWER):
            pattern, answer = self.entry_pattern(route, entry), self._answer(route, entry)
            place = route if entry.axes is not None else (*route, "spec")
            span = self.source_map.value(place).span
            if pattern is not None and answer is not None:
                yield Override(pattern, span=span, **answer)

    def lint_levels(self) -> Iterator[codes.LintLevel]:
        """Yield the severities that the document sets, for findings that exist."""
        if not self.document.lints:
            return
        for name, level in self.document.lints.items():
            span = self.source_map.key(("lints", name)).span
            if not known(name):
                near = None if name.startswith("SHD") else did_you_mean(name, _names(codes.ALL))
                if known(name.upper()):
                    near = f"did you mean `{name.upper()}`?"
                help = near or "`shardspec explain --list` shows them all"
                fix = respelt([span], name, _names(codes.ALL))
                message = f"no finding is called `{name}`"
                self.report(point(codes.UNKNOWN_LINT, message, span, help=help, fix=fix))
            elif level != "error" and (fault := fault_found(name, span)):
                self.report(fault)
            else:
                yield codes.LintLevel(name, WORDS[level], span)

    def arrays(self) -> Iterator[ArrayDecl]:
        """Yield the inline arrays, not yet expanded: their sizes need every layer's axes."""
        for section in ("arrays", "caches"):
            for path, text in getattr(self.document, section).items():
                route: Route = (section, path)
                stated = self.excerpt(route, text)
                parsed = self.parse(expressions.parse_array_type, stated)
                if parsed is not None:
                    yield ArrayDecl(self.key(route), stated, parsed, section == "caches")


def _as_stated(entry: BaseModel, *read: str) -> dict[str, Any]:
    """Return the fields of an entry that a spec has as they stand; others are read on their own."""
    fields = type(entry).model_fields
    return {key: getattr(entry, key) for key in fields if key not in read}


def _policy(walk: Walk) -> tuple[tuple[str, Any], ...]:
    """Return the fields of `policy:` that the document sets, sizes in bytes."""
    policy = walk.document.policy
    stated = {key: getattr(policy, key) for key in policy.model_fields_set}
    text = stated.pop("whole_below", None)
    if text is not None:
        excerpt = walk.excerpt(("policy", "whole_below"), text)
        stated["whole_below"] = walk.parse(expressions.parse_bytes, excerpt)
        stated["whole_below_span"] = walk.source_map.entry(("policy", "whole_below"))
    return tuple(stated.items())


def _step(walk: Walk, entry: doc.StepEntry | None) -> tuple[tuple[str, Any], ...]:
    if entry is None:
        return ()
    return stated_step(walk, entry)


def _state(walk: Walk, entry: doc.StateEntry | None) -> tuple[tuple[str, Any], ...]:
    """Return the fields of `state:` that the document sets, and where it sets them."""
    _report_empty(walk, "state", entry)
    fields = entry.model_fields_set if entry is not None else ()
    stated = {key: getattr(entry, key) for key in fields if getattr(entry, key) is not None}
    if entry is None or not stated:
        return ()
    if entry.over is not None:
        excerpt = walk.excerpt(("state", "over"), entry.over)
        axes = walk.parse(expressions.parse_mesh_axes, excerpt)
        stated["over"] = tuple(axis.text for axis in axes.mesh_axes) if axes else ()
        stated["over_span"] = excerpt.span
    if "dtype" in stated:
        stated["dtype"] = walk.dtype(("state", "dtype"), entry.dtype) or "f32"
    stated["span"] = walk.source_map.entry(("state",))
    return tuple(stated.items())


def _coverage(walk: Walk, entry: doc.CoverageEntry | None) -> ir.CoverageGate | None:
    """Return how much `coverage:` lets every device hold whole."""
    text = None if entry is None else entry.max_replicated_bytes
    if text is None:
        _report_empty(walk, "coverage", entry)
        return None
    excerpt = walk.excerpt(("coverage", "max_replicated_bytes"), text)
    bound = walk.parse(expressions.parse_bound, excerpt)
    return bound and ir.CoverageGate(bound.max_share, bound.max_bytes, excerpt.span)


def _replicate(walk: Walk, entries: Sequence[doc.ReplicateEntry]) -> Iterator[ir.Replicate]:
    """Yield the arrays that `replicate:` gives a reason for."""
    for route, entry in walk.entries("replicate", "entry of `replicate`", entries, PATTERN):
        if not entry.because.strip():
            span = walk.source_map.value((*route, "because")).span
            tiny = quote.either("`because: tiny`", '`because "tiny"`')
            help = f"say why these arrays are replicated on every device: {tiny}"
            walk.fault("`because` says nothing", span, help)
        pattern = walk.entry_pattern(route, entry)
        if pattern is not None:
            stated = _as_stated(entry, "path", "match", "optional")
            yield ir.Replicate(pattern, span=walk.source_map.value(route).span, **stated)


def _report_empty(walk: Walk, section: str, entry: object) -> None:
    """Report a section that is there and holds nothing at all."""
    if entry is None and section in walk.document.model_fields_set:
        span = walk.source_map.key((section,)).span
        form = {"state": ("optimizer", "zero1"), "coverage": ("max_replicated_bytes", "2%")}
        help = f"as in {quote.setting(section, form[section])}; or remove it"
        walk.fault(f"`{section}` is empty", span, help)


def _names(found: Iterable[Code]) -> set[str]:
    return {name for code in found for name in (code.id, code.name)}


def stated_derives(walk: Walk, entries: Mapping[str, str]) -> Iterator[ir.DeriveRule]:
    """Yield the entries of `derive:`, by pattern; report those that cannot be read."""
    for key, text in entries.items():
        route: Route = ("derive", key)
        if marks_of(key).is_regex:
            message = "a regex does not say what the path of the parent is"
            help = "write a glob, as in `**/lora_a`: its wildcards stand in `from`, too"
            walk.fault(message, walk.key(route).span, help, codes.BAD_PATTERN)
            continue
        pattern, stated = walk.key_pattern(route), walk.excerpt(route, text)
        parsed = walk.parse(expressions.parse_derived, stated)
        if pattern is None or parsed is None:
            continue
        named, span = parsed.parent, stated.span
        fault: object = None if named is None else template_of(pattern.text, named.text)
        if named is not None and isinstance(fault, SyntaxFault):
            span = stated.at(named.start, named.end)
        elif parsed.factors is not None:
            fault = _unmatched(pattern, parsed.factors)
        if isinstance(fault, SyntaxFault):
            walk.fault(fault.message, span, fault.help, codes.BAD_PATTERN)
            continue
        fixed = (parsed.dims, walk.source_map.entry(route), parsed.own, parsed.factors)
        yield ir.DeriveRule(pattern, "" if named is None else named.text, *fixed)


def _unmatched(pattern: ir.Pattern, factors: ir.Factors) -> SyntaxFault | None:
    """Return why the pattern does not tell the sides of a product apart."""
    texts = (factors.left.text, factors.right.text)
    if braces_of(pattern.text, texts) is not None:
        return None
    braces = f"{{{','.join(sorted(texts))}}}"
    message = f"the pattern `{pattern}` has no braces `{braces}` that tell the sides apart"
    return SyntaxFault(message, 0, 0, f"write one for both: `**/lora_{braces}`")


# `targets:` and the mesh of the only one -> declarations, whose meshes are solved later.
#
# A size is read here, and what it comes to once every layer has had its say: `meshes`.


#: Beyond any machine there is; a placement is worked out device by device.
_MOST_DEVICES = 1 << 18


def stated_targets(walk: Walk) -> Iterator[TargetDecl]:
    """Yield the targets; top-level `mesh` is one called `default`, and then the only one."""
    document = walk.document
    entries = {name: (("targets", name), entry) for name, entry in document.targets.items()}
    if document.mesh is not None and not entries:
        yield from _counted(walk, "default", (), document)
    elif document.mesh is None and "mesh" in document.model_fields_set:
        place = walk.source_map.key(("mesh",)).span
        walk.fault("`mesh` is empty", place, "as in `mesh: {data: 8}`")
    elif document.mesh is None:
        for key in ("hardware", "devices"):
            if getattr(document, key) is not None:
                own = f"that of one of the targets is `targets.NAME.{key}`"
                help = f"add `mesh: {{data: rest}}`; {own}"
                span = walk.source_map.key((key,)).span
                walk.fault(f"`{key}` stands without a `mesh`", span, help)
    for name, (route, entry) in entries.items():
        yield from _counted(walk, name, route, entry)
    if document.mesh is not None and entries:
        walk.report(_mesh_beside(walk, entries))
        yield _target(walk, "default", (), document)._replace(is_sound=False)


def _mesh_beside(walk: Walk, targets: Iterable[str]) -> Diagnostic:
    """Return the fault of a mesh without a name beside targets with names."""
    span = walk.source_map.key(("mesh",)).span
    message = f"a `mesh` without a name stands beside {listed(targets)}"
    help = "give it a name, as in `target laptop { data = 8 }`, or remove it"
    labels = [Label(span, "which of them would count?")]
    if not is_dsl(span.source):
        message = f"`mesh` is for a spec with one machine, and `targets` has {listed(targets)}"
        form = "`laptop: {mesh: {data: 8}}`"
        help = f"move it under `targets` with a name, as in {form}, or remove it"
        labels.append(Label(walk.source_map.key(("targets",)).span, "", primary=False))
    return Diagnostic(codes.WRONG_TYPE, message, tuple(labels), help=help)


def _counted(
    walk: Walk, name: str, route: Route, entry: TargetEntry | Document
) -> Iterator[TargetDecl]:
    """Yield a target; `pod[1]`, `pod[2]`, ... where it stands for several counts of slices."""
    target, hardware = _target(walk, name, route, entry), entry.hardware
    excerpt = walk.excerpt((*route, "hardware"), hardware or "")
    expr = expressions.parse_hardware(excerpt.text) if hardware else None
    machine = target.mesh.hardware
    if isinstance(expr, syntax.HardwareExpr) and expr.by:
        target = target._replace(by=excerpt.part(expr.by.start, expr.by.end))
    if machine is None or not isinstance(expr, syntax.HardwareExpr) or not expr.counts:
        yield target
        return
    for count in expr.counts:
        own = f"{name}[{count}]"
        stated = target.mesh._replace(target=own, hardware=replace(machine, slice_count=count))
        yield target._replace(name=own, mesh=stated)


def _target(walk: Walk, name: str, route: Route, entry: TargetEntry | Document) -> TargetDecl:
    """Return a target, its mesh not solved yet, and report what cannot be read."""
    hardware, sizes = entry.hardware, entry.mesh or {}
    inner: Route = (*route, "mesh")
    routes = [(*inner, axis) for axis in sizes if walk.name((*inner, axis))]
    is_faulty = any((*inner, axis) in walk.faulty for axis in sizes)
    faults: list[Diagnostic] = []
    machine = None
    if hardware is not None:
        machine = _hardware(walk.excerpt((*route, "hardware"), hardware))
    faults += [machine] if isinstance(machine, Diagnostic) else []
    axes: dict[str, StatedAxis] = {}
    sizes_of = {}
    wholes = []
    for each in routes:
        text = walk.excerpt(each, sizes[str(each[-1])])
        size = expressions.parse_mesh_size(text.text)
        if isinstance(size, syntax.SyntaxFault):
            faults += [] if is_faulty else [size.diagnostic(text)]
            size = syntax.MeshSize("integer", 1)
        key = walk.key(each).text
        parts = tuple((part.text, part_size) for part, part_size in size.parts)
        wholes += [(key, tuple(part for part, _ in parts))] if parts else []
        for axis, part in parts or ((key, size),):
            twice = axis in axes or (bool(parts) and axis in sizes)
            faults += [_taken(axis, text)] if twice else []
            axes[axis] = _stated_axis(axis, part, text)
            sizes_of[axis] = (part, text)
    devices = _devices(walk, (*route, "devices"), entry, faults)
    is_read = not faults and not is_faulty
    place = walk.source_map.key(inner).span
    known = machine if isinstance(machine, Hardware) else None
    stated = StatedMesh(name, tuple(axes.values()), known, place, is_read, devices)
    walk.diagnostics += [replace(fault, target=name) for fault in faults]
    span = walk.source_map.key(route or ("mesh",)).span
    own = _as_stated(entry, "hardware", "mesh", "devices") if route else {}
    return TargetDecl(name, stated, sizes_of, tuple(wholes), span, own)


def _devices(
    walk: Walk, route: Route, entry: TargetEntry | Document, faults: list[Diagnostic]
) -> tuple[tuple[DeviceRun, ...], Span] | None:
    """Return the devices that a target lists, each with its place."""
    text = entry.devices
    if text is None:
        if "devices" in entry.model_fields_set:
            span, help = walk.source_map.key(route).span, "as in `devices: 0 1 3 2`"
            faults.append(point(codes.WRONG_TYPE, "`devices` is empty", span, help=help))
        return None
    from shardspec.topology.by_hand import DeviceRun

    excerpt = walk.excerpt(route, text)
    runs = expressions.parse_devices(text)
    if isinstance(runs, syntax.SyntaxFault):
        faults.append(runs.diagnostic(excerpt))
        return None
    items = [walk.source_map.value((*route, index)) for index in range(len(runs))]
    is_list = (*route, 0) in walk.source_map.values
    return tuple(
        DeviceRun(run.first, run.last, item.span if is_list else excerpt.at(run.start, run.end))
        for run, item in zip(runs, items, strict=True)
    ), excerpt.span


def _hardware(excerpt: Excerpt) -> Hardware | Diagnostic:
    parsed = expressions.parse_hardware(excerpt.text)
    if isinstance(parsed, syntax.SyntaxFault):
        return machine_fault(parsed, excerpt.text).diagnostic(excerpt)
    if parsed.counts and (parsed.counts[0] < 1 or len(parsed.counts) > syntax.MOST_COUNTS):
        many = f"more than {syntax.MOST_COUNTS} counts of slices"
        none = "a number of slices is 1 or more, and a range goes up"
        message = none if parsed.counts[0] < 1 else many
        help = f"as in `{{1..8}} * tpu v5e 16x16`; a target stands for {syntax.MOST_COUNTS} at most"
        return point(codes.UNKNOWN_HARDWARE, message, excerpt.span, help=help)
    found = find_hardware(parsed, excerpt)
    if isinstance(found, Hardware) and found.device_count > _MOST_DEVICES:
        message = f"`{excerpt.text}` is {found.device_count:,} devices"
        help = f"no machine has more than {_MOST_DEVICES:,}"
        return point(codes.UNKNOWN_HARDWARE, message, excerpt.span, help=help)
    return found


def _taken(axis: str, text: Excerpt) -> Diagnostic:
    """Return the finding for a part of a mesh axis that has the name of another one."""
    message = f"the mesh has two axes called `{axis}`"
    return point(codes.DUPLICATE_KEY, message, text.span, help="give the part a name of its own")


def _stated_axis(name: str, size: syntax.MeshSize, text: Excerpt) -> StatedAxis:
    ways = {"rest": 1, "submesh": math.prod(size.tile), "over": 1}
    axis = ir.MeshAxis(
        name,
        max(1, ways.get(size.kind, size.count)),
        size.network,
        submesh=size.tile if size.kind == "submesh" else None,
        auto=size.kind == "auto",
        axis_type=size.axis_type,
        over=tuple(syntax.stretch(each.text) for each in size.over),
        span=text.span,
    )
    places = tuple(text.at(each.start, each.end) for each in size.over)
    return StatedAxis(axis, text.text, size.kind == "rest", places)


# Places in code, as `at:` of an activation states them: `model.py:Block.__call__ argument x`.
#
# First the place: the end of a file's path and of a function's qualified name, or a pattern of
# named scopes. Behind it may stand which of its values is meant.


_VALUE = re.compile(
    r"\s(?:(?P<result>result)(?:\[(?P<index>\d{1,4})\])?|argument\s+(?P<name>\w{1,200})"
    r"|line\s+(?P<line>\d{1,7}))\Z"
)
_FUNCTION = re.compile(r"(?P<file>[^\s:*?\[\]{}]+\.py)(?::(?P<function>[\w.<>]+))?\Z")
_FORMS = "`model.py:Block.__call__`, or a named scope such as `**/mlp`"
_LONGEST = 1000


def parse_code_place(text: str) -> CodePlace | SyntaxFault:
    """Return the place that a text states.

    >>> parse_code_place("model.py:Block.__call__ result[1]").index
    1
    >>> parse_code_place("**/mlp line 23").scope
    '**/mlp'
    """
    stated = text.strip()
    if len(stated) > _LONGEST:
        return SyntaxFault(f"a place of more than {_LONGEST:,} characters", 0, len(text))
    found = _VALUE.search(stated)
    where = stated[: found.start()].rstrip() if found else stated
    if not where:
        return SyntaxFault("expected a place in code", 0, len(text), f"write {_FORMS}")
    value = _value_of(found)
    function = _FUNCTION.match(where)
    if function is not None:
        if function["function"] is None and value.get("value") != "line":
            help = f"name a function, `{where}:Block.__call__`, or a line, `{where} line 23`"
            return SyntaxFault("a file alone is no place of a value", 0, len(where), help)
        return CodePlace(stated, "", function["file"], function["function"] or "", **value)
    if not where.startswith(REGEX) and re.search(r"\s", where):
        help = f"write {_FORMS}, and behind it `result`, `result[1]`, `argument x` or `line 23`"
        return SyntaxFault(f"`{stated}` is no place in code", 0, len(text), help)
    return CodePlace(stated, where, **value)


def _value_of(found: re.Match[str] | None) -> dict[str, Any]:
    """Return which value is meant; the result, if nothing is said."""
    if found is None or found["result"]:
        index = found["index"] if found else None
        return {} if index is None else {"index": int(index)}
    if found["name"]:
        return {"value": "argument", "name": found["name"]}
    return {"value": "line", "line": int(found["line"])}


#: Lines of one program: as many as a person reads.
_MOST_LINES = 1_000


def stated_step(walk: Walk, entry: StepEntry) -> tuple[tuple[str, Any], ...]:
    """Return the fields of `step:` that a document sets, and where."""
    stated: dict[str, Any] = {key: getattr(entry, key) for key in entry.model_fields_set}
    stated.pop("extends", None)
    parsers = (
        ("tokens", step_lines.parse_count),
        ("experts", step_lines.parse_experts),
        ("pipeline", step_lines.parse_schedule),
    )
    for key, parse in parsers:
        text = stated.get(key)
        stated[key] = text and walk.parse(parse, walk.excerpt(("step", key), text))
    stated["dtype"] = entry.dtype and walk.dtype(("step", "dtype"), entry.dtype)
    if entry.remat is not None:
        stated["remat"] = tuple(entry.remat) or ("none",)
    if entry.program is not None:
        stated["program"] = tuple(_lines(walk, entry.program))
    stated = {key: value for key, value in stated.items() if value is not None}
    if stated or entry.extends is not None:
        stated["span"] = walk.source_map.key(("step",)).span
    return tuple(stated.items())


def _lines(walk: Walk, program: list[str]) -> Iterator[Line]:
    if len(program) > _MOST_LINES:
        message = f"a program of {len(program):,} lines"
        help = f"{_MOST_LINES:,} are the most: a pattern runs once for each array that it matches"
        span = walk.source_map.key(("step", "program")).span
        walk.fault(message, span, help)
    for index, text in enumerate(program[:_MOST_LINES]):
        excerpt = walk.excerpt(("step", "program", index), text)
        line = walk.parse(step_lines.parse_step_line, excerpt)
        if line is None:
            continue
        operands = tuple(_term(walk, each, excerpt) for each in line.operands)
        results = tuple(_term(walk, each, excerpt) for each in line.results)
        per = None if line.per is None else _term(walk, line.per, excerpt)
        flops = () if line.flops is None else _products(line.flops)
        call: Any = line.call
        if None not in (*operands, *results) and (per is not None or line.per is None):
            known = tuple(filter(None, operands)), tuple(filter(None, results))
            yield Line(call, *known, flops, line.times, per, excerpt.span)


def _products(size: SizeExpr) -> tuple[Product, ...]:
    return tuple(Product(tuple(map(_factor, term.factors)), term.sign) for term in size.terms)


def _factor(factor: int | Name | SizeExpr) -> int | str | tuple[Product, ...]:
    if isinstance(factor, SizeExpr):
        return _products(factor)
    return factor.text if isinstance(factor, Name) else factor


def _term(walk: Walk, term: step_lines.LineTerm, excerpt: Excerpt) -> Term | None:
    """Return a term, once it is known that its pattern compiles."""
    span = excerpt.at(term.start, term.end)
    if term.kind != "value":
        is_quoted = span.text[:1] in ('"', "r") and span.text[-1:] == '"'
        inner = Excerpt(term.text, span) if is_quoted else excerpt.part(term.start, term.end)
        if walk.pattern(inner, is_regex=term.kind == "regex") is None:
            return None
    dims = None
    if term.dims is not None:
        dims = tuple(_dim(dim, excerpt) for dim in term.dims)
    kind: Literal["value", "glob", "regex"] = term.kind
    return Term(term.text, kind, dims, span)


def _dim(dim: step_lines.LineDim, excerpt: Excerpt) -> TermDim:
    first, last = dim.name or dim.alias, dim.alias or dim.name
    span = None if first is None or last is None else excerpt.at(first.start, last.end)
    name = dim.name.text if dim.name is not None else None
    return TermDim(name, dim.alias.text if dim.alias else None, dim.size, span)

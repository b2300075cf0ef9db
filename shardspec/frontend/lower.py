"""Document -> Layer: expressions parsed, every node with the span it came from.

Faulty expressions are reported and left out; the rest goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from shardspec.diagnostics import Code, Diagnostic, Excerpt, Label, Severity
from shardspec.diagnostics.codes import UNKNOWN_LINT, WRONG_TYPE
from shardspec.diagnostics.diagnostic import point
from shardspec.diagnostics.suggest import did_you_mean, listed
from shardspec.frontend.grammar import expressions
from shardspec.frontend.grammar.syntax import AxisTarget, NamesExpr
from shardspec.frontend.layer import ArrayDecl, AxisDecl, Layer, Place, PlacedRule
from shardspec.frontend.lower_targets import TargetDecl, lower_target
from shardspec.frontend.lowering import PATTERN, Choice, Lowering
from shardspec.frontend.reading import Route, SourceMap
from shardspec.frontend.spelling import is_dsl
from shardspec.ir.param import LogicalAxes
from shardspec.ir.spec import (
    Activation,
    AxisRule,
    LintLevel,
    Override,
    PathRule,
    Pattern,
    ScanRule,
    Target,
)

if TYPE_CHECKING:
    from shardspec.frontend.document import Document, OverrideEntry

_ANSWER = Choice(
    "answer", "axes", "spec", "names (`embed mlp`), or the partition itself (`(none, model)`)"
)

#: The axes of a rule that goes wrong further on.
_LEFT_SIDE = r"\s*([\w.-]+?(?:\s*,\s*[\w.-]+?)*)\s*(?:-*>|=|:|→|\s|$)"

_LEVELS = {"allow": Severity.ALLOW, "warn": Severity.WARNING, "error": Severity.ERROR}


def lower(document: Document, source_map: SourceMap) -> tuple[Layer, tuple[Diagnostic, ...]]:
    """Return what `document` says, without what cannot be read, and why that is."""
    lowering = _Lowering(document, source_map)
    layer = Layer(
        source=source_map.source,
        doc=document.doc,
        axes=tuple(lowering.axes()),
        rules=tuple(lowering.rules()),
        drops=tuple(lowering.excerpt(("drop", i), name) for i, name in enumerate(document.drop)),
        targets=tuple(lowering.targets()),
        path_rules=tuple(lowering.path_rules()),
        overrides=tuple(lowering.overrides()),
        scans=tuple(lowering.scans()),
        activations=tuple(lowering.activations()),
        policy=tuple((k, getattr(document.policy, k)) for k in document.policy.model_fields_set),
        lint_levels=tuple(lowering.lint_levels()),
        arrays=tuple(lowering.arrays()),
    )
    if document.model_fields_set & {"state", "coverage", "replicate"}:
        from shardspec.frontend.lower_state import with_state

        layer = with_state(layer, lowering)
    return layer, tuple(lowering.diagnostics)


class _Lowering(Lowering):
    """The walk, section by section."""

    def name(self, route: Route) -> bool:
        """Say whether the key at `route` is a name that expressions can use; report if not."""
        key = self.key(route)
        parsed = expressions.parse_names(key.text)
        if isinstance(parsed, NamesExpr) and len(parsed.names) == 1 and parsed.names[0] is not None:
            return True
        self.report(
            point(
                WRONG_TYPE,
                f"`{key.text}` is no name for an axis",
                key.span,
                help="names are letters, digits and `_`, with `-` and `.` inside; `none` is taken",
            )
        )
        return False

    def axes(self) -> Iterator[AxisDecl]:
        """Yield the axes, sizes still as expressions."""
        for name, entry in self.document.axes.items():
            route: Route = ("axes", name)
            if not self.name(route):
                continue
            size = None
            if entry.size is not None:
                inner = (*route, "size")
                exact = inner if inner in self.source_map.values else route
                size = self.parse(expressions.parse_size, self.excerpt(exact, entry.size))
            span = self.source_map.entry(route)
            yield AxisDecl(name, size, entry.unit, entry.doc, span, entry.min_shard)

    def rules(self) -> Iterator[PlacedRule]:
        """Yield one rule for each alternative of each name, in order."""
        for index, entry in enumerate(self.document.rules):
            route: Route = ("rules", index)
            inner = (*route, "rule")
            exact = inner if inner in self.source_map.values else route
            if self.is_reported(exact, entry.rule):
                continue
            excerpt = self.excerpt(exact, entry.rule)
            parsed = self.parse(expressions.parse_axis_rule, excerpt)
            place = self._place(route, entry.at)
            if parsed is None:
                yield from self._unread_rule(excerpt)
                continue
            for name in parsed.names:
                for target in parsed.targets:
                    span = excerpt.at(target.start, target.end)
                    rule = AxisRule(name.text, _mesh_axes(target), parsed.priority, span)
                    yield PlacedRule(rule, place)

    def _unread_rule(self, excerpt: Excerpt) -> Iterator[PlacedRule]:
        """Yield `none` for the axes of a faulty rule: one fault, and not also axes without rule."""
        left = re.match(_LEFT_SIDE, excerpt.text)
        names = expressions.parse_names(left[1]) if left else None
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

    def targets(self) -> Iterator[Target]:
        """Yield the targets; top-level `mesh` is one called `default`, and then the only one."""
        entries = {
            name: (("targets", name), entry) for name, entry in self.document.targets.items()
        }
        if self.document.mesh is not None and not entries:
            yield from self._target("default", (), self.document.hardware, self.document.mesh)
        elif self.document.mesh is None and "mesh" in self.document.model_fields_set:
            span = self.source_map.key(("mesh",)).span
            self.report(point(WRONG_TYPE, "`mesh` is empty", span, help="as in `mesh: {data: 8}`"))
        elif self.document.mesh is None and self.document.hardware is not None:
            span = self.source_map.key(("hardware",)).span
            help = "add `mesh: {data: rest}`; that of one of the targets is `targets.NAME.hardware`"
            message = "`hardware` stands without a `mesh`"
            self.report(point(WRONG_TYPE, message, span, help=help))
        for name, (route, entry) in entries.items():
            yield from self._target(name, route, entry.hardware, entry.mesh)
        if self.document.mesh is not None and entries:
            self.report(self._mesh_beside(entries))
            known = self._target("default", (), self.document.hardware, self.document.mesh)
            yield from (replace(target, is_sound=False) for target in known)

    def _mesh_beside(self, targets: Iterable[str]) -> Diagnostic:
        """Return the fault of a mesh without a name beside targets with names."""
        span = self.source_map.key(("mesh",)).span
        if is_dsl(span.source):
            message = f"a `mesh` without a name stands beside {listed(targets)}"
            help = "give it a name, as in `target laptop { data = 8 }`, or take it out"
        else:
            message = f"`mesh` is for a spec with one machine, and `targets` has {listed(targets)}"
            help = (
                "move it under `targets` with a name, as in `laptop: {mesh: {data: 8}}`, or take it"
                " out"
            )
        labels = [Label(span, "which of them would count?")]
        if not is_dsl(span.source):
            labels.append(Label(self.source_map.key(("targets",)).span, "", primary=False))
        return Diagnostic(WRONG_TYPE, message, tuple(labels), help=help)

    def _target(
        self, name: str, route: Route, hardware: str | None, mesh: dict[str, str]
    ) -> Iterator[Target]:
        sizes = tuple(
            (self.key((*route, "mesh", axis)), self.excerpt((*route, "mesh", axis), size))
            for axis, size in mesh.items()
            if self.name((*route, "mesh", axis))
        )
        reported = any(self.is_reported((*route, "mesh", axis), mesh[axis]) for axis in mesh)
        machine = None if hardware is None else self.excerpt((*route, "hardware"), hardware)
        span = self.source_map.key(route or ("mesh",)).span
        declared = TargetDecl(
            name, machine, sizes, self.source_map.key((*route, "mesh")).span, span, reported
        )
        target, diagnostics = lower_target(declared)
        self.diagnostics += [replace(fault, target=name) for fault in diagnostics]
        yield target

    def path_rules(self) -> Iterator[PathRule]:
        """Yield the entries of `params:`."""
        for key, names in self.document.params.items():
            route: Route = ("params", key)
            pattern = self._key_pattern(route)
            axes = self._axes(self.excerpt(route, names))
            if pattern is not None and axes is not None:
                yield PathRule(pattern, axes, self.source_map.entry(route))

    def scans(self) -> Iterator[ScanRule]:
        """Yield the entries of `scan:`."""
        for key, text in self.document.scan.items():
            route: Route = ("scan", key)
            pattern = self._key_pattern(route)
            parsed = self.parse(expressions.parse_scan, self.excerpt(route, text))
            if pattern is not None and parsed is not None:
                axes = tuple((name.text, position) for name, position in parsed.axes)
                yield ScanRule(pattern, axes, self.source_map.entry(route))

    def activations(self) -> Iterator[Activation]:
        """Yield the named activations."""
        for name, text in self.document.activations.items():
            route: Route = ("activations", name)
            if not name.strip():
                message = "an activation needs a name"
                self.report(point(WRONG_TYPE, message, self.key(route).span))
                continue
            axes = self._axes(self.excerpt(route, text))
            if axes is not None:
                yield Activation(name, axes, self.source_map.entry(route))

    def overrides(self) -> Iterator[Override]:
        """Yield the overrides that say one pattern and one answer."""
        for index, entry in enumerate(self.document.overrides):
            route: Route = ("overrides", index)
            if self.is_reported((*route, "path"), entry.path):
                continue
            fault = self._override_fault(route, entry)
            if fault is not None:
                self.report(fault)
                continue
            override = self._override(route, entry)
            if override is not None:
                yield override

    def _override_fault(self, route: Route, entry: OverrideEntry) -> Diagnostic | None:
        """Return what is wrong where an entry lacks pattern or answer, or has two of them."""
        return self.choice_fault(route, entry, "override", PATTERN) or self.choice_fault(
            route, entry, "override", _ANSWER
        )

    def _override(self, route: Route, entry: OverrideEntry) -> Override | None:
        pattern = self.entry_pattern(route, entry)
        span = self.source_map.value(route).span
        if entry.axes is not None:
            axes = self._axes(self.excerpt((*route, "axes"), entry.axes))
            if pattern is None or axes is None:
                return None
            return Override(pattern, logical_axes=axes, because=entry.because, span=span)
        stated = self.excerpt((*route, "spec"), entry.spec or "")
        parsed = self.parse(expressions.parse_partition, stated)
        if pattern is None or parsed is None:
            return None
        partition = tuple(_mesh_axes(dim) for dim in parsed.dims)
        return Override(pattern, partition=partition, because=entry.because, span=stated.span)

    def lint_levels(self) -> Iterator[LintLevel]:
        """Yield the severities that the document sets, for findings that exist."""
        if not self.document.lints:
            return
        from shardspec.diagnostics.codes import ALL
        from shardspec.diagnostics.levels import known
        from shardspec.diagnostics.respell import respelt

        for name, level in self.document.lints.items():
            span = self.source_map.key(("lints", name)).span
            if not known(name):
                near = None if name.startswith("SHD") else did_you_mean(name, _names(ALL))
                if known(name.upper()):
                    near = f"did you mean `{name.upper()}`?"
                help = near or "`shardspec explain --list` shows them all"
                fix = respelt([span], name, _names(ALL))
                message = f"no finding is called `{name}`"
                self.report(point(UNKNOWN_LINT, message, span, help=help, fix=fix))
            else:
                yield LintLevel(name, _LEVELS[level], span)

    def arrays(self) -> Iterator[ArrayDecl]:
        """Yield the inline arrays, not yet expanded: their sizes need every layer's axes."""
        for path, text in self.document.arrays.items():
            route: Route = ("arrays", path)
            yield ArrayDecl(self.key(route), self.excerpt(route, text))

    def _axes(self, excerpt: Excerpt) -> LogicalAxes | None:
        parsed = self.parse(expressions.parse_names, excerpt)
        if parsed is None:
            return None
        return tuple(name.text if name else None for name in parsed.names)

    def _key_pattern(self, route: Route) -> Pattern | None:
        key = self.key(route)
        if key.text.startswith("re:"):
            return self.pattern(key.part(3, len(key.text)), is_regex=True)
        return self.pattern(key, is_regex=False)


def _names(codes: Iterable[Code]) -> set[str]:
    return {name for code in codes for name in (code.id, code.name)}


def _mesh_axes(target: AxisTarget) -> tuple[str, ...]:
    return tuple(axis.text for axis in target.mesh_axes)

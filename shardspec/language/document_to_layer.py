"""Document -> Layer: expressions parsed, every node with the span it came from.

Faulty expressions are reported and left out; the rest goes on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from shardspec.diagnostics import (
    Code,
    Diagnostic,
    Edit,
    Excerpt,
    Fix,
    Label,
    Span,
    codes,
    point,
    quote,
)
from shardspec.diagnostics.budget import spend
from shardspec.diagnostics.words import did_you_mean
from shardspec.ir import spec as ir
from shardspec.ir.spec import AxisRule, Override, PathRule, Pattern, ScanRule
from shardspec.language.derive_section import stated_derives
from shardspec.language.grammar import expressions
from shardspec.language.grammar.bounds import parse_bound, parse_bytes
from shardspec.language.grammar.refusals import NO_LETS
from shardspec.language.grammar.syntax import AxisTarget, NamesExpr, SizeExpr, SizeTerm, SyntaxFault
from shardspec.language.layer import ArrayDecl, AxisDecl, Layer, Place, PlacedRule
from shardspec.language.reading import Route, SourceMap, is_dsl, marks_of
from shardspec.language.target_section import stated_targets
from shardspec.language.validate import Validated

if TYPE_CHECKING:
    from shardspec.language.document import (
        ActivationEntry,
        AxisEntry,
        CoverageEntry,
        OverrideEntry,
        ReplicateEntry,
        StateEntry,
        StepEntry,
    )

T = TypeVar("T")
Entry = TypeVar("Entry", bound="OverrideEntry | ReplicateEntry")
#: The mesh axes of each dimension.
Dims = tuple[tuple[str, ...], ...]
Chosen: TypeAlias = "OverrideEntry | ReplicateEntry | ActivationEntry"


_NAME = re.compile(r"[\w.-]+")
#: What a comma tore off the axes of an unquoted `embed, mlp -> none`, to the end of the rule.
_REST_OF_AXES = re.compile(r"(?:[ \t]*,[ \t]*[\w.-]+)+[ \t]*->[ \t]*[\w.-]+")


class Choice(NamedTuple):
    """Two fields of which an entry has one.

    Attributes:
      what: what either of them states.
      forms: what stands in them.
    """

    what: str
    first: str
    second: str
    forms: str


PATTERN = Choice("pattern", "path", "match", "a glob, or a regex, over whole paths")

_ANSWER = Choice(
    "answer", "axes", "spec", "names (`embed mlp`), or the partition itself (`(none, model)`)"
)

#: The axes of a rule that goes wrong further on.
_AXES = r"(?:[\w.]|-(?!>))++"
_LEFT_SIDE = rf"\s*+({_AXES}(?:\s*+,\s*+{_AXES})*+)(?:\s|-*+>|=|:|→|$)"


#: Sections that a walk over a document yields the entries of, in the order that faults come in.
_WALKED = (
    *("lets", "axes", "rules", "path_rules", "overrides", "scans", "activations"),
    *("lint_levels", "arrays"),
)


def layer_of(valid: Validated, source_map: SourceMap) -> tuple[Layer, tuple[Diagnostic, ...]]:
    """Return what a document says, without what cannot be read, and why that is."""
    document = valid.document
    walk = _Walk(valid, source_map)
    layer = Layer(
        source=source_map.source,
        doc=document.doc,
        **{name: tuple(getattr(walk, name)()) for name in _WALKED},
        drops=tuple(walk.excerpt(("drop", i), name) for i, name in enumerate(document.drop)),
        targets=tuple(stated_targets(walk)),
        derives=tuple(stated_derives(walk, document.derive)),
        memory=tuple(walk.chosen("memory", ir.MemoryRule)),
        training=tuple(walk.chosen("training", ir.TrainingRule)),
        policy=_policy(walk),
        state=_state(walk, document.state),
        coverage=_coverage(walk, document.coverage),
        replicate=tuple(_replicate(walk, document.replicate)),
        step=_step(walk, document.step),
    )
    return layer, tuple(walk.diagnostics)


class _Walk:
    """The walk over one document; collects what goes wrong on the way."""

    def __init__(self, valid: Validated, source_map: SourceMap) -> None:
        """Start at the beginning of a document."""
        self.document = valid.document
        self.faulty = valid.faulty
        self.source_map = source_map
        self.diagnostics: list[Diagnostic] = []
        self._torn: list[Span] = []

    def excerpt(self, route: Route, text: str) -> Excerpt:
        """Return the value at `route` with the way back to its characters."""
        found = self.source_map.value(route)
        return found if found.text == text else Excerpt(text, found.span)

    def key(self, route: Route) -> Excerpt:
        """Return the key that `route` ends in."""
        found = self.source_map.key(route)
        return found if found.text == route[-1] else Excerpt(str(route[-1]), found.span)

    def parse(self, parser: Callable[[str], T | SyntaxFault], excerpt: Excerpt) -> T | None:
        """Return what `parser` makes of the text, or None after reporting its fault."""
        spend(100, excerpt.span.source, excerpt.span.start)
        parsed = parser(excerpt.text)
        if not isinstance(parsed, SyntaxFault):
            return parsed
        if any(whole.start < excerpt.span.start < whole.end for whole in self._torn):
            return None  # the rest of an item that a comma ended, which is reported
        whole = _torn(excerpt)
        if whole is not None:
            self._torn.append(whole)
            self.report(_unquoted(excerpt, whole, parser))
            return None
        self.report(parsed.diagnostic(excerpt))
        return None

    def report(self, diagnostic: Diagnostic) -> None:
        """Keep a finding."""
        self.diagnostics.append(diagnostic)

    def choice_fault(
        self, route: Route, entry: Chosen, noun: str, choice: Choice
    ) -> Diagnostic | None:
        """Return what is wrong where an entry has both fields of a choice, or neither."""
        what, first, second, forms = choice
        given = [getattr(entry, first) is not None, getattr(entry, second) is not None]
        if all(given):
            places = (self.key((*route, second)).span, self.key((*route, first)).span)
            labels = tuple(Label(span, "", span is places[0]) for span in places)
            message = f"an {noun} has one {what}, and this has both `{first}` and `{second}`"
            return Diagnostic(codes.WRONG_TYPE, message, labels, help="take one of the two out")
        if not any(given):
            help = f"add `{first}` or `{second}`: {forms}"
            return point(
                codes.WRONG_TYPE, f"this {noun} has no {what}", self.head(route), help=help
            )
        return None

    def head(self, route: Route) -> Span:
        """Return the first line of an entry, without what follows it."""
        span = self.source_map.value(route).span
        first = span.text.partition("\n")[0].partition(" #")[0].rstrip()
        return Span(span.source, span.start, span.start + len(first))

    def entry_pattern(self, route: Route, entry: OverrideEntry | ReplicateEntry) -> Pattern | None:
        """Return the pattern in the `path` or `match` of an entry."""
        kind = "path" if entry.path is not None else "match"
        text = entry.path if entry.path is not None else entry.match or ""
        excerpt = self.excerpt((*route, kind), text)
        return self.pattern(excerpt, is_regex=kind == "match", is_optional=entry.optional)

    def pattern(
        self, excerpt: Excerpt, *, is_regex: bool, is_optional: bool = False
    ) -> Pattern | None:
        """Return the pattern, once it is known that it compiles."""
        from shardspec.language.patterns.glob import compile_glob
        from shardspec.language.patterns.regex import compile_regex

        compiled = compile_regex(excerpt.text) if is_regex else compile_glob(excerpt.text)
        if isinstance(compiled, SyntaxFault):
            self.report(compiled.diagnostic(excerpt, codes.BAD_PATTERN))
            return None
        return Pattern(excerpt.text, "regex" if is_regex else "glob", excerpt.span, is_optional)

    def name(self, route: Route) -> bool:
        """Say whether the key at `route` is a name that expressions can use; report if not."""
        key = self.key(route)
        parsed = expressions.parse_names(key.text)
        is_read = (
            isinstance(parsed, NamesExpr) and len(parsed.names) == 1 and None not in parsed.names
        )
        may_be_role = len(route) == 2 and route[0] == "axes"
        if is_read and (may_be_role or ir.axis_of(key.text) == key.text):
            return True
        self.report(
            point(
                codes.WRONG_TYPE,
                f"`{key.text}` is no name for {'a number' if route[0] == 'let' else 'an axis'}",
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
            unit = None
            if entry.unit != "1":
                unit = self.parse(
                    expressions.parse_size, self.excerpt((*route, "unit"), entry.unit)
                )
            parts = tuple(self._parts(route, entry))
            if parts:
                size = SizeExpr(tuple(SizeTerm((part,)) for _, part in parts))
            fixed = (entry.doc, span, entry.min_shard)
            yield AxisDecl(name, size, unit, *fixed, parts, entry.interleaved)

    def _parts(self, route: Route, entry: AxisEntry) -> Iterator[tuple[str, SizeExpr]]:
        """Yield the parts of an axis with their sizes; none where they cannot be read."""
        whole = (*route, "parts")
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
            self.report(point(codes.WRONG_TYPE, message, span, help=help))
            return
        for part, text in (entry.parts or {}).items():
            inner = (*whole, part)
            size = self.parse(expressions.parse_size, self.excerpt(inner, text))
            if self.name(inner) and size is not None:
                yield part, size

    def lets(self) -> Iterator[AxisDecl]:
        """Yield the names of `let`, their numbers still as expressions."""
        for name, text in self.document.let.items():
            route: Route = ("let", name)
            if name in NO_LETS:
                message = f"`{name}` is a word of the language where the size of a mesh axis stands"
                help = f"call it otherwise: `{name}_size`"
                self.report(point(codes.WRONG_TYPE, message, self.key(route).span, help=help))
            elif self.name(route):
                size = self.parse(expressions.parse_size, self.excerpt(route, text))
                yield AxisDecl(name, size, None, "", self.source_map.entry(route), is_let=True)

    def rules(self) -> Iterator[PlacedRule]:
        """Yield one rule for each alternative of each name, in order."""
        for index, entry in enumerate(self.document.rules):
            route: Route = ("rules", index)
            inner = (*route, "rule")
            exact = inner if inner in self.source_map.values else route
            if route in self.faulty:
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
                    rule = AxisRule(
                        name.text,
                        _mesh_axes(target),
                        parsed.priority,
                        span,
                        in_part=target.in_part,
                    )
                    yield PlacedRule(rule, place)

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

    def path_rules(self) -> Iterator[PathRule]:
        """Yield the entries of `params:`."""
        for key, names in self.document.params.items():
            route: Route = ("params", key)
            pattern = self.key_pattern(route)
            axes = self._axes(self.excerpt(route, names))
            if pattern is not None and axes is not None:
                yield PathRule(pattern, axes, self.source_map.entry(route))

    def scans(self) -> Iterator[ScanRule]:
        """Yield the entries of `scan:`."""
        for key, text in self.document.scan.items():
            route: Route = ("scan", key)
            pattern = self.key_pattern(route)
            parsed = self.parse(expressions.parse_scan, self.excerpt(route, text))
            if pattern is not None and parsed is not None:
                axes = tuple((name.text, position) for name, position in parsed.axes)
                yield ScanRule(pattern, axes, self.source_map.entry(route))

    def chosen(self, section: str, made: Callable[[Pattern, Any, Span], T]) -> Iterator[T]:
        """Yield the entries of a section of patterns, each with one word of a few."""
        for key, word in getattr(self.document, section).items():
            route: Route = (section, key)
            pattern = self.key_pattern(route)
            if pattern is not None:
                yield made(pattern, word, self.source_map.entry(route))

    def activations(self) -> Iterator[ir.Activation]:
        """Yield the named activations; one whose name means others is a pattern."""
        from shardspec.language.patterns.glob import glob_literal

        for name, entry in self.document.activations.items():
            route: Route = ("activations", name)
            if not name.strip():
                message = "an activation needs a name"
                self.report(point(codes.WRONG_TYPE, message, self.key(route).span))
                continue
            fault = self.choice_fault(route, entry, "activation", _ANSWER)
            if fault is not None:
                self.report(fault)
                continue
            pattern, answer = self.key_pattern(route), self._activation_answer(route, entry)
            if pattern is None or answer is None:
                continue
            literal = glob_literal(name) if pattern.dialect == "glob" else None
            span = self.source_map.entry(route)
            found = ir.Activation(name, answer[0], pattern, span, *answer[1:])
            yield found if literal is None else replace(found, name=literal, pattern=None)

    def _activation_answer(
        self, route: Route, entry: ActivationEntry
    ) -> tuple[ir.LogicalAxes, Dims | None, ir.MemoryKind | None, ir.Sums] | None:
        """Return what an activation says: its names or its partition, its memory and its sums."""
        inner = (*route, "axes" if entry.spec is None else "spec")
        exact = inner if inner in self.source_map.values else route
        if entry.axes is not None:
            axes = self._axes(self.excerpt(exact, entry.axes))
            return None if axes is None else (axes, None, entry.memory, ir.NO_SUMS)
        found = self._partition(self.excerpt(exact, entry.spec or ""))
        return (
            None if found is None else ((None,) * len(found[0]), found[0], entry.memory, found[1])
        )

    def entries(
        self, section: str, noun: str, entries: Sequence[Entry], *choices: Choice
    ) -> Iterator[tuple[Route, Entry]]:
        """Yield the entries of a list that make each of the choices; report the others."""
        for index, entry in enumerate(entries):
            route: Route = (section, index)
            if route in self.faulty:
                continue
            faults = (self.choice_fault(route, entry, noun, choice) for choice in choices)
            fault = next(filter(None, faults), None)
            if fault is None:
                yield route, entry
            else:
                self.report(fault)

    def overrides(self) -> Iterator[Override]:
        """Yield the overrides that say one pattern and one answer."""
        stated = self.document.overrides
        for route, entry in self.entries("overrides", "override", stated, PATTERN, _ANSWER):
            override = self._override(route, entry)
            if override is not None:
                yield override

    def _override(self, route: Route, entry: OverrideEntry) -> Override | None:
        pattern = self.entry_pattern(route, entry)
        if entry.axes is not None:
            axes, span = self._axes(self.excerpt((*route, "axes"), entry.axes)), None
            answer: dict[str, Any] | None = None if axes is None else {"logical_axes": axes}
        else:
            stated = self.excerpt((*route, "spec"), entry.spec or "")
            found, span = self._partition(stated), stated.span
            answer = None if found is None else {"partition": found[0], "sums": found[1]}
        if pattern is None or answer is None:
            return None
        more: dict[str, Any] = {"because": entry.because, "memory": entry.memory, **answer}
        return Override(pattern, span=span or self.source_map.value(route).span, **more)

    def _partition(self, excerpt: Excerpt) -> tuple[Dims, ir.Sums] | None:
        """Return the mesh axes of each dimension, and those of sums."""
        parsed = self.parse(expressions.parse_partition, excerpt)
        if parsed is None:
            return None
        sums = ir.Sums(*(tuple(axis.text for axis in axes) for axes in parsed.sums))
        return tuple(_mesh_axes(dim) for dim in parsed.dims), sums

    def lint_levels(self) -> Iterator[ir.LintLevel]:
        """Yield the severities that the document sets, for findings that exist."""
        if not self.document.lints:
            return
        from shardspec.diagnostics import codes
        from shardspec.diagnostics.levels import WORDS, fault_found, known
        from shardspec.diagnostics.suggest import respelt

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
                yield ir.LintLevel(name, WORDS[level], span)

    def arrays(self) -> Iterator[ArrayDecl]:
        """Yield the inline arrays, not yet expanded: their sizes need every layer's axes."""
        document = self.document
        for section, entries in (("arrays", document.arrays), ("caches", document.caches)):
            for path, text in entries.items():
                route: Route = (section, path)
                stated = self.excerpt(route, text)
                parsed = self.parse(expressions.parse_array_type, stated)
                if parsed is not None:
                    yield ArrayDecl(self.key(route), stated, parsed, section == "caches")

    def _axes(self, excerpt: Excerpt) -> ir.LogicalAxes | None:
        parsed = self.parse(expressions.parse_names, excerpt)
        if parsed is None:
            return None
        return tuple(name.text if name else None for name in parsed.names)

    def key_pattern(self, route: Route) -> Pattern | None:
        """Return the pattern in the key that `route` ends in, behind `optional:` and `re:`."""
        key = self.key(route)
        is_optional, is_regex, at = marks_of(key.text)
        pattern = key.part(at, len(key.text)) if at else key
        return self.pattern(pattern, is_regex=is_regex, is_optional=is_optional)


def _policy(walk: _Walk) -> tuple[tuple[str, Any], ...]:
    """Return the fields of `policy:` that the document sets, sizes in bytes."""
    policy = walk.document.policy
    stated = {key: getattr(policy, key) for key in policy.model_fields_set}
    text = stated.pop("whole_below", None)
    if text is not None:
        excerpt = walk.excerpt(("policy", "whole_below"), text)
        stated["whole_below"] = walk.parse(parse_bytes, excerpt)
        stated["whole_below_span"] = walk.source_map.entry(("policy", "whole_below"))
    return tuple(stated.items())


def _step(walk: _Walk, entry: StepEntry | None) -> tuple[tuple[str, Any], ...]:
    if entry is None:
        return ()
    from shardspec.language.step_section import stated_step  # most documents have none

    return stated_step(walk, entry)


def _state(walk: _Walk, entry: StateEntry | None) -> tuple[tuple[str, Any], ...]:
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
        stated["dtype"] = _dtype(walk, entry.dtype)
    stated["span"] = walk.source_map.entry(("state",))
    return tuple(stated.items())


def _dtype(walk: _Walk, name: str) -> str:
    """Return the short name of a dtype; that of the default for one that is not known."""
    known = ir.dtype_name(name)
    if known is None:
        from shardspec.language.layer import unknown_dtype

        walk.report(unknown_dtype(name, walk.source_map.value(("state", "dtype")).span))
    return known or "f32"


def _coverage(walk: _Walk, entry: CoverageEntry | None) -> ir.CoverageGate | None:
    """Return how much `coverage:` lets every device hold whole."""
    text = None if entry is None else entry.max_replicated_bytes
    if text is None:
        _report_empty(walk, "coverage", entry)
        return None
    excerpt = walk.excerpt(("coverage", "max_replicated_bytes"), text)
    bound = walk.parse(parse_bound, excerpt)
    if bound is None:
        return None
    return ir.CoverageGate(bound.max_share, bound.max_bytes, excerpt.span)


def _replicate(walk: _Walk, entries: Sequence[ReplicateEntry]) -> Iterator[ir.Replicate]:
    """Yield the arrays that `replicate:` gives a reason for."""
    for route, entry in walk.entries("replicate", "entry of `replicate`", entries, PATTERN):
        if not entry.because.strip():
            span = walk.source_map.value((*route, "because")).span
            tiny = quote.either("`because: tiny`", '`because "tiny"`')
            help = f"say why these arrays are whole on every device: {tiny}"
            walk.report(point(codes.WRONG_TYPE, "`because` says nothing", span, help=help))
        pattern = walk.entry_pattern(route, entry)
        if pattern is not None:
            yield ir.Replicate(pattern, entry.because, walk.source_map.value(route).span)


def _report_empty(walk: _Walk, section: str, entry: object) -> None:
    """Report a section that is there and holds nothing at all."""
    if entry is None and section in walk.document.model_fields_set:
        span = walk.source_map.key((section,)).span
        form = {"state": ("optimizer", "zero1"), "coverage": ("max_replicated_bytes", "2%")}
        help = f"as in {quote.setting(section, form[section])}; or take it out"
        walk.report(point(codes.WRONG_TYPE, f"`{section}` is empty", span, help=help))


def _names(found: Iterable[Code]) -> set[str]:
    return {name for code in found for name in (code.id, code.name)}


def _mesh_axes(target: AxisTarget) -> tuple[str, ...]:
    return tuple(axis.text for axis in target.mesh_axes)


def _torn(excerpt: Excerpt) -> Span | None:
    """Return all of an unquoted `a, b -> c` in a YAML flow, whose comma ends the item."""
    span, text = excerpt.span, excerpt.span.source.text
    if is_dsl(span.source) or span.text != excerpt.text or text[span.start - 1] in "'\"":
        return None
    rest = _REST_OF_AXES.match(text, span.end) if _NAME.fullmatch(excerpt.text) else None
    return None if rest is None else Span(span.source, span.start, rest.end())


def _unquoted(
    excerpt: Excerpt, whole: Span, parser: Callable[[str], T | SyntaxFault]
) -> Diagnostic:
    """Return the finding for an item without quotes; with the fix, where it needs nothing else."""
    fix = None
    if not isinstance(parser(whole.text), SyntaxFault):
        edges = (Span(whole.source, at, at) for at in (whole.start, whole.end))
        fix = Fix("quote it", tuple(Edit(edge, '"') for edge in edges), is_sure=True)
    return Diagnostic(
        codes.SYNTAX,
        f"the comma ends the item, which is then `{excerpt.text}`",
        (Label(whole, "two items for YAML"),),
        help=f'between brackets, quote what holds a comma: `"{whole.text}"`',
        fix=fix,
    )

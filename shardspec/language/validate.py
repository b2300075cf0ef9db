"""Reading -> Document, and the walk over it: every fault of shape at once, each where it stands.

What is faulty is taken out and the rest is kept, so that later stages can report their own
faults in the same run.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args, get_origin

from shardspec.assets import DOCS
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
from shardspec.diagnostics.words import near_or_known, respelt
from shardspec.ir import spec as ir
from shardspec.ir.spec import Pattern
from shardspec.language.grammar import expressions
from shardspec.language.grammar.syntax import AxisTarget, NamesExpr, SyntaxFault
from shardspec.language.layer import unknown_dtype
from shardspec.language.reading import Reading, Route, SourceMap, is_dsl, marks_of
from shardspec.language.sections import SECTIONS, SPEC_ALONE
from shardspec.versions import LANGUAGE

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from shardspec.language.document import ActivationEntry, Document, OverrideEntry, ReplicateEntry


#: What stands at the place of a faulty item of a list, so that its neighbours keep their indices.
_PLACEHOLDERS: dict[str | int, Any] = {
    "rules": {"rule": ""},
    "overrides": {"path": ""},
    "replicate": {"path": "", "because": ""},
}

#: Sections of texts, which go as a whole.
_LISTED = {each.name for each in SECTIONS.values() if each.form == "words"}

_TOP_KEY = re.compile(r"^[\"']?([A-Za-z_][\w.-]*)[\"']?[ \t]*:(?=\s|$)", re.MULTILINE)
#: A spec without a version says one of these, and nothing that is no key of a spec.
_TELLING = frozenset({"rules", "extends", "mesh", "targets"})

_MAPPING = "a mapping of names to values"
_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), _MAPPING),
}


class Validated(NamedTuple):
    """A document without its faulty parts.

    Attributes:
      faulty: the items of lists and the sizes of meshes that are reported, and stand empty in the
        document, where something has to stand.
    """

    document: Document
    diagnostics: tuple[Diagnostic, ...]
    faulty: frozenset[Route]


def validate(reading: Reading) -> Validated:
    """Return the document, without its faulty parts, and a diagnostic for each of those."""
    from pydantic import ValidationError

    from shardspec.language.document import Document

    data = reading.data if isinstance(reading.data, dict) else {}
    diagnostics: list[Diagnostic] = []
    faulty: set[Route] = set()
    while True:
        try:
            document = Document.model_validate(data)
        except ValidationError as error:
            faults = error.errors(include_url=False)
            diagnostics += [
                _diagnostic(fault, reading)
                for fault in _one_each(faults, reading)
                if not _follows(fault, reading)
            ]
            data = _without(data, faults, reading, faulty)
        else:
            break
    if document.shardspec != LANGUAGE:
        diagnostics.append(_wrong_version(document.shardspec, reading))
    return Validated(document, tuple(diagnostics), frozenset(faulty))


def _one_each(faults: Sequence[ErrorDetails], reading: Reading) -> list[ErrorDetails]:
    """Return the faults, of a rule written as a mapping (`- batch: fsdp`) only that."""
    from shardspec.language.grammar.parse_faults import rule_meant

    rules = reading.data.get("rules") if isinstance(reading.data, dict) else None
    kept: list[ErrorDetails] = []
    for fault in faults:
        loc = fault["loc"][:2]
        at = loc[1] if len(loc) > 1 and loc[0] == "rules" else None
        item = rules[at] if isinstance(rules, list) and isinstance(at, int) else None
        if not isinstance(item, dict) or rule_meant(item) is None or "rule" in item:
            kept.append(fault)
        elif fault["type"] == "missing":
            kept.append({**fault, "type": "model_type", "loc": loc, "input": item})
    return kept


def _wrong_version(version: int, reading: Reading) -> Diagnostic:
    known = f"this shardspec, which reads version {LANGUAGE}"
    message = f"language version `{version}` is not known to {known}"
    span = reading.source_map.value(("shardspec",)).span
    help = f"write {quote.word('shardspec', LANGUAGE)}, or install a shardspec that reads it"
    return point(codes.VERSION, message, span, "requested here", help=help)


def _follows(fault: ErrorDetails, reading: Reading) -> bool:
    """Say whether a key is missing only because its value was faulty, which is reported."""
    return fault["type"] == "missing" and _route(fault["loc"], reading) == fault["loc"]


def _without(
    data: Any, faults: Sequence[ErrorDetails], reading: Reading, faulty: set[Route]
) -> Any:
    """Return a copy of `data` without the faulty parts; it always has fewer of them.

    Args:
      faulty: takes the places where something has to stand all the same.
    """
    changed = copy.deepcopy(data)
    for fault in faults:
        route = _route(fault["loc"], reading)
        _take_out(changed, route[:-1] if _follows(fault, reading) else route, faulty)
    if changed == data:
        for fault in faults:
            changed.pop(fault["loc"][0], None)
    return changed


def _take_out(data: Any, route: Route, faulty: set[Route]) -> None:
    """Remove the entry at `route`; an item of a list makes way for a placeholder."""
    if not route:
        return
    section = route[0]
    if section in _PLACEHOLDERS and len(route) > 1 and isinstance(data.get(section), list):
        data[section][route[1]] = copy.deepcopy(_PLACEHOLDERS[section])
        faulty.add(route[:2])
        return
    if section in _LISTED:
        route = route[:1]
    *parents, last = route
    for step in parents:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return
    if isinstance(data, dict) and _is_mesh_size(route) and route not in faulty:
        data[last] = ""
        faulty.add(route)
    elif isinstance(data, dict):
        data.pop(last, None)


def _is_mesh_size(route: Sequence[str | int]) -> bool:
    """Say whether `route` leads to the size of a mesh axis."""
    parents = list(route[:-1])
    return parents == ["mesh"] or (len(parents) == 3 and parents[::2] == ["targets", "mesh"])


def _route(loc: Sequence[str | int], reading: Reading) -> Route:
    """Return the steps of a pydantic `loc` that are in the data; the rest are its own tags."""
    route: Route = ()
    data: Any = reading.data
    for step in loc:
        is_item = isinstance(data, list) and isinstance(step, int) and step < len(data)
        if is_item or (isinstance(data, dict) and step in data):
            data = data[step]
            route = (*route, step)
    return route


def _diagnostic(fault: ErrorDetails, reading: Reading) -> Diagnostic:
    route = _route(fault["loc"], reading)
    if fault["type"] == "extra_forbidden":
        return _unknown_key(route, reading)
    help = _field_help(fault["loc"])
    if fault["type"] == "missing":
        missing = fault["loc"][-1]
        message, label = f"`{_dotted(route)}` lacks `{missing}`", f"`{missing}` belongs in here"
        place = reading.source_map.key(route).span
        return point(codes.WRONG_TYPE, message, place, label, help=help)
    message = f"{quote.key(*fault['loc'])}: {_complaint(fault)}"
    place = reading.source_map.value(route).span
    return point(codes.WRONG_TYPE, message, place, help=_meant(route, fault["input"]) or help)


def _dotted(route: Sequence[str | int]) -> str:
    return ".".join(map(str, route))


def _meant(route: Route, value: Any) -> str | None:
    """Return how a rule or a partition is written that was said with lists and mappings."""
    from shardspec.language.grammar.parse_faults import partition_meant, rule_meant

    meant = None
    if route == ("rules",) and isinstance(value, dict):
        first = next(iter(value.items()), None)
        meant = rule_meant(dict([first])) if first else None
        return f"rules are a list: `- {meant}`" if meant else None
    if route == ("rules",) and isinstance(value, str):
        return "write each rule on a line of its own, with a space after `-`: `- embed -> model`"
    if route == ("axes",) and isinstance(value, list):
        inside = ", ".join(f"{each}: null" for each in value)
        return f"write a size after each name, or `null` for any size: `axes: {{{inside}}}`"
    if route and route[-1] == "mesh":
        return _mesh_meant(value)
    if isinstance(value, float) and value.is_integer():
        return f"write `{int(value)}`"
    if len(route) == 2 and route[0] == "rules":
        meant = rule_meant(value)
    elif len(route) == 3 and route[::2] == ("overrides", "spec"):
        meant = partition_meant(value)
    return f"write `{meant}`" if meant else None


def _mesh_meant(value: object) -> str | None:
    """Return how a mesh is written that was said with text or a list of sizes.

    >>> _mesh_meant("fsdp=2 tensor=8")
    'write each axis with its size: `{fsdp: 2, tensor: 8}`'
    """
    sizes = value if isinstance(value, list) else []
    pairs = list(zip(("data", "fsdp", "tensor"), sizes, strict=False))
    if isinstance(value, str):
        pairs = re.findall(r"\b(\w++)\s*+[=:]\s*+(\w++)", value)
    inside = ", ".join(f"{name}: {size}" for name, size in pairs) or "fsdp: rest, tensor: 8"
    return f"write each axis with its size: `{{{inside}}}`"


def _complaint(fault: ErrorDetails) -> str:
    wanted = _wanted(fault)
    if wanted:
        return f"this should be {wanted}, and is {_kind(fault['input'])}"
    if fault["type"] == "literal_error":
        expected = fault["ctx"]["expected"].replace("'", "`")
        return f"this should be {expected}, and is {_shown(fault['input'])}"
    if fault["type"] == "greater_than_equal":
        return f"this should be at least {fault['ctx']['ge']}, and is {fault['input']}"
    return fault["msg"][0].lower() + fault["msg"][1:]


def _wanted(fault: ErrorDetails) -> str | None:
    """Return in words what would stand there, for faults of type."""
    loc = fault["loc"]
    if fault["type"] == "model_type" and len(loc) == 2 and loc[0] == "rules":
        return "a rule in text"
    if fault["type"] == "string_type" and (loc[-1] in {"size", "hardware"} or _is_mesh_size(loc)):
        return "a whole number or an expression"
    if fault["type"] == "string_type" and loc[-1] == "devices":
        return "numbers of devices, as in `0 1 3 2`"
    return _WANTED.get(fault["type"])


def _shown(value: object) -> str:
    return f"`{value}`" if isinstance(value, str) else _kind(value)


def _kind(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"the number {value}"
    names = {bool: "a boolean", str: "text"}
    names |= {list: "a list", dict: "a mapping"}
    return names.get(type(value), "something else")


def _unknown_key(route: Route, reading: Reading) -> Diagnostic:
    known = fields_at(route[:-1], is_phase=bool(reading.phase))
    key = str(route[-1])
    place = reading.source_map.key(route).span
    help = near_or_known(key, known, more=_all_keys(route))
    fix = respelt([place], key, known)
    if fix is not None and (*route[:-1], fix.edits[0].text) in reading.source_map.keys:
        fix = None  # the nearest key stands there already
    if "path" in known and "*" in key:
        other = "axes: mlp embed" if "axes" in known else "because: tiny"
        help, fix = f'`path` is a key of its own: `- {{path: "{key}", {other}}}`', None
    if key.endswith((")", "]")):
        help, fix = 'between `{` and `}`, quote what holds a comma: `"(none, model)"`', None
    message, label = f"unknown key `{key}`", "means nothing here"
    return point(codes.UNKNOWN_KEY, message, place, label, help=help, fix=fix)


def _all_keys(route: Route) -> str:
    """Return what shows all keys of the place where one is unknown."""
    name = str(route[0])
    return f"`shardspec explain {name}` shows all" if len(route) > 1 else f"all: {DOCS}language.md"


def fields_at(route: Sequence[str | int], *, is_phase: bool = False) -> tuple[str, ...]:
    """Return the keys that the format knows at `route`, which is counted from a phase or a file."""
    from shardspec.language.document import ENTRIES, Document

    if route and route[0] == "phases":
        return fields_at(route[2:], is_phase=True)
    model = ENTRIES.get(route[0]) if route else None
    if model is not None:
        return tuple(model.model_fields)
    return tuple(each for each in Document.model_fields if not (is_phase and each in SPEC_ALONE))


def words_at(route: Sequence[str | int]) -> tuple[str, ...]:
    """Return the words that are possible at `route`; none where other texts are possible too.

    >>> words_at(("policy", "order")), words_at(("memory", "**/wi"))[:1]
    (('t5x', 'ring'), ('device',))
    """
    words = {bool: ("true", "false")}
    types = _types_at(route)
    return tuple(word for each in types for word in words.get(each) or get_args(each))


def is_number_at(route: Sequence[str | int]) -> bool:
    """Say whether a whole number stands at `route`, and no text.

    >>> is_number_at(("state", "moments")), is_number_at(("axes", "size"))
    (True, False)
    """
    return int in _types_at(route)


def _types_at(route: Sequence[str | int]) -> tuple[Any, ...]:
    """Return the types of the field at `route`, each kind of words being one."""
    from shardspec.language.document import ENTRIES, Document

    model = ENTRIES.get(route[0], Document)
    field = Document.model_fields.get(str(route[0]))
    if model is not Document:
        field = model.model_fields.get(str(route[-1])) if len(route) > 1 else None
    return () if field is None else tuple(_types(field.annotation))


def _types(annotation: Any) -> Iterator[Any]:
    inner = get_args(annotation)
    if not inner or get_origin(annotation) is Literal:
        yield annotation
    else:
        for each in inner:
            yield from _types(each)


def looks_like_spec(text: str) -> bool:
    r"""Say whether YAML is a spec and not somebody else's: by its keys at the margin.

    >>> looks_like_spec("rules: []\nmesh: {}\n"), looks_like_spec("rules: []\nservices: {}\n")
    (True, False)
    """
    keys = set(_TOP_KEY.findall(text))
    if "shardspec" in keys:
        return True
    return bool(keys & _TELLING) and len(keys) > 1 and keys <= set(fields_at(()))


def _field_help(loc: Sequence[str | int]) -> str | None:
    """Return the description of the innermost field that `loc` leads to, behind its name."""
    from shardspec.language.document import ENTRIES, Document

    innermost = "mesh" if _is_mesh_size(loc) else str(loc[-1])
    inner = ENTRIES.get("targets" if innermost == "mesh" else loc[0])
    for name, model in ((innermost, inner), (str(loc[0]), Document)):
        field = model.model_fields.get(name) if model else None
        if field is not None and field.description:
            said = field.description.rstrip(".")
            return f"{quote.section(name)}: {said[0].lower()}{said[1:]}"
    return None


# What the walk over a document offers to its sections: texts with their places, and what is wrong.
#
# Faulty expressions are reported and left out; the rest goes on.


T = TypeVar("T")
Entry = TypeVar("Entry", bound="OverrideEntry | ReplicateEntry")
_WRONG = codes.WRONG_TYPE
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


class Walk:
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

    def fault(self, message: str, span: Span, help: str | None = None, code: Code = _WRONG) -> None:
        """Keep the finding for what should be something else."""
        self.diagnostics.append(point(code, message, span, help=help))

    def has_one(self, route: Route, entry: Chosen, noun: str, *choices: Choice) -> bool:
        """Say whether an entry has one field of each choice; report it where it does not."""
        for what, first, second, forms in choices:
            given = [getattr(entry, first) is not None, getattr(entry, second) is not None]
            if all(given):
                places = (self.key((*route, second)).span, self.key((*route, first)).span)
                labels = tuple(Label(span, "", span is places[0]) for span in places)
                message = f"an {noun} has one {what}, and this has both `{first}` and `{second}`"
                self.report(Diagnostic(_WRONG, message, labels, help="remove one of the two"))
                return False
            if not any(given):
                help = f"add `{first}` or `{second}`: {forms}"
                self.fault(f"this {noun} has no {what}", self._head(route), help)
                return False
        return True

    def _head(self, route: Route) -> Span:
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
        from shardspec.language.glob import compile_glob
        from shardspec.language.regex import compile_regex

        compiled = compile_regex(excerpt.text) if is_regex else compile_glob(excerpt.text)
        if isinstance(compiled, SyntaxFault):
            self.report(compiled.diagnostic(excerpt, codes.BAD_PATTERN))
            return None
        return Pattern(excerpt.text, "regex" if is_regex else "glob", excerpt.span, is_optional)

    def key_pattern(self, route: Route) -> Pattern | None:
        """Return the pattern in the key that `route` ends in, behind `optional:` and `re:`."""
        key = self.key(route)
        is_optional, is_regex, at = marks_of(key.text)
        pattern = key.part(at, len(key.text)) if at else key
        return self.pattern(pattern, is_regex=is_regex, is_optional=is_optional)

    def name(self, route: Route) -> bool:
        """Say whether the key at `route` is a name that expressions can use; report if not."""
        key = self.key(route)
        parsed = expressions.parse_names(key.text)
        is_read = isinstance(parsed, NamesExpr) and len(parsed.names) == 1 and all(parsed.names)
        may_be_role = len(route) == 2 and route[0] == "axes"
        if is_read and (may_be_role or ir.axis_of(key.text) == key.text):
            return True
        what = "a number" if route[0] == "let" else "an axis"
        help = "names are letters, digits and `_`, with `-` and `.` inside; `none` is taken"
        self.fault(f"`{key.text}` is no name for {what}", key.span, help)
        return False

    def dtype(self, route: Route, name: str) -> str | None:
        """Return the short name of a dtype, or None after reporting that it is not known."""
        known = ir.dtype_name(name)
        if known is None:
            self.report(unknown_dtype(name, self.source_map.value(route).span))
        return known

    def entries(
        self, section: str, noun: str, entries: Sequence[Entry], *choices: Choice
    ) -> Iterator[tuple[Route, Entry]]:
        """Yield the entries of a list that make each of the choices; report the others."""
        for index, entry in enumerate(entries):
            route: Route = (section, index)
            if route not in self.faulty and self.has_one(route, entry, noun, *choices):
                yield route, entry


def axes_of(stated: NamesExpr) -> ir.LogicalAxes:
    """Return logical axes, None for a dimension without a name."""
    return tuple(name.text if name else None for name in stated.names)


def mesh_axes(target: AxisTarget) -> tuple[str, ...]:
    """Return the names of the mesh axes of one right side."""
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
    message = f"the comma ends the item, which is then `{excerpt.text}`"
    help = f'between brackets, quote what holds a comma: `"{whole.text}"`'
    return point(codes.SYNTAX, message, whole, "two items for YAML", help=help, fix=fix)

"""Reading -> Document: every fault of shape at once, each where it stands.

What is faulty is taken out and the rest is kept, so that later stages can report their own
faults in the same run.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.codes import UNKNOWN_KEY, VERSION, WRONG_TYPE
from shardspec.diagnostics.diagnostic import point
from shardspec.diagnostics.suggest import did_you_mean, listed
from shardspec.frontend.reading import Reading, Route

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from shardspec.frontend.document import Document

LANGUAGE_VERSION = 1

#: What stands in for a faulty item of a list, so that its neighbours keep their indices.
_PLACEHOLDERS: dict[str | int, Any] = {"rules": {"rule": ""}, "overrides": {}}

_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of names to values",
    "model_type": "a mapping of names to values",
    "model_attributes_type": "a mapping of names to values",
}


def validate(reading: Reading) -> tuple[Document, tuple[Diagnostic, ...]]:
    """Return the document, without its faulty parts, and a diagnostic for each of those."""
    from pydantic import ValidationError

    from shardspec.frontend.document import Document

    data = reading.data if isinstance(reading.data, dict) else {}
    diagnostics: list[Diagnostic] = []
    while True:
        try:
            document = Document.model_validate(data)
        except ValidationError as error:
            faults = error.errors(include_url=False)
            diagnostics += [_diagnostic(fault, reading) for fault in faults]
            data = copy.deepcopy(data)
            for fault in faults:
                _take_out(data, _route(fault["loc"], reading))
        else:
            break
    if document.shardspec != LANGUAGE_VERSION:
        diagnostics.append(_wrong_version(document.shardspec, reading))
    return document, tuple(diagnostics)


def _wrong_version(version: int, reading: Reading) -> Diagnostic:
    return point(
        VERSION,
        f"language version {version} is not known to this shardspec, which reads version 1",
        reading.source_map.value(("shardspec",)).span,
        "asked for here",
        help="write `shardspec: 1`, or install a shardspec that reads it",
    )


def _take_out(data: Any, route: Route) -> None:
    """Remove the entry at `route`; an item of a list makes way for a placeholder."""
    if not route:
        return
    section = route[0]
    if section in _PLACEHOLDERS and len(route) > 1 and isinstance(data.get(section), list):
        data[section][route[1]] = copy.deepcopy(_PLACEHOLDERS[section])
        return
    if section in {"extends", "drop", "manifest"}:
        route = route[:1]
    *parents, last = route
    for step in parents:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return
    if isinstance(data, dict):
        data.pop(last, None)


def _route(loc: Sequence[str | int], reading: Reading) -> Route:
    """Return the steps of a pydantic `loc` that are in the data; the rest are its own tags."""
    route: Route = ()
    data: Any = reading.data
    for step in loc:
        if isinstance(data, dict) and step in data:
            data = data[step]
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            continue
        route = (*route, step)
    return route


def _diagnostic(fault: ErrorDetails, reading: Reading) -> Diagnostic:
    route = _route(fault["loc"], reading)
    if fault["type"] == "extra_forbidden":
        return _unknown_key(route, reading)
    name = ".".join(str(step) for step in fault["loc"])
    if fault["type"] == "missing":
        missing = fault["loc"][-1]
        return point(
            WRONG_TYPE,
            f"`{'.'.join(map(str, route))}` lacks `{missing}`",
            reading.source_map.key(route).span,
            f"`{missing}` belongs in here",
            help=_field_help(fault["loc"]),
        )
    return point(
        WRONG_TYPE,
        f"`{name}`: {_complaint(fault)}",
        reading.source_map.value(route).span,
        help=_field_help(fault["loc"]),
    )


def _complaint(fault: ErrorDetails) -> str:
    wanted = _WANTED.get(fault["type"])
    if wanted:
        return f"this should be {wanted}, and is {_kind(fault['input'])}"
    if fault["type"] == "literal_error":
        return f"this should be {fault['ctx']['expected']}, and is `{fault['input']}`"
    return fault["msg"][0].lower() + fault["msg"][1:]


def _kind(value: object) -> str:
    if value is None:
        return "empty"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "text"}
    names |= {list: "a list", dict: "a mapping"}
    return names.get(type(value), "something else")


def _unknown_key(route: Route, reading: Reading) -> Diagnostic:
    known = fields_at(route[:-1])
    key = str(route[-1])
    return point(
        UNKNOWN_KEY,
        f"unknown key `{key}`",
        reading.source_map.key(route).span,
        "means nothing here",
        help=did_you_mean(key, known) or f"known here: {listed(known, limit=20)}",
    )


def fields_at(route: Sequence[str | int]) -> tuple[str, ...]:
    """Return the keys that the format knows at `route`."""
    from shardspec.frontend import document

    entries: dict[str | int, Any] = {
        "axes": document.AxisEntry,
        "targets": document.TargetEntry,
        "rules": document.RuleEntry,
        "overrides": document.OverrideEntry,
        "policy": document.PolicyEntry,
    }
    model = entries.get(route[0], document.Document) if route else document.Document
    return tuple(model.model_fields)


def _field_help(loc: Sequence[str | int]) -> str | None:
    """Return the description of the field that `loc` ends in."""
    from shardspec.frontend.document import Document

    field = Document.model_fields.get(str(loc[0])) if loc else None
    return field.description if field else None

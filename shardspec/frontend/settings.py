"""What-ifs: `--set mesh.model=8` in place of what the document says.

A setting names a route: keys joined by dots, and indices in lists. `mesh.model` is the axis of
every target where the document has no mesh of its own. Faults point at the flag, not the file.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from shardspec.diagnostics import Diagnostic, Excerpt, SourceFile, Span
from shardspec.diagnostics.codes import UNKNOWN_KEY
from shardspec.diagnostics.diagnostic import point
from shardspec.frontend.reading import Reading, Route, SourceMap

_DIGITS = 15


def apply_settings(
    reading: Reading, settings: Mapping[str, str]
) -> tuple[Reading, tuple[Diagnostic, ...]]:
    """Return `reading` with the settings in place of its own values, and what leads nowhere."""
    data = copy.deepcopy(reading.data)
    keys, values = dict(reading.source_map.keys), dict(reading.source_map.values)
    diagnostics: list[Diagnostic] = []
    for name, text in settings.items():
        source = SourceFile("--set", f"{name}={text}")
        start = len(name) + 1
        excerpt = Excerpt(text, Span(source, start, len(source.text)), start)
        key = Excerpt(name, Span(source, 0, len(name)), 0)
        for route in _routes(name, data):
            found = _put(data, route, _scalar(text))
            if found is None:
                diagnostics.append(_nowhere(name, key.span))
            else:
                keys[found], values[found] = key, excerpt
    source_map = SourceMap(reading.source, keys, values)
    return Reading(data, source_map, reading.comments), tuple(diagnostics)


def _routes(name: str, data: Any) -> list[tuple[str, ...]]:
    route = tuple(name.split("."))
    if route[0] == "mesh" and isinstance(data, dict) and "mesh" not in data:
        targets = data.get("targets")
        if isinstance(targets, dict) and targets:
            return [("targets", str(target), *route) for target in targets]
    return [route]


def _put(data: Any, steps: tuple[str, ...], value: Any) -> Route | None:
    """Put `value` where `steps` lead, and return the route; None where they lead nowhere."""
    route: Route = ()
    while steps:
        key, steps = _first_key(data, steps)
        if isinstance(data, list):
            if not key.isdecimal() or len(key) > _DIGITS or int(key) >= len(data):
                return None
            index: Any = int(key)
        elif isinstance(data, dict):
            index = key
        else:
            return None
        route = (*route, index)
        if not steps:
            data[index] = value
        elif isinstance(data, dict):
            data = data.setdefault(index, {})
        else:
            data = data[index]
    return route


def _first_key(data: Any, steps: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the key that stands first in `steps`, which may hold dots itself, and the rest."""
    if isinstance(data, dict):
        for count in range(len(steps), 1, -1):
            joined = ".".join(steps[:count])
            if joined in data:
                return joined, steps[count:]
    return steps[0], steps[1:]


def _scalar(text: str) -> Any:
    plain = text.isascii() and text.isdecimal() and len(text) <= _DIGITS
    return int(text) if plain and (text == "0" or text[0] != "0") else text


def _nowhere(name: str, span: Span) -> Diagnostic:
    return point(
        UNKNOWN_KEY,
        f"`{name}` leads to nothing in this spec",
        span,
        help="name the keys down to a value: `mesh.model`, `targets.laptop.mesh.data`, `rules.0`",
    )

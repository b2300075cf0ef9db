"""What-ifs: `--set mesh.model=8` in place of what the document says.

A setting names a route: keys joined by dots, and indices in lists. `mesh.model` is the axis of
every target that has it where the document has no mesh of its own. A what-if changes something
that is there, so a name that is new is a fault. Faults point at the flag, not the file.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from shardspec.diagnostics import Diagnostic, Excerpt, SourceFile, Span, codes, point
from shardspec.diagnostics.words import did_you_mean, listed, near_or_known, nearest
from shardspec.ir.spec import LogicalAxes, Spec
from shardspec.language.layer import Layer
from shardspec.language.reading import DIGITS, Data, Reading, Route, SourceMap, number_or_text
from shardspec.language.sections import SECTIONS
from shardspec.language.validate import fields_at

_ROUTES = "name the keys down to a value: `mesh.model`, `targets.laptop.mesh.data`, `rules.0`"

#: The name of the text that a setting is, in place of a file's.
_SOURCE = "--set"

#: Sections whose keys are names that the document makes up: a setting may not add one. `axes` is
#: none of them: a setting may state the size of an axis that something names.
_OPEN = {each.name for each in SECTIONS.values() if each.keys} - {"axes", "lints"}

#: Sections of entries that stand in order.
_LISTS = {each.name for each in SECTIONS.values() if each.form == "items"} | {"rules"}

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_Places = dict[Route, Excerpt]


def apply_settings(
    reading: Reading, settings: Mapping[str, str]
) -> tuple[Reading, tuple[Diagnostic, ...]]:
    """Return `reading` with the settings in place of its own values, and what leads nowhere."""
    data = copy.deepcopy(reading.data)
    keys, values = dict(reading.source_map.keys), dict(reading.source_map.values)
    diagnostics: list[Diagnostic] = []
    for name, text in settings.items():
        source = SourceFile(_SOURCE, f"{name}={text}")
        start = len(name) + 1
        value = Excerpt(text, Span(source, start, len(source.text)), start)
        key = Excerpt(name, Span(source, 0, len(name)), 0)
        fault = _no_text(source) or _shortened(name, text, data, key.span)
        if fault is not None:
            diagnostics.append(fault)
            continue
        for steps in _routes(name, data):
            fault = _apply(steps, data, _Setting(key, value), keys, values)
            diagnostics += [] if fault is None else [fault]
    source_map = SourceMap(reading.source, keys, values)
    return Reading(data, source_map, reading.comments), tuple(diagnostics)


class _Setting(NamedTuple):
    """A setting: the route as it is written, and the value."""

    key: Excerpt
    value: Excerpt


def _apply(
    steps: tuple[str, ...],
    data: Any,
    setting: _Setting,
    keys: _Places,
    values: _Places,
    within: Route = (),
) -> Diagnostic | None:
    """Put the value of a setting into `data`, or return why it leads nowhere.

    What leads into a phase is a setting of that, as of a document of its own.

    Args:
      within: the route of the phase whose data this is; nothing for the file.
    """
    phase = _phase_in(steps, data)
    if phase is not None:
        name, inner = phase
        return _apply(inner, data["phases"][name], setting, keys, values, ("phases", name))
    _make_room(steps, data, values, within)
    key = setting.key
    fault = _unknown_step(steps, data, key.span)
    known = None if fault else _put(data, steps, number_or_text(setting.value.text))
    if known:
        _point_at_setting(known, setting, keys, values, within)
        return None
    message = f"`{key.text}` leads to nothing in this spec"
    return fault or point(codes.UNKNOWN_KEY, message, key.span, help=_ROUTES)


def _phase_in(steps: tuple[str, ...], data: Any) -> tuple[str, tuple[str, ...]] | None:
    """Return the phase that `steps` lead into, and the steps in it; None where they do not."""
    phases = data.get("phases") if isinstance(data, dict) else None
    if len(steps) < 3 or steps[0] != "phases" or not isinstance(phases, dict):
        return None
    name, rest = _first_key(phases, steps[1:])
    return (name, rest) if rest and isinstance(phases.get(name), dict) else None


def _no_text(source: SourceFile) -> Diagnostic | None:
    """Return the fault of a setting with bytes that are no UTF-8, as a shell passes them on."""
    try:
        source.text.encode("utf-8")
    except UnicodeEncodeError as fault:
        span = Span(source, fault.start, fault.end)
        message = "`--set` is not UTF-8"
        return point(codes.UNKNOWN_KEY, message, span, "cannot be decoded", help=_ROUTES)
    return None


def check_settings(
    settings: Mapping[str, str], unset: Data, layer: Layer, spec: Spec, parents: Iterable[Layer]
) -> tuple[Diagnostic, ...]:
    """Return faults of settings that only the whole document can tell: they change nothing.

    Args:
      unset: the data of the document itself, before the settings.
      layer: the document with all that it extends, settings applied.
      parents: what it extends.
    """
    faults: list[Diagnostic] = []
    data, parents = _mapping(unset), tuple(parents)
    for name, text in settings.items():
        section, _, rest = name.partition(".")
        span = Span(SourceFile(_SOURCE, f"{name}={text}"), 0, len(name))
        if section == "axes" and rest:
            faults += _unheard_axis(rest, span, _axis_names(data, layer, spec, parents))
        elif section == "mesh" and not data.keys() & {"mesh", "targets"}:
            inherited = [target.name for parent in parents for target in parent.targets]
            if inherited:
                own = "the document has no mesh of its own"
                message = f"`{name}`: {own}; it inherits {listed(inherited)}"
                help = "a setting changes what the document itself says: copy the target into it"
                faults.append(point(codes.UNKNOWN_KEY, message, span, help=help))
    return tuple(faults)


def is_refusal(fault: Diagnostic) -> bool:
    """Say whether a fault of loading means that a setting does not count, on any target."""
    place = fault.primary
    is_here = place is not None and place.span.source.name == _SOURCE
    return is_here and fault.is_error and fault.target is None


def _axis_names(
    data: Mapping[str, Data], layer: Layer, spec: Spec, parents: tuple[Layer, ...]
) -> set[str]:
    """Return every logical axis that something besides a setting names."""
    names: set[str | None] = {*_mapping(data.get("axes"))}
    names |= {axis.name for parent in parents for axis in parent.axes}
    names |= {rule.logical_axis for rule in spec.axis_rules} | set(spec.inherited_axes)
    names |= {name for axes in names_in(spec) for name in axes}
    stated = [size for axis in layer.axes for size in (axis.size, axis.unit) if size is not None]
    names |= {name.text for size in stated for name in size.names}
    for array in layer.arrays:
        names |= set(_NAME.findall(array.written.text.partition("[")[2]))
    return {name for name in names if name} - {let.name for let in layer.lets}


def names_in(spec: Spec) -> Iterator[LogicalAxes]:
    """Yield the names of dimensions that entries, activations and arrays of a spec state."""
    yield from (rule.logical_axes for rule in spec.path_rules)
    yield from (override.logical_axes or () for override in spec.overrides)
    yield from (tuple(name for name, _ in scan.axes) for scan in spec.scans)
    yield spec.derived_axes
    yield from (activation.logical_axes for activation in spec.activations)
    yield from filter(None, {param.logical_axes for param in spec.params})


def _unheard_axis(rest: str, span: Span, known: set[str]) -> Iterator[Diagnostic]:
    steps = rest.split(".")
    if any(".".join(steps[:count]) in known for count in range(1, len(steps) + 1)):
        return
    help = near_or_known(rest, sorted(known), "axes") if known else "nothing names an axis yet"
    message = f"no rule, pattern or array names the axis `{rest}`"
    yield point(codes.UNKNOWN_KEY, message, span, help=help)


def _shortened(name: str, text: str, data: Any, span: Span) -> Diagnostic | None:
    """Return the fault of a name that stands without its section: `tensor=4`, `embed=100`."""
    if "." in name or not isinstance(data, dict) or name in data or name in fields_at(()):
        return None
    targets = {"": data} | _mapping(data.get("targets"))
    sections = {"mesh": [*_mesh_axes(targets)]}
    sections |= {each: [*_mapping(data.get(each))] for each in ("let", "axes")}
    meant = [f"{where}.{name}" for where, names in sections.items() if name in names]
    if not meant:
        sections[""] = list(fields_at(()))
        spelt = {near: where for where, names in sections.items() for near in names}
        meant = [f"{spelt[near]}.{near}".lstrip(".") for near in nearest(name, spelt)]
    told = " or ".join(f"`--set {each}={text}`" for each in meant)
    help = f"did you mean {told}?" if meant else _ROUTES
    return point(codes.UNKNOWN_KEY, f"`{name}` is no section of a spec", span, help=help)


def _mapping(data: Any) -> dict[str, Any]:
    return data if isinstance(data, dict) else {}


def _routes(name: str, data: Any) -> list[tuple[str, ...]]:
    """Return where `name` leads: `mesh.model` to each target that has the axis, in any phase."""
    own = _own_routes(name, data)
    phases = _mapping(_mapping(data).get("phases"))
    if not name.startswith("mesh.") or not phases:
        return own
    inner = [
        ("phases", str(phase), *steps)
        for phase, stated in phases.items()
        if isinstance(stated, dict) and stated.keys() & {"mesh", "targets"}
        for steps in _own_routes(name, stated)
        if not _missing(steps, stated)
    ]
    has_mesh = bool(data.keys() & {"mesh", "targets"})
    found = [steps for steps in own if has_mesh and not _missing(steps, data)]
    return found + inner if inner else own


def _own_routes(name: str, data: Any) -> list[tuple[str, ...]]:
    """Return where `name` leads in a document, its phases apart."""
    route = tuple(name.split("."))
    if route[0] == "mesh" and isinstance(data, dict) and "mesh" not in data:
        targets = data.get("targets")
        if isinstance(targets, dict) and targets:
            routes = [("targets", str(target), *route) for target in targets]
            return [each for each in routes if not _missing(each, data)] or routes[:1]
    return [route]


def _make_room(steps: tuple[str, ...], data: Any, values: _Places, within: Route) -> None:
    """Write an axis that is a size alone as one with fields, where a setting names a field."""
    axes = data.get("axes") if isinstance(data, dict) and steps[0] == "axes" else None
    if not isinstance(axes, dict) or len(steps) < 3:
        return
    name, rest = _first_key(axes, steps[1:])
    size = axes.get(name, [])
    if rest and not isinstance(size, dict | list):
        axes[name] = {} if size is None else {"size": size}
        route: Route = (*within, "axes", name)
        if size is not None and route in values:
            values[(*route, "size")] = values[route]


def _missing(steps: tuple[str, ...], data: Any) -> tuple[Route, str, list[str]] | None:
    """Return the mapping of names, the name, and the names there are; None for a known name."""
    route: Route = ()
    while steps and isinstance(data, dict):
        key, rest = _first_key(data, steps)
        if key not in data:
            return (route, ".".join(steps), list(data)) if _holds_names(route) else None
        data, steps, route = data[key], rest, (*route, key)
        if data is None and steps and _holds_names(route):
            data = {}
    return None


def _holds_names(route: Route) -> bool:
    """Say whether the keys at `route` are names that a document makes up."""
    if len(route) == 1:
        return route[0] in _OPEN
    return len(route) == 3 and route[::2] == ("targets", "mesh")


def _unknown_step(steps: tuple[str, ...], data: Any, span: Span) -> Diagnostic | None:
    """Return the fault of a setting for a name that the document does not have."""
    is_entry = steps[0] in _OPEN or (steps[0] in _LISTS and len(steps) > 1)
    if isinstance(data, dict) and is_entry and steps[0] not in data:
        if steps[0] == "mesh":
            return None
        message = f"the document has no `{steps[0]}` of its own to change"
        return point(codes.UNKNOWN_KEY, message, span, help="a setting changes what stands there")
    missing = _missing(steps, data)
    if missing is None:
        return None
    route, name, known = missing
    if route[-1] == "mesh" and len(route) == 3 and isinstance(data["targets"], dict):
        known = list(dict.fromkeys(_mesh_axes(data["targets"])))
    within = ".".join(map(str, route)) if not span.text.startswith("mesh.") else "mesh"
    there = near_or_known(name, known) if known else f"`{within}` is empty"
    help = did_you_mean(name, known) or did_you_mean(name.split(".")[0], known) or there
    return point(codes.UNKNOWN_KEY, f"`{within}` has no `{name}`", span, help=help)


def _mesh_axes(targets: Mapping[str, Any]) -> Iterator[str]:
    for target in targets.values():
        yield from _mapping(_mapping(target).get("mesh"))


def _put(data: Any, steps: tuple[str, ...], value: Any) -> Route | None:
    """Put `value` where `steps` lead, and return the route; None where they lead nowhere."""
    route: Route = ()
    while steps:
        key, steps = _first_key(data, steps)
        if isinstance(data, list):
            if not key.isdecimal() or len(key) > DIGITS or int(key) >= len(data):
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


def _point_at_setting(
    route: Route, setting: _Setting, keys: _Places, values: _Places, within: Route
) -> None:
    """Make everything that the setting replaced or brought with it stand in its text."""
    whole, (key, value) = (*within, *route), setting
    for places in (keys, values):
        for inner in [each for each in places if each[: len(whole)] == whole]:
            del places[inner]
    for count in range(1, len(route)):
        above = (*within, *route[:count])
        if above not in values:
            keys[above], values[above] = key, value
        elif above[-1] == "mesh":
            keys[above] = values[above] = Excerpt("mesh", value.span)
        elif route[0] == "axes" and count == 2:
            values[above] = Excerpt("", value.span)
    keys[whole], values[whole] = key, value


def _first_key(data: Any, steps: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the key that stands first in `steps`, which may hold dots itself, and the rest."""
    if isinstance(data, dict):
        for count in range(len(steps), 1, -1):
            joined = ".".join(steps[:count])
            if joined in data:
                return joined, steps[count:]
    return steps[0], steps[1:]

"""`targets:` and the mesh of the only one -> declarations, whose meshes are solved later.

A size is read here, and what it comes to once every layer has had its say: `meshes`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from shardspec.diagnostics import Diagnostic, Excerpt, Label, Span, codes, point
from shardspec.diagnostics.words import listed
from shardspec.ir import spec as ir
from shardspec.ir.spec import Hardware
from shardspec.language.catalogue import find_hardware, machine_fault
from shardspec.language.grammar import expressions, syntax
from shardspec.language.grammar.expressions import parse_devices
from shardspec.language.meshes import TargetDecl
from shardspec.language.reading import Route, is_dsl
from shardspec.language.walk import Walk
from shardspec.topology.sizes import StatedAxis, StatedMesh

if TYPE_CHECKING:
    from shardspec.language.document import Document, TargetEntry
    from shardspec.topology.by_hand import DeviceRun


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
    machine = hardware and _hardware(walk.excerpt((*route, "hardware"), hardware))
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
    return TargetDecl(name, stated, sizes_of, tuple(wholes), span)


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
    runs = parse_devices(text)
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

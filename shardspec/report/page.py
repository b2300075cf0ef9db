"""One page about a spec for a browser: nothing is fetched, and nothing in it can run but its own.

The page holds its style, its scripts and its data. A policy in it names the digests of the two, so
that a browser runs no other script and applies no other style, wherever it might have come from.

What a page needs to answer clicks, as JSON: arrays in rows, why each lies so, and the machine.

Everything is of the same nouns that `compile`, `mesh` and `explain` print, so that no figure can
be another. What arrays share (a trace, a name) stands once, and devices are left out: a page adds
up their places from one offset for each index of each mesh axis, as a `Placement` does.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardspec.analysis.cost import Cost, cost_of
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.diagnostic import printable
from shardspec.diagnostics.render import render
from shardspec.diagnostics.words import binary_bytes, counted, grouped, seconds_text, tallied
from shardspec.ir.operations import CollectiveKind
from shardspec.ir.plan import ActivationSharding, ParamSharding, Sharding, ShardingPlan
from shardspec.ir.spec import Spec, Target
from shardspec.report import page_pieces
from shardspec.report.cost_json import CostRecord, cost_record
from shardspec.report.drawing import MOST_DRAWN, plan_html
from shardspec.report.explain import dim_rows, facts
from shardspec.report.html import Html, joined, table, tag
from shardspec.report.mesh import speed_text
from shardspec.report.page_pieces import axes_piece, memory_rows, sent_piece, time_piece
from shardspec.report.pages import finding_page
from shardspec.report.saved_cost import bytes_of
from shardspec.report.search_pictures import SavedSearch, saved_search, search_picture
from shardspec.report.step_pictures import (
    DrawnStep,
    drawn_step,
    graph_piece,
    step_data,
    step_pictures,
)
from shardspec.report.table import Row, layout_text, rows, rules_text, summary, target_title
from shardspec.search.ranking import Found, SearchRow
from shardspec.topology.placement import explain_axes, placed
from shardspec.versions import PACKAGE

_FOLDER = Path(__file__).parent / "web"
#: In the order in which they run.
_SCRIPTS = (
    "core",
    "place",
    "tables",
    "arrays",
    "treemap",
    "traffic",
    "machine",
    "array",
    "step",
    "start",
)
_SECTIONS = {
    "changes": "Changes",
    "targets": "Targets",
    "memory": "Memory",
    "findings": "Findings",
    "map": "Map",
    "arrays": "Arrays",
    "machine": "Machine",
    "step": "Step",
    "searched": "Search",
}
#: Findings shown in full; a file broken from end to end has thousands.
_MOST_FINDINGS = 200
_BASIS = "Parameters, and by `state:` gradients and optimizer state"


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page shows of one target.

    Attributes:
      note: where the cost is from, where that is not the spec itself.
      drawn: the cost with its operations, to draw; None where only figures are known.
    """

    plan: ShardingPlan = field(repr=False)
    cost: CostRecord = field(repr=False)
    note: str = ""
    drawn: Cost | None = field(default=None, repr=False)


def page_text(
    spec: Spec,
    targets: Sequence[Shown],
    findings: Sequence[Diagnostic],
    *,
    title: str | None = None,
    changes: Html | None = None,
    search: SavedSearch | None = None,
    is_watched: bool = False,
) -> str:
    """Return the page as a text; it needs jinja2.

    Args:
      targets: without those that have no mesh.
      findings: as `check` shows them.
      title: None for the name of the spec.
      changes: what is another than in another spec.
      search: what a search found.
      is_watched: whether the page, open from disk, shows itself anew when its file changes.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string(_read("page.html.jinja"))
    scripts = [_read(f"{name}.js") for name in (*_SCRIPTS, *["watch"] * is_watched)]
    script = "\n".join(("(() => {", '"use strict";', *scripts, "})();"))
    probe = _read("stamp.js") if is_watched else ""
    style = _read("page.css")
    pieces = {
        "title": printable(title or shown_name(spec.source.name)),
        "doc": printable(spec.doc or ""),
        "changes": changes,
        "searched": None if search is None else search_picture(search),
        "findings": _findings(findings),
        "made_by": f"shardspec {PACKAGE}",
        **_of_targets(targets, findings),
    }
    hashes = {"script_hash": _hash(script), "style_hash": _hash(style)}
    sections = [(id, name) for id, name in _SECTIONS.items() if pieces.get(id, True)]
    code = {"script": Html(script), "style": Html(style), "sections": sections}
    stamp = {"stamp": _hash(repr(pieces)) if is_watched else None, "stamp_hash": _hash(probe)}
    told = {**stamp, "stamp_script": Html(probe)}
    return template.render(**pieces, **hashes, **code, **told) + "\n"


def _of_targets(targets: Sequence[Shown], findings: Sequence[Diagnostic]) -> dict[str, object]:
    """Return what a page says of its targets, piece by piece."""
    axes = tuple(dict.fromkeys(name for each in targets for name in each.plan.mesh.names))
    drawn = [e.drawn if e.drawn is None else drawn_step(e.drawn, axes) for e in targets]
    steps = [_step(*each, axes, findings) for each in zip(targets, drawn, strict=True)]
    return {
        "count": _count(targets),
        "targets": [printable(each.plan.name) for each in targets],
        "targets_table": _targets_table(targets),
        "memory": page_pieces.memory_rows((each.plan.name, each.cost) for each in targets),
        "basis": f"{_BASIS}; of a step also what it makes." if any(steps) else f"{_BASIS}.",
        "machines": [_machine(each.plan) for each in targets],
        "step": steps if any(steps) else [],
        "data": Html(embedded(page_data(targets, drawn))),
    }


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _count(targets: Sequence[Shown]) -> str:
    plans = [each.plan for each in targets]
    arrays = len({path.param.path for plan in plans for path in plan.arrays})
    return f"{counted(arrays, 'array')} on {counted(len(plans), 'target')}"


def _targets_table(targets: Sequence[Shown]) -> Html:
    if not targets:
        return tag("p", "No target has a mesh that works out: the findings say why.")
    steps = any(each.cost.step for each in targets)
    headings = ("target", "machine", "mesh", "arrays per device", "memory", "of the arrays")
    rows = [_target_row(at, each, has_steps=steps) for at, each in enumerate(targets)]
    step = ("a step",) if steps else ()
    return table((*headings, *step), rows, (3,), class_="table-targets stack")


def _target_row(at: int, shown: Shown, *, has_steps: bool) -> tuple[str, ...]:
    plan, time = shown.plan, shown.cost.time
    least = shown.cost.at_least("sends", "flops", "time")
    step = f"{least}~ {seconds_text(time.step_s)}, bound by {time.bound}" if time else ""
    return (
        tag("button", plan.name, type="button", class_="link", data_target=at),
        target_title(plan.target).partition(": ")[2],
        str(plan.mesh),
        f"= {binary_bytes(plan.per_device_bytes)}",
        page_pieces.memory_text(shown.cost.memory),
        summary(plan),
        *((step,) if has_steps else ()),
    )


def shown_name(name: str) -> str:
    """Return what a page calls a file: whoever gets the page has other folders."""
    return os.path.basename(name) if os.path.isabs(name) else name


def _findings(findings: Sequence[Diagnostic]) -> Html:
    """Return the findings with their carets, and what each kind of them means."""
    if not findings:
        return tag("p", "None.")
    errors = sum(each.is_error for each in findings)
    count = tallied((errors, "error"), (len(findings) - errors, "warning"))
    shown = [_finding(each) for each in findings[:_MOST_FINDINGS]]
    if len(findings) > _MOST_FINDINGS:
        left = len(findings) - _MOST_FINDINGS
        shown.append(tag("p", f"and {left} more: `shardspec check` shows them", class_="quiet"))
    codes = dict.fromkeys(each.code for each in findings)
    pages = (
        tag(
            "details",
            tag("summary", f"{code.id} {code.name}"),
            tag("pre", finding_page(code), class_="page"),
        )
        for code in codes
    )
    return joined((tag("p", count), *shown, tag("h3", "What they mean"), *pages))


def _finding(found: Diagnostic) -> Html:
    severity = str(found.severity)
    level = tag("span", f"{severity} {found.code.id}", class_="level")
    text = tag("pre", render(found), tabindex="0")
    return tag(
        "details",
        tag("summary", level, " ", found.message),
        text,
        class_=f"finding {severity}",
        open=found.is_error,
    )


def _machine(plan: ShardingPlan) -> Html:
    placement = placed(plan.target, plan.spec.policy.order)
    if placement is None:
        return tag("p", "No hardware is stated for this target.", class_="quiet")
    return page_pieces.axes_piece(placement)


def _step(
    shown: Shown, drawn: DrawnStep | None, axes: Sequence[str], findings: Sequence[Diagnostic]
) -> Html:
    """Return what a step takes and sends on a target; nothing where no step is known."""
    cost, notes = shown.cost, []
    found = [each for each in findings if each.target in (None, shown.plan.target.name)]
    if shown.note:
        notes.append(shown.note)
    if cost.step is None:
        return joined(tag("p", note, class_="quiet") for note in notes)
    if cost.step.place is not None:
        notes.append(f"step at {cost.step.place}")
    notes += cost.step.notes
    if shown.drawn is None:
        notes.append("no time line: a saved cost holds no operations; `--step` draws them")
    pieces = [tag("p", note, class_="quiet") for note in notes]
    pieces.append(time_piece(cost, axes))
    pieces += [] if cost.measured is None else [page_pieces.measured_piece(cost.measured, axes)]
    pieces += [] if drawn is None else [step_pictures(drawn), graph_piece(drawn, found)]
    return joined((*pieces, tag("h3", "What is sent"), sent_piece(cost)))


Data = dict[str, Any]

#: Characters that could end a script element, or start a comment in one.
_UNSAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def page_data(shown: Sequence[Shown], steps: Sequence[DrawnStep | None] = ()) -> Data:
    """Return what the scripts of a page are given.

    Args:
      shown: each target; those of a phase are called `phase@target`.
      steps: that are drawn, of each target.
    """
    pool = _Pool()
    targets = [{**_target(each.plan, pool), "sent": _sent(each.cost)} for each in shown]
    for target, step in zip(targets, steps, strict=False):
        target["step"] = step and step_data(step)
    reasons = [dict(zip(("facts", "dims"), told, strict=True)) for told in pool.reasons]
    return {"targets": targets, "paths": list(pool.paths), "reasons": reasons}


def embedded(data: Data) -> str:
    r"""Return data as JSON that can stand in a script element, whatever its texts hold.

    >>> print(embedded({"</script>": "<!--"}))
    {"\u003c/script\u003e":"\u003c!--"}
    """
    return json.dumps(_shown(data), separators=(",", ":")).translate(_UNSAFE)


def _shown(value: Any) -> Any:
    """Return a value with its texts as they may be shown: none turns lines around."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): _shown(inner) for key, inner in value.items()}
    return [_shown(inner) for inner in value] if isinstance(value, list | tuple) else value


class _Pool:
    """Paths and reasons of all targets, each once."""

    def __init__(self) -> None:
        self.paths: dict[str, int] = {}
        self.reasons: dict[tuple[tuple[tuple[str, ...], ...], ...], int] = {}

    def path(self, path: str) -> int:
        """Return the number of a path."""
        return self.paths.setdefault(path, len(self.paths))

    def reason(self, sharding: Sharding, plan: ShardingPlan) -> int:
        """Return the number of the explanation of an array or an activation."""
        told = tuple(map(tuple, facts(sharding, plan))), tuple(map(tuple, dim_rows(sharding, plan)))
        return self.reasons.setdefault(told, len(self.reasons))


def _target(plan: ShardingPlan, pool: _Pool) -> Data:
    return {
        "name": plan.name,
        "title": target_title(plan.target).partition(": ")[2],
        "mesh": [[axis.name, axis.size] for axis in plan.mesh.axes],
        "bytes": plan.per_device_bytes,
        "rows": [_row(row, plan, pool) for row in rows(plan)],
        "activations": [_activation(each, plan, pool) for each in plan.activations],
        "machine": machine_data(plan),
    }


def _row(row: Row, plan: ShardingPlan, pool: _Pool) -> Data:
    first = row.first
    return {
        "name": row.name,
        "paths": [pool.path(each.param.path) for each in row.shardings],
        "type": str(first.param),
        "shard": str(list(first.shard_shape)),
        "rules": rules_text(first, plan),
        "bytes": row.per_device_bytes,
        **_layout(first, plan, pool),
        **_kind(first),
    }


def _kind(sharding: ParamSharding) -> Data:
    """Return what is unusual about an array: it lies on its host, is whole, is a cache."""
    said: Data = {"host": 1} if sharding.memory_kind else {}
    if sharding.is_replicated:
        said["whole"] = 1
    return {**said, "cache": 1} if sharding.param.is_cache else said


def _activation(sharding: ActivationSharding, plan: ShardingPlan, pool: _Pool) -> Data:
    names = (
        f"{dim.logical_axis or '_'}{'' if dim.size is None else f'={dim.size}'}"
        for dim in sharding.dims
    )
    return {
        "name": sharding.activation.name,
        "type": " ".join(names),
        **_layout(sharding, plan, pool),
    }


def _layout(sharding: Sharding, plan: ShardingPlan, pool: _Pool) -> Data:
    """Return how something is sharded and why; of each dimension name, sizes and mesh axes."""
    dims = sharding.dims
    return {
        "spec": layout_text(sharding),
        "answer": str(sharding.partition_spec),
        "dims": [[d.logical_axis or "_", d.size, d.shard_size, list(d.mesh_axes)] for d in dims],
        "why": pool.reason(sharding, plan),
    }


def _sent(cost: CostRecord) -> list[Any]:
    """Return the bytes that a device sends in a step, by mesh axes and by the way they travel."""
    rows = grouped(
        cost.collectives, lambda each: (each.mesh_axes, CollectiveKind(each.kind).traits.way)
    )
    return [[list(axes), way, bytes_of(sent)] for (axes, way), sent in rows.items()]


# the machine


def machine_data(plan: ShardingPlan) -> Data | None:
    """Return physical axes, and for each index of each mesh axis its offset on them."""
    placement = placed(plan.target, plan.spec.policy.order)
    if placement is None or plan.mesh.device_count > MOST_DRAWN:
        return None
    return {
        "platform": placement.hardware.chip.platform,
        "speed": placement.hardware.chip.link_bytes_per_s,
        "axes": [
            [axis.name, axis.extent, axis.link, axis.wraps, axis.host] for axis in placement.machine
        ],
        "speeds": {each.name: speed_text(each) for each in explain_axes(placement)},
        "routes": {each.axis.name: list(map(list, each.route)) for each in placement.axes},
    }


# What a cell of a notebook shows of a plan, a cost, a search and a mesh: pieces of the page.
#
# They hold no scripts and need no jinja2. Bars have their colours in themselves, so that a notebook
# shown without the style, as code hosts do, is legible all the same.


_STYLE = Path(__file__).parent / "web" / "notebook.css"


def _framed(*pieces: str) -> str:
    style = tag("style", Html(_STYLE.read_text(encoding="utf-8")))
    return tag("div", style, *pieces, class_="shardspec")


def plan_pieces(plan: ShardingPlan) -> str:
    """Return the table of a plan, below what a device holds of it."""
    memory = memory_rows([(plan.name, cost_record(cost_of(plan)))])
    return _framed(memory, Html(plan_html(plan)))


def cost_pieces(cost: Cost) -> str:
    """Return what a step holds, what its time is made of, and what it sends and why."""
    data = cost_record(cost)
    pieces = [tag("p", _heading(cost.plan)), memory_rows([(cost.plan.name, data)])]
    if cost.step is not None:
        drawn = drawn_step(cost)
        pictures = [] if drawn is None else [step_pictures(drawn), graph_piece(drawn)]
        pieces += [time_piece(data), *pictures, sent_piece(data)]
    return _framed(*pieces)


def search_pieces(found: Found, best: SearchRow | None) -> str:
    """Return what a search found by time and memory, and the table of the best."""
    return _framed(search_picture(saved_search(found, best)))


def target_pieces(spec: Spec, target: Target) -> str:
    """Return the mesh of a target: what each mesh axis runs over, and its speed."""
    plan = ShardingPlan(spec, target, ())
    placement = placed(target, spec.policy.order)
    axes = [] if placement is None else [axes_piece(placement)]
    return _framed(tag("p", _heading(plan)), *axes)


def _heading(plan: ShardingPlan) -> str:
    return f"{plan.spec.source.name}   {target_title(plan.target)}   mesh {plan.mesh}"

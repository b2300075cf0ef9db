"""One page about a spec for a browser: nothing is fetched, and nothing in it can run but its own.

The page holds its style, its scripts and its data. A policy in it names the digests of the two, so
that a browser runs no other script and applies no other style, wherever it might have come from.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.render import render
from shardspec.diagnostics.source import printable
from shardspec.diagnostics.words import counted, seconds_text, tallied
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec
from shardspec.report import page_pieces
from shardspec.report.cost_json import CostRecord
from shardspec.report.html import Html, joined, table, tag
from shardspec.report.page_data import embedded, page_data
from shardspec.report.pages import finding_page
from shardspec.report.table import summary, target_title
from shardspec.topology.placement import placed
from shardspec.versions import PACKAGE

_FOLDER = Path(__file__).parent / "web"
#: In the order in which they run.
_SCRIPTS = ("core", "arrays", "treemap", "machine", "array", "start")
_SECTIONS = {
    "changes": "Changes",
    "targets": "Targets",
    "memory": "Memory",
    "findings": "Findings",
    "map": "Map",
    "arrays": "Arrays",
    "machine": "Machine",
    "step": "Step",
}
#: Findings shown in full; a file broken from end to end has thousands.
_MOST_FINDINGS = 200
_BASIS = "Parameters, and by `state:` gradients and optimizer state"


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page shows of one target.

    Attributes:
      note: where the cost is from, where that is not the spec itself.
    """

    plan: ShardingPlan = field(repr=False)
    cost: CostRecord = field(repr=False)
    note: str = ""


def page_text(
    spec: Spec,
    targets: Sequence[Shown],
    findings: Sequence[Diagnostic],
    *,
    title: str | None = None,
    changes: Html | None = None,
) -> str:
    """Return the page as a text; it needs jinja2.

    Args:
      targets: without those that have no mesh.
      findings: as `check` shows them.
      title: None for the name of the spec.
      changes: what is another than in another spec.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string(_read("page.html.jinja"))
    script = "\n".join(("(() => {", '"use strict";', *map(_script, _SCRIPTS), "})();"))
    style = _read("page.css")
    pieces = {
        "title": printable(title or spec.source.name),
        "doc": printable(spec.doc or ""),
        "changes": changes,
        "findings": _findings(findings),
        "made_by": f"shardspec {PACKAGE}",
        **_of_targets(targets),
    }
    hashes = {"script_hash": _hash(script), "style_hash": _hash(style)}
    sections = [(id, name) for id, name in _SECTIONS.items() if pieces.get(id, True)]
    code = {"script": Html(script), "style": Html(style), "sections": sections}
    return template.render(**pieces, **hashes, **code) + "\n"


def _of_targets(targets: Sequence[Shown]) -> dict[str, object]:
    """Return what a page says of its targets, piece by piece."""
    steps = [_step(each) for each in targets]
    return {
        "count": _count(targets),
        "targets": [printable(each.plan.name) for each in targets],
        "targets_table": _targets_table(targets),
        "memory": page_pieces.memory_rows((each.plan.name, each.cost) for each in targets),
        "basis": f"{_BASIS}; of a step also what it makes." if any(steps) else f"{_BASIS}.",
        "machines": [_machine(each.plan) for each in targets],
        "step": steps if any(steps) else [],
        "data": Html(embedded(page_data([each.plan for each in targets]))),
    }


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _script(name: str) -> str:
    return _read(f"{name}.js")


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
    from shardspec.diagnostics.words import binary_bytes

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


def _step(shown: Shown) -> Html:
    """Return what a step takes and sends on a target; nothing where no step is known."""
    cost, notes = shown.cost, []
    if shown.note:
        notes.append(shown.note)
    if cost.step is None:
        return joined(tag("p", note, class_="quiet") for note in notes)
    if cost.step.place is not None:
        notes.append(f"step at {cost.step.place}")
    notes += cost.step.notes
    return joined(
        (
            *(tag("p", note, class_="quiet") for note in notes),
            page_pieces.time_piece(cost),
            page_pieces.sent_piece(cost),
        )
    )

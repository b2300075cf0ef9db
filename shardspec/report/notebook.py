"""What a cell of a notebook shows of a plan, a cost, a search and a mesh: pieces of the page.

They hold no scripts and need no jinja2. Bars have their colours in themselves, so that a notebook
shown without the style, as code hosts do, is legible all the same.
"""

from __future__ import annotations

from pathlib import Path

from shardspec.analysis.cost import Cost, cost_of
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec, Target
from shardspec.report.cost_json import cost_record
from shardspec.report.drawing import plan_html
from shardspec.report.html import Html, tag
from shardspec.report.page_pieces import axes_piece, memory_rows, sent_piece, time_piece
from shardspec.report.search_pictures import saved_search, search_picture
from shardspec.report.step_pictures import drawn_step, step_pictures
from shardspec.report.table import target_title
from shardspec.search.ranking import SearchRow
from shardspec.search.searching import Found
from shardspec.topology.placement import placed

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
        pictures = [] if drawn is None else [step_pictures(drawn)]
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

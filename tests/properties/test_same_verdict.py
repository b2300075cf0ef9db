"""Law: whether a device has room is one verdict, whoever is asked, on every chip of the catalogue.

Caches and a table take what programs have of a device's memory but for 1 MiB, or 1 MiB more.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from shardspec import pipeline
from shardspec.analysis.cost import Cost, cost_of
from shardspec.analysis.memory import limit, memory, room_text, share_of
from shardspec.analysis.spec_step import stated_step
from shardspec.analysis.step_memory import rooms
from shardspec.diagnostics import Diagnostic, codes
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec, shape_text
from shardspec.language.catalogue import catalogue_entry, hardware_names
from shardspec.lsp.hover import KINDS, hints, hover
from shardspec.programs.memory import CompiledMemory
from shardspec.programs.proof import Proof
from shardspec.report import cost as report
from shardspec.report.cost_json import cost_record
from shardspec.report.page_pieces import memory_text
from shardspec.report.table import memory_lines
from shardspec.search.ranking import Evaluator, Ranking, Wanted
from shardspec.search.variants import Candidate, Variant
from tests.lsp.texts import snapshot_of

MIB = 1 << 20
#: One row of the table has 1 KiB.
TEXT = """\
targets: {{pod: {{hardware: "{machine}", mesh: {{x: rest}}}}}}
axes: {{pages: {pages}, vocab: {rows}, embed: 1024, batch: 8}}
rules: ["batch, vocab, embed, pages -> none"]
lints: {{replicated-large: allow}}
params: {{table: vocab embed}}
arrays: {{table: "s8[{rows}, 1024]"}}
caches: {{kept: "s8[pages=32 embed=1024]"}}
activations: {{residual: batch embed}}
step: {{mode: serve, program: ['gather(tokens[batch], "table") -> residual']}}
"""
#: Of each kind of chip the smallest machine, and of GPUs one that gives JAX another share.
MACHINES = {
    entry.chip.name: f"tpu {entry.names[0]} {shape_text(next(iter(entry.shapes.every())))}"
    if entry.chip.platform == "tpu"
    else f"1 {entry.names[0]}"
    for entry in map(catalogue_entry, dict.fromkeys(hardware_names().values()))
    if entry.chip.hbm_bytes is not None
} | {"h100 with more": "1 h100 memory 0.92"}


def spec_of(machine: str, rows: int) -> tuple[Spec, str]:
    text = TEXT.format(machine=machine, rows=rows, pages=32)
    spec, faults = pipeline.load_text(text)
    assert spec is not None
    assert faults == ()
    return spec, text


def cost_on(plan: ShardingPlan) -> Cost:
    stated = stated_step(plan)
    assert stated is not None
    return cost_of(plan, stated.step, tokens=stated.tokens)


def verdicts(spec: Spec, text: str, folder: Path) -> dict[str, bool | None]:
    """Return what every surface says."""
    (plan,) = pipeline.compile_plans(spec)
    cost, target = cost_on(plan), spec.targets[0]
    quick = Evaluator(spec, spec.params).cost(target)
    row = Ranking(spec.params, Wanted()).row(Candidate(target, spec.policy.order, Variant(spec)))
    held = CompiledMemory({0: cost.memory.total.bytes}, 0, 0)
    proof = Proof(cost, cost.step, held, "compiler", 0.0)
    found = pipeline.check(spec, (), spec.params).shown
    snapshot = snapshot_of(folder, "spec.yaml", text)
    told = {
        "compile": "\n".join(map(str, memory_lines([plan]))),
        "cost": str(report.Cost.of(cost)),
        "report": memory_text(cost_record(cost).memory),
    }
    room = {each.axis: each.most for each in rooms(plan)}
    return {
        "check": not _exceeds(found),
        "editor": not _exceeds(snapshot.found),
        "memory": memory(plan).fits,
        "cost": cost.memory.fits,
        "json": cost_record(cost).memory.fits,
        "verify": proof.fits,
        "search": row.fits if row is not None else quick is not None and quick.memory.fits,
        "room": room["pages"] >= 32,
        **{f"{name} in words": "DOES NOT FIT" not in each for name, each in told.items()},
    }


def _exceeds(found: Iterable[Diagnostic]) -> bool:
    return any(each.code in (codes.EXCEEDS_MEMORY, codes.STEP_EXCEEDS_MEMORY) for each in found)


@pytest.mark.parametrize("name", MACHINES)
def test_every_verb_says_the_same(name: str, tmp_path: Path) -> None:
    size = limit(spec_of(MACHINES[name], 32)[0].targets[0])
    assert size is not None
    for more, fits in ((-MIB, True), (MIB, False)):
        spec, text = spec_of(MACHINES[name], (size + more) // 1024)
        found = verdicts(spec, text, tmp_path)
        assert found == dict.fromkeys(found, fits)


@pytest.mark.parametrize("machine", ["tpu v5e 1x1", "1 h100", "1 h100 memory 0.92"])
def test_every_verb_shows_the_same_room(machine: str, tmp_path: Path) -> None:
    spec, text = spec_of(machine, 32)
    (plan,) = pipeline.compile_plans(spec)
    size = limit(plan.target)
    assert size is not None
    room, snapshot = room_text(size, share_of(plan.target)), snapshot_of(tmp_path, "s.yaml", text)
    shown = [hint.label for hint in hints(snapshot, 0, len(text), frozenset(KINDS))]
    told = (*map(str, memory_lines([plan])), str(report.Cost.of(cost_on(plan))))
    assert any(f"of {room}" in str(each) for each in shown)
    assert f"of {room}" in (hover(snapshot, text.index("pod")) or "")
    assert f"of {room}" in "\n".join(told)
    assert f"of {room}" in memory_text(cost_record(cost_on(plan)).memory)

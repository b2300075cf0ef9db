"""`cost --format perfetto`: the Trace Event format, and the figures that a trace is made from."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.analysis.comparison import Spent, predicted_of, timed_of
from shardspec.analysis.cost import Cost
from shardspec.analysis.spec_step import stated_cost
from shardspec.cli.main import cli
from shardspec.ir.step import Place
from shardspec.programs.captures import _rows_of_trace
from shardspec.report.trace import Slice, _place, memory_over, trace_text
from tests.analysis.test_spec_step import plan_of
from tests.analysis.test_step_stages import TEXT as PIPELINE

EXAMPLES = Path(__file__).parents[2] / "specs" / "examples"

NAMES = (
    *("gemma-2-9b", "llama-3-70b-pipeline", "llama-3-8b-decode", "llama-3-8b-lora"),
    *("mixtral-8x7b", "t5-1.1-xxl", "vit-b-16"),
)


def cost_of_example(name: str) -> Cost:
    """Return what the stated step of an example costs on its first target."""
    spec, _ = pipeline.load_path(str(EXAMPLES / f"{name}.yaml"))
    assert spec is not None
    return stated_cost(pipeline.compile_plans(spec, None)[0])


@pytest.fixture(scope="module", params=NAMES)
def cost(request: pytest.FixtureRequest) -> Cost:
    return cost_of_example(request.param)


def events(cost: Cost) -> list[dict[str, Any]]:
    data = json.loads(trace_text(cost))
    found: list[dict[str, Any]] = data["traceEvents"]
    return found


def test_it_is_of_the_trace_event_format(cost: Cost) -> None:
    found = events(cost)
    assert {each["ph"] for each in found} <= {"M", "X", "C", "s", "f"}
    for each in found:
        assert isinstance(each["name"], str) and each["name"]  # noqa: PT018
        assert each["pid"] == 1
        if each["ph"] != "M":
            assert each["ts"] >= 0
    threads = {each["tid"]: each["args"]["name"] for each in found if each["name"] == "thread_name"}
    assert threads[1] == "compute"
    rows: dict[int, list[dict[str, Any]]] = {tid: [] for tid in threads}
    for each in found:
        if each["ph"] == "X":
            assert each["dur"] > 0
            rows[each["tid"]].append(each)
    for slices in rows.values():
        ordered = sorted(slices, key=lambda each: each["ts"])
        for one, other in pairwise(ordered):
            assert one["ts"] + one["dur"] <= other["ts"], "viewers would stack the other"
            assert one["ts"] / 1e3 + one["dur"] / 1e3 <= other["ts"] / 1e3
            assert cut(one["ts"]) + cut(one["dur"]) <= cut(other["ts"])
    counters = [each for each in found if each["ph"] == "C"]
    assert all(isinstance(value, int) for each in counters for value in each["args"].values())


def cut(microseconds: float) -> int:
    """Return whole nanoseconds, as Perfetto reads a number."""
    return int(microseconds * 1e3)


def test_flows_pair_and_go_forward(cost: Cost) -> None:
    flows: dict[int, dict[str, float]] = {}
    for each in events(cost):
        if each["ph"] in "sf":
            assert each["ph"] not in flows.setdefault(each["id"], {})
            flows[each["id"]][each["ph"]] = each["ts"]
    assert all(set(pair) == {"s", "f"} and pair["s"] <= pair["f"] for pair in flows.values())


def test_it_is_read_back_to_its_figures(cost: Cost) -> None:
    time = cost.time
    assert time is not None
    rows = list(_rows_of_trace(trace_text(cost)))
    took: dict[str, float] = {}
    waits = 0.0
    for row in rows:
        seconds = (row.end - row.start) * 1e-12
        took[row.line] = took.get(row.line, 0.0) + seconds
        waits += seconds if row.name.startswith("wait: ") else 0.0
        took[row.line] -= seconds if row.name == "stages wait" else 0.0
    near = {"rel": 1e-6, "abs": 1e-9}
    assert took["compute"] - waits == pytest.approx(time.compute_seconds, **near)
    assert waits == pytest.approx(sum(axis.exposed_seconds for axis in time.axes), **near)
    for axis in time.axes:
        if axis.seconds:
            assert took[f"mesh axis {axis.mesh_axis}"] == pytest.approx(axis.seconds, **near)
    end = max(row.end for row in rows) * 1e-12
    assert end == pytest.approx(time.step_seconds, **near)
    held = [sum(each["args"].values()) for each in events(cost) if each["ph"] == "C"]
    assert not held or max(held) == cost.memory.total.bytes
    computing = [row for row in rows if row.line == "compute"]
    assert all({"line", "rule", "phase", "runs"} <= set(row.stats) for row in computing)


def test_products_have_the_rules_that_split_them(cost: Cost) -> None:
    """Also those of two values, as gradients of weights and scores of attention are."""
    products = [row for row in predicted_of(cost) if row.kind == "matmul"]
    assert products
    assert [row for row in products if not row.is_explained] == []


def test_a_step_that_was_measured_is_drawn_in_its_time() -> None:
    rows = list(_rows_of_trace(trace_text(cost_of_example("mixtral-8x7b").measured(2.0))))
    assert max(row.end for row in rows) * 1e-12 == pytest.approx(2.0)


@given(st.lists(st.tuples(st.floats(0.001, 5), st.floats(0, 20)), min_size=1, max_size=20))
def test_collectives_of_an_axis_do_not_overlap(pairs: list[tuple[float, float]]) -> None:
    spent = Spent("collective", "x", Place(), "forward", ("a",), "", (), 1.0, 1.0, 1.0)
    due = sorted(at for _, at in pairs)
    row = [Slice("a", spent, took, at) for (took, _), at in zip(pairs, due, strict=True)]
    whole = sum(took for took, _ in pairs)
    end = max(whole, due[-1])
    _place(row, end)
    assert row[0].start >= 0
    assert row[-1].end <= end + 1e-9
    assert all(a.end <= b.start + 1e-9 for a, b in pairwise(row))


# the command line

SPEC = """\
shardspec: 1
targets:
  pod: {hardware: tpu v5e 4x4, mesh: {fsdp: 8, tensor: 2}}
  here: {hardware: 16 cpu, mesh: {fsdp: 8, tensor: 2}}
axes: {batch: 64, length: 1024, embed: 1024, mlp: 4096}
rules: [batch -> fsdp, mlp -> tensor, embed -> fsdp]
activations: {residual: batch length embed, hidden: batch length mlp}
arrays: {wi: "bf16[embed mlp]", wo: "bf16[mlp embed]"}
step: {program: ["residual, wi -> hidden", "hidden, wo -> residual"]}
"""


def run(tmp_path: Path, *arguments: str) -> Result:
    (tmp_path / "spec.yaml").write_text(SPEC)
    asked = ["cost", str(tmp_path / "spec.yaml"), "-q", "--format", "perfetto", *arguments]
    return CliRunner().invoke(cli, asked)


def test_it_goes_to_a_file_or_to_stdout(tmp_path: Path) -> None:
    out = tmp_path / "step.json"
    shown = run(tmp_path)
    assert run(tmp_path, "-o", str(out)).exit_code == shown.exit_code == 0
    assert json.loads(out.read_text()) == json.loads(shown.stdout)
    assert "mlp -> tensor" in shown.stdout


def test_without_a_time_there_is_no_trace(tmp_path: Path) -> None:
    result = run(tmp_path, "-t", "here")
    assert result.exit_code == 2
    assert "no time of a step is predicted for target `here`" in result.stderr


def test_memory_is_drawn_over_the_whole_step(cost: Cost) -> None:
    """From nothing made to the last value, and at its most what `cost` says a device holds."""
    over = memory_over(cost, 8.0)
    seconds = [second for second, _ in over]
    assert seconds == sorted(seconds)
    assert seconds[0] == 0
    assert seconds[-1] == pytest.approx(8.0)
    assert [second / 2 for second, _ in memory_over(cost, 16.0)] == pytest.approx(seconds)
    assert max(sum(held.values()) for _, held in over) == cost.memory.total.bytes


def test_what_stages_wait_is_idle_and_the_rows_are_the_step() -> None:
    cost = stated_cost(plan_of(f"{PIPELINE}hardware: tpu v5e 2x4\n"))
    assert cost.time is not None
    cost = replace(cost, time=replace(cost.time, waits_seconds=1e-5))
    assert cost.time is not None
    ticks = [tick for tick, _ in timed_of(cost)]
    assert ticks[-1] > max(ticks[:-1]), "stages wait after all else"
    rows = [spent for _, spent in timed_of(cost)]
    assert sum(each.shown for each in rows) == pytest.approx(cost.time.step_seconds)
    (idle,) = [each for each in rows if each.kind == "idle"]
    assert idle.what == "stages wait"
    assert idle.seconds == idle.shown == cost.time.waits_seconds
    assert (idle.mesh_axes, idle.array) == ((), "")


def test_every_row_has_a_name_and_its_place(cost: Cost) -> None:
    """Perfetto sorts threads by `thread_sort_index`: compute first, then the mesh axes."""
    meta = [each for each in events(cost) if each["ph"] == "M" and each["name"] != "process_name"]
    names = {e["tid"]: e["args"]["name"] for e in meta if e["name"] == "thread_name"}
    order = {e["tid"]: e["args"]["sort_index"] for e in meta if e["name"] == "thread_sort_index"}
    used = {each["tid"] for each in events(cost) if each["ph"] == "X"}
    assert used <= set(names) == set(order)
    rows = [names[tid] for tid in sorted(order, key=order.__getitem__)]
    assert rows[0] == "compute"
    assert all(each.startswith("mesh axis ") for each in rows[1:])
    assert len({*rows}) == len(rows)

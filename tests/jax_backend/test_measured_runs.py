"""Steps that ran here and were captured: every operation has its line, its array and its rule."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import shardspec
from shardspec import pipeline
from shardspec.analysis.comparison import Comparison
from shardspec.analysis.cost import Cost, cost_of
from shardspec.cli.main import cli
from shardspec.diagnostics import ShardspecError
from shardspec.ir.spec import Mesh, MeshAxis
from shardspec.jax_backend.step.trace import Call
from shardspec.jax_backend.xla.compiling import texts_of
from shardspec.jax_backend.xla.verifying import lowered
from shardspec.language.calibration import calibration_of
from shardspec.programs.captures import Capture, capture_of, steps_of
from shardspec.programs.measured import (
    compared,
    module_of,
    program_for,
    program_in,
    programs_of,
)
from tests.models.captured_steps import LAYERS, SPEC, STEPS, capture_all

#: What is to have its line and its rule, of the time that is measured.
LEAST = {"collective": 0.95, "matmul": 0.8}
NAMES = sorted(STEPS)


@pytest.fixture(scope="module")
def resolver() -> Any:
    return shardspec.Resolver(shardspec.loads(SPEC, "spec.yaml"), "here", agree_within_s=None)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Work in a folder with a run of each step."""
    found: Path = tmp_path_factory.mktemp("runs")
    (found / "spec.yaml").write_text(SPEC)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(found)
        capture_all(found)
        yield


def cost(resolver: Any, name: str) -> Cost:
    (plan,) = pipeline.compile_plans(resolver._arrays.spec, None, [resolver.target])
    return cost_of(plan, lowered(resolver, Call(*STEPS[name](resolver))).step)


def beside(capture: Capture, predicted: Cost) -> Comparison:
    module = module_of(capture)
    texts = texts_of(programs_of(capture, module))
    mesh = predicted.target.mesh
    program = program_in(capture, module, texts.values(), mesh, predicted.step)
    return compared(capture, module, program, predicted)


@pytest.mark.parametrize("name", NAMES)
def test_measured_operations_have_their_line_and_rule(resolver: Any, name: str) -> None:
    found = beside(capture_of(name), cost(resolver, name))
    assert (found.devices, found.steps) == (8, 2)
    assert sum(each.shown for each in found.measured) == pytest.approx(found.seconds)
    for kind, least in LEAST.items():
        share = found.explained(kind)  # type: ignore[arg-type]
        assert share is not None
        assert share >= least, (kind, share)
    for by in ("axis", "line", "rule"):
        rows = found.rows(by)  # type: ignore[arg-type]
        assert sum(row.measured for row in rows) == pytest.approx(found.seconds)
    assert found.unpredicted == ()


def test_collectives_are_those_that_the_code_asks_for(resolver: Any) -> None:
    found = beside(capture_of("mapped"), cost(resolver, "mapped"))
    sent = {(e.what, e.mesh_axes, e.array) for e in found.measured if e.kind == "collective"}
    assert {("all-gather", ("data",), "up"), ("all-gather", ("data",), "down")} < sent
    assert all("written so" in str(e.askers[0]) for e in found.measured if e.kind == "collective")


def test_rules_are_lines_of_the_spec(resolver: Any) -> None:
    found = beside(capture_of("scanned"), cost(resolver, "scanned"))
    rules = {row.name for row in found.rows("rule")}
    assert {"mlp -> model spec.yaml:6", "batch -> data spec.yaml:5"} <= rules
    loops = [each for each in found.measured if each.kind == "matmul"]
    assert {each.runs for each in loops} == {3.0}  # a round of the scan for each layer
    assert {each.array for each in loops} == {"blocks/up", "blocks/down"}


def test_another_step_is_said(resolver: Any) -> None:
    found = beside(capture_of("mapped"), cost(resolver, "linen"))
    assert any("the captured program sends" in note for note in found.notes)


def test_another_mesh_is_refused() -> None:
    spec = shardspec.loads("shardspec: 1\nmesh: {data: 4}\nrules: [batch -> data]")
    (plan,) = pipeline.compile_plans(spec.ir, None)
    with pytest.raises(ValueError, match="for 8 devices, the mesh has 4"):
        beside(capture_of("mapped"), cost_of(plan))


def test_a_damaged_program_ends_in_a_finding() -> None:
    with pytest.raises(ShardspecError):
        texts_of({"jit_step(1)": b"\x0a\x04step\xff\xff\xff"})


# the command line


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(cli, [*arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def of(name: str) -> str:
    return f"--step=tests.models.captured_steps:{name}"


def test_the_report_names_what_is_measured() -> None:
    asked = "cost", "spec.yaml", "-q", of("scanned"), "--measured=scanned"
    result = run(*asked)
    assert re.search(r"measured  scanned: jit_step\(\d+\), 2 steps on 8 devices", result.stdout)
    assert "not predicted: no speeds are known" in result.stdout
    assert "are known of 100 % of collectives and 100 % of products, by time" in result.stdout
    assert "mlp -> model spec.yaml:6" in result.stdout.partition("by rule")[2]


def test_the_trace_of_perfetto_takes_the_program_that_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (file,) = Path("mapped").rglob("perfetto_trace.json.gz")
    monkeypatch.setenv("SHARDSPEC_BASIS", "auto")
    asked = "cost", "spec.yaml", "-q", of("mapped"), "--format=json", f"--measured=here={file}"
    found = json.loads(run(*asked).stdout)["measured"]
    assert found["named"] == {"collective": 1.0, "matmul": 1.0}
    whole = sum(row["shown_s"] for row in found["operations"])
    assert whole == pytest.approx(found["step_s"])


def test_without_a_compiler_there_are_names_alone() -> None:
    (file,) = Path("mapped").rglob("perfetto_trace.json.gz")
    result = run("cost", "spec.yaml", "-q", of("mapped"), f"--measured={file}")
    assert "unknown axes" in result.stdout
    told = " ".join(result.stdout.split())
    assert "the run has no compiled program, and no compiler made one: mesh axes, lines" in told
    assert ".xplane.pb` beside it has the program" in told


def test_what_is_no_run_is_refused() -> None:
    asked = "cost", "spec.yaml", "-q", of("mapped"), "--measured=spec.yaml"
    result = run(*asked)
    assert result.exit_code == 2
    assert "error: spec.yaml is no trace: " in result.stderr


def test_a_run_calibrates_its_machine() -> None:
    result = run("calibrate", "spec.yaml", "-q", "--from=scanned", "-o", "hardware.local.yaml")
    assert result.exit_code == 0, result.output
    data = yaml.safe_load(Path("hardware.local.yaml").read_text())
    made = calibration_of(data)
    assert (made.machine, made.mesh) == ("8 cpu", "data=4 model=2")
    gradients = made.curve("all-reduce", ("data",))
    assert gradients is not None
    assert gradients.payloads == (4, 2**20)  # of the loss, and of both weights of a layer
    # a round of the scan for each layer, in two steps
    assert gradients.seconds[1].operations == 2 * LAYERS
    (table,) = made.matmuls
    assert table.operations == 2 * LAYERS * 6  # two products, and two for each backwards
    assert made.exposed is not None
    assert 0 < made.exposed.median <= 1
    text = SPEC.replace("8 cpu,", "8 cpu by hardware.local.yaml,")
    Path("calibrated.yaml").write_text(text)
    asked = "cost", "calibrated.yaml", "-q", of("scanned"), "--measured=scanned", "--format=json"
    found = json.loads(run(*asked).stdout)
    measured = found["measured"]
    shown = sum(row["shown_s"] for row in measured["predicted"])
    assert shown == pytest.approx(measured["predicted_s"]) == pytest.approx(found["time"]["step_s"])
    told = run(*asked[:-1]).stdout
    assert "what the model gets most wrong:" in told


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--from=scanned", "--compiler"), "takes neither --compiler nor --hardware"),
        (("--from=spec.yaml",), "is no trace"),
    ],
)
def test_a_calibration_of_no_run_is_refused(asked: tuple[str, ...], said: str) -> None:
    result = run("calibrate", "spec.yaml", "-q", *asked)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_calibration_of_another_machine_is_refused() -> None:
    text = SPEC.replace("8 cpu,", "tpu v6e 2x4,")
    Path("other.yaml").write_text(text)
    result = run("calibrate", "other.yaml", "-q", "--from=scanned")
    assert result.exit_code == 2
    assert "it is of a CPU, and target `here` of tpu v6e 2x4" in result.stderr


def test_two_runs_show_what_became_slower() -> None:
    asked = "diff", "mapped", "scanned", "--spec=spec.yaml", "-q", of("scanned")
    result = run(*asked, "--fail-on=time+1%")
    assert result.exit_code == 1
    assert result.stdout.startswith("mapped -> scanned\nstep  ")
    assert "mlp -> model spec.yaml:6" in result.stdout
    found = json.loads(run(*asked, "--format=json").stdout)
    for table in found["by"].values():
        for side in ("before", "after"):
            whole = sum(row[f"{side}_s"] for row in table)
            assert whole == pytest.approx(found[side]["step_s"])


def test_hosts_of_a_run_are_joined(tmp_path: Path) -> None:
    (file,) = Path("scanned").rglob("*.xplane.pb")
    for host in ("host0", "host1"):
        (tmp_path / f"{host}.xplane.pb").write_bytes(file.read_bytes())
    alone, both = (capture_of(name) for name in ("scanned", str(tmp_path)))
    assert both.hosts == ("host0", "host1")
    assert len(both.events) == 2 * len(alone.events)
    module = module_of(both)
    found = steps_of(both, module, lambda op: 0)
    assert len(found.devices) == 16
    assert found.seconds == pytest.approx(steps_of(alone, module, lambda op: 0).seconds)


@pytest.mark.parametrize(
    "groups",
    ["{{0,2,4,6},{1,3,5,7}}", "[2,4]<=[4,2]T(1,0)", "mesh['data'=4,'model'=2] {'data'}"],
)
def test_a_program_is_for_the_devices_that_its_groups_have(groups: str) -> None:
    text = f"""HloModule m

ENTRY %e (p: f32[8]) -> f32[32] {{
  %p = f32[8] parameter(0)
  ROOT %g = f32[32] all-gather(%p), channel_id=1, replica_groups={groups}, dimensions={{0}}
}}
"""
    mesh = Mesh((MeshAxis("data", 4),))
    assert program_for(text, mesh).partitions == 8


def test_a_report_draws_a_run_beside_its_prediction() -> None:
    Path("scan_step.py").write_text(
        "from tests.models.captured_steps import STEPS\n\n\n"
        "def step(resolver):\n    return STEPS['scanned'](resolver)\n"
    )
    asked = ["report", "spec.yaml", "--step", "scan_step:step", "-o", "page.html", "--force"]
    result = CliRunner().invoke(cli, [*asked, "--measured", "here=scanned"])
    assert result.exit_code == 0, result.output
    text = Path("page.html").read_text()
    headings = re.findall(r"<h3>([^<]*)</h3>", text)
    assert headings.index("Predicted compared with measured") < headings.index("What is sent")
    assert "scanned: a step took " in text
    for said, message in (
        ("2.1s", "--measured of a report is a run, and not a time"),
        ("nope=scanned", "the page has no target `nope`"),
    ):
        result = CliRunner().invoke(cli, [*asked, "--measured", said])
        assert result.exit_code == 2
        assert message in result.stderr

"""`export` as a user meets it: what is written, what is said, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import cli
from shardspec.foreign.formats import EXPORTS

SPEC = """\
shardspec: 1
targets:
  pod: {mesh: {data: 2, model: 4}}
  desk: {mesh: {data: 4, model: 2}}
rules: [kv_heads -> model, mlp -> model, embed -> data]
arrays:
  "layers_{0..11}/wi": f32[embed=16 mlp=32]
"""
UNEVEN = SPEC + '  "layers_{0..11}/key": f32[embed=16 kv_heads=6]\nlints: {indivisible: allow}\n'


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(SPEC.replace("kv_heads -> model, ", ""))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["export", *arguments])


def test_the_text_goes_to_stdout_or_to_a_file() -> None:
    shown = run("flax", "spec.yaml")
    assert shown.exit_code == 0
    assert shown.stderr == ""
    assert '    ("mlp", "model"),  # spec.yaml:5\n' in shown.stdout
    written = run("flax", "spec.yaml", "-o", "rules.py")
    assert written.exit_code == 0
    assert written.stdout == ""
    assert written.stderr == "rules.py: 12 arrays on target pod\n"
    assert Path("rules.py").read_text() == shown.stdout


def test_the_spec_is_found_and_the_target_is_chosen() -> None:
    plan = json.loads(run("json", "--target", "desk").stdout)
    assert plan["mesh"] == {"data": 4, "model": 2}


def test_what_is_lost_is_said_and_the_exit_code_is_1() -> None:
    Path("spec.yaml").write_text(
        SPEC.replace("kv_heads -> model, ", "") + "state: {optimizer: zero1, over: data}\n"
    )
    result = run("regex", "-o", "layouts.py")
    assert result.exit_code == 1
    assert "warning[SHD601]: a list of regexes cannot say `optimizer: zero1`" in result.stderr
    assert Path("layouts.py").exists()
    accepted = run("regex", "-o", "layouts.py", "--lossy")
    assert accepted.exit_code == 0
    assert "SHD601" in accepted.stderr


def test_another_layout_is_not_written() -> None:
    Path("spec.yaml").write_text(UNEVEN)
    result = run("flax", "-o", "rules.py")
    assert result.exit_code == 1
    assert (
        "error[SHD606]: `layers_{0..11}/key` x12: shardspec gives P('data', None), "
        "Flax Linen P('data', 'model')" in result.stderr
    )
    assert "skipped: 6 is not divisible by 4" in result.stderr
    assert "nothing is written; --lossy writes it all the same" in result.stderr
    assert not Path("rules.py").exists()
    assert run("flax", "-o", "rules.py", "--lossy").exit_code == 0
    assert '("kv_heads", "model")' in Path("rules.py").read_text()


def test_resolved_rules_say_the_same_on_the_target() -> None:
    Path("spec.yaml").write_text(UNEVEN)
    result = run("flax", "--resolved")
    assert result.exit_code == 0
    assert "kv_heads" not in result.stdout
    assert "# Reduced to target pod: mesh data=2 model=4." in result.stdout
    desk = run("flax", "--resolved", "--target", "desk")
    assert '("kv_heads", "model")' in desk.stdout


def test_a_plan_with_errors_is_not_exported() -> None:
    Path("spec.yaml").write_text(UNEVEN.replace("lints: {indivisible: allow}\n", ""))
    result = run("regex")
    assert result.exit_code == 1
    assert "error[SHD301]" in result.stderr
    assert result.stderr.endswith("nothing is written: the plan has errors\n")
    assert result.stdout == ""


def test_layouts_need_arrays() -> None:
    Path("spec.yaml").write_text(SPEC.partition("arrays")[0])
    for entry in EXPORTS:
        result = run(entry.name)
        is_refused = "is made of the layouts of arrays, and the spec lists none" in result.stderr
        assert is_refused == entry.needs_arrays, entry.name


def test_options_that_mean_nothing_are_refused() -> None:
    assert run("regex", "--resolved").exit_code == 2
    assert "--axis means nothing for `flax`" in run("flax", "--axis", "model").stderr
    assert run("flax", "spec.yaml", "--spec", "spec.yaml").exit_code == 2
    assert run("orbax").exit_code == 2


def test_a_format_that_cannot_hold_the_plan() -> None:
    result = run("hf-tp-plan")
    assert result.exit_code == 2
    assert "error[SHD607]" in result.stderr
    assert result.stderr.endswith("nothing is written\n")


def test_an_order_that_the_tool_does_not_make_is_lost() -> None:
    text = (
        "shardspec: 1\nhardware: tpu v4 2x2x2\nmesh: {data: 4, model: 2}\nrules: [mlp -> model]\n"
    )
    Path("rules.yaml").write_text(text)
    own = run("t5x-gin", "rules.yaml", "-o", "own.gin")
    assert "stays here" not in own.stderr
    assert "own.gin: rules on target default" in own.stderr
    Path("rules.yaml").write_text(f"{text}policy: {{order: ring}}\n")
    ring = run("t5x-gin", "rules.yaml", "-o", "ring.gin")
    assert "T5X's gin orders devices itself: `order: ring` stays here" in ring.stderr
    assert ring.exit_code == 1


def test_what_is_exported_goes_on_top_of_the_gin_files_of_a_job() -> None:
    text = (
        "shardspec: 1\nhardware: tpu v4 2x4x4\nmesh: {data: 8, model: 4}\nrules: [mlp -> model]\n"
    )
    Path("rules.yaml").write_text(text)
    Path("base.gin").write_text("partitioning.PjitPartitioner.num_partitions = 4\n")
    assert run("t5x-gin", "rules.yaml", "-o", "new.gin").exit_code in (0, 1)
    call = ["import", "t5x-gin", "base.gin", "new.gin", "--hardware", "tpu v4 2x4x4"]
    again = CliRunner().invoke(cli, call)
    assert again.exit_code == 0, again.output
    assert "model: submesh " in again.stdout


def test_an_order_of_devices_that_t5x_does_not_make_is_reported() -> None:
    text = (
        "shardspec: 1\nhardware: tpu v4 2x4x4\nmesh: {data: 32, model: 1}\nrules: [mlp -> model]\n"
    )
    Path("rules.yaml").write_text(text)
    lost = run("t5x-gin", "rules.yaml", "-o", "new.gin")
    assert lost.exit_code == 1
    assert "T5X orders devices by the submesh 1x1x1x1, and the spec does not" in lost.stderr
    (help,) = (line for line in lost.stderr.splitlines() if "gives the spec T5X's order" in line)
    Path("rules.yaml").write_text(text.replace("model: 1", help.split("`")[1]))
    assert "orders devices" not in run("t5x-gin", "rules.yaml", "-o", "new.gin").stderr

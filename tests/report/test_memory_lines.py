"""Whether a plan fits, and by how much: what `compile` ends with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardspec import pipeline
from shardspec.analysis.cost import cost_of
from shardspec.cli.main import cli
from shardspec.ir.plan import ShardingPlan
from shardspec.report.cost import cost_lines
from shardspec.report.table import memory_lines

TARGETS = """\
targets:
  v5e: {hardware: tpu v5e 2x2, mesh: {data: 2, model: 2}}
  node: {hardware: 1 * h100, mesh: {data: 2, model: rest}}
  cpu: {hardware: 4 cpu, mesh: {data: 2, model: 2}}
"""
BARE = """\
mesh: {data: 2, model: 2}
"""
REST = """\
rules: [mlp -> model, embed -> data]
arrays:
  "layers_{0..3}/kernel": bf16[embed=4096 mlp=16384]
"""
TRAINING = "state: {moments: 2, dtype: f32}\n"


def _plans(text: str) -> tuple[ShardingPlan, ...]:
    spec, findings = pipeline.load_text(text, "spec.yaml")
    assert not [each for each in findings if each.is_error]
    return pipeline.plans_of_phases(spec, spec.params)


def _lines(text: str) -> list[str]:
    return list(map(str, memory_lines(_plans(text))))


def test_parameters_alone_where_nothing_says_that_it_trains() -> None:
    assert _lines(TARGETS + REST) == [
        "",
        "  memory of a device, without activations",
        "  v5e    = 128 MiB  of 15.8 GiB                    fits, 15.6 GiB left  parameters alone",
        "  node  = 64.0 MiB  of 59.3 GiB (75 % of the GPU)  fits, 59.3 GiB left  parameters alone",
        "  cpu    = 128 MiB                                                      parameters alone",
    ]


def test_tiles_are_named_where_they_make_the_memory_more_than_the_total() -> None:
    narrow = REST.replace("mlp=16384", "mlp=100").replace("embed=4096", "embed=1000")
    assert _lines(TARGETS + narrow)[1].endswith("without activations, with arrays padded to tiles")
    gpu = "targets: {node: {hardware: 1 * h100, mesh: {data: 2, model: rest}}}\n"
    assert _lines(gpu + narrow)[1].endswith("without activations")


def test_state_counts_as_the_spec_says() -> None:
    text = TARGETS + TRAINING + REST.replace("{0..3}", "{0..99}")
    parts = "parameters = 3.12 GiB   gradients = 3.12 GiB   optimizer = 12.5 GiB"
    half = "parameters = 1.56 GiB   gradients = 1.56 GiB   optimizer = 6.25 GiB"
    assert _lines(text)[2:] == [
        f"  v5e   = 18.8 GiB  {'of 15.8 GiB':29}  DOES NOT FIT, 3.00 GiB too much  {parts}",
        f"  node  = 9.38 GiB  of 59.3 GiB (75 % of the GPU)  {'fits, 50.0 GiB left':31}  {half}",
        f"  cpu   = 18.8 GiB  {'':29}  {'':31}  {parts}",
    ]


def test_without_hardware_there_is_no_verdict() -> None:
    assert _lines(BARE + REST) == []
    (line,) = _lines(BARE + TRAINING + REST)[2:]
    parts = "parameters = 128 MiB   gradients = 128 MiB   optimizer = 512 MiB"
    assert line.split(maxsplit=3) == ["default", "=", "768", f"MiB      {parts}"]
    assert not re.search("fit|left", line)


def test_a_floor_promises_nothing() -> None:
    (line,) = _lines(TARGETS.split("  node")[0] + REST.replace("bf16", "s4"))[2:]
    assert "~ 32.0 MiB  of 15.8 GiB  may fit, 15.7 GiB left" in line


def test_what_lies_with_the_host_counts_apart() -> None:
    moments = 'memory: {"opt_state/**": pinned_host}\n'
    line = _lines(TARGETS + TRAINING + moments + REST)[2]
    assert "= 256 MiB  of 15.8 GiB" in line
    assert line.endswith("gradients = 128 MiB   in host memory = 512 MiB")


def test_targets_that_agree_share_a_line() -> None:
    family = "hardware: '{1,2,4} * tpu v5e 2x2'\nmesh: {replica: rest @ dcn, data: 2, model: 2}\n"
    (line,) = _lines(family + REST)[2:]
    assert line.split("  ")[1] == "default[1], default[2], default[4]"


@pytest.mark.parametrize("arrays", [REST, REST.replace("{0..3}", "{0..99}")])
def test_what_it_says_is_what_cost_says(arrays: str) -> None:
    for plan in _plans(TARGETS + TRAINING + arrays):
        (line,) = list(memory_lines([plan]))[2:]
        said = next(each for each in cost_lines(cost_of(plan)) if each.startswith("memory"))
        for pattern in (r"= [0-9.]+ [MG]iB", r"of [0-9.]+ GiB", r"DOES NOT FIT|fits"):
            assert re.findall(pattern, line) == re.findall(pattern, said)


def test_it_is_what_compile_ends_with(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(TARGETS + REST, encoding="utf-8")

    def printed(*more: str) -> list[str]:
        return CliRunner().invoke(cli, ["compile", str(spec), *more]).stdout.splitlines()

    whole = printed()
    assert [line.split()[0] for line in whole[-3:]] == ["v5e", "node", "cpu"]
    assert printed("--target", "node")[-1] == f"{whole[-2][:6]}  {whole[-2][8:]}".replace(
        "  ", "  "
    )
    assert not any("fits" in line for line in printed("--only", "layers_0/kernel"))

"""`shardspec verify`: a step that is predicted for real, and compilers that say what tests want."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import cli
from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.jax_backend.xla.cache import Compiled
from shardspec.jax_backend.xla.compiling import Compiling
from shardspec.programs.memory import CompiledMemory, HeldValue
from tests.cli.compilers import answer
from tests.versions_of_jax import needs_libtpu

SPEC = """\
shardspec: 1
targets:
  pod: {hardware: tpu v5e 2x4, mesh: {fsdp: 4, tensor: 2}}
  other: {hardware: tpu v6e 2x4, mesh: {fsdp: 4, tensor: 2}}
  bare: {mesh: {fsdp: 4, tensor: 2}}
rules: [batch -> fsdp, embed -> fsdp, mlp -> tensor]
params: {wi: embed mlp, wo: mlp embed}
activations: {hidden: batch mlp}
"""
STEP = """\
import jax
import jax.numpy as jnp

WI, WO = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((1024, 4096), (4096, 1024)))


def step(resolver):
    def forward(params, x):
        hidden = resolver.constrain(x @ params["wi"], activation="hidden")
        return resolver.constrain(hidden @ params["wo"], "batch _")

    return forward, ({"wi": WI, "wo": WO}, jax.ShapeDtypeStruct((4096, 1024), jnp.bfloat16))
"""
#: Two gathers of weights over fsdp (3 of 4 parts of 4 MiB each), and a sum over tensor.
PROGRAM = """\
HloModule jit_forward, num_partitions=8

ENTRY %main (p0: bf16[256,2048], p1: bf16[2048,256], p2: bf16[1024,1024]) -> bf16[1024,1024] {
  %p0 = bf16[256,2048]{1,0} parameter(0), metadata={op_name="params['wi']"}
  %p1 = bf16[2048,256]{1,0} parameter(1), metadata={op_name="params['wo']"}
  %p2 = bf16[1024,1024]{1,0} parameter(2), metadata={op_name="x"}
  %g0 = bf16[1024,2048]{1,0} all-gather(%p0), channel_id=1, FSDP, dimensions={0}
  %g1 = bf16[2048,1024]{1,0} all-gather(%p1), channel_id=2, FSDP, dimensions={1}
  %h = bf16[1024,2048]{1,0} dot(%p2, %g0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %o = bf16[1024,1024]{1,0} dot(%h, %g1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %r = bf16[1024,1024]{1,0} all-reduce(%o), channel_id=3, TENSOR, to_apply=%add
}
""".replace("FSDP", "replica_groups=[2,4]<=[4,2]T(1,0), use_global_device_ids=true").replace(
    "TENSOR", "replica_groups=[4,2]<=[8], use_global_device_ids=true"
)
#: The same, as libtpu writes it once there is code.
TIMED = re.sub(
    r"(rhs_contracting_dims=\{0\})",
    r'\1, metadata={op_name="jit(forward)/dot" source_file="train.py" source_line=7},'
    r' backend_config={"estimated_cycles":"42000"}',
    PROGRAM,
).replace("source_line=7", "source_line=6", 1)
MEMORY = CompiledMemory(
    {0: 2 << 20, 1: 2 << 20, 2: 1 << 16},
    1 << 16,
    9 << 20,
    0,
    (HeldValue("g0", "f32[1024,2048]", 8 << 20),),
)


MADE = Compiled(PROGRAM, MEMORY, "libtpu 1", 2.0, False)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "verified_step.py").write_text(STEP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHARDSPEC", raising=False)
    sys.modules.pop("verified_step", None)

    def of(*arguments: str, with_flags: Any = None, **parts: Any) -> Result:
        def compiled(module: bytes, target: Any, how: Compiling, **_: Any) -> Compiled:
            if isinstance(with_flags, Exception) and how.flags:
                raise with_flags
            return with_flags if how.flags else replace(MADE, **parts)

        answer(monkeypatch, compiled)
        step = [] if "--step" in arguments else ["--step", "verified_step:step"]
        result = CliRunner().invoke(cli, ["verify", "spec.yaml", *step, *arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        return result

    return of


def test_side_by_side(run: Callable[..., Result]) -> None:
    result = run("--target", "pod")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[:3] == [
        "pod       predicted     compiled",
        "fsdp     ~ 6.00 MiB   x 6.00 MiB   +0.0 %",
        "tensor   ~ 2.00 MiB   x 2.00 MiB   +0.0 %",
    ]
    assert lines[3].endswith("x 13.1 MiB   fits 15.8 GiB")
    assert lines[4] == "proved: it fits, and 0 % of the compiled bytes differ"


def test_flags_and_the_day_stand_beside_what_was_kept(run: Callable[..., Result]) -> None:
    flags = (("LIBTPU_INIT_ARGS", "--xla_a=1"), ("fallback", "--b"))
    kept = {"was_kept": True, "date": "2026-11-23", "flags": flags}
    said = "kept from 2026-11-23, LIBTPU_INIT_ARGS --xla_a=1, fallback --b"
    assert said in run("--target", "pod", **kept).stdout.splitlines()
    assert said in run("--target", "pod", "--format", "md", **kept).stdout
    (found,) = json.loads(run("--target", "pod", "--format", "json", **kept).stdout)["targets"]
    assert (found["kept_from"], found["flags"]) == ("2026-11-23", dict(flags))


def test_what_flags_change_is_shown(run: Callable[..., Result]) -> None:
    asked = ("--target", "pod", "--flags", "--xla_more=1")
    more = replace(MADE, text=PROGRAM.replace("all-reduce(", "copy("), memory=None)
    result = run(*asked, with_flags=more)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[4:] == [
        "with --xla_more=1:",
        "  fsdp    x 6.00 MiB  x 6.00 MiB  no change",
        "  tensor  x 2.00 MiB       x 0 B  -100.0 %",
        "proved: it fits, and 0 % of the compiled bytes differ",
    ]
    (found,) = json.loads(run(*asked, "--format", "json", with_flags=more).stdout)["targets"]
    assert found["what_if"] == {
        "flags": "--xla_more=1",
        "axes": [{"mesh_axes": ["fsdp"], "compiled_bytes": 6291456}],
        "memory_bytes": None,
        "refusal": None,
    }


def test_flags_that_a_compiler_refuses_are_told(run: Callable[..., Result]) -> None:
    refusal = ShardspecError([Diagnostic(codes.NOT_COMPILED, "Unknown flag")])
    result = run("--target", "pod", "--flags", "--no", with_flags=refusal)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[4:6] == ["with --no:", "  Unknown flag"]


def test_a_missing_compiler_is_told_before_the_code_runs(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shardspec.jax_backend.xla.compiling.installed", lambda package: None)
    (tmp_path / "verified_step.py").write_text("raise KeyError")
    result = run("--target", "pod")
    assert result.exit_code == 2
    assert "the compiler for TPU v5e is not installed: `libtpu`" in result.stderr
    assert "KeyError" not in result.output


def test_what_nobody_predicted(run: Callable[..., Result]) -> None:
    text = PROGRAM.replace("[4,2]<=[8],", "[1,8]<=[8],")
    result = run("--target", "pod", text=text)
    assert result.exit_code == 1
    assert "fsdp + tensor" in result.stdout
    assert "not predicted: all-reduce over fsdp and tensor" in result.stdout
    assert "not proved: " in result.stdout


#: The same beside an exchange that nobody counts.
EXCHANGED = PROGRAM.replace(
    "  ROOT",
    "  %t = bf16[1024,1024]{1,0} token-exchange(%o), replica_groups={{0,1}},"
    ' metadata={source_file="moe.py" source_line=31}\n  ROOT',
)


def test_what_cannot_be_counted_is_not_proved(run: Callable[..., Result]) -> None:
    fault = "1 operation is unknown"
    result = run("-t", "pod", "-t", "other", text=EXCHANGED)
    assert result.exit_code == 1
    said = "unknown: token-exchange at moe.py:31: shardspec does not know this operation"
    assert result.stdout.count(said) == 2
    assert result.stdout.splitlines()[-1].endswith(f"not proved: {fault}")
    result = run("-t", "pod", "--format", "json", text=EXCHANGED)
    assert result.exit_code == 1
    (data,) = json.loads(result.stdout)["targets"]
    assert (data["proved"], data["faults"]) == (False, [fault])
    assert data["unknown"][0]["what"] == "token-exchange"
    assert data["unknown"][0]["place"] == {"file": "moe.py", "line": 31}


def test_what_does_not_fit_is_told_by_array(run: Callable[..., Result]) -> None:
    refusal = "RESOURCE_EXHAUSTED: 20.1G of 15.7G\nmore"
    result = run("--target", "pod", refusal=refusal)
    assert result.exit_code == 1
    assert "held at the peak: f32[1024,2048] 8.00 MiB" in result.stdout
    assert "libtpu 1: RESOURCE_EXHAUSTED: 20.1G of 15.7G\n" in result.stdout
    *_, verdict, onward = result.stdout.splitlines()
    assert verdict == "not proved: it does not fit"
    assert onward == "`shardspec check` with the same spec and `--step` says what to change"


def test_several_targets(run: Callable[..., Result]) -> None:
    result = run("-t", "pod", "-t", "other", "--format", "json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert data["schema"] == "shardspec.verify/1"
    assert [each["target"] for each in data["targets"]] == ["pod", "other"]
    assert data["targets"][0]["axes"][0] == {
        "mesh_axes": ["fsdp"],
        "predicted_bytes": 6 << 20,
        "compiled_bytes": 6 << 20,
    }


def test_several_targets_end_with_a_table(run: Callable[..., Result]) -> None:
    result = run("-t", "pod", "-t", "other", "-t", "pod")
    assert result.exit_code == 0
    *proofs, heading, pod, other = result.stdout.splitlines()
    assert sum(line.startswith("proved: ") for line in proofs) == 2
    assert heading.split() == ["target", "predicted", "compiled", "differs", "holds"]
    assert " ".join(pod.split()) == "pod ~ 8.00 MiB x 8.00 MiB 0 % x 13.1 MiB proved"
    assert other.split()[0] == "other"


def test_a_target_without_a_program_keeps_no_other_from_its_own(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("-t", "pod")
    found = Compiled(PROGRAM, MEMORY, "libtpu 1", 2.0, False)

    def of_pod(module: bytes, target: Any, how: Any, **_: Any) -> Compiled:
        if target.name != "pod":
            raise ShardspecError((Diagnostic(codes.NOT_COMPILED, "no compiler"),))
        return found

    answer(monkeypatch, of_pod)
    verify = ["verify", "spec.yaml", "--step", "verified_step:step", "-t", "other", "-t", "pod"]
    result = CliRunner().invoke(cli, verify)
    assert result.exit_code == 2
    assert "error[SHD906]: no compiler" in result.stderr
    assert result.stdout.splitlines()[-2].split() == ["other", "no", "program"]
    assert result.stdout.splitlines()[-1].endswith("proved")
    data = json.loads(CliRunner().invoke(cli, [*verify, "--format", "json"]).stdout)
    assert [each["target"] for each in data["targets"]] == ["pod"]
    assert data["without_program"] == ["other"]
    table = CliRunner().invoke(cli, [*verify, "--format", "md"]).stdout
    assert "| other | no program | | | |" in table


def test_the_time_of_operations_by_the_compiler(run: Callable[..., Result]) -> None:
    assert "x~" not in run("-t", "pod", text=TIMED).stdout
    result = run("-t", "pod", "--whole", text=TIMED)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    # 84,000 cycles at 1.5 GHz
    assert lines[4].split()[:1] + lines[4].split()[4:7] == ["compute", "x~", "56.0", "us"]
    assert lines[5] == "takes longest, by libtpu 1:"
    assert lines[6] == "  x~ 28.0 us  50 %  x1  dot  train.py:6  forward"
    data = json.loads(run("-t", "pod", "--whole", "--format", "json", text=TIMED).stdout)
    time = data["targets"][0]["time"]
    assert time["estimated_compute_seconds"] == pytest.approx(84000 / 1.5e9)
    assert [each["runs"] for each in time["operations"]] == [1, 1]
    assert run("-t", "pod", "--whole").stdout.count("does not say how long operations take") == 1


def test_a_table_for_a_pull_request(run: Callable[..., Result], tmp_path: Path) -> None:
    result = run("-t", "pod", "--format", "md", "-o", "proof.md")
    assert result.exit_code == 0
    assert result.stdout == ""
    table = (tmp_path / "proof.md").read_text()
    assert "| pod | fsdp | ~ 6.00 MiB | x 6.00 MiB | +0.0 % |" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-t", "pod", "--tolerance", "many"], "--tolerance many is no share"),
        (["-t", "pod", "--tolerance", "101%"], "--tolerance 101% is no share"),
        (["-t", "pod", "-o", "no/where.json"], "cannot write no/where.json: no such file"),
        (["-t", "pod", "--step", "missing_step:step"], "there is no module `missing_step`"),
        (["-t", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_done(
    run: Callable[..., Result], arguments: list[str], message: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_step_is_named_on_the_command_line(run: Callable[..., Result]) -> None:
    result = CliRunner().invoke(cli, ["verify", "spec.yaml"])
    assert result.exit_code == 2
    assert "there is no step to compile" in result.stderr


def test_a_text_that_is_no_program(run: Callable[..., Result]) -> None:
    result = run("-t", "pod", text="HloModule jit_forward, num_partitions=8")
    assert result.exit_code == 2
    assert "error[SHD905]" in result.stderr


#: Two layers of an MLP, and what a step computes.
STATED = """\
shardspec: 1
axes: {batch: 64, length: 512, embed: 1024, mlp: 4096, layers: 2}
targets: {pod: {hardware: tpu v5e 2x4, mesh: {fsdp: 4, tensor: 2}}}
rules: [batch -> fsdp, mlp -> tensor, embed -> fsdp, "length, layers -> none"]
params: {layers/up: embed mlp, layers/down: mlp embed}
scan: {"layers/**": layers@0}
arrays: {layers/up: "f32[2, 1024, 4096]", layers/down: "f32[2, 4096, 1024]"}
activations: {residual: batch length embed, hidden: batch length mlp}
step:
  remat: full
  program: ['residual, "layers/up" -> hidden', 'hidden, "layers/down" -> residual']
"""


@pytest.mark.parametrize("is_beside", [False, True], ids=["in the spec", "--arrays"])
def test_what_a_spec_states_needs_no_code(
    is_beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_libtpu()
    monkeypatch.chdir(tmp_path)
    (arrays,) = (line for line in STATED.splitlines() if line.startswith("arrays: "))
    Path("spec.yaml").write_text(STATED.replace(f"{arrays}\n", "") if is_beside else STATED)
    entries = arrays.removeprefix("arrays: {").removesuffix("}")
    Path("arrays.yaml").write_text(entries.replace('", ', '"\n'))
    beside = ["--arrays", "arrays.yaml"] if is_beside else []
    result = CliRunner().invoke(cli, ["verify", "spec.yaml", "--no-cache", *beside])
    assert result.exit_code == 0, result.output
    tensor, fsdp, *_, told = result.stdout.splitlines()[1:]
    assert [line.split()[0] for line in (tensor, fsdp)] == ["tensor", "fsdp"]
    assert told == "proved: it fits, and 0 % of the compiled bytes differ"


def test_what_compiles_otherwise_than_it_is_stated_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, MADE)
    monkeypatch.chdir(tmp_path)
    line = "'op(residual) -> residual, flops 5 * batch * embed'"
    Path("spec.yaml").write_text(STATED.replace("program: [", f"program: [{line}, "))
    result = CliRunner().invoke(cli, ["verify", "spec.yaml", "--format", "json"])
    (note,) = json.loads(result.stdout)["targets"][0]["notes"]
    stated = "the FLOPs that 1 line of `step` state"
    assert note == f"{stated} are not those of the compiled program: spec.yaml:11"


def test_a_pipeline_has_no_function_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(
        STATED.replace("remat: full", "pipeline: gpipe\n  microbatches: 2")
    )
    result = CliRunner().invoke(cli, ["verify", "spec.yaml"])
    assert result.exit_code == 2
    assert "SHD906" in result.stderr

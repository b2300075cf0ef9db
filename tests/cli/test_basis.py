"""`--basis`: whom `cost` and the others ask what a step costs, and what they say of it.

In place of the compiler stands one that gives the program of `test_verify.py`, or none; two tests
ask libtpu itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import CliRunner, Result

from shardspec import load, pipeline
from shardspec.cli import cost as cost_verb
from shardspec.cli.main import cli
from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.jax_backend.xla import compiling
from shardspec.jax_backend.xla.cache import Compiled
from shardspec.jax_backend.xla.compiling import MORE_TIME, Compiling
from shardspec.programs.memory import CompiledMemory, HeldValue
from tests.cli.test_verify import PROGRAM, SPEC, STEP

COMMAND = ["--step", "basis_step:step", "-q"]
MEMORY = CompiledMemory(
    {0: 4 << 20, 1: 4 << 20, 2: 2 << 20},
    output_bytes=2 << 20,
    temporary_bytes=64 << 20,
    largest=(HeldValue("h", "bf16[1024,2048]", 4 << 20, ("h",)),),
    alive_bytes=60 << 20,
)
REAL = compiling.Compile
ANSWER = Compiled(PROGRAM, MEMORY, "libtpu 1", 2.5, False, held_bytes=1 << 30)


class Fake:
    """A compiler that has its answer, or none."""

    answer: Compiled | Diagnostic = ANSWER
    asked: list[tuple[str, float]] = []
    given: set[bytes] = set()
    open: int = 0
    libtpu: str = ""

    def __init__(self, target: Any, how: Compiling, order: str) -> None:
        self.target, self.libtpu = target, how.libtpu
        Fake.asked.append((target.name, how.timeout_s))

    def __enter__(self) -> Self:
        if self.libtpu == "none":
            raise ShardspecError((no_program(None, "there is no libtpu in `none`"),))
        if isinstance(Fake.answer, Diagnostic) and Fake.answer.help != MORE_TIME:
            raise ShardspecError((Fake.answer,))
        Fake.open += 1
        return self

    def __exit__(self, *error: object) -> None:
        Fake.open -= 1

    def give(self, module: bytes) -> None:
        assert module[:4] == b"ML\xefR", "bytecode of MLIR"
        Fake.given.add(module)

    def result(self, tell: Any = None) -> Compiled:
        if isinstance(Fake.answer, Diagnostic):
            raise ShardspecError((Fake.answer,))
        if self.libtpu:
            less = replace(MEMORY, temporary_bytes=60 << 20)
            return replace(Fake.answer, compiler="libtpu 0", memory=less)
        return Fake.answer


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHARDSPEC_BASIS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compiling, "Compile", Fake)
    monkeypatch.setattr(Fake, "answer", ANSWER)
    monkeypatch.setattr(Fake, "asked", [])
    monkeypatch.setattr(Fake, "given", set())
    monkeypatch.setattr(Fake, "open", 0)
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "new.yaml").write_text(SPEC.replace("mlp -> tensor", "mlp -> none"))
    (tmp_path / "basis_step.py").write_text(STEP)
    yield tmp_path
    sys.modules.pop("basis_step", None)
    assert Fake.open == 0, "a compiler was left at work"


def run(*arguments: str, asked: Sequence[str] = COMMAND) -> Result:
    result = CliRunner().invoke(cli, [*arguments, *asked])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def no_program(help: str | None = None, message: str = "there is none") -> Diagnostic:
    return Diagnostic(codes.NOT_COMPILED, message, help=help)


def words(found: Result) -> str:
    return " ".join(found.stdout.split())


def test_the_compiler_is_asked_first() -> None:
    text = words(run("cost", "spec.yaml", "-t", "pod"))
    assert "basis x compiled by libtpu 1, in 2.5 s and 1.00 GiB of memory" in text
    assert "memory x 76.0 MiB of 15.8 GiB per device, fits" in text
    assert "temporaries x 64.0 MiB" in text
    assert "bf16[1024, 2048] x 4.00 MiB" in text or "unknown" in text
    assert "sends x 8.00 MiB per device and step, in 3 collectives" in text
    assert Fake.asked == [("pod", 30.0)]


def test_json_says_the_basis_and_the_compiler() -> None:
    data = json.loads(run("cost", "spec.yaml", "-t", "pod", "--format", "json").stdout)
    assert (data["basis"], data["source"]) == ("compiled", "compiler")
    assert data["compiled_by"] == {"name": "libtpu 1", "kept_from": None, "flags": {}}
    assert data["memory"]["total"] == {"bytes": 76 << 20, "basis": "compiled"}
    assert data["memory"]["activations"] is None, "a compiler does not tell them from the rest"
    model = run("cost", "spec.yaml", "-t", "pod", "--format", "json", "--basis", "model")
    data = json.loads(model.stdout)
    assert data["basis"] == "modelled"
    assert not {"compiled_by", "why_modelled", "added"} & set(data)


def test_another_libtpu_is_shown_beside_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiling.OTHER_LIBTPU, "older")
    text = words(run("cost", "spec.yaml", "-t", "pod"))
    assert "by libtpu 0: memory x 72.0 MiB (-5.3%), sent x 8.00 MiB (+0.0%)" in text
    assert "memory x 76.0 MiB of 15.8 GiB" in text
    data = json.loads(run("cost", "spec.yaml", "-t", "pod", "--format", "json").stdout)
    assert data["other_version"] == {"name": "libtpu 0", "memory": 72 << 20, "sends": 8 << 20}


def test_without_another_libtpu_the_first_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiling.OTHER_LIBTPU, "none")
    found = run("cost", "spec.yaml", "-t", "pod", asked=COMMAND[:-1])
    assert "there is no libtpu in `none`" in found.stderr
    assert "basis x compiled by libtpu 1" in words(found)
    assert " by libtpu 0" not in found.stdout


def test_a_folder_says_which_libtpu_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = pipeline.find_target(load("spec.yaml").ir, "pod")
    with pytest.raises(ShardspecError, match="there is no libtpu in"):
        REAL(target, Compiling(libtpu=str(tmp_path)))
    about = tmp_path / "libtpu-0.0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: libtpu\nVersion: 0.0.1\n")
    flags: dict[str, str] = {}
    monkeypatch.setattr(REAL, "_start", lambda self: flags.update(self._flags))
    with REAL(target, Compiling(libtpu=str(tmp_path))) as compile:
        assert compile._compiler == "libtpu 0.0.1"
    assert flags == {"TPU_LIBRARY_PATH": str(tmp_path / "libtpu" / "libtpu.so")}
    assert compiling.environment(flags)["TPU_LIBRARY_PATH"] == flags["TPU_LIBRARY_PATH"]


def test_the_model_asks_no_compiler() -> None:
    text = words(run("cost", "spec.yaml", "-t", "pod", "--basis", "model"))
    assert Fake.asked == []
    assert "sends ~" in text
    assert "basis ~" not in text
    assert "basis x" not in text


def test_a_variable_says_whom_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDSPEC_BASIS", "model")
    run("cost", "spec.yaml", "-t", "pod")
    assert Fake.asked == []


def test_without_a_compiler_the_model_answers_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Fake, "answer", no_program("pip install it", "libtpu is not installed"))
    text = words(run("cost", "spec.yaml", "-t", "pod"))
    assert "basis ~ modelled: libtpu is not installed" in text
    assert "sends ~" in text
    data = json.loads(run("cost", "spec.yaml", "-t", "pod", "--format", "json").stdout)
    assert (data["basis"], data["why_modelled"]) == ("modelled", "libtpu is not installed")
    found = run("cost", "spec.yaml", "-t", "pod", "--basis", "compiler")
    assert found.exit_code == 2
    assert "libtpu is not installed" in found.stderr
    assert "pip install it" in found.stderr


def test_time_that_is_over_names_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fake, "answer", no_program(MORE_TIME, "no program after 2 s"))
    text = words(run("cost", "spec.yaml", "-t", "pod", "--wait", "2"))
    assert "~ modelled: no program after 2 s; `--basis compiler` waits for it" in text
    assert Fake.asked == [("pod", 2.0)]
    assert run("cost", "spec.yaml", "-t", "pod", "--basis", "compiler").exit_code == 2
    assert Fake.asked[1:] == [("pod", 600.0)]


def test_a_target_without_a_machine_is_modelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "Compile", REAL)
    text = words(run("cost", "spec.yaml", "-t", "bare"))
    assert "~ modelled: target `bare` names no hardware" in text


STATED = """\
shardspec: 1
axes: {batch: 64, length: 128, embed: 256, mlp: 1024}
hardware: tpu v5e 2x4
mesh: {fsdp: 4, tensor: 2}
rules: [batch -> fsdp, mlp -> tensor, embed -> fsdp, length -> none]
params: {up: embed mlp, down: mlp embed}
arrays: {up: "f32[256, 1024]", down: "f32[1024, 256]"}
activations: {residual: batch length embed, hidden: batch length mlp}
state: {moments: 0}
step: {program: ['residual, "up" -> hidden', 'hidden, "down" -> residual']}
"""


def test_the_step_of_a_spec_is_compiled_where_that_is_asked_for(folder: Path) -> None:
    (folder / "stated.yaml").write_text(STATED)
    assert "sends ~" in words(run("cost", "stated.yaml", asked=["-q"]))
    assert Fake.asked == [], "it is priced in milliseconds"
    compiled = words(run("cost", "stated.yaml", "--basis", "compiler", asked=["-q"]))
    assert "basis x compiled by libtpu 1" in compiled
    assert "sends x 8.00 MiB" in compiled


def test_diff_compares_what_is_of_one_basis(monkeypatch: pytest.MonkeyPatch) -> None:
    both = run("diff", "spec.yaml", "new.yaml", "-t", "pod")
    assert "sends x 8.00 MiB, as before" in words(both), "both are one program"
    assert both.exit_code == 1, "by the model it sends less"
    compiled = run("diff", "spec.yaml", "new.yaml", "-t", "pod", "--basis", "compiler")
    assert compiled.exit_code == 1, "a rule did change"
    asked = iter([ANSWER, no_program(MORE_TIME)])
    monkeypatch.setattr(Fake, "__init__", lambda self, *given: setattr(Fake, "answer", next(asked)))
    one = words(run("diff", "spec.yaml", "new.yaml", "-t", "pod"))
    assert "sends ~" in one
    assert "x 8.00 MiB" not in one


def test_limits_are_judged_by_the_model_unless_the_compiler_is_asked() -> None:
    limit = ("diff", "spec.yaml", "new.yaml", "-t", "pod", "--fail-on", "memory+1%")
    command = [*limit, "--fail-on", "traffic+1%"]
    model = run(*command, "--basis", "model").exit_code
    assert run(*command).exit_code == model
    assert run("diff", "new.yaml", "spec.yaml", *command[3:], "--basis", "compiler").exit_code == 0


def test_check_holds_compiled_memory_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "SHD508" not in run("check", "spec.yaml", "-t", "pod", "--pedantic").stdout
    large = CompiledMemory({0: 4 << 20, 1: 4 << 20, 2: 2 << 20}, 0, 20 << 30)
    monkeypatch.setattr(Fake, "answer", Compiled(PROGRAM, large, "libtpu 1", 1.0, False))
    found = run("check", "spec.yaml", "-t", "pod")
    assert found.exit_code == 1
    assert "20.0 GiB" in found.stdout


def test_check_says_where_the_model_judges_in_place_of_the_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run("check", "spec.yaml", "-t", "pod").stderr == ""
    assert Fake.asked == [("pod", 600.0)], "its exit code must not hang on this machine's speed"
    monkeypatch.setattr(Fake, "answer", no_program(MORE_TIME))
    found = run("check", "spec.yaml")
    assert found.stderr.count("judged by the model") == 2, (
        "not for `bare`, which no one compiles for"
    )
    assert (
        "pod: judged by the model: there is none; `--basis compiler` waits for it" in found.stderr
    )


def test_what_one_verb_compiled_the_next_one_finds() -> None:
    for verb in ("cost", "check", "verify"):
        run(verb, "spec.yaml", "-t", "pod")
    assert len(Fake.given) == 1, "locations have no frames of ours"


def test_two_targets_are_asked_at_once() -> None:
    run("check", "spec.yaml")
    assert {name for name, _ in Fake.asked} == {"pod", "other", "bare"}


def test_the_draft_gives_way_to_the_compiled_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_verb, "rows_of_terminal", lambda: 50)
    found = run("cost", "spec.yaml", "-t", "pod").stdout
    draft, _, table = found.partition("\x1b[")
    rows, _, table = table.partition("F\x1b[J")
    assert "sends   ~" in draft
    assert int(rows) == draft.count("\n")
    assert "sends   x" in table
    monkeypatch.setattr(cost_verb, "rows_of_terminal", lambda: 5)
    assert "\x1b[" not in run("cost", "spec.yaml", "-t", "pod").stdout, "it would not go away"


def test_libtpu_answers_and_what_it_said_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("libtpu")
    monkeypatch.setattr(compiling, "Compile", REAL)
    asked = (("--basis", "compiler"), ("--wait", "0"))
    # in one line, which is in the program: who calls is in its locations
    made, again = [words(run("cost", "spec.yaml", "-t", "pod", *each)) for each in asked]
    assert "basis x compiled by libtpu" in made
    assert "kept from" in again
    assert made.partition("memory x")[2] == again.partition("memory x")[2]

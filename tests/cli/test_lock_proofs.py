"""`lock --verify`: figures of the compiler in the lock, and `--check` that knows whose they are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import cli
from shardspec.jax_backend.xla import compiling
from shardspec.jax_backend.xla.cache import Compiled
from tests.cli.compilers import answer
from tests.cli.test_verify import EXCHANGED, MEMORY, PROGRAM, SPEC, STATED, STEP
from tests.versions_of_jax import needs_libtpu

ARRAYS = "arrays: {wi: 'bf16[1024, 4096]', wo: 'bf16[4096, 1024]'}\n"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    (tmp_path / "spec.yaml").write_text(SPEC + ARRAYS)
    (tmp_path / "locked_step.py").write_text(STEP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHARDSPEC", raising=False)
    sys.modules.pop("locked_step", None)

    def of(*arguments: str, text: str = PROGRAM) -> Result:
        made = Compiled(text, MEMORY, "libtpu 1", 2.0, False)
        answer(monkeypatch, made)
        monkeypatch.setattr(compiling, "installed", {"libtpu": "1", "jax": "2"}.get)
        result = CliRunner().invoke(cli, ["lock", *arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        return result

    return of


VERIFY = ("--verify", "--step", "locked_step:step")


def lines(word: str) -> list[str]:
    text = Path("spec.lock").read_text()
    return [line for line in text.splitlines() if line.startswith(word)]


def test_the_lock_holds_what_was_proved(run: Callable[..., Result]) -> None:
    result = run(*VERIFY)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("proved: it fits") == 2
    assert "bare: not compiled for, it names no TPUs or GPUs" in result.stderr
    assert "2 arrays on 3 targets, 2 proofs, " in result.stdout
    proofs = lines("proof ")
    assert len(proofs) == 2 * 6
    assert proofs[0].startswith("proof locked_step:step = sha256:")
    assert proofs[1] == "proof by jax 2, libtpu 1"
    assert proofs[2].startswith("proof code locked_step.py = sha256:")
    assert proofs[3:5] == [
        "proof sends fsdp = 6291456, predicted 6291456",
        "proof sends tensor = 2097152, predicted 2097152",
    ]
    assert proofs[5].startswith(f"proof holds = {MEMORY.bytes}, predicted ")
    checked = run("--check")
    assert checked.exit_code == 0
    assert "and so is the proof on `pod`, `other`." in checked.stdout


def test_targets_are_chosen(run: Callable[..., Result]) -> None:
    assert run(*VERIFY, "-t", "other").exit_code == 0
    assert len(lines("proof locked_step:step")) == 1
    assert run(*VERIFY, "-t", "pod").exit_code == 0
    assert len(lines("proof locked_step:step")) == 2


def test_targets_of_phases_have_proofs_of_their_own(run: Callable[..., Result]) -> None:
    Path("spec.yaml").write_text(f"{SPEC}{ARRAYS}phases:\n  eval:\n    axes: {{batch: 4096}}\n")
    assert run(*VERIFY, "-t", "eval@pod").exit_code == 0
    text = Path("spec.lock").read_text()
    head = next(part for part in text.split("\n\n") if "proof " in part)
    assert "eval@pod" in head.splitlines()[0]
    Path("locked_step.py").write_text("x = 1\n")
    assert "--target eval@pod" in run("--check").stderr


def test_a_lock_that_is_written_anew_keeps_its_proofs(run: Callable[..., Result]) -> None:
    run(*VERIFY)
    before = Path("spec.lock").read_text()
    assert run().exit_code == 0
    assert Path("spec.lock").read_text() == before
    assert run("-o", "-").stdout == before
    Path("spec.yaml").write_text((SPEC + ARRAYS).replace("  other:", "  another:"))
    moved = run()
    assert moved.exit_code == 0
    assert "the proof of `pod` is old: the spec or its arrays changed; `shardspec" in moved.stderr
    assert len(lines("proof locked_step:step")) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: Path("locked_step.py").write_text("x = 1\n"), "`locked_step.py` changed"),
        (lambda: Path("locked_step.py").unlink(), "`locked_step.py` cannot be read"),
        (lambda: edit("libtpu 1", "libtpu 0"), "libtpu was 0 and is 1"),
        (lambda: edit("jax 2", "jax 1.9"), "jax was 1.9 and is 2"),
        (
            lambda: edit("proof code", 'proof flags LIBTPU_INIT_ARGS = "--a=1 --b"\nproof code'),
            "LIBTPU_INIT_ARGS was --a=1 --b and is not set",
        ),
    ],
)
def test_check_says_what_a_proof_no_longer_belongs_to(
    run: Callable[..., Result], change: Callable[[], Any], said: str
) -> None:
    run(*VERIFY)
    change()
    checked = run("--check")
    assert checked.exit_code == 1
    assert f"error: the proofs of `pod`, `other` are old: {said}" in checked.stderr
    way_out = "shardspec lock --verify --step locked_step:step --target pod --target other"
    assert f"`{way_out}` proves it anew" in checked.stderr
    assert "The layout in spec.lock is up to date." in checked.stdout


def edit(old: str, new: str, name: str = "spec.lock") -> None:
    text = Path(name).read_text()
    assert old in text
    Path(name).write_text(text.replace(old, new))


def test_a_stale_lock_says_both(run: Callable[..., Result]) -> None:
    run(*VERIFY)
    Path("spec.yaml").write_text((SPEC + ARRAYS).replace("mlp -> tensor", "mlp -> none"))
    checked = run("--check")
    assert checked.exit_code == 1
    assert "spec.lock is stale" in checked.stderr
    assert "are old: the spec or its arrays changed" in checked.stderr
    assert "mlp: tensor -> none" in checked.stdout


def test_the_step_that_a_spec_states_is_proved_without_code(run: Callable[..., Result]) -> None:
    needs_libtpu()
    Path("spec.yaml").write_text(STATED)
    made = CliRunner().invoke(cli, ["lock", "spec.yaml", "--verify"])
    assert made.exit_code == 0, made.output
    assert lines("proof ")[0].startswith("proof spec:step = sha256:")
    assert CliRunner().invoke(cli, ["lock", "spec.yaml", "--check"]).exit_code == 0
    edit("mlp: 4096", "mlp: 8192", "spec.yaml")
    edit("1024, 4096]", "1024, 8192]", "spec.yaml")
    edit("2, 4096, 1024]", "2, 8192, 1024]", "spec.yaml")
    old = CliRunner().invoke(cli, ["lock", "spec.yaml", "--check"])
    assert "`shardspec lock --verify --target pod` proves it anew" in old.stderr


@pytest.mark.parametrize("text", [PROGRAM.replace("[4,2]<=[8],", "[1,8]<=[8],"), EXCHANGED])
def test_a_broken_promise_is_not_locked(run: Callable[..., Result], text: str) -> None:
    result = run(*VERIFY, text=text)
    assert result.exit_code == 1
    assert "spec.lock is not written: the step is not proved" in result.stderr
    assert not Path("spec.lock").exists()


def test_proofs_of_a_lock_that_cannot_be_read_are_not_lost_unsaid(
    run: Callable[..., Result],
) -> None:
    run(*VERIFY)
    edit("lock 1, language 1", "lock 1, language 1\n<<<<<<< ours")
    result = run()
    assert result.exit_code == 0
    assert "spec.lock cannot be read; the proofs in it are left out" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--verify",), "there is no step to compile"),
        (("--check", *VERIFY), "--check writes nothing, and --verify does"),
        (("--step", "a:b"), "--step says what is compiled"),
        (("-t", "pod"), "--target says what is compiled"),
        ((*VERIFY, "-t", "nowhere"), "there is no target `nowhere`"),
        ((*VERIFY, "--tolerance", "2"), "--tolerance 2 is no share"),
    ],
)
def test_what_cannot_be_done(
    run: Callable[..., Result], arguments: tuple[str, ...], message: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not Path("spec.lock").exists()


def test_no_target_has_a_machine(run: Callable[..., Result]) -> None:
    Path("spec.yaml").write_text(
        "shardspec: 1\nmesh: {data: 2}\nrules: [a -> data]\narrays: {w: 'f32[a=8]'}\n"
    )
    result = run(*VERIFY)
    assert result.exit_code == 2
    assert "no target has TPUs or GPUs to compile for" in result.stderr


def test_check_of_proofs_loads_no_jax(run: Callable[..., Result]) -> None:
    run(*VERIFY)
    edit("proof by jax 2, libtpu 1", "proof by no-such-package 2")
    code = """
import sys
from shardspec.cli.main import main
sys.argv = ["shardspec", "lock", "--check"]
try:
    main()
except SystemExit as end:
    print("code", end.code, "jax" in sys.modules)
"""
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    environment |= {"SHARDSPEC_PROGRESS": "never"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "code 0 False", done

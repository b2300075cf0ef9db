"""What JAX calls operations, and which frames are the user's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardspec.ir.step import Place
from shardspec.programs.op_names import (
    constraint_names,
    is_library,
    phase_of,
    place_of,
    scope,
    shown,
    split_name,
)

HERE = os.path.abspath("tests/models/steps.py")
FLAX = os.path.join("lib", "python3.11", "site-packages", "flax", "linen", "linear.py")


def test_the_place_is_the_first_frame_outside_of_libraries() -> None:
    frames = [(FLAX, 12), (HERE, 71), (HERE, 90)]
    assert place_of(frames, "jit(f)/jvp(mlp)/dot") == Place("tests/models/steps.py", 71, "mlp")
    assert place_of([(FLAX, 12)], "jit(f)/mlp/dot") == Place(scope="mlp")


@pytest.mark.parametrize(
    ("file", "answer"),
    [
        (FLAX, True),
        (os.path.join("lib", "site-packages", "maxtext", "layers.py"), False),
        ("/opt/venv/lib/python3.12/site-packages/transformer_engine/jax/attention.py", True),
        (os.__file__, True),
        ("<string>", True),
        (HERE, False),
        (os.path.abspath("shardspec/jax_backend/constrain.py"), True),
    ],
)
def test_libraries(file: str, answer: bool) -> None:
    assert is_library(file) is answer


def test_files_are_shown_as_a_user_would_write_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert shown(str(below / "train.py")) == "train.py"
    assert shown(str(tmp_path / "models" / "gpt.py")) == "../../models/gpt.py"
    far = str(tmp_path.parent / "elsewhere.py")
    assert shown(far) == far
    assert shown("/usr/lib/python3/dist-packages/gpt/layers.py") == "gpt/layers.py"
    monkeypatch.chdir(below.parent)
    assert shown(str(below / "train.py")) == "b/train.py"


def test_names_are_split_outside_of_brackets() -> None:
    assert split_name("jit(f)/jvp(a/b)/c") == ["jit(f)", "jvp(a/b)", "c"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("jit(step)/jvp()/while/body/closed_call/mlp/bte,ef->btf/dot_general", "mlp/bte,ef->btf"),
        ("jit(step)/transpose(jvp(bte,ef->btf))/dot_general", "bte,ef->btf"),
        ("jit(step)/shardspec:residual/sharding_constraint", ""),
        ("jit(step)/jvp(jit(log_softmax))/reduce_max", ""),
        ("add", ""),
    ],
)
def test_scopes_are_what_the_user_named(name: str, said: str) -> None:
    assert scope(name) == said


def test_the_names_of_a_constraint() -> None:
    name = "jit(step)/jvp(shardspec:batch length embed)/sharding_constraint"
    assert constraint_names(name) == "batch length embed"
    assert constraint_names("jit(step)/mul") == ""


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("jit(step)/jvp()/mul", "forward"),
        ("jit(step)/transpose(jvp())/mul", "backward"),
        ("jit(step)/transpose(jvp())/checkpoint/rematted_computation/mul", "remat"),
        ("jit(step)/mul", None),
    ],
)
def test_phases(name: str, phase: str | None) -> None:
    assert phase_of(name) == phase

"""A step traced from changed sources: the new text counts, and the files stay as they are."""

from __future__ import annotations

import os
import py_compile
import sys
import time
from pathlib import Path

import pytest

from shardspec.diagnostics import Diagnostic, codes
from shardspec.jax_backend.cure.again import Asked, traced_again
from shardspec.jax_backend.xla.verifying import Lowered
from tests.jax_backend.cure.small import resolver

pytestmark = pytest.mark.fresh

LAYERS = """\
def layer(w, x):
    y = x @ w
    return y
"""
TRAIN = """\
import jax
import jax.numpy as jnp

import shardspec
from layers import layer

X = jax.ShapeDtypeStruct((32, 64, 256), jnp.float32)
W = jax.ShapeDtypeStruct((256, 1024), jnp.float32)


def step(resolver):
    print("made")
    return (lambda p, x: jnp.sum(layer(p["wi"], x) ** 2)), ({"wi": W}, X)
"""
CONSTRAINED = """\
import shardspec


def layer(w, x):
    y = x @ w
    y = shardspec.constrain(y, "_ _ mlp")
    return y
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "layers.py").write_text(LAYERS)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def again(folder: Path, timeout_s: float = 120.0, **sources: str) -> Lowered | Diagnostic:
    texts = {os.path.realpath(folder / f"{name}.py"): text for name, text in sources.items()}
    asked = Asked(resolver()._arrays.spec, "pod", "train:step", str(folder), texts)
    before = {path: path.read_bytes() for path in folder.glob("*.py")}
    found = traced_again(asked, timeout_s)
    assert found is not None, "there was time"
    assert {path: path.read_bytes() for path in folder.glob("*.py")} == before
    if isinstance(found, Lowered):
        return found
    (one,) = found
    return one


def test_new_texts_count_wherever_they_are_imported(folder: Path) -> None:
    old, new = again(folder), again(folder, layers=CONSTRAINED)
    assert isinstance(old, Lowered)
    assert isinstance(new, Lowered)
    assert b"sharding_constraint" not in old.module
    assert b"sharding_constraint" in new.module
    assert old.step.wire_bytes != new.step.wire_bytes


def test_bytecode_of_the_old_text_does_not_count_and_none_is_left_of_the_new(folder: Path) -> None:
    cached = Path(py_compile.compile(str(folder / "layers.py")) or "")
    before = cached.read_bytes()
    new = again(folder, layers=CONSTRAINED)
    assert isinstance(new, Lowered)
    assert b"sharding_constraint" in new.module
    assert cached.read_bytes() == before


def test_a_file_may_be_reached_by_a_link(folder: Path, tmp_path: Path) -> None:
    real = folder / "real.py"
    (folder / "layers.py").rename(real)
    (folder / "layers.py").symlink_to(real)
    new = again(folder, real=CONSTRAINED)
    assert isinstance(new, Lowered)
    assert b"sharding_constraint" in new.module


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def layer(w, x:\n", "SyntaxError"),
        (LAYERS.replace("x @ w", "x @ missing"), "NameError"),
        (CONSTRAINED.replace('"_ _ mlp"', 'activation="other"'), "other"),
    ],
)
def test_errors_of_the_new_text_are_findings(folder: Path, text: str, told: str) -> None:
    found = again(folder, layers=text)
    assert isinstance(found, Diagnostic)
    whole = f"{found.message} {found.notes} {found.help} {found}"
    assert told in whole
    assert "Traceback" not in whole


def test_a_process_that_ends_is_a_finding(folder: Path) -> None:
    found = again(folder, layers=f"import os\nos._exit(3)\n{LAYERS}")
    assert isinstance(found, Diagnostic)
    assert found.code is codes.BAD_STEP
    assert found.message == "`train:step` could not be traced again: EOFError"


def test_a_process_that_takes_too_long_ends_with_what_it_has_started(folder: Path) -> None:
    child = "import subprocess, time\nsubprocess.Popen(['sleep', '60'])\ntime.sleep(60)\n"
    (folder / "layers.py").write_text(f"{child}{LAYERS}")
    asked = Asked(resolver()._arrays.spec, "pod", "train:step", str(folder), {})
    started = time.monotonic()
    assert traced_again(asked, 3.0) is None
    assert time.monotonic() - started < 20


def test_modules_are_found_as_in_this_process(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (folder / "layers.py").rename(elsewhere / "layers.py")
    monkeypatch.setattr(sys, "path", [*sys.path, str(elsewhere)])
    assert isinstance(again(folder), Lowered)

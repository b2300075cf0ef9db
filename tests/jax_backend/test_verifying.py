"""The real compilers, for machines that are not here: the program, and every way to have none."""

from __future__ import annotations

import glob
import importlib.metadata
import os
import tempfile
from typing import Any

import pytest

from shardspec import Resolver, ShardspecError, loads
from shardspec.analysis.step_memory import StepMemory
from shardspec.jax_backend import compiling
from shardspec.jax_backend.compiling import Compiling
from shardspec.jax_backend.verifying import verify_step
from shardspec.programs.proof import Proof
from tests.models import small_steps

#: Where the compiler for GPUs is, which `make test` installs beside the environment.
GPU = os.environ.get(compiling.GPU_COMPILER) or next(
    importlib.metadata.distributions(name="jax-cuda12-plugin"), None
)


def proved(program: str, resolver: Any, **how: Any) -> Proof:
    function, args = small_steps.PROGRAMS[program](resolver)
    return verify_step(resolver, function, args, **how)


def given_bytes(memory: StepMemory) -> int:
    parts = ("parameters", "optimizer", "batch", "caches", "other")
    return sum(part.bytes for name, part in memory.parts.items() if name in parts)


def left_behind() -> list[str]:
    return glob.glob(os.path.join(tempfile.gettempdir(), "shardspec-compile-*"))


def test_a_step_on_a_slice_that_is_not_here() -> None:
    pytest.importorskip("libtpu")
    stages: list[str] = []
    found = proved(
        "clipped_adam", small_steps.resolver(), how=Compiling(is_cached=False), tell=stages.append
    )
    assert stages == ["tracing", "describing the machine", "compiling"]
    assert found.faults == ()
    assert found.difference < 0.001
    assert found.compiler.startswith("libtpu ")
    assert found.memory is not None
    assert found.memory.argument_bytes == given_bytes(found.cost.memory)
    assert all(each.place.is_known for each in found.step.collectives)
    assert left_behind() == []


def test_time_is_limited_and_nothing_is_left() -> None:
    pytest.importorskip("libtpu")
    with pytest.raises(ShardspecError, match="no program for tpu v5e 4x4 after 1 s"):
        proved("plain", small_steps.resolver(), how=Compiling(timeout_s=1.0, is_cached=False))
    assert left_behind() == []


@pytest.mark.skipif(GPU is None, reason="needs the compiler for GPUs: docs/verify.md")
def test_a_step_on_gpus_that_are_not_here() -> None:
    text = small_steps.SPEC.replace("hardware: tpu v5e 4x4", "hardware: 2 * h100")
    resolver = Resolver(loads(text), "pod", devices="abstract")
    found = proved("clipped_adam", resolver, tolerance=0.25, how=Compiling(is_cached=False))
    assert found.faults == ()
    assert found.memory is not None
    assert found.memory.argument_bytes == given_bytes(found.cost.memory)


def test_a_target_without_a_machine_is_refused() -> None:
    text = small_steps.SPEC.replace("hardware: tpu v5e 4x4, ", "")
    with pytest.raises(ShardspecError, match="`pod` names no hardware"):
        proved("plain", Resolver(loads(text), "pod", devices="abstract"))


def test_a_compiler_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "distributions", lambda **_: iter(()))
    with pytest.raises(ShardspecError) as caught:
        proved("plain", small_steps.resolver())
    (found,) = caught.value.diagnostics
    assert found.code.id == "SHD906"
    assert found.message == "the compiler for TPU v5e is not installed: `libtpu`"
    assert found.help == "pip install 'shardspec[tpu-aot]'; no TPU is needed"

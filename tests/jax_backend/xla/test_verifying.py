"""The real compilers, for machines that are not here: the program, and every way to have none."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shardspec import Resolver, ShardspecError, loads
from shardspec.analysis.step_memory import StepMemory
from shardspec.jax_backend.step.trace import Call
from shardspec.jax_backend.xla import compiling, verifying
from shardspec.jax_backend.xla.compiling import Compiling
from shardspec.jax_backend.xla.verifying import verify_step
from shardspec.programs.proof import Proof
from tests.models import small_steps

ROOT = Path(__file__).parents[3]


def _has_compiler_for_gpus() -> bool:
    """Say whether there is one of jax's own version, as `make test` installs it."""
    folder = os.environ.get(compiling.GPU_COMPILER)
    where = [*([folder] if folder else []), *sys.path]
    found = importlib.metadata.distributions(name="jax-cuda12-plugin", path=where)
    return any(each.version == importlib.metadata.version("jax") for each in found)


needs_gpu_compiler = pytest.mark.skipif(
    not _has_compiler_for_gpus(), reason="needs the compiler for GPUs: docs/verify.md"
)


def proved(program: str, resolver: Any, **how: Any) -> Proof:
    function, args = small_steps.PROGRAMS[program](resolver)
    return verify_step(resolver, Call(function, args), **how)


def given_bytes(memory: StepMemory) -> int:
    parts = ("parameters", "optimizer", "batch", "caches", "other")
    return sum(part.bytes for name, part in memory.parts.items() if name in parts)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where folders for compiles are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_step_on_a_slice_that_is_not_here(folders: Path) -> None:
    pytest.importorskip("libtpu")
    stages: list[str] = []
    found = proved(
        "clipped_adam", small_steps.resolver(), how=Compiling(is_cached=False), tell=stages.append
    )
    assert stages == ["tracing", "describing the machine", "compiling"]
    most = (
        0.1 if importlib.metadata.version("libtpu") >= "0.0.50" else 0.5
    )  # those before send float32 as it is
    assert found.difference < most
    assert (found.faults == ()) == (found.difference <= 0.1)
    assert found.compiler.startswith("libtpu ")
    assert found.memory is not None
    assert found.memory.argument_bytes == given_bytes(found.cost.memory)
    assert all(each.place.is_known for each in found.step.collectives)
    assert list(folders.iterdir()) == []


@pytest.mark.nightly
def test_a_step_on_several_slices_that_are_not_here() -> None:
    pytest.importorskip("libtpu")
    found = proved("clipped_adam", small_steps.resolver(spec=small_steps.SLICED))
    assert found.faults == ()
    assert found.difference < 0.02
    assert {row.mesh_axes for row in found.rows if row.compiled} >= {("replica",), ("fsdp",)}


def test_time_is_limited_and_nothing_is_left(folders: Path) -> None:
    pytest.importorskip("libtpu")
    with pytest.raises(ShardspecError, match=r"no program for tpu v5e 4x4 after 0\.1 s"):
        proved("plain", small_steps.resolver(), how=Compiling(timeout_s=0.1, is_cached=False))
    assert list(folders.iterdir()) == []


@needs_gpu_compiler
def test_a_step_on_gpus_that_are_not_here() -> None:
    text = small_steps.SPEC.replace("hardware: tpu v5e 4x4", "hardware: 2 * h100")
    resolver = Resolver(loads(text), "pod", devices="abstract")
    found = proved("clipped_adam", resolver, tolerance=0.25, how=Compiling(is_cached=False))
    assert found.faults == ()
    assert found.memory is not None
    assert found.memory.argument_bytes == given_bytes(found.cost.memory)


def attention(params: Any, x: Any, heads: int) -> Any:
    batch, length, width = x.shape
    parts = (batch, length, heads, width // heads)
    q, k, v = ((x @ params[name]).reshape(parts) for name in "qkv")
    scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32)
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores).astype(x.dtype), v)
    made = mixed.reshape(x.shape) @ params["o"] + x
    return (made.astype(jnp.float32) ** 2).mean()


#: Batch, tokens, width and heads of steps that XLA:GPU refuses with Triton's kernels, or that it
#: once did: ViT, CLIP's text, SigLIP so400m, Whisper's encoder.
SHAPES = [
    *((64, 197, 128, 2), (2048, 197, 768, 12), (4096, 77, 1024, 16), (512, 256, 1152, 16)),
    *((64, 1500, 512, 8), (32, 577, 1024, 16), (256, 50, 768, 12)),
]


@pytest.mark.nightly
@needs_gpu_compiler
@pytest.mark.parametrize("chip", ["h100", "a100"])
@pytest.mark.parametrize(("batch", "length", "width", "heads"), SHAPES)
def test_a_matmul_of_odd_sizes_has_a_program_on_gpus(
    batch: int, length: int, width: int, heads: int, chip: str
) -> None:
    spec = loads(f"shardspec: 1\nhardware: 2 {chip}\nmesh: {{data: 2}}\nrules: [batch -> data]\n")
    struct: Any = jax.ShapeDtypeStruct
    params = {name: struct((width, width), jnp.bfloat16) for name in "qkvo"}
    step = jax.grad(functools.partial(attention, heads=heads), (0, 1))
    x = struct((batch, length, width), jnp.bfloat16)
    how = Compiling(is_cached=False)
    found = verify_step(Resolver(spec, devices="abstract"), Call(step, (params, x)), how=how)
    assert found.memory is not None
    if (length, chip) == (197, "h100"):
        assert dict(found.flags)["fallback"] == "--xla_gpu_enable_triton_gemm=false"


@needs_gpu_compiler
def test_the_compiler_for_gpus_is_not_in_the_way_of_jax() -> None:
    clean = {name: text for name, text in os.environ.items() if name != "JAX_PLATFORMS"}
    said = subprocess.run(
        [sys.executable, "-c", "import jax; jax.devices()"],
        env={**clean, "JAX_PLATFORMS": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cuda" not in said.stderr.lower()


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


def test_whoever_is_killed_leaves_neither_process_nor_folder(folders: Path) -> None:
    pytest.importorskip("libtpu")
    code = (
        "from tests.models import small_steps as s\n"
        "from shardspec.jax_backend.xla.compiling import Compiling\n"
        "from shardspec.jax_backend.step.trace import Call\n"
        "from shardspec.jax_backend.xla.verifying import verify_step\n"
        "r = s.resolver(); f, a = s.PROGRAMS['plain'](r)\n"
        "tell = lambda stage: print(stage, flush=True)\n"
        "verify_step(r, Call(f, a), how=Compiling(is_cached=False), tell=tell)\n"
    )
    environment = {**os.environ, "TMPDIR": str(folders), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as killed:
        assert killed.stdout is not None
        for line in killed.stdout:
            if line.strip() == b"describing the machine":
                killed.kill()
                break
    until = time.monotonic() + 60
    while list(folders.iterdir()) and time.monotonic() < until:
        time.sleep(0.5)
    assert list(folders.iterdir()) == []


def test_a_process_whose_parent_has_ended_before_it_began_ends_too(tmp_path: Path) -> None:
    folder = tmp_path / "compile"
    folder.mkdir()
    (folder / "job.json").write_text('{"partitions": 8}')
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    command = [sys.executable, "-P", "-m", "shardspec.jax_backend.xla.child", folder, str(gone.pid)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert not folder.exists()


def test_a_compiler_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "jax_cuda12_plugin-0.0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: jax-cuda12-plugin\nVersion: 0.0.1\n"
    )
    monkeypatch.setenv(compiling.GPU_COMPILER, str(tmp_path))
    text = small_steps.SPEC.replace("hardware: tpu v5e 4x4", "hardware: 2 * h100")
    with pytest.raises(ShardspecError, match=r"plugin` is 0\.0\.1, and jax is"):
        proved("plain", Resolver(loads(text), "pod", devices="abstract"))


@dataclass(frozen=True)
class Noted:
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    by: Any
    difference: float
    step: Noted = Noted()


@pytest.mark.parametrize(
    ("lines", "function", "by"),
    [(0.05, 0.0, "lines"), (0.3, 0.05, "function"), (0.3, 0.2, "lines")],
)
def test_a_function_is_predicted_where_its_lines_do_not_hold(
    lines: float, function: float, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = {"lines": lines, "function": function}
    monkeypatch.setattr(verifying, "_proof", lambda made, cost, *rest, **_: Found(cost, off[cost]))
    compile: Any = SimpleNamespace(result=lambda tell: None)
    cost: Any = "lines"
    asked = verifying.Asked(compile, b"", cost, "function", (), "t5x", ("a note",))  # type: ignore[arg-type]
    found: Any = asked.proof(Compiling(), 0.1, lambda stage: None)
    assert found.by == by
    assert found.step.notes[0] == "a note"
    assert len(found.step.notes) == (2 if by == "function" else 1)

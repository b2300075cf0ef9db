"""XLA's partitioner in a process of its own: its program, and every reason why there is none."""

from __future__ import annotations

import importlib
import io
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardspec.diagnostics import Diagnostic
from shardspec.jax_backend.xla import compiling, partitioning
from shardspec.jax_backend.xla.cache import Compiled
from shardspec.jax_backend.xla.child import partitioned_text
from shardspec.jax_backend.xla.compiling import Compiling
from shardspec.jax_backend.xla.partitioning import BRIEFLY, Partitioning

pytestmark = pytest.mark.fresh

PROGRAM = "HloModule m\n\n%add (a: f32[]) -> f32[] {\n}\n\nENTRY %m () -> f32[] {\n}\n\n"
#: What a script begins with that stands in place of the child.
BEGIN = f"""\
import json, os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
PROGRAM = {PROGRAM!r}
def dump(text):
    (folder / "dump" / "m.0001.after_spmd-partitioning.before_dce.txt").write_text(text)
def say(text):
    print(text, file=sys.stderr, flush=True)
"""


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give processes a folder, in which nothing may be left, and no programs of other tests."""
    folder = tmp_path / "partitions"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(partitioning, "_MADE", {})
    importlib.import_module("jax")  # which sets variables
    before = environment()
    yield folder
    assert list(folder.iterdir()) == []
    assert environment() == before


def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"}


def partitioned(module: bytes, devices: int, how: Compiling = BRIEFLY) -> Compiled | Diagnostic:
    """Return the program of one device, or why there is none."""
    with Partitioning(devices, how) as partitioning:
        partitioning.give(module)
        return partitioning.result()


def module_of(devices: int, function: Callable[..., Any] | None = None) -> bytes:
    """Return a product whose contracted dimension is sharded over all devices, lowered for TPU."""
    import jax
    from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

    mesh = AbstractMesh((devices,), ("model",), (AxisType.Auto,))
    x = jax.ShapeDtypeStruct(
        (8, 2 * devices), "float32", sharding=NamedSharding(mesh, PartitionSpec(None, "model"))
    )
    w = jax.ShapeDtypeStruct(
        (2 * devices, 16), "float32", sharding=NamedSharding(mesh, PartitionSpec("model"))
    )
    traced = jax.jit(function or (lambda x, w: x @ w)).trace(x, w)
    buffer = io.BytesIO()
    module: Any = traced.lower(lowering_platforms=("tpu",)).compiler_ir()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def program(found: Compiled | Diagnostic) -> Compiled:
    assert isinstance(found, Compiled), found.message
    return found


def refused(found: Compiled | Diagnostic) -> str:
    assert isinstance(found, Diagnostic)
    assert found.code.id == "SHD906"
    return found.message


def test_a_product_is_summed_over_its_contracted_dimension() -> None:
    found = program(partitioned(module_of(4), 4))
    assert "f32[8,2]{1,0} parameter(0)" in found.text
    assert "f32[8,16]{1,0} all-reduce(" in found.text
    assert found.compiler.startswith("the partitioner of jaxlib 0.")
    assert found.warnings == ()
    assert 0 < found.seconds < 60


def test_dumps_that_a_program_asks_for_do_not_displace_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dumps = f"--xla_dump_to={tmp_path / 'own'} --xla_dump_hlo_module_re=jit_train_step"
    with monkeypatch.context() as patched:
        patched.setenv("XLA_FLAGS", dumps)
        found = partitioned(module_of(4), 4)
    assert "all-reduce(" in program(found).text
    assert not (tmp_path / "own").exists()


def test_there_may_be_more_devices_than_the_cpu_client_has() -> None:
    assert "all-reduce(" in program(partitioned(module_of(4096), 4096)).text


def test_a_kernel_that_the_cpu_does_not_know_is_partitioned() -> None:
    def step(x: Any, w: Any) -> Any:
        import jax

        y = x @ w
        return jax.ffi.ffi_call("nobody_has_this", jax.ShapeDtypeStruct(y.shape, y.dtype))(y)

    text = program(partitioned(module_of(4, step), 4)).text
    assert "all-reduce(" in text
    assert 'custom_call_target="nobody_has_this"' in text


def test_no_module_is_partitioned_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of(4)
    found = partitioned(module, 4)
    monkeypatch.setattr(compiling, "_CHILD", ("-c", "import sys; sys.exit(3)"))
    assert partitioned(bytes(bytearray(module)), 4) is found
    with Partitioning(4) as again:
        again.give(module)
        assert again.result() is found
    assert "ended with 3" in refused(partitioned(module, 2))
    assert "ended with 3" in refused(partitioned(module_of(8), 8))


def test_few_programs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioning, "_MOST_MADE", 2)
    by(monkeypatch, "dump(PROGRAM)")
    for name in (b"a", b"b", b"c"):
        program(partitioned(name, 4))
    by(monkeypatch, "sys.exit(3)")
    program(partitioned(b"c", 4))
    assert "ended with 3" in refused(partitioned(b"a", 4))


def test_the_program_of_one_device_is_the_module() -> None:
    found = program(partitioned(module_of(1), 1))
    assert "all-reduce" not in found.text
    assert "dot(" in found.text


def test_a_module_that_is_none() -> None:
    message = refused(partitioned(b"no module", 4))
    assert message.startswith("the compiler refuses the step for 4 devices: ")


def test_a_module_for_other_devices() -> None:
    assert "for 3 devices" in refused(partitioned(module_of(4), 3))


# other ends, by scripts in place of the child


def by(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(compiling, "_CHILD", ("-c", BEGIN + script))


def made(
    monkeypatch: pytest.MonkeyPatch, script: str, how: Compiling = partitioning.BRIEFLY
) -> Compiled | Diagnostic:
    by(monkeypatch, script)
    return partitioned(b"module", 4, how)


def test_a_crash_after_the_program_is_written_does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = made(monkeypatch, "dump(PROGRAM); os.kill(os.getpid(), signal.SIGKILL)")
    assert program(found).text == PROGRAM


def test_a_crash_before_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "dump(PROGRAM[:-4]); say('F0101 a.cc:1] Check failed: n < 3');"
        " os.kill(os.getpid(), signal.SIGABRT); time.sleep(60)"
    )
    message = refused(made(monkeypatch, script))
    assert message.startswith("the partitioner of jaxlib 0.")
    assert message.endswith(" crashed, by SIGABRT: F0101 a.cc:1] Check failed: n < 3")


def test_time_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made(monkeypatch, "time.sleep(60)", Compiling(timeout_s=0.5))
    assert refused(found) == "no program for 4 devices after 0.5 s"
    assert isinstance(found, Diagnostic)
    assert found.help is None


def test_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made(monkeypatch, "time.sleep(60)", Compiling(timeout_s=30.0, most_bytes=2**20))
    assert " was ended: it held " in refused(found)


def test_a_disk_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*arguments: object, **options: object) -> str:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(compiling.tempfile, "mkdtemp", read_only)
    assert refused(made(monkeypatch, "")).endswith(": read-only file system")


def test_a_disk_that_is_full_when_the_module_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert refused(made(monkeypatch, "time.sleep(60)")).endswith(": no space left on device")


def test_arrays_that_xla_makes_whole_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    log = (
        "E0101 spmd_partitioner.cc:1] [SPMD] Involuntary full rematerialization. The compiler was"
        " not able to go from sharding {devices=[4,1]<=[4]} to {devices=[1,4]<=[4]} without doing a"
        " full rematerialization of the tensor for HLO operation: %gather.1 = f32[8]"
    )
    (warning,) = program(made(monkeypatch, f"say({log!r}); dump(PROGRAM)")).warnings
    assert "could not move gather.1 from {devices=[4,1]<=[4]}" in warning


def test_a_process_that_nobody_wants_any_longer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    by(monkeypatch, "time.sleep(60)")
    with Partitioning(4) as partitions:
        child = partitions._child
    assert child.poll() == -signal.SIGTERM


def test_a_program_that_is_cut_off_is_none(tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    assert partitioned_text(tmp_path, 4) == ""
    path = tmp_path / "dump" / "m.after_spmd-partitioning.txt"
    whole = len(PROGRAM.rstrip())
    for end in range(len(PROGRAM) + 1):
        path.write_text(PROGRAM[:end])
        assert partitioned_text(tmp_path, 4) == (PROGRAM[:end] if end >= whole else "")

"""The process that compiles, and every way it can end: what is told, and that nothing is left.

In place of the compiler stand small scripts, which write what it writes and end as it may.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import threading
import time
from dataclasses import replace
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest

from shardspec import ShardspecError, loads
from shardspec.ir.spec import Hardware, Target
from shardspec.jax_backend.xla import cache, compiling
from shardspec.jax_backend.xla.cache import Compiled
from shardspec.jax_backend.xla.compiling import Compiling, compiled
from shardspec.language.catalogue import catalogue_entry

pytestmark = pytest.mark.fresh

PROGRAM = "HloModule m\nENTRY %m () -> f32[] {\n}\n"
ASSIGNMENT = "BufferAssignment:\nallocation 0: size 64, parameter 0, shape |f32[16]|:\n"
#: What a script begins with: `folder`, and `dump(name, text)` as the compiler does.
BEGIN = """\
import json, os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def dump(name, text):
    (folder / "dump" / f"m.after_optimizations{name}").write_text(text)
def all_dumps(program):
    dump(".txt", program)
    dump("-buffer-assignment.txt", ASSIGNMENT)
    dump("-memory-usage-report.txt", "Total bytes: 64")
def say(text):
    print(text, file=sys.stderr, flush=True)
(folder / "stage.txt").write_text("compiling\\n")
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where folders for compiles are made; the cache is beside it."""
    (tmp_path / "compiles").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "compiles"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compiling, "installed", lambda package: "1")
    monkeypatch.setattr(compiling, "_QUIET_S", 0.2)
    monkeypatch.setattr(compiling, "_POLL_S", 0.05)
    return tmp_path / "compiles"


def target() -> Target:
    return loads("shardspec: 1\nhardware: tpu v5e 2x2\nmesh: {all: rest}\n").ir.targets[0]


@pytest.fixture
def made(folders: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what compiles with a script in the compiler's place; nothing may be left of it."""

    def of(script: str, how: Compiling = Compiling(5.0, is_cached=False)) -> Compiled:  # noqa: B008
        known = f"PROGRAM, ASSIGNMENT = {PROGRAM!r}, {ASSIGNMENT!r}\n"
        monkeypatch.setattr(compiling, "_CHILD", ("-c", known + BEGIN + script))
        try:
            return compiled(b"module", target(), how)
        finally:
            assert list(folders.iterdir()) == []

    return of


def refused(made: Any, script: str, **how: Any) -> tuple[str, str]:
    with pytest.raises(ShardspecError) as caught:
        made(script, Compiling(**{"timeout_s": 5.0, "is_cached": False, **how}))
    (found,) = caught.value.diagnostics
    assert found.code.id == "SHD906"
    return found.message, found.help or ""


def test_a_gpu_that_cannot_be_described_has_no_compiler() -> None:
    with pytest.raises(ShardspecError) as caught:
        compiling.compiler_of(Hardware(catalogue_entry("mi300x").chip, 1, (8,)))
    (found,) = caught.value.diagnostics
    assert found.code.id == "SHD906"
    assert "AMD Instinct MI300X" in found.message


def test_it_is_ended_once_its_dumps_are_whole(made: Any) -> None:
    found = made("all_dumps(PROGRAM); time.sleep(60)")
    assert found.text == PROGRAM
    assert found.memory is not None
    assert found.memory.bytes == 64
    assert found.seconds < 5


def test_a_crash_is_told_with_its_last_words(made: Any) -> None:
    script = (
        "say('W0101 harmless'); say('F0101 00:00 a.cc:1] Check failed: \\x1b[31m n < 3 (5 vs. 3)');"
        "say('    @ 0x55 main'); os.kill(os.getpid(), signal.SIGABRT); time.sleep(60)"
    )
    message, help = refused(made, script)
    assert message.startswith("libtpu 1 crashed, by SIGABRT: F0101 00:00 a.cc:1] Check failed: ")
    assert "\x1b" not in message
    assert "5 vs. 3" in message
    assert "fault of the compiler" in help


def test_a_process_that_was_killed_is_told_why_it_may_have_been(made: Any) -> None:
    script = (
        "held = b'x' * 300_000_000; time.sleep(0.5); os.kill(os.getpid(), signal.SIGKILL);"
        " time.sleep(60)"
    )
    message, help = refused(made, script)
    found = re.fullmatch(
        r"libtpu 1 crashed, by SIGKILL, holding (\d+) MiB of this machine's [\d.]+ GiB", message
    )
    assert found
    assert 286 <= int(found[1]) < 400
    for way_out in ("fewer devices of the same mesh shape", "--phase", "one `--target` at a time"):
        assert way_out in help


def test_a_process_that_gets_no_memory_is_told_so(made: Any) -> None:
    script = (
        "say('terminate called after throwing an instance of \\'std::bad_alloc\\'');"
        " say('  what():  std::bad_alloc'); say('    @ 0x55 main'); time.sleep(0.5);"
        " os.kill(os.getpid(), signal.SIGABRT); time.sleep(60)"
    )
    message, help = refused(made, script)
    assert re.match(r"libtpu 1 crashed, by SIGABRT, holding [\d.]+ MiB of this machine's ", message)
    assert "bad_alloc" in message
    assert "fewer devices of the same mesh shape" in help


def test_flags_in_a_file_are_those_of_the_key(
    made: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """XLA reads `XLA_FLAGS=FILE`; with another text in the file it is another program."""
    script = "(folder / 'final.txt').write_text(PROGRAM)"
    stated = tmp_path / "flags.txt"
    monkeypatch.setenv("XLA_FLAGS", str(stated))
    for text in ("--xla_a=1", "--xla_a=2"):
        stated.write_text(f"{text}\n")
        for was_kept in (False, True):
            found = made(script, Compiling(5.0))
            assert found.was_kept is was_kept
            assert found.flags == (("XLA_FLAGS", text),)


def test_where_triton_has_no_tiles_it_is_compiled_without_and_that_is_kept(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = "shardspec: 1\nhardware: 2 h100\nmesh: {all: rest}\n"
    monkeypatch.setattr(f"{__name__}.target", lambda: loads(gpus).ir.targets[0])
    monkeypatch.setenv("XLA_FLAGS", "--xla_mine=1")
    script = """
flags = os.environ["XLA_FLAGS"]
if flags == "--xla_mine=1 --xla_gpu_enable_triton_gemm=false":
    (folder / "final.txt").write_text(PROGRAM)
else:
    text = f"Couldn't find output tile sizes that satisfy hlo: %d = {flags}, metadata={{}}"
    (folder / "error.json").write_text(json.dumps({"type": "XlaError", "text": text}))
"""
    for was_kept in (False, True):
        found = made(script, Compiling(5.0))
        assert found.text == PROGRAM
        assert found.was_kept is was_kept
        assert found.flags == (
            ("XLA_FLAGS", "--xla_mine=1"),
            ("fallback", "--xla_gpu_enable_triton_gemm=false"),
        )
        assert found.warnings == (
            "compiled with --xla_gpu_enable_triton_gemm=false: the compiler refuses the step for"
            " 2 h100: Couldn't find output tile sizes that satisfy hlo: %d ="
            " --xla_mine=1",
        )


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LIBTPU_INIT_ARGS", "--xla_tpu_a=true"),
        ("XLA_FLAGS", "--xla_a=1"),
        ("JAX_DEFAULT_MATMUL_PRECISION", "highest"),
        ("TPU_LIBRARY_PATH", "elsewhere"),
        ("flags", "--xla_tpu_a=true"),
        ("library", ""),
    ],
)
def test_a_program_is_kept_with_all_that_it_depends_on(
    made: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, value: str
) -> None:
    package = tmp_path / "libtpu-1.dist-info"
    package.mkdir()
    (tmp_path / "libtpu.so").write_bytes(b"one")
    (package / "METADATA").write_text("Name: libtpu\nVersion: 1\n")
    (package / "RECORD").write_text("libtpu.so,,\n")
    known = Distribution.at(package)
    monkeypatch.setattr(
        compiling, "_distribution", lambda name: known if name == "libtpu" else None
    )
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4 --xla_dump_to=x")
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    script = "(folder / 'final.txt').write_text(PROGRAM + os.environ.get('LIBTPU_INIT_ARGS', ''))"
    how = Compiling(5.0, is_whole=True)
    assert not made(f"{script}; dump('.txt', PROGRAM)", how).was_kept
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    monkeypatch.setenv("TERM_PROGRAM", "another")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")  # as jax does once it is imported
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(tmp_path / "libtpu.so"))
    assert made("os._exit(1)", how).was_kept, "what changes nothing is no part of the key"
    if variable == "flags":
        how = replace(how, flags=value)
    elif variable == "library":
        (tmp_path / "libtpu.so").write_bytes(b"other")
    else:
        monkeypatch.setenv(variable, value)
    found = made("dump('.txt', PROGRAM)", how)
    assert not found.was_kept
    shown = ("LIBTPU_INIT_ARGS", "XLA_FLAGS", "JAX_DEFAULT_MATMUL_PRECISION")
    assert found.flags == (((variable, value),) if variable in shown else ())


@pytest.mark.parametrize("cut", [len(PROGRAM) - 3, 20, 0])
def test_half_a_program_of_one_that_crashed_is_not_read(made: Any, cut: int) -> None:
    script = f"dump('.txt', PROGRAM[:{cut}]); os.kill(os.getpid(), signal.SIGSEGV); time.sleep(60)"
    assert refused(made, script)[0] == "libtpu 1 crashed, by SIGSEGV"


def test_a_program_without_its_memory_of_one_that_crashed_is_not_read(made: Any) -> None:
    script = "dump('.txt', PROGRAM); os.kill(os.getpid(), signal.SIGSEGV); time.sleep(60)"
    assert refused(made, script)[0] == "libtpu 1 crashed, by SIGSEGV"


def test_a_crash_while_it_generates_code_is_one_where_the_code_was_asked_for(made: Any) -> None:
    script = "all_dumps(PROGRAM); os.kill(os.getpid(), signal.SIGSEGV); time.sleep(60)"
    assert made(script).text == PROGRAM
    assert refused(made, script, is_whole=True)[0] == "libtpu 1 crashed, by SIGSEGV"


def test_with_code_the_program_with_estimates_is_read(made: Any) -> None:
    more = PROGRAM.replace("HloModule m", "HloModule with_cycles")
    script = (
        "all_dumps(PROGRAM); time.sleep(0.5);"
        f"(folder / 'dump' / 'm.after_codegen.txt').write_text({more!r})"
    )
    assert made(script, Compiling(10.0, is_whole=True, is_cached=False)).text == more


def test_an_end_without_a_program(made: Any) -> None:
    message, _ = refused(made, "say('no such chip'); sys.exit(3)")
    assert message == "libtpu 1 ended with 3 and without a program: no such chip"
    assert refused(made, "")[0] == "libtpu 1 ended with 0 and without a program"


def test_what_the_compiler_refuses_is_in_its_words(made: Any) -> None:
    text = "INVALID_ARGUMENT: f8e4m3 is not supported\nat frame 1"
    script = f"(folder / 'error.json').write_text(json.dumps({{'text': {text!r}}})); sys.exit(1)"
    message, _ = refused(made, script)
    assert message.endswith("for tpu v5e 2x2: INVALID_ARGUMENT: f8e4m3 is not supported")


def test_no_room_on_the_device_is_an_answer(made: Any) -> None:
    script = (
        "all_dumps(PROGRAM);"
        "(folder / 'error.json').write_text(json.dumps({'text': 'RESOURCE_EXHAUSTED: 20G'}));"
        "sys.exit(1)"
    )
    found = made(script)
    assert (found.text, found.refusal) == (PROGRAM, "RESOURCE_EXHAUSTED: 20G")


def test_time_that_is_over(made: Any) -> None:
    message, help = refused(made, "dump('.txt', PROGRAM[:30]); time.sleep(60)", timeout_s=1.0)
    assert message == "no program for tpu v5e 2x2 after 1 s"
    assert "--timeout" in help


# the disk


def test_a_disk_that_fills_up_while_it_compiles(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    free = lambda folder: 0 if any((folder / "dump").iterdir()) else 1 << 30  # noqa: E731
    monkeypatch.setattr(compiling, "_free_bytes", free)
    message, help = refused(made, "dump('.txt', PROGRAM[:30]); time.sleep(60)")
    assert message == f"the compiler cannot work in {tempfile.tempdir}: no space left on device"
    assert "TMPDIR=FOLDER" in help


def test_a_disk_that_is_full_from_the_start(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert refused(made, "")[0].endswith(": no space left on device")


def test_a_folder_that_cannot_be_written(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.tempfile, "mkdtemp", _read_only)
    assert refused(made, "")[0].endswith(": read-only file system")


def _read_only(*arguments: object, **options: object) -> str:
    raise OSError(30, "Read-only file system")


@pytest.mark.parametrize("fails", ["tempfile.mkstemp", "os.replace", "json.dump"])
@pytest.mark.parametrize("error", [OSError(30, "Read-only"), OSError(28, "No space left")])
def test_a_cache_that_cannot_be_written_costs_a_compile_and_no_more(
    made: Any, monkeypatch: pytest.MonkeyPatch, fails: str, error: OSError
) -> None:
    def failing(*arguments: object, **options: object) -> None:
        raise error

    module, _, name = fails.partition(".")
    with monkeypatch.context() as patched:
        patched.setattr(getattr(cache, module), name, failing)
        if name == "mkstemp":
            patched.setattr(compiling.tempfile, "mkdtemp", _mkdtemp)
        for _ in range(2):
            found = compile_with_cache(made)
            assert (found.text, found.was_kept) == (PROGRAM, False)
    folder = cache._folder()
    assert folder is not None
    assert list(folder.iterdir()) == []
    assert compile_with_cache(made).was_kept is False
    assert compile_with_cache(made).was_kept is True


def _mkdtemp(*arguments: object, prefix: str = "", **options: object) -> str:
    path = Path(str(tempfile.tempdir)) / f"{prefix}{os.urandom(4).hex()}"
    path.mkdir()
    return str(path)


def compile_with_cache(made: Any) -> Compiled:
    found: Compiled = made("all_dumps(PROGRAM); time.sleep(60)", Compiling(5.0))
    return found


# others


def test_two_at_once(folders: Path, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known = f"PROGRAM, ASSIGNMENT = {PROGRAM!r}, {ASSIGNMENT!r}\n"
    script = known + BEGIN + "time.sleep(0.5); all_dumps(PROGRAM); time.sleep(60)"
    monkeypatch.setattr(compiling, "_CHILD", ("-c", script))
    found: list[Compiled] = []
    work = lambda: found.append(compiled(b"module", target(), Compiling(10.0)))  # noqa: E731
    threads = [threading.Thread(target=work) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [each.text for each in found] == [PROGRAM] * 3
    assert list(folders.iterdir()) == []
    folder = cache._folder()
    assert folder is not None
    assert len(list(folder.iterdir())) == 1


def test_whoever_interrupts_leaves_nothing(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    popen = compiling.subprocess.Popen

    def noted(*arguments: Any, **options: Any) -> Any:
        started.append(popen(*arguments, **options))
        return started[-1]

    def interrupted(stage: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling.subprocess, "Popen", noted)
    script = "all_dumps(PROGRAM); signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    monkeypatch.setattr(compiling, "_GRACE_S", 0.2)
    known = f"PROGRAM, ASSIGNMENT = {PROGRAM!r}, {ASSIGNMENT!r}\n"
    monkeypatch.setattr(compiling, "_CHILD", ("-c", known + BEGIN + script))
    with pytest.raises(KeyboardInterrupt):
        compiled(b"module", target(), Compiling(5.0, is_cached=False), tell=interrupted)
    assert started[0].returncode in (-signal.SIGTERM, -signal.SIGKILL)
    assert list(Path(str(tempfile.tempdir)).iterdir()) == []


def test_the_names_of_signals() -> None:
    assert compiling._signal(11) == "SIGSEGV"
    assert compiling._signal(200) == "signal 200"


def test_it_gets_ready_before_there_is_a_module(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "(folder / 'ready').write_text('')\n"
        "while not (folder / 'module.mlirbc').exists(): time.sleep(0.01)\n"
        "all_dumps(PROGRAM)\ntime.sleep(60)\n"
    )
    known = f"PROGRAM, ASSIGNMENT = {PROGRAM!r}, {ASSIGNMENT!r}\n"
    monkeypatch.setattr(compiling, "_CHILD", ("-c", known + BEGIN + script))
    with compiling.Compile(target(), Compiling(20.0, is_cached=False)) as compile:
        until = time.monotonic() + 20
        while not list(folders.glob("*/ready")):
            assert time.monotonic() < until
            time.sleep(0.01)
        compile.give(b"module")
        assert compile.result().text == PROGRAM
    assert list(folders.iterdir()) == []


def test_a_compile_that_nobody_wants_any_longer_leaves_nothing(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "_CHILD", ("-c", "import time; time.sleep(60)"))
    with compiling.Compile(target(), Compiling()) as compile:
        child = compile._child
    assert child.poll() is not None
    assert list(folders.iterdir()) == []


def test_a_compiler_that_takes_too_much_memory_is_ended(made: Any) -> None:
    message, help = refused(made, "time.sleep(60)", most_bytes=2**20, timeout_s=30.0)
    assert re.fullmatch(
        r"libtpu 1 was ended: it held [\d.]+ MiB of this machine's [\d.]+ GiB", message
    )
    assert "fewer devices" in help

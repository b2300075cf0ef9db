"""Closed, full and broken streams; what may be printed where; where files are written."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shardspec.cli import streams
from shardspec.cli.main import cli

ROOT = Path(__file__).parents[2]
SPEC = """\
shardspec: 1
mesh: {data: 2, model: 2}
rules:
  - mlp   -> model
  - embed -> data
arrays: {a/kernel: 'bf16[embed=64 mlp=128]'}
"""
#: A verb -> the exit code that it has with all streams open.
VERBS = {
    "check spec.yaml": 0,
    "check bad.yaml": 1,
    "check --fix --unsafe-fixes bad.yaml": 0,
    "compile spec.yaml": 0,
    "compile spec.yaml -o plan.json": 0,
    "explain a/kernel --spec spec.yaml": 0,
    "fmt spec.yaml": 0,
    "fmt --check spec.yaml": 1,
    "fmt --to dsl spec.yaml": 0,
    "lock spec.yaml": 0,
    "diff spec.yaml spec.yaml": 0,
    "diff bad.yaml spec.yaml": 1,
    "manifest arrays.yaml": 0,
    "init --arrays arrays.yaml --force": 0,
    "export flax spec.yaml": 0,
    "import flax rules.json": 0,
    "mesh spec.yaml": 1,
    "cost spec.yaml": 0,
    "schema": 0,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "bad.yaml").write_text(SPEC.replace("-> model", "-> modle"))
    (tmp_path / "arrays.yaml").write_text("a/kernel: bf16[64, 128]\n")
    (tmp_path / "rules.json").write_text('[["embed", "data"], ["mlp", "model"]]')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shell(command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", "-c", command.replace("shardspec", f"{sys.executable} -m shardspec")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


#: Each verb with each stream closed, and some with a stream that cannot be written.
CLOSED = [
    *((verb, closed) for verb in VERBS for closed in ("2>&-", "<&-")),
    *(
        (verb, closed)
        for verb in ("check bad.yaml", "fmt spec.yaml", "lock spec.yaml")
        for closed in ("2>/dev/full", "2</dev/null")
    ),
]
#: Each verb that makes something, with each way in which it cannot be written.
NOWHERE = [
    (verb, closed)
    for verb in ("check spec.yaml", "compile spec.yaml", "schema", "lock spec.yaml")
    for closed in (">&-", ">/dev/full", ">&- 2>&- <&-")
]


def every_other(cases: list[tuple[str, str]]) -> list[Any]:
    """Return all cases, every other of which only the nightly run takes."""
    return [
        pytest.param(*case, marks=[pytest.mark.nightly] * ((at + at // 2) % 2))
        for at, case in enumerate(cases)
    ]


@pytest.mark.parametrize(("verb", "closed"), every_other(CLOSED))
def test_remarks_that_cannot_be_written_change_nothing(
    folder: Path, verb: str, closed: str
) -> None:
    done = shell(f"shardspec {verb} {closed}")
    assert done.returncode == VERBS[verb], done
    if verb == "fmt spec.yaml":
        assert "mlp -> model" in (folder / "spec.yaml").read_text()
    if verb == "lock spec.yaml":
        assert (folder / "spec.lock").stat().st_size > 0


def test_a_pipe_of_remarks_that_nobody_reads(folder: Path) -> None:
    done = shell("shardspec fmt spec.yaml 2> >(true); exit $?")
    assert done.returncode == 0
    assert "mlp -> model" in (folder / "spec.yaml").read_text()


@pytest.mark.parametrize(("verb", "closed"), every_other(NOWHERE))
def test_a_product_that_cannot_be_written_is_a_failure(
    folder: Path, verb: str, closed: str
) -> None:
    done = shell(f"shardspec {verb} {closed}")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", [*VERBS, "check --help", "--version"])
def test_a_reader_that_goes_early_changes_nothing(folder: Path, verb: str) -> None:
    done = shell(f"shardspec {verb} | true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr.count("Traceback")) == (VERBS.get(verb, 0), 0), done
    if verb == "lock spec.yaml":
        assert (folder / "spec.lock").stat().st_size > 0


def test_findings_that_are_cut_are_errors_all_the_same(folder: Path) -> None:
    rules = "".join(f"  - a{n} -> modle\n" for n in range(2000))
    (folder / "many.yaml").write_text(f"shardspec: 1\nmesh: {{data: 2}}\nrules:\n{rules}")
    done = shell("set -o pipefail; shardspec check --format concise many.yaml | head -1")
    assert (done.returncode, done.stdout.count("\n")) == (1, 1), done
    assert done.stderr.startswith("Found ")


@pytest.mark.parametrize("verb", ["check -", "check --fix -", "fmt -", "compile -", "manifest -"])
def test_closed_stdin(folder: Path, verb: str) -> None:
    done = shell(f"shardspec {verb} <&-")
    assert done.returncode == 2
    assert "standard input is closed" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_files_do_not_take_the_number_of_a_closed_stream(folder: Path) -> None:
    """The next file to be opened would get it, and hold what was meant for the stream."""
    assert shell("shardspec lock bad.yaml spec.yaml <&- 2>&-").returncode == 1
    lock = (folder / "spec.lock").read_text()
    assert lock.startswith("# What every device holds.")
    assert "modle" not in lock


def test_formatted_is_said_of_what_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    result = run("fmt", "spec.yaml")
    assert result.exit_code != 0
    assert "formatted spec.yaml" not in result.output
    assert "no space left on device" in result.output


# what a file can make a terminal do

ESCAPE, BIDI, NBSP = "\x1b[2J", "\u202e", "\xa0"


@pytest.mark.parametrize("char", ["\x1b", "\x07", "\x08", "\x0c", "\x7f", "\x9b"])
def test_no_spec_holds_what_steers_a_terminal(folder: Path, char: str) -> None:
    texts = {
        "a.shard": f"shardspec 1\n# {char}[2J\nrules{{embed->data}}\n",
        "b.shard": f'shardspec 1\nparams {{ "{char}[2J" : a }}\n',
        "c.yaml": f"shardspec: 1\n# {char}[2J\nrules:   [embed -> data]\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        for verb in ("fmt --diff", "fmt --to yaml", "fmt", "check", "compile"):
            result = run(*verb.split(), name)
            assert char not in result.output
            assert f"the character U+{ord(char):04X} may not stand in" in result.output
        assert (folder / name).read_text() == text


def test_data_is_data(folder: Path) -> None:
    """What is no control character goes through as it is: the product may be a file."""
    (folder / "a.shard").write_text(f"shardspec 1\n# {BIDI}{NBSP}é\nrules{{embed->data}}\n")
    for verb in (["fmt", "--diff"], ["fmt", "--to", "yaml"], ["fmt", "--to", "dsl"]):
        assert f"# {BIDI}{NBSP}é" in run(*verb, "a.shard").stdout


@pytest.mark.parametrize("odd", [BIDI, NBSP, "\U000e0001"])
def test_odd_names_in_findings(folder: Path, odd: str) -> None:
    """Shown as what they are, and JSON stays JSON."""
    text = SPEC.replace("-> model", f"-> 'mo{odd}dle'").replace("- mlp", "- mlp")
    (folder / "odd.yaml").write_text(f'{text}params: {{"x{odd}/y": "embed"}}\n')
    for output_format in ("full", "concise", "github"):
        assert odd not in run("check", "odd.yaml", "--format", output_format).output
    for output_format in ("json", "sarif"):
        result = run("check", "odd.yaml", "--format", output_format)
        assert odd not in result.stdout
        assert odd in json.dumps(json.loads(result.stdout), ensure_ascii=False)


# where files are written


@pytest.mark.parametrize(
    ("link", "verb"),
    [
        ("spec.lock", "lock spec.yaml"),
        ("plan.json", "compile spec.yaml -o plan.json"),
        ("spec.yaml", "fmt spec.yaml"),
        ("spec.yaml", "check --fix --unsafe-fixes spec.yaml"),
        ("out.shard", "fmt --to dsl other.yaml -o out.shard"),
        ("rules.py", "export flax other.yaml -o rules.py"),
    ],
)
@pytest.mark.parametrize("there", [SPEC.replace("-> model", "-> modle"), None])
def test_no_link_says_where_to_write(folder: Path, link: str, verb: str, there: str | None) -> None:
    project = folder / "project"
    project.mkdir()
    (project / "other.yaml").write_text(SPEC)
    target = folder / "elsewhere"
    if there is not None:
        target.write_text(there)
    if link != "spec.yaml":
        (project / "spec.yaml").write_text(SPEC)
    (project / link).symlink_to("../elsewhere")
    os.chdir(project)
    result = run(*verb.split())
    assert result.exit_code in (1, 2)
    assert target.exists() == (there is not None)
    assert there is None or target.read_text() == there
    assert (project / link).is_symlink()


def test_fmt_keeps_line_ends_and_the_mark_before_them(folder: Path) -> None:
    text = SPEC.replace("\n", "\r\n").encode()
    (folder / "windows.yaml").write_bytes(b"\xef\xbb\xbf" + text)
    assert run("fmt", "windows.yaml").exit_code == 0
    raw = (folder / "windows.yaml").read_bytes()
    assert raw.startswith(b"\xef\xbb\xbf")
    assert raw.count(b"\n") == raw.count(b"\r\n")
    assert run("fmt", "--check", "windows.yaml").exit_code == 0
    piped = CliRunner().invoke(cli, ["fmt", "-"], input=(folder / "spec.yaml").read_bytes())
    assert piped.stdout.startswith("shardspec: 1")


def test_a_link_within_the_folder_is_followed(folder: Path) -> None:
    (folder / "locks").mkdir()
    (folder / "spec.lock").symlink_to("locks/x.lock")
    assert run("lock", "spec.yaml").exit_code == 0
    assert (folder / "locks" / "x.lock").read_text().startswith("# What every device holds.")


def test_the_systems_own_links_are_streams(folder: Path) -> None:
    done = shell("shardspec lock spec.yaml -o /dev/stdout")
    assert done.returncode == 0
    assert "# What every device holds." in done.stdout


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/dev/fd/7"])
def test_a_stream_is_added_to(folder: Path, name: str) -> None:
    """The file behind it is neither replaced nor cut."""
    (folder / "log").write_text("before\n")
    (folder / "other").hardlink_to(folder / "log")
    done = shell(f"shardspec lock spec.yaml -o {name} >> log 7>&1 && echo after >> log")
    assert done.returncode == 0
    lines = (folder / "other").read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "# What every device holds." in lines[1]


@pytest.mark.parametrize("path", ["none/../spec.yaml", "none/at/all/../../.././spec.yaml"])
def test_a_folder_that_is_not_there_hides_no_file(folder: Path, path: str) -> None:
    result = run("compile", "spec.yaml", "-o", path)
    assert result.exit_code == 2
    assert f"{path} is a spec, so it is not overwritten" in result.output
    assert (folder / "spec.yaml").read_text() == SPEC


def test_a_spec_takes_the_place_of_no_other_spec(folder: Path) -> None:
    (folder / "other.shard").write_text("shardspec 1\n# mine\nmesh { data = 8 }\n")
    mine = (folder / "other.shard").read_text()
    for words in (["--to", "dsl", "spec.yaml"], ["bad.yaml"]):
        result = run("fmt", *words, "-o", "other.shard")
        assert result.exit_code == 2
        assert "other.shard is a spec, so it is not overwritten" in result.output
        assert (folder / "other.shard").read_text() == mine
    for _ in range(2):  # what it writes is there already
        assert run("fmt", "--to", "dsl", "spec.yaml", "-o", "new.shard").exit_code == 0
    assert run("fmt", "--to", "dsl", "spec.yaml", "-o", "other.shard", "--force").exit_code == 0
    assert (folder / "other.shard").read_text() == (folder / "new.shard").read_text()


@pytest.mark.parametrize(
    "words",
    [
        "verify spec.yaml --step none:step -o",
        "cost spec.yaml --step none:step -o",
        "search spec.yaml --step none:step --confirm 1 -o",
        "check spec.yaml --step none:step --write-baseline",
        "calibrate spec.yaml -o",
    ],
)
def test_what_may_not_be_written_is_refused_before_the_work(folder: Path, words: str) -> None:
    """The step, which is not there, would be the next fault."""
    result = run(*words.split(), "bad.yaml")
    assert result.exit_code == 2
    assert "bad.yaml is a spec, so it is not overwritten" in result.output
    assert "none" not in result.output
    result = run(*words.split(), "no/folder/here.json")
    assert "cannot write no/folder/here.json: no such file or directory" in result.output


def test_import_writes_over_what_it_made(folder: Path) -> None:
    words = ("import", "flax", "rules.json", "-o")
    result = run(*words, "spec.yaml")
    assert result.exit_code == 2
    assert "spec.yaml is a spec, so it is not overwritten" in result.output
    assert (folder / "spec.yaml").read_text() == SPEC
    for _ in range(2):
        assert run(*words, "made.yaml").exit_code == 0
    (folder / "rules.json").write_text('[["embed", "data"]]')
    assert run(*words, "made.yaml").exit_code == 0
    assert "mlp" not in (folder / "made.yaml").read_text()
    assert run(*words, "spec.yaml", "--force").exit_code == 0


def test_a_pipe_that_nobody_reads_is_no_place_to_write(folder: Path) -> None:
    os.mkfifo(folder / "spec.lock")
    done = shell("timeout 60 shardspec lock spec.yaml")
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    for verb in ("lock --check spec.yaml", "explain a/kernel --spec spec.yaml", "check spec.yaml"):
        assert shell(f"timeout 60 shardspec {verb}").returncode in (0, 2)


@pytest.mark.parametrize("verb", ["check .", "check x.yaml", "check x.shard", "compile x.yaml"])
def test_pipes_in_a_folder(folder: Path, verb: str) -> None:
    for name in ("x.yaml", "x.shard", "pyproject.toml"):
        os.mkfifo(folder / name)
    done = shell(f"timeout 60 shardspec {verb}")
    assert done.returncode == 2
    assert "it is a pipe, not a regular file" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "line",
    ["extends: ./pipe.yaml", "manifest: ./pipe.yaml", "manifest: ./pipe.npz", "manifest: ./d/"],
)
def test_pipes_that_a_spec_names(folder: Path, line: str) -> None:
    (folder / "d").mkdir()
    for name in ("pipe.yaml", "pipe.npz", "d/x.safetensors"):
        os.mkfifo(folder / name)
    (folder / "spec.yaml").write_text(f"{SPEC}{line}\n")
    assert shell("timeout 60 shardspec check spec.yaml").returncode == 1
    for verb in ("manifest pipe.yaml", "manifest pipe.npz", "manifest d", "import flax pipe.yaml"):
        assert shell(f"timeout 60 shardspec {verb}").returncode == 2
    assert shell("timeout 60 shardspec diff pipe.yaml spec.yaml").returncode == 2


def test_a_revision_is_not_written(folder: Path) -> None:
    subprocess.run(
        "git init -q && git add . && git -c user.name=a -c user.email=b commit -qm x",
        shell=True,
        check=True,
    )
    result = run("fmt", "git:HEAD:./spec.yaml")
    assert result.exit_code != 0
    assert "cannot be written" in result.output


class _Pipe(io.StringIO):
    """A stream that is no terminal, and keeps what it gets."""


def piped(monkeypatch: pytest.MonkeyPatch) -> _Pipe:
    """Return what stderr is from now on; pytest sets its own after fixtures."""
    monkeypatch.delenv("SHARDSPEC_PROGRESS")
    pipe = _Pipe()
    monkeypatch.setattr(sys, "stderr", pipe)
    return pipe


def test_a_verb_that_prints_nothing_says_that_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, end = piped(monkeypatch), time.monotonic() + 10
    monkeypatch.setattr(streams, "_PATIENCE_SECONDS", 0.0)
    with streams.waiting("shardspec cost", is_quiet=False):
        while not pipe.getvalue() and time.monotonic() < end:
            time.sleep(0.001)
    assert pipe.getvalue() == "shardspec cost is working ...\n"


def test_modules_that_load_before_a_verb_are_part_of_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe = piped(monkeypatch)
    monkeypatch.setattr(streams, "_PATIENCE_SECONDS", 60.0)
    with streams.waiting("shardspec cost", is_quiet=False, began=time.monotonic() - 60.0):
        end = time.monotonic() + 10
        while not pipe.getvalue() and time.monotonic() < end:
            time.sleep(0.001)
    assert pipe.getvalue() == "shardspec cost is working ...\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_while_the_line_is_written_leaves_the_child_no_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    piped(monkeypatch)
    monkeypatch.setattr(streams, "_PATIENCE_SECONDS", 0.0)
    begun = threading.Event()

    class Slow(_Pipe):
        def write(self, text: str) -> int:
            begun.set()
            time.sleep(0.3)
            return super().write(text)

    monkeypatch.setattr(sys, "stderr", Slow())
    with streams.waiting("shardspec verify", is_quiet=False):
        assert begun.wait(10)
        child = streams.split()
        if not child:
            signal.alarm(10)
            streams.echo("running", err=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def test_an_interrupt_waits_for_a_module_that_loads() -> None:
    loaded = []

    def load() -> None:
        with streams.unbroken():
            signal.raise_signal(signal.SIGINT)
            loaded.append("jax")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            load()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert loaded == ["jax"]


def test_an_interrupt_outside_of_a_verb_shows_no_traceback() -> None:
    """It may come while modules load, or while the last output is written."""
    code = """if True:
        import unittest.mock
        from shardspec.__main__ import run
        with unittest.mock.patch("shardspec.cli.main.main", side_effect=KeyboardInterrupt):
            run()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("is_quiet", [True, False])
def test_a_verb_that_has_printed_says_no_more(
    is_quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = piped(monkeypatch)
    monkeypatch.setattr(streams, "_PATIENCE_SECONDS", 0.02)
    with streams.waiting("shardspec cost", is_quiet=is_quiet):
        if not is_quiet:
            streams.echo("answer", err=True)
        time.sleep(0.05)
    assert pipe.getvalue() == ("" if is_quiet else "answer\n")


def test_progress_in_a_pipe_is_a_line_when_other_work_begins_and_now_and_then() -> None:
    pipe = _Pipe()
    lines = streams._Lines(pipe)
    for second in range(31):
        lines.say("tracing" if second < 7 else f"compiling {second} of 30")
        for part in range(5):
            lines.tick(second + part / 5)
    assert pipe.getvalue().splitlines() == [
        "tracing ... 0 s",
        "compiling 7 of 30 ... 7 s",
        "compiling 17 of 30 ... 17 s",
        "compiling 27 of 30 ... 27 s",
    ]

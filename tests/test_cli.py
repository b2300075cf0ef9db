"""The conventions of the command line, verb by verb, as a user meets them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SPEC = """\
shardspec: 1
axes: {embed: 64, mlp: 128}
targets:
  v5e-16: {hardware: tpu v5e 4x4, mesh: {data: rest, model: 8}}
  laptop: {hardware: 8 cpu, mesh: {data: rest, model: 2}}
rules:
  - mlp -> model
  - embed -> data
params:
  "**/wi/kernel": embed mlp
  "**/wo/kernel": mlp embed
arrays:
  "decoder/layers_{0..11}/mlp/wi/kernel": bf16[64, 128]
  "decoder/layers_{0..11}/mlp/wo/kernel": bf16[128, 64]
"""
BAD = SPEC.replace("mlp -> model", "mlp -> modle")
DSL = """\
shardspec 1
mesh { data = 2; model = 4 }
rules { mlp -> model; embed -> data }
arrays { mlp/kernel : bf16[embed=64 mlp=128] }
"""


def run(
    *arguments: str, cwd: Path, stdin: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `shardspec` as a process of its own, in a folder, with a clean environment."""
    clean = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
    clean |= {"SHARDSPEC_PROGRESS": "never"}
    clean |= {"HOME": str(cwd)}
    return subprocess.run(
        [sys.executable, "-P", "-m", "shardspec", *arguments],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        env=clean | environment,
        check=False,
        timeout=120,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with one sound spec."""
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    return tmp_path


# exit codes


@pytest.mark.parametrize(
    "arguments",
    [
        ["compile", "spec.yaml"],
        ["compile", "--list-presets"],
        ["compile", "--list-targets"],
        ["check"],
        ["check", "spec.yaml", "--format", "json"],
        ["explain", "decoder/layers_3/mlp/wi/kernel"],
        ["explain", "decoder/**"],
        ["explain", "spec.yaml:7"],
        ["explain", "axis:model"],
        ["explain", "axis:mlp"],
        ["explain", "SHD301"],
        ["explain", "indivisible"],
        ["explain", "rules"],
        ["explain", "--list"],
        ["explain", "--why-not", "decoder/layers_3/mlp/wi/kernel:0=model"],
        ["fmt", "spec.yaml", "--to", "dsl"],
        ["mesh", "spec.yaml"],
        ["schema"],
        ["--help"],
        ["compile", "--help"],
    ],
    ids=" ".join,
)
def test_exit_0_and_data_on_stdout(folder: Path, arguments: list[str]) -> None:
    result = run(*arguments, cwd=folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["compile", "bad.yaml"],
        ["check", "bad.yaml"],
        ["check", "bad.yaml", "--format", "json"],
        ["check", "bad.yaml", "--format", "concise"],
        ["compile", "bad.yaml", "--format", "json"],
        ["check", "spec.yaml", "bad.yaml"],
        ["fmt", "--check", "ugly.yaml"],
        ["fmt", "--diff", "ugly.yaml"],
    ],
    ids=" ".join,
)
def test_exit_1_for_findings_and_differences(folder: Path, arguments: list[str]) -> None:
    (folder / "bad.yaml").write_text(BAD, encoding="utf-8")
    (folder / "ugly.yaml").write_text("rules:   [ 'a   ->  b' ]\nmesh:  {b: 2}\n", encoding="utf-8")
    assert run(*arguments, cwd=folder).returncode == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["compile", "missing.yaml"],
        ["check", "missing.yaml"],
        ["fmt", "missing.yaml"],
        ["compile", "empty"],
        ["check", "latin1.yaml"],
        ["compile", "spec.yaml", "--target", "nowhere"],
        ["compile", "spec.yaml", "--arrays", "missing.json"],
        ["compile", "spec.yaml", "--set", "nonsense"],
        ["compile", "spec.yaml", "--format", "xml"],
        ["compile", "spec.yaml", "-o", "no/such/folder/plan.json"],
        ["explain", "decoder/layers_3/mlp/wi/kernle"],
        ["explain"],
        ["explain", "SHD999"],
        ["explain", "--why-not", "nonsense"],
        ["frobnicate"],
        ["compile", "--frobnicate"],
    ],
    ids=" ".join,
)
def test_exit_2_and_nothing_on_stdout(folder: Path, arguments: list[str]) -> None:
    (folder / "empty").mkdir()
    (folder / "latin1.yaml").write_bytes("doc: Café\n".encode("latin-1"))
    result = run(*arguments, cwd=folder)
    assert result.returncode == 2, result.stdout + result.stderr
    if arguments[0] != "check" and "-o" not in arguments:
        assert result.stdout == ""
        assert result.stderr.strip()
    assert "Traceback" not in result.stderr


def test_compile_diagnostics_go_to_stderr_and_the_table_to_stdout(folder: Path) -> None:
    (folder / "bad.yaml").write_text(BAD, encoding="utf-8")
    result = run("compile", "bad.yaml", cwd=folder)
    assert "error[SHD201]" in result.stderr
    assert "error[" not in result.stdout
    assert "layers_{0..11}" in result.stdout


def test_warnings_alone_exit_0(folder: Path) -> None:
    text = SPEC.replace("model: 2}", "model: 1}")
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    result = run("check", cwd=folder)
    assert "warning[" in result.stdout
    assert result.returncode == 0


def test_misspelt_verb_and_path_name_the_nearest(folder: Path) -> None:
    assert "did you mean `compile`?" in run("complie", cwd=folder).stderr
    result = run("explain", "decoder/layers_3/mlp/wi/kernle", cwd=folder)
    assert "decoder/layers_3/mlp/wi/kernel" in result.stderr


# stdin and stdout


def test_dash_is_stdin(folder: Path) -> None:
    assert "layers_{0..11}" in run("compile", "-", cwd=folder, stdin=SPEC).stdout
    assert run("check", "-", cwd=folder, stdin=DSL).returncode == 0
    assert "-:7:" in run("check", "-", cwd=folder, stdin=BAD).stdout
    formatted = run("fmt", "-", cwd=folder, stdin="rules:   ['a  ->  b']\n")
    assert formatted.stdout == "rules:\n  - a -> b\n"


def test_dash_is_stdout(folder: Path) -> None:
    plan = run("compile", "spec.yaml", "-o", "-", cwd=folder)
    assert json.loads(plan.stdout)["schema"] == "shardspec.compile/1"


@pytest.mark.parametrize("verb", ["compile --format json", "compile", "explain 'x*/wi/kernel'"])
def test_a_closed_pipe_is_silent(folder: Path, verb: str) -> None:
    from itertools import product

    words = map("".join, product("abcdefghij", repeat=4))  # no numbers: rows do not collapse
    rows = "".join(f"  x{word}/wi/kernel: bf16[64, 128]\n" for word in words)
    (folder / "spec.yaml").write_text(SPEC + rows, encoding="utf-8")
    process = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m shardspec {verb} | head -n 1"],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
        timeout=120,
    )
    assert process.stdout.count("\n") == 1
    assert process.stderr == ""
    assert process.returncode == 0


# colour and characters


def test_color(folder: Path) -> None:
    (folder / "bad.yaml").write_text(BAD, encoding="utf-8")
    assert "\x1b[" in run("check", "bad.yaml", "--color", "always", cwd=folder).stdout
    assert "\x1b[" not in run("check", "bad.yaml", cwd=folder).stdout
    assert "\x1b[" not in run("check", "bad.yaml", "--color", "never", cwd=folder).stdout


@pytest.mark.parametrize(
    ("no_color", "colored"), [("", True), ("1", False)], ids=["terminal", "NO_COLOR"]
)
def test_color_on_a_terminal(folder: Path, no_color: str, colored: bool) -> None:
    import pty

    (folder / "bad.yaml").write_text(BAD, encoding="utf-8")
    parent, child = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm", "NO_COLOR": no_color}
    process = subprocess.Popen(
        [sys.executable, "-m", "shardspec", "check", "bad.yaml"],
        cwd=folder,
        stdout=child,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    os.close(child)
    shown = b""
    while True:
        try:
            piece = os.read(parent, 4096)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(parent)
    assert process.wait(timeout=60) == 1
    assert (b"\x1b[" in shown) == colored
    assert b"error" in shown


def test_ascii_where_stdout_is_not_utf8(folder: Path) -> None:
    text = (
        SPEC.replace("shardspec: 1", 'shardspec: 1\ndoc: "層"')
        + '  "層/wi/kernel": bf16[64, 128]\n'
    )
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    for arguments in (
        ["compile", "spec.yaml"],
        ["explain", "**"],
        ["check"],
        ["mesh"],
        ["explain", "--list"],
    ):
        result = run(*arguments, cwd=folder, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
        assert result.returncode == 0, result.stderr
        assert result.stdout.isascii()
    plan = run("compile", "--format", "json", cwd=folder, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert "層/wi/kernel" in json.loads(plan.stdout)["arrays"]


# which spec is meant


def test_spec_option_beats_everything(folder: Path) -> None:
    (folder / "other.yaml").write_text(SPEC.replace("v5e-16", "named"), encoding="utf-8")
    result = run("explain", "axis:model", "--spec", "other.yaml", cwd=folder, SHARDSPEC="spec.yaml")
    assert "named" in result.stdout + result.stderr


def test_environment_beats_pyproject(folder: Path) -> None:
    (folder / "env.yaml").write_text(SPEC.replace("v5e-16", "from-env"), encoding="utf-8")
    (folder / "pyproject.toml").write_text(
        '[tool.shardspec]\nspec = "spec.yaml"\n', encoding="utf-8"
    )
    result = run("compile", "--list-targets", cwd=folder, SHARDSPEC="env.yaml")
    assert "from-env" in result.stdout


def test_pyproject_beats_files_and_is_found_from_below(folder: Path) -> None:
    (folder / "conf").mkdir()
    (folder / "conf/a.yaml").write_text(SPEC.replace("v5e-16", "configured"), encoding="utf-8")
    (folder / "pyproject.toml").write_text(
        '[tool.shardspec]\nspec = "conf/a.yaml"\n', encoding="utf-8"
    )
    below = folder / "src" / "model"
    below.mkdir(parents=True)
    assert "configured" in run("compile", "--list-targets", cwd=below).stdout


@pytest.mark.parametrize("name", ["shardspec.yaml", "spec.yaml", "model.shard"])
def test_the_one_file_here_or_above(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(DSL if name.endswith("shard") else SPEC, encoding="utf-8")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    for place in (tmp_path, below):
        assert run("check", cwd=place).returncode == 0


def test_several_specs_are_listed(folder: Path) -> None:
    (folder / "model.shard").write_text(DSL, encoding="utf-8")
    result = run("compile", cwd=folder)
    assert result.returncode == 2
    assert "model.shard" in result.stderr
    assert "spec.yaml" in result.stderr


def test_no_spec_says_how_to_name_one(tmp_path: Path) -> None:
    result = run("compile", cwd=tmp_path)
    assert result.returncode == 2
    assert "--spec" in result.stderr


# targets, what-ifs and selections


def test_compile_takes_the_first_target_and_says_so(folder: Path) -> None:
    assert "v5e-16" in run("compile", "spec.yaml", cwd=folder).stdout
    assert "laptop" in run("compile", "spec.yaml", "-t", "laptop", cwd=folder).stdout


def test_set_is_a_what_if(folder: Path) -> None:
    def mesh(*arguments: str) -> dict[str, int]:
        result = run("compile", "--format", "json", *arguments, cwd=folder)
        found: dict[str, int] = json.loads(result.stdout)["mesh"]
        return found

    assert mesh() == {"data": 2, "model": 8}
    assert mesh("--set", "mesh.model=4") == {"data": 4, "model": 4}
    assert mesh("--set", "targets.laptop.mesh.model=4", "-t", "laptop") == {"data": 2, "model": 4}
    wrong = run("compile", "--set", "mesh.model=3", cwd=folder)
    assert wrong.returncode == 1
    assert "--set:1:12" in wrong.stderr or "SHD102" in wrong.stderr


def test_select(folder: Path) -> None:
    result = run("compile", "--format", "json", "--only", "**/layers_{2,10}/*/wi/*", cwd=folder)
    assert list(json.loads(result.stdout)["arrays"]) == [
        "decoder/layers_2/mlp/wi/kernel",
        "decoder/layers_10/mlp/wi/kernel",
    ]


@pytest.mark.parametrize("glob", ["{", "re:(", "nothing/at/all"])
def test_select_that_selects_nothing_is_said(folder: Path, glob: str) -> None:
    result = run("compile", "--only", glob, cwd=folder)
    assert "Traceback" not in result.stderr
    assert result.returncode == 2
    assert glob in result.stderr


# JSON and files


def test_plan_is_sorted_stable_and_without_paths(folder: Path) -> None:
    first = run("compile", str(folder / "spec.yaml"), "--format", "json", cwd=folder).stdout
    plan = json.loads(first)
    paths = list(plan["arrays"])
    numbers = [int(path.split("layers_")[1].split("/")[0]) for path in paths if "wi" in path]
    assert numbers == sorted(numbers)
    assert plan["arrays"]["decoder/layers_0/mlp/wi/kernel"]["spec"] == ["data", "model"]
    assert isinstance(plan["per_device_bytes"], int)
    assert run("compile", str(folder / "spec.yaml"), "--format", "json", cwd=folder).stdout == first
    lines = [line for line in first.splitlines() if "layers_" in line]
    assert len(lines) == len(paths), "one line per array"


def test_json_has_no_absolute_paths(folder: Path) -> None:
    for arguments in (["compile", "--format", "json"], ["check", "--format", "json"]):
        (folder / "spec.yaml").write_text(BAD, encoding="utf-8")
        result = run(*arguments, cwd=folder)
        assert json.loads(result.stdout)["schema"].startswith("shardspec.")
        assert str(folder) not in result.stdout


def test_output_is_written_whole_or_not_at_all(folder: Path) -> None:
    assert run("compile", "-o", "plan.json", cwd=folder).returncode == 0
    whole = (folder / "plan.json").read_text(encoding="utf-8")
    assert json.loads(whole)["arrays"]
    (folder / "spec.yaml").write_text(BAD, encoding="utf-8")
    result = run("compile", "-o", "plan.json", cwd=folder)
    assert result.returncode == 1
    assert "plan.json is not written" in result.stderr
    assert (folder / "plan.json").read_text(encoding="utf-8") == whole
    assert run("compile", "-o", "fresh.json", cwd=folder).returncode == 1
    assert {path.name for path in folder.iterdir()} == {"spec.yaml", "plan.json"}


def test_output_keeps_the_mode_of_the_file(folder: Path) -> None:
    (folder / "plan.json").write_text("", encoding="utf-8")
    (folder / "plan.json").chmod(0o640)
    run("compile", "-o", "plan.json", cwd=folder)
    assert (folder / "plan.json").stat().st_mode & 0o777 == 0o640


def test_fmt_in_place_leaves_a_faulty_file_alone(folder: Path) -> None:
    (folder / "bad.yaml").write_text("rules: [\n", encoding="utf-8")
    result = run("fmt", "bad.yaml", cwd=folder)
    assert result.returncode == 1
    assert (folder / "bad.yaml").read_text(encoding="utf-8") == "rules: [\n"


def test_schema_is_json_schema(folder: Path) -> None:
    schema = json.loads(run("schema", cwd=folder).stdout)
    assert "draft-07" in schema["$schema"]
    assert "rules" in schema["properties"]


def test_check_formats_agree(folder: Path) -> None:
    (folder / "spec.yaml").write_text(BAD, encoding="utf-8")
    findings = json.loads(run("check", "--format", "json", cwd=folder).stdout)["findings"]
    concise = run("check", "--format", "concise", cwd=folder).stdout.splitlines()
    full = run("check", cwd=folder).stdout
    assert [finding["code"] for finding in findings] == re.findall(
        r"\[(SHD\d+)\]", "\n".join(concise)
    )
    assert [finding["code"] for finding in findings] == re.findall(r"^\w+\[(SHD\d+)\]", full, re.M)


def test_check_looks_at_every_target(folder: Path) -> None:
    text = SPEC.replace("{embed: 64, mlp: 128}", "{embed: 64, mlp: 100}").replace("128", "100")
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    assert run("check", cwd=folder).returncode == 1
    assert run("check", "--target", "laptop", cwd=folder).returncode == 0
    assert "v5e-16" in run("check", cwd=folder).stdout


def test_porcelain_is_tab_separated(folder: Path) -> None:
    result = run("explain", "decoder/layers_{2,10}/mlp/wi/kernel", "--porcelain", cwd=folder)
    lines = result.stdout.splitlines()
    assert lines
    assert all("\t" in line for line in lines)
    assert len({line.count("\t") for line in lines}) == 1


# completion


def complete(folder: Path, words: str, **environment: str) -> list[str]:
    """Return what bash would offer for a line that ends in its last word."""
    position = str(len(words.split(" ")) - 1)
    result = run(
        cwd=folder,
        _SHARDSPEC_COMPLETE="bash_complete",
        COMP_WORDS=words,
        COMP_CWORD=position,
        **environment,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    found = (line.partition(",") for line in result.stdout.splitlines() if line)
    return [name for kind, _, name in found if kind == "plain"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(folder: Path, shell: str) -> None:
    result = run(cwd=folder, _SHARDSPEC_COMPLETE=f"{shell}_source")
    assert result.returncode == 0
    assert "_SHARDSPEC_COMPLETE" in result.stdout


def test_completion_of_verbs_paths_and_targets(folder: Path) -> None:
    assert complete(folder, "shardspec co") == ["compile", "cost", "completion"]
    paths = complete(folder, "shardspec explain decoder/layers_1")
    assert "decoder/layers_11/mlp/wi/kernel" in paths
    assert all(path.startswith("decoder/layers_1") for path in paths)
    assert complete(folder, "shardspec compile --target la") == ["laptop"]


def test_completion_is_silent_without_a_spec(tmp_path: Path) -> None:
    assert complete(tmp_path, "shardspec explain dec") == []
    (tmp_path / "spec.yaml").write_text("rules: [\n", encoding="utf-8")
    assert complete(tmp_path, "shardspec explain dec") == []


# the end of the process


def test_a_profiler_has_its_say() -> None:
    """Else the process ends without taking its modules down."""
    command = [sys.executable, "-m", "cProfile", "-m", "shardspec", "--version"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "function calls" in result.stdout

"""The rules that every verb keeps, walked over all of them: a new verb cannot forget one."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from shardspec import __version__
from shardspec.assets import DOCS
from shardspec.cli import options, request
from shardspec.cli.main import VERBS, cli
from shardspec.ir.calibration import Calibration
from shardspec.jax_backend.xla.cache import Compiled
from shardspec.programs.memory import CompiledMemory
from tests.cli.compilers import answer

SPEC = """\
shardspec: 1
targets: {default: {hardware: tpu v5e 2x4, mesh: {data: 2, model: 4}}}
rules: [mlp -> model, embed -> data]
arrays:
  layers_{0..3}/kernel: bf16[embed=64 mlp=128]
  norm/scale: bf16[embed=64]
axes: {batch: 16, embed: 64, mlp: 128}
step: {program: ['x[batch embed], "layers_*/kernel" -> y']}
"""
BAD = SPEC.replace("-> model", "-> modle")
CONTEXT = click.Context(cli, info_name="shardspec")

#: Verbs whose arguments are no specs, and so have none of a spec's findings or targets.
WITHOUT_SPECS = {"manifest", "import", "schema", "init", "example", "lsp"}
#: Verbs that make something of no finding: there is nothing to select.
WITHOUT_FINDINGS = {"calibrate", "manifest", "schema", "init", "example", "lsp"}
#: A verb -> arguments that run it well on `spec.yaml`; `spec.yaml` stands for what it works on.
RUNS = {
    "compile": ["spec.yaml"],
    "cost": ["spec.yaml"],
    "search": ["spec.yaml"],
    "verify": ["spec.yaml", "--step", "idle_step:step"],
    "calibrate": ["spec.yaml", "--compiler"],
    "explain": ["norm/scale", "--spec", "spec.yaml"],
    "check": ["spec.yaml"],
    "fmt": ["spec.yaml"],
    "lock": ["spec.yaml"],
    "diff": ["spec.yaml", "spec.yaml"],
    "manifest": ["arrays.yaml"],
    "import": ["flax", "rules.json"],
    "export": ["flax", "spec.yaml"],
    "mesh": ["spec.yaml"],
    "schema": [],
    "report": ["spec.yaml"],
    "init": ["--arrays", "arrays.yaml", "--force"],
    "example": ["tiny-t5"],
    "lsp": ["--stdio"],
}

#: A step that sends nothing, and what a compiler makes of it.
STEP = """\
import jax


def step(resolver):
    return (lambda x: x + 1), (jax.ShapeDtypeStruct((8,), "float32"),)
"""
PROGRAM = """\
HloModule jit_step, num_partitions=8

ENTRY %main () -> f32[] {
  ROOT %constant = f32[] constant(0)
}
"""
COMPILED = Compiled(PROGRAM, CompiledMemory({0: 4}, 0, 0), "libtpu 1", 2.0, False)

every_verb = pytest.mark.parametrize("name", VERBS)
with_specs = pytest.mark.parametrize("name", [v for v in VERBS if v not in WITHOUT_SPECS])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHARDSPEC", raising=False)
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "arrays.yaml").write_text("a/kernel: bf16[64, 128]\n")
    (tmp_path / "rules.json").write_text('[["embed", "data"], ["mlp", "model"]]')
    (tmp_path / "idle_step.py").write_text(STEP)
    answer(monkeypatch, COMPILED)
    made = Calibration("v5e", "TPU v5 lite", "2026-11-22", "libtpu 1")
    monkeypatch.setattr("shardspec.jax_backend.measuring.estimated", lambda *_: made)
    return tmp_path


def command(name: str) -> click.Command:
    found = cli.get_command(CONTEXT, name)
    assert found is not None
    return found


def given(name: str) -> dict[str, click.Parameter]:
    """Return the options of a verb by each of their spellings, arguments by name."""
    params = command(name).params
    return {spelt: param for param in params for spelt in (*param.opts, *param.secondary_opts)}


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


# words


@every_verb
def test_a_verb_is_made_by_the_one_mechanism(name: str) -> None:
    assert isinstance(command(name), options.Verb)


@every_verb
def test_what_is_everywhere(name: str) -> None:
    params = given(name)
    for spelt in ("--color", "-q", "--quiet", "-V", "--version"):
        assert spelt in params, spelt
    assert run(name, "-h").stdout == run(name, "--help").stdout


@every_verb
def test_shared_words_are_the_shared_options(name: str) -> None:
    """An option of a verb's own cannot take a word that means something for all."""
    shared = (
        *options.ONE_SPEC,
        *options.FINDINGS,
        *(options.TARGET, options.TARGETS, options.ARRAYS, options.ONLY, options.SET),
        *options.OUTPUT,
    )
    words = {spelt for param in shared for spelt in param.opts if spelt.startswith("-")}
    for spelt, param in given(name).items():
        assert spelt not in words or any(param is each for each in shared), spelt
        assert spelt not in options.RENAMED, f"{spelt} is an old word"
        if "format" in spelt and spelt.startswith("-"):
            assert spelt == "--format"


@every_verb
def test_globs_choose_arrays_by_one_word(name: str) -> None:
    for param in command(name).params:
        if isinstance(param, click.Option) and "GLOB" in (param.metavar or ""):
            assert param is options.ONLY


@every_verb
def test_findings_are_named_by_the_same_words(name: str) -> None:
    has = {spelt for spelt in ("--select", "--ignore") if spelt in given(name)}
    assert has == (set() if name in WITHOUT_FINDINGS else {"--select", "--ignore"})


@every_verb
def test_what_a_verb_makes_goes_where_o_says(name: str) -> None:
    in_place = {"--write"} if name == "search" else set()  # as `--fix` of `check`
    assert not ({"--out", "--file", "--write"} - in_place) & set(given(name))
    assert ("-o" in given(name)) == (name not in {"explain", "check", "diff", "example", "lsp"})


@pytest.mark.parametrize("name", [v for v in VERBS if "-o" in given(v)])
def test_no_verb_writes_over_what_is_there_to_be_read(name: str, folder: Path) -> None:
    """Neither what the verb reads, by whatever name, nor a spec or a list of arrays."""
    (folder / "pyproject.toml").write_text("[project]\n")
    (folder / "again.yaml").symlink_to("spec.yaml")
    (folder / "listed.yaml").hardlink_to(folder / "arrays.yaml")
    (folder / "rules.txt").hardlink_to(folder / "rules.json")
    before = {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}
    given_files = [word for word in RUNS[name] if word in before]
    victims = {"spec.yaml", "./again.yaml", "listed.yaml", "pyproject.toml", *given_files}
    victims |= {"rules.txt"} if name == "import" else set()
    victims |= {"idle_step.py"} if name == "verify" else set()
    words = [word for word in RUNS[name] if word != "--force"]
    for victim in sorted(victims):
        makes_a_spec = name == "fmt" and victim in ("spec.yaml", "./again.yaml")
        if not makes_a_spec:
            result = run(name, *words, "-o", victim)
            assert result.exit_code == 2, (victim, result.output)
            assert "-o" in result.stderr
            assert "--force" in result.stderr
    after = {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}
    assert after == before
    assert run(name, *words, "--force", "-o", "listed.yaml").exit_code == 0


# help and version


@pytest.mark.parametrize("name", ["", *VERBS])
def test_help_says_what_the_exit_codes_mean(name: str) -> None:
    text = " ".join(run(*name.split(), "--help").stdout.split())
    assert "Exit codes:" in text
    for code, meaning in options.EXITS:
        assert f"{code} {meaning}" in text


@every_verb
def test_help_says_what_each_option_is_for(name: str) -> None:
    for param in command(name).params:
        if isinstance(param, click.Option):
            assert param.help, param.opts
            assert param.help.strip()[0].isupper(), param.help
    assert command(name).help


@pytest.mark.parametrize("name", ["", *VERBS])
@pytest.mark.parametrize("spelt", ["-V", "--version"])
def test_version(name: str, spelt: str) -> None:
    result = run(*name.split(), spelt)
    assert result.exit_code == 0
    first, *compilers = result.stdout.splitlines()
    assert first == f"shardspec {__version__}"
    assert [line.split(":")[0] for line in compilers] == ["compiler for TPU", "compiler for GPU"]


@pytest.fixture
def with_everything(folder: Path) -> Path:
    """Return a folder with every file that an example names."""
    header = b'{"a/kernel":{"dtype":"BF16","shape":[64,128],"data_offsets":[0,16384]}}'
    size = len(header).to_bytes(8, "little")
    (folder / "model.safetensors").write_bytes(size + header + bytes(16384))
    (folder / "train.py").write_text(STEP)
    assert run("lock", "spec.yaml", "-q").exit_code == 0
    return folder


@every_verb
def test_help_has_an_example_that_runs_and_a_page(name: str, with_everything: Path) -> None:
    verb = command(name)
    assert isinstance(verb, options.Verb)
    shown = run(name, "--help").stdout
    assert "-\n" not in shown, "a flag in two pieces"
    assert f"$ {verb.example}" in " ".join(shown.split())
    assert shown.endswith(f"\nDocumentation: {DOCS}{verb.page}\n")
    assert (Path(__file__).parents[2] / "docs" / verb.page).is_file()
    program, *arguments = shlex.split(verb.example)
    assert (program, arguments[0]) == ("shardspec", name)
    if name == "init":
        (with_everything / "spec.yaml").unlink()
    assert run(*arguments).exit_code == 0


@every_verb
def test_help_of_a_verb(name: str) -> None:
    assert run("help", name).stdout == run(name, "--help").stdout
    assert run("help").stdout == run("--help").stdout


def test_help_of_what_is_no_verb() -> None:
    result = run("help", "serach")
    assert result.exit_code == 2
    assert "did you mean `search`?" in result.stderr


def test_the_man_page_has_every_verb_and_no_stray_macro() -> None:
    text = run("help", "--man").stdout
    assert [line[4:] for line in text.splitlines() if line.startswith(".SS ")] == list(VERBS)
    macros = {line.split()[0] for line in text.splitlines() if line.startswith(".")}
    assert macros <= {".TH", ".SH", ".SS", ".B", ".PP", ".nf", ".fi", ".TP"}
    if shutil.which("groff"):
        words = ["groff", "-man", "-Tutf8", "-ww", "-z"]
        done = subprocess.run(words, input=text, capture_output=True, text=True, check=True)
        assert done.stderr == ""


@every_verb
def test_json_is_short_for_its_format(name: str, folder: Path) -> None:
    form = given(name).get("--format")
    has_json = form is not None and "json" in form.type.choices  # type: ignore[attr-defined]
    assert ("--json" in given(name)) == has_json
    if has_json:
        short, long = run(name, *RUNS[name], "--json"), run(name, *RUNS[name], "--format", "json")
        assert (short.exit_code, short.stdout) == (long.exit_code, long.stdout)
        assert json.loads(short.stdout)


# quiet


@every_verb
def test_quiet_keeps_the_answer_and_drops_remarks(name: str, folder: Path) -> None:
    loud = run(name, *RUNS[name])
    quiet = run(name, *RUNS[name], "-q")
    assert (loud.exit_code, quiet.exit_code) == (0, 0), loud.output
    assert quiet.stderr == ""
    if name != "check":
        assert quiet.stdout == loud.stdout


@with_specs
def test_quiet_keeps_findings(name: str, folder: Path) -> None:
    (folder / "spec.yaml").write_text(SPEC + "rules: [\n")
    result = run(name, *RUNS[name], "-q")
    assert result.exit_code in (1, 2)
    assert "error[SHD" in result.output


def test_quiet_keeps_what_is_not_done() -> None:
    """A remark that `-q` drops says what was done, not what was left undone."""
    undone = re.compile(r"remark\([^)\n]*(?:not written|nothing is written|left as it is)")
    files = Path(request.__file__).parent.glob("*.py")
    assert not [each.name for each in files if undone.search(each.read_text("utf-8"))]


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        (("compile", "spec.yaml", "-o", "plan.txt"), "plan.txt is not written"),
        (("export", "flax", "spec.yaml"), "nothing is written"),
        (("fmt", "spec.yaml", "--to", "dsl"), "spec.yaml is left as it is"),
        (("lock", "spec.yaml"), "is not written"),
        (("search", "spec.yaml"), "nothing is searched"),
    ],
)
def test_quiet_says_what_is_left_undone(verb: tuple[str, ...], said: str, folder: Path) -> None:
    (folder / "spec.yaml").write_text(SPEC + "unheard: 3\n")
    result = run(*verb, "-q")
    assert result.exit_code == 1
    assert said in result.stderr


# files and folders


def answers(name: str, *arguments: str) -> tuple[int, str]:
    result = run(name, *arguments)
    return result.exit_code, result.stdout


@with_specs
def test_a_folder_is_the_spec_in_it(name: str, folder: Path) -> None:
    (folder / "conf").mkdir()
    (folder / "conf" / "spec.yaml").write_text(SPEC)
    by_file = ["conf/spec.yaml" if each == "spec.yaml" else each for each in RUNS[name]]
    by_folder = ["conf" if each == "spec.yaml" else each for each in RUNS[name]]
    assert answers(name, *by_folder) == answers(name, *by_file)
    assert answers(name, *by_folder)[0] == 0


@with_specs
def test_a_folder_of_several(name: str, folder: Path) -> None:
    """Verbs of many specs take all; those of one say which there are."""
    (folder / "other.yaml").write_text(SPEC)
    by_folder = ["." if each == "spec.yaml" else each for each in RUNS[name]]
    result = run(name, *by_folder)
    if command(name).params[0] is options.SPECS[0]:
        assert result.exit_code == 0
        assert name == "check" or "spec" in result.output
    else:
        assert result.exit_code == 2
        assert "several specs in `.`: other.yaml, spec.yaml" in result.stderr
        assert "= help: name one of them" in result.stderr


@pytest.mark.parametrize("name", ["fmt", "lock", "check"])
def test_one_spec_that_fails_stops_no_other(name: str, folder: Path) -> None:
    (folder / "a.yaml").write_text("mesh: {x: 2}\nrules: [\n")
    (folder / "untidy.yaml").write_text(SPEC.replace("rules: [", "rules:   ["))
    result = run(name, ".")
    assert result.exit_code == 1
    assert "a.yaml:" in result.output
    if name == "fmt":
        assert "  - mlp -> model\n" in (folder / "untidy.yaml").read_text()
    if name == "lock":
        assert {each.name for each in folder.glob("*.lock")} == {"spec.lock", "untidy.lock"}


def test_a_folder_is_locked_but_for_what_has_no_arrays(folder: Path) -> None:
    (folder / "base.yaml").write_text("shardspec: 1\nrules: [mlp -> model]\n")
    result = run("lock", ".")
    assert result.exit_code == 0
    assert "base.yaml is skipped: it has no target" in result.stderr
    assert {each.name for each in folder.glob("*.lock")} == {"spec.lock"}
    assert run("lock", "base.yaml").exit_code != 0


def test_two_specs_of_one_lock_are_refused(folder: Path) -> None:
    (folder / "spec.shard").write_text(run("fmt", "spec.yaml", "--to", "dsl").stdout)
    result = run("lock", ".")
    assert result.exit_code == 2
    assert "error: spec.shard and spec.yaml have one lock, spec.lock\n  = help: " in result.stderr
    assert not list(folder.glob("*.lock"))


@with_specs
def test_a_folder_without_specs(name: str, folder: Path) -> None:
    (folder / "empty").mkdir()
    by_folder = ["empty" if each == "spec.yaml" else each for each in RUNS[name]]
    result = run(name, *by_folder)
    assert result.exit_code == 2
    assert "no specs in `empty`" in result.stderr


@with_specs
def test_a_spec_is_named_once(name: str, folder: Path) -> None:
    if "named" not in given(name):
        return
    result = run(name, *RUNS[name], "--spec", "other.yaml")
    assert result.exit_code == 2
    assert "error: two specs: spec.yaml and --spec other.yaml" in result.stderr


# findings


@with_specs
def test_ignored_findings_are_gone(name: str, folder: Path) -> None:
    """`--ignore` is for all verbs what `lints:` in the spec is."""
    if name in ("mesh", "calibrate", "fmt"):  # report only what keeps them from their work
        return
    if name in ("explain", "report"):  # quote the findings of an array beside its trace
        return
    (folder / "spec.yaml").write_text(BAD)
    assert "SHD201" in run(name, *RUNS[name]).output
    result = run(name, *RUNS[name], "--ignore", "SHD201")
    assert "SHD201" not in result.output
    (folder / "spec.yaml").write_text(BAD + "lints: {SHD201: allow}\n")
    assert result.exit_code == run(name, *RUNS[name]).exit_code


@with_specs
@pytest.mark.parametrize("lints", ["", "lints: {SHD: allow}\n"])
def test_nothing_rests_on_what_was_dropped(name: str, lints: str, folder: Path) -> None:
    """A key that cannot be read is no lint: nothing silences it, and no figure is printed."""
    if name in ("mesh", "calibrate"):  # do not depend on that key
        return
    (folder / "spec.yaml").write_text("polcy: {}\n" + lints + SPEC)
    result = run(name, *RUNS[name])
    assert "SHD003" in result.output
    assert name == "report" or result.exit_code != 0
    assert name in ("check", "report") or "MiB" not in result.stdout


@pytest.mark.parametrize("name", [v for v in VERBS if v not in WITHOUT_FINDINGS])
def test_a_finding_that_nobody_knows(name: str, folder: Path) -> None:
    result = run(name, *RUNS[name], "--ignore", "indivisble")
    assert result.exit_code == 2
    assert "error: --ignore: no finding is called `indivisble`" in result.stderr
    assert "= help: did you mean `indivisible`?" in result.stderr


# arrays


@pytest.mark.parametrize("name", ["compile", "diff", "manifest"])
def test_only(name: str, folder: Path) -> None:
    other = SPEC.replace("embed -> data", "embed -> none")
    (folder / "other.yaml").write_text(other)
    (folder / "arrays.yaml").write_text("norm/scale: bf16[64]\nlayers_0/kernel: bf16[64, 128]\n")
    arguments = ["spec.yaml", "other.yaml"] if name == "diff" else RUNS[name]
    everything, some = run(name, *arguments), run(name, *arguments, "--only", "norm/*")
    assert everything.exit_code == some.exit_code
    assert "layers_" in everything.stdout
    assert "layers_" not in some.stdout
    assert some.stdout
    none = run(name, *arguments, "--only", "nomr/scale")
    assert none.exit_code == 2
    assert "error: no array has the path `nomr/scale`" in none.stderr
    assert "= help: did you mean `norm/scale`?" in none.stderr


# one dialect

ERROR = re.compile(r"(?:.+\n)*?error(?:\[SHD\d{3}\])?: .+\n(?:.*\n)*? += help: .+\n")


def _wrong(name: str) -> Iterator[list[str]]:
    yield [name, *RUNS[name], "--frobnicate"]
    yield [name, *RUNS[name], "--color"]
    yield [name, *RUNS[name], "--color", "blue"]
    yield (
        [name, *RUNS[name], "one", "too", "many"]
        if name not in {"check", "fmt", "lock"}
        else [
            name,
            "missing.yaml",
        ]
    )
    if "-o" in given(name):
        yield [name, *RUNS[name], "-o", ""]
        yield [name, *(["--check"] if name == "fmt" else []), "-o", "no/such/folder/x", *RUNS[name]]
    if "--set" in given(name):
        yield [name, *RUNS[name], "--set", "nonsense"]
    if "--target" in given(name):
        yield [name, *RUNS[name], "--target", "nowhere"]
    if "--arrays" in given(name):
        yield [name, *RUNS[name], "--arrays", "missing.yaml"]


@every_verb
def test_every_refusal_looks_like_a_finding_and_names_a_way_out(name: str, folder: Path) -> None:
    for arguments in _wrong(name):
        result = run(*arguments)
        if "--check" in arguments or (name in {"import", "fmt"} and result.exit_code == 0):
            continue
        assert result.exit_code == 2, arguments
        said = result.stderr if name != "check" else result.output
        assert ERROR.match(said), (arguments, said)
        assert "Error:" not in said
        assert "Usage:" not in said
        assert "Traceback" not in said


def test_a_misspelt_verb() -> None:
    assert run("chekc").stderr == (
        "error: no verb is called `chekc`\n  = help: did you mean `check`?\n"
    )


@pytest.mark.parametrize(
    ("arguments", "help"),
    [
        (("compile", "--colr"), "did you mean `--color`?"),
        (("check", "--basline"), "did you mean `--baseline`?"),
        (("check", "--pad"), " check --help` lists the options"),
    ],
)
def test_only_close_options_are_suggested(arguments: tuple[str, ...], help: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert f"has no option `{arguments[1]}`\n" in result.stderr
    assert result.stderr.endswith(f"{help}\n")


@pytest.mark.parametrize(
    ("arguments", "help"),
    [
        (("-q", "check", "x"), "`-q` is an option of `check`: `shardspec check -q`"),
        (("--json", "diff", "x"), "`--json` is an option of `diff`: `shardspec diff --json`"),
    ],
)
def test_an_option_ahead_of_its_verb(arguments: tuple[str, ...], help: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: `shardspec` has no option `{arguments[0]}`\n  = help: {help}\n"
    )


def test_errors_are_coloured_as_findings_are(folder: Path) -> None:
    result = run("compile", "--color", "always", "--set", "nonsense")
    assert result.stderr.startswith("\x1b[1;31merror\x1b[0m: ")


# old words


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("compile spec.yaml --params arrays.yaml", "compile spec.yaml --arrays arrays.yaml"),
        ("compile spec.yaml --params=arrays.yaml", "compile spec.yaml --arrays=arrays.yaml"),
        ("check spec.yaml --output-format json", "check spec.yaml --format json"),
        ("compile spec.yaml --select norm/*", "compile spec.yaml --only norm/*"),
        ("compile spec.yaml --select=norm/scale", "compile spec.yaml --only=norm/scale"),
    ],
)
def test_an_old_word_still_works(old: str, new: str, folder: Path) -> None:
    before, after = run(*old.split()), run(*new.split())
    assert (before.exit_code, before.stdout) == (after.exit_code, after.stdout)
    words = [re.search(r"--[a-z-]+", each) for each in (old, new)]
    spelt = [found[0] for found in words if found]
    remark = f"`{spelt[0]}` is now `{spelt[1]}`; 0.3 removes the old spelling\n"
    assert before.stderr == remark + after.stderr
    assert run(*old.split(), "-q").stderr == run(*new.split(), "-q").stderr


def test_select_names_findings_where_it_names_one(folder: Path) -> None:
    (folder / "spec.yaml").write_text(BAD)
    assert "SHD201" in run("compile", "spec.yaml", "--select", "SHD2").stderr
    assert "SHD201" not in run("compile", "spec.yaml", "--select", "indivisible").stderr
    result = run("compile", "spec.yaml", "--select", "SHD999")
    assert "no finding is called `SHD999`" in result.stderr


def test_what_stands_behind_two_dashes_is_no_word(folder: Path) -> None:
    result = run("explain", "--spec", "spec.yaml", "--", "--params")
    assert "no array has the path `--params`" in result.stderr

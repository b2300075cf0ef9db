"""`shardspec cost`: with a step and without, in every form; what runs code, and what never does."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import cli


def line_of(code: str) -> int:
    return next(n for n, line in enumerate(STEP.splitlines(), 1) if line.strip() == code)


SPEC = """\
shardspec: 1
targets:
  pod: {hardware: tpu v5e 4x4, mesh: {fsdp: 8, tensor: 2}}
  big: {hardware: tpu v5p 8x8x8, mesh: {fsdp: 128, tensor: 4}}
rules:
  - batch -> fsdp
  - mlp -> tensor
  - embed -> fsdp
params:
  "**/wi": embed mlp
  "**/wo": mlp embed
activations:
  residual: batch _ _
  hidden: batch _ mlp
state: {optimizer: same, moments: 2}
arrays:
  layers_{0..1}/wi: f32[1024, 4096]
  layers_{0..1}/wo: f32[4096, 1024]
"""
STEP = """\
import functools
import os
import sys

import jax
import jax.numpy as jnp

print("imported")
X = jax.ShapeDtypeStruct((128, 128, 1024), jnp.bfloat16)
WI, WO = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1024, 4096), (4096, 1024)))
PARAMS = {f"layers_{number}": {"wi": WI, "wo": WO} for number in range(2)}


def layer(resolver, p, x):
    hidden = resolver.constrain(x @ p["wi"].astype(x.dtype), activation="hidden")
    return resolver.constrain(hidden @ p["wo"].astype(x.dtype), activation="residual")


def step(resolver):
    def loss(params, x):
        for name in ("layers_0", "layers_1"):
            x = x + layer(resolver, params[name], x)
        return jnp.sum(x.astype(jnp.float32) ** 2)

    return jax.jit(jax.grad(loss)), (PARAMS, X)


def keywords(resolver):
    function, (params, x) = step(resolver)
    return (lambda params, *, x: function(params, x)), (params,), {"x": x}


def loss_alone(resolver):
    return (lambda params: jnp.sum(params["layers_0"]["wi"])), [PARAMS]


def three(resolver):
    return 1, 2, 3, 4


def no_tuple(resolver):
    return step(resolver)[0], PARAMS


def no_dict(resolver):
    return (*step(resolver), [1])


def no_call(resolver):
    return "loss", (PARAMS,)


def needs_more(resolver, config):
    return step(resolver)


def says_hiden(resolver):
    return (lambda x: resolver.constrain(x, activation="hiden")), (X,)


def puts(resolver):
    resolver.put(PARAMS)


def exits(resolver):
    sys.exit("enough")


def inner(x):
    return x @ x


def outer(x):
    return inner(x)


def raises(resolver):
    return jax.jit(outer), (X,)


class Rooted(BaseException):
    pass


def rooted(resolver):
    raise Rooted


class Mute(Exception):
    def __str__(self):
        raise RuntimeError


def mute(resolver):
    raise Mute


def counts(resolver):
    return (lambda x, n: [x for _ in range(n)]), (X, 2)


def known(resolver):
    return functools.partial(lambda n, x: [x for _ in range(n)], 2), (X,)


def talks(resolver):
    os.system("echo from a child")
    os.write(1, b"to the descriptor\\n")
    return step(resolver)


def long(resolver):
    raise ValueError("x" * 9999)


NUMBER = 3
"""


LOSS = line_of("def loss(params, x):")
OUT = line_of('return resolver.constrain(hidden @ p["wo"].astype(x.dtype), activation="residual")')


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHARDSPEC", raising=False)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "own_step.py").write_text(STEP)
    before = list(sys.path)
    yield tmp_path
    assert sys.path == before
    sys.modules.pop("own_step", None)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["cost", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def traced(*arguments: str) -> Result:
    return run("spec.yaml", "--target", "pod", "--step", "own_step:step", *arguments)


def data(*arguments: str) -> dict[str, Any]:
    result = traced("--format", "json", *arguments)
    assert result.exit_code == 0
    found: dict[str, Any] = json.loads(result.stdout)
    return found


# without a step


def test_without_a_step_it_is_state_memory_and_says_what_a_step_adds() -> None:
    result = run("spec.yaml")
    assert result.exit_code == 0
    assert (
        result.stdout
        == """\
spec.yaml   pod: TPU v5e 4x4, 16 chips   mesh fsdp=8 tensor=2

memory  = 16.0 MiB of 15.8 GiB per device, fits   parameters = 4.00 MiB   gradients = 4.00 MiB
    optimizer = 8.00 MiB
"""
    )
    assert "target pod; --target shows another of 2" in result.stderr
    assert "what a step adds: activations, temporaries, time, and what is sent" in result.stderr
    assert "--step MODULE:FUNCTION" in result.stderr


def test_arrays_alone_are_counted_alone() -> None:
    assert "memory  = 4.00 MiB of 15.8 GiB" in run("spec.yaml", "--only", "layers_0/wi").stdout


def test_the_json_of_no_step_has_nulls_where_only_a_step_could_tell() -> None:
    found = json.loads(run("spec.yaml", "--format", "json").stdout)
    assert (found["source"], found["time"], found["flops"], found["collectives"]) == (
        *(None, None, None),
        [],
    )
    assert found["memory"]["activations"] is None
    assert found["memory"]["total"] == {"bytes": 16 << 20, "basis": "exact"}


def test_errors_of_the_spec_are_findings(folder: Path) -> None:
    (folder / "spec.yaml").write_text(SPEC.replace("mlp -> tensor", "mlp -> tenosr"))
    result = traced()
    assert result.exit_code == 1
    assert "error[SHD201]: unknown mesh axis `tenosr`" in result.stderr
    assert "no cost is worked out: spec.yaml has errors" in result.stderr
    assert "importing" not in result.stderr
    assert result.stdout == ""


# with a step


def test_a_step() -> None:
    result = traced()
    assert result.exit_code == 0
    assert result.stdout.startswith(
        "spec.yaml   pod: TPU v5e 4x4, 16 chips   mesh fsdp=8 tensor=2   step at"
        f" own_step.py:{LOSS}\n"
    )
    assert "all-gather  fsdp" in result.stdout
    assert "weight layers_{0,1}/wi" in result.stdout
    assert "embed -> fsdp spec.yaml:8" in result.stdout
    assert f"own_step.py:{OUT}" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert "site-packages" not in result.stdout


def test_what_the_code_prints_is_no_answer() -> None:
    result = traced()
    assert "imported" not in result.stdout
    said = [line for line in result.stderr.splitlines() if not line.startswith("target")]
    assert said[0] == "own_step:step: importing it, which runs its code"
    assert said[-1].startswith("own_step:step: traced in ")


def test_what_children_print_is_no_answer(folder: Path) -> None:
    command = [sys.executable, "-m", "shardspec", "cost", "spec.yaml", "--format", "json"]
    result = subprocess.run(
        [*command, "--target", "pod", "--step", "own_step:talks"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(result.stdout)["schema"] == "shardspec.cost/1"
    assert "from a child" in result.stderr
    assert "to the descriptor" in result.stderr


def test_a_fault_of_ours_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from shardspec.jax_backend.step import reading

    monkeypatch.setattr(reading.graphs, "graph_of", None)
    result = run("spec.yaml", "--target", "pod", "--step", "own_step:step")
    assert result.exit_code == 2
    assert "the step of `own_step:step` cannot be read" in result.stderr
    assert "= help: this is a fault of shardspec, not of the step" in result.stderr


def test_quiet() -> None:
    assert "own_step" not in traced("-q").stderr


@pytest.mark.parametrize("name", ["keywords", "loss_alone", "known"])
def test_what_a_step_may_be(name: str) -> None:
    result = run("spec.yaml", "--target", "pod", "--step", f"own_step:{name}")
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own_step:three", "gives a `tuple`, not a function and its arguments"),
        ("own_step:no_tuple", "the arguments that `own_step:no_tuple` gives are a `dict`"),
        ("own_step:no_dict", "gives are no dict by name"),
        ("own_step:no_call", "the first that `own_step:no_call` gives is a `str`, no function"),
        ("own_step:needs_more", "= help: as in `def step(resolver): return train_step,"),
        ("own_step:says_hiden", "error[SHD213]: no activation is called `hiden`"),
        ("own_step:puts", "error[SHD"),
        ("own_step:exits", "raised SystemExit: enough"),
        ("own_step:mute", "`own_step:mute` raised Mute"),
        ("own_step:rooted", "`own_step:rooted` raised Rooted"),
        ("operator:index", "`operator:index` cannot be called with a resolver: 'Resolver' object"),
        ("own_step:counts", "= help: arguments are traced, numbers too: what has to be known"),
        ("own_step:long", "xxx..."),
        ("own_step:NUMBER", "`own_step:NUMBER` is a `int`, and no function"),
        ("own_step:stpe", "did you mean `step`?"),
        ("own_stpe:step", "there is no module `own_stpe`"),
        ("own_step.py:step", "name the module, not its file: `own_step:step`"),
        ("spec.yaml", "--step `spec.yaml` is not MODULE:FUNCTION"),
    ],
)
def test_what_is_no_step(name: str, said: str) -> None:
    result = run("spec.yaml", "--target", "pod", "--step", name)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_an_exception_shows_the_users_own_lines() -> None:
    result = run("spec.yaml", "--target", "pod", "--step", "own_step:raises")
    shown = [line.split("|")[0].strip() for line in result.stderr.splitlines()]
    lines = STEP.splitlines()
    for line in ("    return x @ x", "    return inner(x)"):
        assert str(lines.index(line) + 1) in shown
    assert "raised here" in result.stderr
    assert "called here" in result.stderr
    assert "jax/" not in result.stderr


# which step


def test_the_step_of_the_project(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.shardspec]\nstep = "own_step:step"\n')
    (folder / "below").mkdir()
    here = run("spec.yaml", "--target", "pod", "--step").stdout
    assert f"step at own_step.py:{LOSS}" in here
    os.chdir("below")
    sys.modules.pop("own_step")
    assert "sends   ~" in run("../spec.yaml", "--target", "pod", "--step").stdout


def test_without_the_option_the_step_of_the_project_is_not_run(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.shardspec]\nstep = "own_step:step"\n')
    assert "importing" not in run("spec.yaml").stderr
    assert "own_step" not in sys.modules


def test_a_project_without_a_step(folder: Path) -> None:
    result = run("spec.yaml", "--step")
    assert result.exit_code == 2
    assert "no pyproject.toml here or above has `[tool.shardspec] step`" in result.stderr
    (folder / "pyproject.toml").write_text("[tool.shardspec]\nstep = 3\n")
    result = run("spec.yaml", "--step")
    assert "`[tool.shardspec] step` in pyproject.toml is no name" in result.stderr
    (folder / "pyproject.toml").write_text('[tool.shardspec]\nstep = "train.py"\n')
    result = run("spec.yaml", "--step")
    assert result.exit_code == 2
    assert "`[tool.shardspec] step` in pyproject.toml, `train.py`, is not MOD" in result.stderr


# forms


def test_json() -> None:
    found = data()
    assert found["schema"] == "shardspec.cost/1"
    assert found["mesh"] == {"fsdp": 8, "tensor": 2}
    gathers = [each for each in found["collectives"] if each["kind"] == "all-gather"]
    assert sorted(each["carries"] for each in gathers) == [
        f"weight layers_{number}/{name}" for number in (0, 1) for name in ("wi", "wo")
    ]
    assert gathers[-1]["wire_bytes"] == 1024 * 4096 * 2 // 2 * 7 // 8
    cause = gathers[0]["because"][0]
    assert cause["rule"] == {"file": "spec.yaml", "line": 8, "text": "embed -> fsdp"}
    assert (cause["array"], cause["dim"]) == ("layers_0/wi", 0)


def test_every_table_has_every_byte() -> None:
    total = sum(each["wire_bytes"] for each in data()["collectives"])
    for by in ("op", "axis", "line", "rule", "array"):
        said = traced("--by", by).stdout.partition("sends   ~ ")[2].partition(" per device")[0]
        assert abs(float(said.split()[0]) * 2**20 - total) < 0.01 * total, said


def test_by_rule() -> None:
    sends = traced("--by", "rule").stdout.partition("sends ")[2]
    rows = [line.strip().partition("  ")[0] for line in sends.splitlines()[1:]]
    assert rows == [
        "batch -> fsdp spec.yaml:6",
        "embed -> fsdp spec.yaml:8",
        "mlp -> tensor spec.yaml:7",
    ]


def test_only() -> None:
    found = data("--only", "layers_0/*")
    assert found["collectives"]
    assert all("layers_0" in json.dumps(each) for each in found["collectives"])
    result = traced("--only", "layers_0/wx")
    assert result.exit_code == 2
    assert "error: no array has the path `layers_0/wx`" in result.stderr


def test_saved(folder: Path) -> None:
    result = traced("-o", "cost.json")
    assert "sends   ~" in result.stdout
    saved = json.loads((folder / "cost.json").read_text())
    assert len(saved.pop("date")) == 10
    assert saved == data()
    assert json.loads(traced("-o", "-").stdout).pop("date")


def test_nothing_is_saved_of_a_step_that_fails(folder: Path) -> None:
    result = run("spec.yaml", "--target", "pod", "--step", "own_step:raises", "-o", "cost.json")
    assert result.exit_code == 2
    assert not (folder / "cost.json").exists()


@pytest.mark.parametrize(("text", "number"), [("4M", 4_000_000), ("128", 128), ("1.5k", 1500)])
def test_tokens(text: str, number: int) -> None:
    assert data("--tokens", text)["tokens"] == number


@pytest.mark.parametrize("text", ["", "many", "-4", "4MM", "0", "9" * 30])
def test_no_tokens(text: str) -> None:
    result = run("spec.yaml", "--tokens", text)
    assert result.exit_code == 2
    assert "= help: as in `--tokens" in result.stderr


def test_top() -> None:
    assert re.search(r"and \d rows more, ~ .*: --top \d shows all", traced("--top", "1").stdout)
    assert run("spec.yaml", "--top", "0").exit_code == 2


# a terminal


def in_terminal(folder: Path, columns: int) -> tuple[str, str]:
    """Return what stdout and stderr get where both are terminals."""
    import fcntl
    import struct
    import termios

    ends = [pty.openpty() for _ in range(2)]
    for _, far in ends:
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    command = [sys.executable, "-m", "shardspec", "cost", "spec.yaml", "--target", "pod"]
    process = subprocess.Popen(
        [*command, "--step", "own_step:step"],
        cwd=folder,
        stdout=ends[0][1],
        stderr=ends[1][1],
        env=os.environ
        | {"PYTHONPATH": str(Path(__file__).parents[2]), "TERM": "xterm"}
        | {"SHARDSPEC_PROGRESS": "auto"},
    )
    for _, far in ends:
        os.close(far)
    process.wait(timeout=120)
    return tuple(map(read_all, (near for near, _ in ends)))  # type: ignore[return-value]


def read_all(terminal: int) -> str:
    text = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            break
        if not piece:
            break
        text += piece
    os.close(terminal)
    return text.decode()


def test_on_a_terminal(folder: Path) -> None:
    out, err = in_terminal(folder, 70)
    out = re.sub(r"\x1b\[[0-9;]*m", "", out)  # verdicts have colours
    assert max(map(len, out.splitlines())) <= 70
    assert "all-gather  fsdp" in out
    assert "\x1b[K" in err, "what is being done is said, and wiped away"
    assert "tracing own_step:step ... " in err or "loading jax ... " in err


# what was saved, in verbs that run no code


def ask(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def saved(folder: Path) -> Path:
    assert traced("-o", "cost.json").exit_code == 0
    sys.modules.pop("own_step")
    return folder / "cost.json"


EXPLAIN = ("--spec", "spec.yaml", "--target", "pod", "--cost", "cost.json")


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("axis:fsdp", "fsdp sends ~ "),
        ("spec.yaml:8", "this line sends ~ "),
        ("layers_1/wi", "layers_1/wi and its sharding send ~ "),
        ("layers_*/wi", "2 arrays send ~ "),
        ("residual", "residual and its sharding send ~ "),
    ],
)
def test_explain_says_what_it_costs(saved: Path, subject: str, said: str) -> None:
    result = ask("explain", subject, *EXPLAIN)
    assert result.exit_code == 0
    date = json.loads(saved.read_text())["date"]
    assert f"cost.json ({date}): {said}" in result.stdout
    assert "own_step.py:" in result.stdout
    assert "STALE" not in result.stdout
    assert "own_step" not in sys.modules
    assert ask("explain", subject, *EXPLAIN, "--porcelain").stdout.count("cost.json") == 0


KEPT = ("schema", "spec", "target", "mesh", "basis", "memory", "time")


def test_what_a_file_says_cannot_steer_the_terminal(saved: Path) -> None:
    def evil(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: evil(each) for name, each in value.items()}
        if isinstance(value, list):
            return [evil(each) for each in value]
        return f"{value}\x1b[2J\u202e" if isinstance(value, str) else value

    data = json.loads(saved.read_text())
    kept = {name: data[name] for name in KEPT}
    saved.write_text(json.dumps(evil(data) | kept))
    for subject in ("axis:fsdp", "spec.yaml:8", "layers_1/wi", f"own_step.py:{OUT}"):
        result = ask("explain", subject, *EXPLAIN)
        assert result.exit_code == 0
        assert not set(result.output) & {"\x1b", "\u202e"}
    saved.write_text(json.dumps(evil(data) | kept | {"time": evil(data["time"])}))
    assert not set(ask("explain", "axis:fsdp", *EXPLAIN).output) & {"\x1b", "\u202e"}


def test_a_line_of_code(saved: Path) -> None:
    result = ask("explain", f"own_step.py:{OUT}", *EXPLAIN)
    assert result.exit_code == 0
    first, *_, last = result.stdout.splitlines()
    assert f"own_step.py:{OUT} sends ~ " in first
    assert " of it for spec.yaml:" in last
    assert "own_step" not in sys.modules
    assert "sends nothing of" in ask("explain", "own_step.py:1", *EXPLAIN).stdout
    without = ask("explain", f"own_step.py:{OUT}", *EXPLAIN[:4])
    assert without.exit_code == 2
    assert "error: own_step.py is code, and no spec" in without.stderr


def test_explain_says_when_it_is_stale(saved: Path, folder: Path) -> None:
    (folder / "spec.yaml").write_text(SPEC + "# more\n")
    assert "STALE: `spec.yaml` changed" in ask("explain", "axis:fsdp", *EXPLAIN).stdout
    (folder / "spec.yaml").write_text(SPEC)
    what_if = ("--set", "mesh.fsdp=4", "--set", "mesh.tensor=4")
    assert "STALE: its mesh is fsdp=8" in ask("explain", "axis:fsdp", *EXPLAIN, *what_if).stdout
    other = ask("explain", "axis:fsdp", "--target", "big", "--cost", "cost.json")
    assert "is of target pod: --target pod shows what it says" in other.stdout


def test_the_saved_cost_of_the_project(saved: Path, folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.shardspec]\ncost = "cost.json"\n')
    assert "fsdp sends ~" in ask("explain", "axis:fsdp", "--target", "pod").stdout
    saved.unlink()
    result = ask("explain", "axis:fsdp", "--target", "pod")
    assert result.exit_code == 0
    assert "`[tool.shardspec] cost`: there is no cost.json yet" in result.stderr
    assert "cost.json" not in ask("check", ".").output
    (folder / "pyproject.toml").write_text('[tool.shardspec]\ncost = "../cost.json"\n')
    result = ask("explain", "axis:fsdp", "--target", "pod")
    assert result.exit_code == 2
    assert "leads out of its folder" in result.stderr


@pytest.mark.parametrize("text", ["[tool.shardspec\n", "\xff", "[" * 9999 + " # shardspec"])
def test_a_project_that_cannot_be_read_is_a_finding_as_before(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(text, encoding="latin-1")
    for verb in (("check", "spec.yaml"), ("explain", "axis:fsdp", "--spec", "spec.yaml")):
        result = ask(*verb)
        assert result.exit_code in (1, 2)
        assert "error[SHD00" in result.output
        assert "error: " not in result.output


def test_check_says_what_lines_cost_and_when_it_is_stale(saved: Path, folder: Path) -> None:
    assert ask("check", "spec.yaml", "--cost", "cost.json").exit_code == 0
    worse = SPEC.replace("- mlp -> tensor", "- mlp -> tensor | tenosr")
    (folder / "spec.yaml").write_text(worse)
    result = ask("check", "spec.yaml", "--cost", "cost.json")
    assert "= note: this line: ~ " in result.stdout
    assert "warning[SHD024]: `cost.json` is stale: `spec.yaml` changed" in result.stdout
    quiet = ask("check", "spec.yaml", "--cost", "cost.json", "--ignore", "stale-cost")
    assert "SHD024" not in quiet.stdout
    (folder / "other.yaml").write_text(worse)
    other = ask("check", "other.yaml", "--cost", "cost.json")
    assert "cost.json" not in other.stdout


@pytest.mark.parametrize("verb", [("explain", "axis:fsdp"), ("check", "spec.yaml")])
def test_a_saved_cost_that_is_none(verb: tuple[str, ...], folder: Path) -> None:
    for name, said in (("spec.yaml", "SHD023"), ("none.json", "SHD001")):
        result = ask(*verb, "--cost", name)
        assert result.exit_code == 2
        assert f"error[{said}]" in result.stderr


def test_what_is_saved_is_shown_without_jax(saved: Path) -> None:
    from tests.test_architecture import loaded_by

    arguments = ["explain", "axis:fsdp", *EXPLAIN]
    body = f"from click.testing import CliRunner\nfrom shardspec.cli.main import cli\nresult = \
CliRunner().invoke(cli, {arguments!r})\nassert 'fsdp sends' in result.stdout"
    assert loaded_by(body) == []


def test_code_finds_the_environment_as_it_was(folder: Path) -> None:
    code = "import os, jax\nprint(os.environ.get('JAX_PLATFORMS'), jax.config.jax_platforms)\n"
    (folder / "asking.py").write_text(code + "from own_step import step\n")
    clean = {name: text for name, text in os.environ.items() if name != "JAX_PLATFORMS"}
    command = [sys.executable, "-m", "shardspec", "cost", "spec.yaml"]
    for more, said in ({}, "None None"), ({"JAX_PLATFORMS": "cpu"}, "cpu cpu"):
        done = subprocess.run(
            [*command, "-t", "pod", "--step", "asking:step"],
            cwd=folder,
            env=clean | more | {"PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert said in done.stderr


def test_an_axis_that_code_may_name_is_no_finding_beside_the_code(folder: Path) -> None:
    text = SPEC.replace("  residual: batch _ _\n  hidden: batch _ mlp\n", "  residual: _ _ _\n")
    text = text.replace("activations:", "axes: {length: 128}\nactivations:")
    (folder / "spec.yaml").write_text(text)
    code = "import jax\nfrom own_step import PARAMS\n\n\ndef step(resolver):\n"
    code += '    return jax.jit(lambda p: p["layers_0"]["wi"] * 2), (PARAMS,)\n'
    (folder / "naming.py").write_text(code)
    words = ["cost", "spec.yaml", "-t", "pod"]
    assert "logical axis `batch`" in CliRunner().invoke(cli, words).output
    result = CliRunner().invoke(cli, [*words, "--step", "naming:step"])
    assert "SHD230" not in result.output
    assert result.exit_code == 0, result.output

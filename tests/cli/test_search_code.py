"""`shardspec search --step` of a spec without `step:`: the lines that code lacks, and the patch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
from click.testing import CliRunner, Result

from shardspec import assets
from shardspec.cli import curing
from shardspec.cli.main import cli
from shardspec.cli.streams import _Lines
from shardspec.cure import searching
from shardspec.cure.figures import Figures
from shardspec.cure.searching import Deadline, Trial
from shardspec.cure.telling import Tried
from shardspec.cure.written import source_of
from shardspec.jax_backend.cure import curing as jax_curing
from shardspec.jax_backend.cure.curing import Again
from shardspec.jax_backend.xla import compiling

SPEC = """\
shardspec: 1
axes: {batch: 64, length: 128}
targets:
  pod: {hardware: tpu v5e 2x4, mesh: {fsdp: 8}}
rules: [batch -> fsdp, embed -> fsdp, length -> none, mlp -> none, vocab -> none]
params: {"**/wi": embed mlp, "**/wo": mlp embed, table: vocab embed}
state: {optimizer: same, moments: 2}
lints: {SHD5: allow}
"""
TRAIN = """\
import jax
import jax.numpy as jnp


def layer(p, x):
    h = jax.nn.relu(x @ p["wi"])
    y = h @ p["wo"]
    return x + y


def loss(params, tokens):
    x = params["table"][tokens]
    for name in ("layers_0", "layers_1"):
        x = layer(params[name], x)
    logits = x @ params["table"].T
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1))


def train(params, tokens):
    grads = jax.grad(loss)(params, tokens)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def struct(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def step(resolver):
    one = {"wi": struct(512, 2048), "wo": struct(2048, 512)}
    params = {"layers_0": one, "layers_1": one, "table": struct(4096, 512)}
    return jax.jit(train, donate_argnums=0), (params, struct(64, 128, dtype=jnp.int32))


def lone(resolver):
    return (lambda x: x * 2), (struct(64, 512),)


def broken(resolver):
    raise ValueError("no data here")


def breaks(resolver):
    return (lambda x: x @ missing), (struct(64, 512),)
"""
#: The same with the lines that it lacks.
RIGHT = "import shardspec\n" + TRAIN.replace(
    'y = h @ p["wo"]\n', 'y = shardspec.constrain(h @ p["wo"], "batch length embed")\n'
)


class Searched(NamedTuple):
    data: dict[str, Any]
    text: str
    folder: Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from _folder(tmp_path, monkeypatch)


def _folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(path)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(curing, "MOST", 12)
    for name, few in {"_MOST_MOVES": 4, "_PARTNERS": 3, "_BEAM": 1, "_FEW": 4}.items():
        monkeypatch.setattr(searching, name, few)
    (path / "spec.yaml").write_text(SPEC)
    (path / "train.py").write_text(TRAIN)
    source_of.cache_clear()
    sys.modules.pop("train", None)
    yield path
    sys.modules.pop("train", None)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searched]:
    """Search once for all tests that look at the answer."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for path in _folder(tmp_path_factory.mktemp("search"), monkeypatch):
            result = search("--format", "json", "-o", "found.json", "--patch", "lines.diff")
            assert "lines.diff: written; `git apply lines.diff` changes the files" in result.stderr
            assert "does so in `with resolver:` (SHD031)" in result.stderr
            assert "then run `shardspec cost spec.yaml --step train:step`" in result.stderr
            data = json.loads(result.stdout)
            assert json.loads((path / "found.json").read_text()) == data
            yield Searched(data, result.stderr, path)


def run(verb: str, *arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, [verb, "spec.yaml", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


def search(*arguments: str, step: str = "train:step", code: int = 0) -> Result:
    return run("search", "--step", step, "--no-compile", *arguments, code=code)


def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(assets.schema_path("cure").read_text("utf-8"))
    return found


def patched_copy(found: Searched, into: Path) -> Path:
    copy = into / "copy"
    copy.mkdir()
    for name in ("spec.yaml", "train.py"):
        shutil.copy(found.folder / name, copy)
    subprocess.run(["git", "apply", found.folder / "lines.diff"], cwd=copy, check=True)
    return copy


def test_a_flax_constraint_without_its_rules_is_no_spelling_for_a_line(folder: Path) -> None:
    """Outside of `nn.logical_axis_rules` it does nothing, so the line would do nothing, too."""
    flax = TRAIN.replace("import jax\n", "import flax.linen as nn\nimport jax\n", 1).replace(
        "    y = h @",
        '    h = nn.with_logical_constraint(h, ("batch", "length", "mlp"))\n    y = h @',
    )
    (folder / "train.py").write_text(flax)
    done = search("--format", "json", "--write")
    data = json.loads(done.stdout)
    best = data["answers"][data["best"]]
    assert "shardspec.constrain(" in data["patch"]
    assert "warning[SHD030]: 1 constraint of Flax does nothing" in done.stderr
    assert "spec.yaml stays as it is: no other mesh or entries save enough" in done.stderr
    command = "shardspec search spec.yaml --step train:step --patch lines.diff"
    assert f"the code is not changed: `{command}` writes its lines as a diff" in done.stderr
    assert best["sends"] < 0.94 * data["now"]["sends"]


def test_lines_are_found_by_which_it_sends_less(searched: Searched) -> None:
    data = searched.data
    assert data["best"] == 0
    best = data["answers"][0]
    assert best["sends"] * 2 <= data["now"]["sends"]
    assert best["step_s"] < data["now"]["step_s"]
    (line,) = best["lines"]
    assert (line["file"], line["shape"]) == ("train.py", [64, 128, 512])
    assert line["partition"] == [[["fsdp"], [], []]]
    assert "batch" in line["names"][0]
    assert data["together"]["sends"] >= best["sends"] / 1.1
    assert data["now"]["lines"] == []
    assert data["trials"] >= data["values"] > 3


def test_json_is_as_its_schema_says(searched: Searched) -> None:
    jsonschema.Draft7Validator.check_schema(schema())
    jsonschema.Draft7Validator(schema()).validate(searched.data)
    assert list(searched.data) == [
        *("schema", "made_by", "spec", "target", "values", "layouts", "trials", "late"),
        *("refuted", "elsewhere", "mapped", "seconds", "unfinished", "now", "together", "best"),
        *("answers", "patch"),
    ]
    printed = CliRunner().invoke(cli, ["schema", "--of", "cure"]).stdout
    assert json.loads(printed) == schema()


def test_code_and_spec_stay_as_they_are(searched: Searched) -> None:
    assert (searched.folder / "train.py").read_text() == TRAIN
    assert (searched.folder / "spec.yaml").read_text() == SPEC
    assert (searched.folder / "lines.diff").read_text() == searched.data["patch"]


def test_the_patch_adds_the_lines_and_the_import_alone(searched: Searched) -> None:
    diff = searched.data["patch"].splitlines()
    assert diff[:2] == ["--- a/train.py", "+++ b/train.py"]
    added = [each[1:] for each in diff[2:] if each.startswith("+")]
    assert not [each for each in diff[2:] if each.startswith("-")]
    (line,) = searched.data["answers"][0]["lines"]
    assert sum("shardspec.constrain(" in each for each in added) == 1
    assert any(f'"{line["names"][0]}"' in each for each in added)
    assert "import shardspec" in added


def test_the_patched_code_costs_what_the_search_said(
    searched: Searched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(patched_copy(searched, tmp_path))
    sys.modules.pop("train", None)
    cost = json.loads(run("cost", "--step", "train:step", "--format", "json").stdout)
    sys.modules.pop("train", None)
    best = searched.data["answers"][0]
    assert cost["time"]["step_s"] == pytest.approx(best["step_s"], rel=1e-9)
    assert cost["memory"]["total"]["bytes"] == pytest.approx(best["memory"], rel=1e-9)
    assert sum(each["wire_bytes"] for each in cost["collectives"]) == pytest.approx(
        best["sends"], rel=1e-9
    )


DONATES = """\
import jax
import jax.numpy as jnp


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def decode(params, x, cache):
    return x @ params["wi"] @ params["wo"], [{"k": e["k"].at[:, 0].set(1)} for e in cache]


def step(resolver):
    params = {"wi": struct(512, 2048), "wo": struct(2048, 512)}
    caches = [{"k": struct(64, 2048, 8, 128)}] * 4
    return jax.jit(decode, donate_argnames="cache"), (params, struct(64, 512), caches)
"""


def test_a_finding_that_no_line_mends_is_named_with_the_command(folder: Path) -> None:
    (folder / "train.py").write_text(DONATES)
    spec = SPEC.replace("lints: {SHD5: allow}", "lints: {SHD4: allow, SHD518: allow}")
    spec = spec.replace("length -> none", "kv_heads -> fsdp, length -> none")
    (folder / "spec.yaml").write_text(
        f'{spec}caches: {{"{{0..3}}/k": "bf16[_=64 _=2048 kv_heads=8 _=128]"}}\n'
    )
    result = search()
    assert "this step also has SHD521 (a donated array is held twice" in result.stderr
    assert "`shardspec check spec.yaml --step train:step` says what to do" in result.stderr
    assert "`resolver.shardings(cache)`" in run("check", "--step", "train:step").stdout


def test_right_code_gets_no_line_and_no_patch(folder: Path) -> None:
    (folder / "train.py").write_text(RIGHT)
    result = search("--patch", "lines.diff")
    assert "    0 values" not in result.stdout
    assert "nothing to add: no line that was tried saves 6 %" in result.stdout
    assert "lines.diff is not written: nothing to add\n" in result.stderr
    assert "train:step: traced and searched in " in result.stderr
    assert not (folder / "lines.diff").exists()
    assert "shardspec.constrain" not in result.stdout


@pytest.mark.parametrize("sound", [None, 3])
def test_where_the_compiler_refutes_the_first_answers_the_next_ones_are_compiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch, sound: int | None
) -> None:
    """A compiler that finds of each answer but one that it takes as much as the code as it is."""
    monkeypatch.setattr(searching, "_BEAM", 3)
    asked: list[Trial] = []

    def compiled(found: Again, until: Deadline) -> Tried:
        asked.append(found.tried.lines)
        cost = found.tried.cost
        assert cost is not None
        is_sound = len(asked) == 1 or len(asked) == sound
        figures = found.tried.figures if is_sound else Figures.of(cost)._replace(seconds=1e3)
        return replace(found.tried, cost=replace(cost, compiler="libtpu"), figures=figures)

    monkeypatch.setattr(jax_curing, "compiled", compiled)
    monkeypatch.setattr(compiling, "most_at_once", lambda *args: 1)
    result = run("search", "--step", "train:step", "--top", "1", "--format", "json")
    data = json.loads(result.stdout)
    assert asked[0] == ()
    assert len(set(asked)) == len(asked) == 1 + len(data["answers"])
    assert len(data["answers"]) == (2 if sound else 3)
    assert data["refuted"] == len(data["answers"]) - bool(sound)
    assert (data["best"] is None) == (sound is None)


def test_all_of_a_search_ends_with_its_time_and_says_what_is_unknown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that takes all the time that it is given."""
    asked: list[float] = []

    def compiled(found: Again, until: Deadline) -> Tried:
        asked.append(until.left)
        time.sleep(until.left)
        return replace(found.tried, why="the time ended (--within)", is_late=True)

    monkeypatch.setattr(jax_curing, "compiled", compiled)
    monkeypatch.setattr(compiling, "most_at_once", lambda *args: 4)
    started = time.monotonic()
    options = ("--within", "20", "--over", "constraints,mesh", "--format", "json")
    data = json.loads(run("search", "--step", "train:step", *options).stdout)
    jsonschema.Draft7Validator(schema()).validate(data)
    assert time.monotonic() - started < 30
    assert asked
    assert max(asked) < 20
    assert data["unfinished"]["programs"] == len(asked)
    assert data["now"]["basis"] == "modelled", "nothing is compiled, so all is the model's"
    assert data["unfinished"].get("meshes", 0) == data["meshes_late"]


def test_without_time_for_anything_all_is_unknown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Deadline, "left", property(lambda end: 0.0))
    result = search("--within", "1", "--over", "constraints,mesh", "--format", "json")
    data = json.loads(result.stdout)
    jsonschema.Draft7Validator(schema()).validate(data)
    assert data["trials"] == 0
    assert data["unfinished"]["trials"] == data["late"] > 0
    assert data["unfinished"].get("meshes", 0) == data["meshes_late"]
    assert data["best"] is None
    assert data["mesh"] is None


def test_an_answer_without_time_is_left_out_where_another_is_compiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "_BEAM", 3)
    asked: list[Trial] = []

    def compiled(found: Again, until: Deadline) -> Tried:
        asked.append(found.tried.lines)
        cost = found.tried.cost
        if cost is None or len(asked) > 2:
            return replace(found.tried, why="the time ended (--within)", is_late=True)
        return replace(found.tried, cost=replace(cost, compiler="libtpu"))

    monkeypatch.setattr(jax_curing, "compiled", compiled)
    monkeypatch.setattr(compiling, "most_at_once", lambda *args: 1)
    said: list[str] = []
    monkeypatch.delenv("SHARDSPEC_PROGRESS")
    monkeypatch.setattr(_Lines, "say", lambda line, doing: said.append(doing))
    result = run("search", "--step", "train:step")
    assert {"tracing answer 1 of 3 again", "compiling step 1 of 4", "compiling step 4 of 4"} < {
        *said
    }
    assert "1 of 2 layouts tried" in said
    assert "add 1 line" in result.stdout
    assert "\nstopped by `--within " in result.stdout
    assert "not compiled" in result.stdout


def test_without_time_to_trace_an_answer_it_is_unknown_whether_a_line_helps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax_curing, "traced_again", lambda asked, timeout_s: None)
    result = search("--patch", "lines.diff")
    assert "lines.diff is not written: unknown whether a line helps\n" in result.stderr
    assert "unknown whether a line helps: the time ended" in result.stdout
    assert "not traced again" in result.stdout
    assert "nothing to add" not in result.stdout


REMAT = """\
from jax.ad_checkpoint import checkpoint_name
import jax
import jax.numpy as jnp


def layer(x, p):
    hidden = jax.nn.relu(checkpoint_name(x @ p["wi"], "hidden"))
    return x + checkpoint_name(hidden @ p["wo"], "out"), None


def loss(params, x):
    policy = jax.checkpoint_policies.save_only_these_names()
    return jax.lax.scan(jax.checkpoint(layer, policy=policy), x, params)[0].mean()


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def step(resolver):
    params = {"wi": struct(8, 1024, 4096), "wo": struct(8, 4096, 1024)}
    return jax.jit(jax.grad(loss)), (params, struct(64, 4096, 1024))
"""


def test_names_are_searched_for_the_policy_that_the_code_has(folder: Path) -> None:
    (folder / "train.py").write_text(REMAT)
    head, _, tail = SPEC.partition("params: ")
    params = "{wi: _ embed mlp, wo: _ mlp embed}\n" + tail.partition("\n")[2]
    (folder / "spec.yaml").write_text(f"{head}params: {params}")
    result = search("--over", "remat", "--format", "json", "--patch", "lines.diff")
    data = json.loads(result.stdout)
    jsonschema.Draft7Validator(schema()).validate(data)
    saved = [[each["names"] for each in row["saved"]] for row in data["names"]]
    assert sorted(saved) == [[["hidden"]], [["hidden", "out"]], [["out"]]]
    best = data["names"][data["remat"]]
    assert best["saved"] == [{"file": "train.py", "line": 12, "names": ["hidden"]}]
    assert best["step_s"] < 0.94 * data["now"]["step_s"]
    assert best["memory"] > data["now"]["memory"]
    subprocess.run(["git", "apply", "lines.diff"], cwd=folder, check=True)
    new = REMAT.replace("these_names()", 'these_names("hidden")')
    assert (folder / "train.py").read_text() == new
    sys.modules.pop("train", None)
    cost = json.loads(run("cost", "--step", "train:step", "--format", "json").stdout)
    assert cost["time"]["step_s"] == pytest.approx(best["step_s"], rel=1e-9)


def test_without_a_policy_there_are_no_names_to_search(folder: Path) -> None:
    result = search("--over", "remat", "--patch", "lines.diff")
    assert (
        "no policy of `jax.checkpoint` is searched: the code has none with names" in result.stdout
    )
    assert not (folder / "lines.diff").exists()


def test_with_a_patch_on_stdout_all_else_is_on_stderr(folder: Path) -> None:
    few = TRAIN.replace('for name in ("layers_0", "layers_1")', 'for name in ("layers_0",)')
    (folder / "train.py").write_text(few)
    result = search("--patch", "-", "--within", "60")
    assert result.stdout.startswith("--- a/train.py\n+++ b/train.py\n@@ ")
    assert all(each[:1] in ("-", "+", " ", "@") for each in result.stdout.splitlines())
    assert "add 1 line: " in result.stderr
    assert "train.py:" in result.stderr
    (folder / "lines.diff").write_text(result.stdout)
    subprocess.run(["git", "apply", "--check", "lines.diff"], cwd=folder, check=True)


def test_constraints_of_no_code(folder: Path) -> None:
    result = run("search", "--over", "constraints", code=2)
    assert "--over constraints needs code to trace" in result.stderr
    assert "`--step train:step`" in result.stderr


WIDE = SPEC.replace("mesh: {fsdp: 8}}", "mesh: {fsdp: 2, tensor: 4}}  # chosen by hand").replace(
    "mlp -> none", "mlp -> tensor"
)


@pytest.fixture(scope="module")
def on_meshes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searched]:
    """Search meshes once for the code with its lines."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for path in _folder(tmp_path_factory.mktemp("meshes"), monkeypatch):
            (path / "spec.yaml").write_text(WIDE)
            (path / "train.py").write_text(RIGHT)
            words = ("--over", "mesh", "--keep", "tensor=1|4", "--keep", "fsdp=2|8")
            result = search(*words, "--format", "json", "--patch", "lines.diff")
            yield Searched(json.loads(result.stdout), result.stderr, path)


def test_meshes_are_tried_with_the_code_and_the_best_is_in_the_patch(
    on_meshes: Searched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = on_meshes.data
    jsonschema.Draft7Validator(schema()).validate(data)
    assert (data["best"], data["answers"], data["meshes_late"]) == (None, [], 0)
    rows = data["meshes"]
    assert [row["sizes"] for row in rows] == [
        {"fsdp": 8, "tensor": 1},
        {"fsdp": 2, "tensor": 4},
    ]
    assert data["mesh"] == 0
    assert rows[1]["step_s"] <= data["now"]["step_s"], "at the best of its places"
    copy = patched_copy(on_meshes, tmp_path)
    assert "# chosen by hand" in (copy / "spec.yaml").read_text()
    assert (copy / "train.py").read_text() == RIGHT
    monkeypatch.chdir(copy)
    cost = json.loads(run("cost", "--step", "train:step", "--format", "json").stdout)
    sys.modules.pop("train", None)
    assert cost["time"]["step_s"] == pytest.approx(rows[0]["step_s"], rel=1e-9)
    sent = sum(each["wire_bytes"] for each in cost["collectives"])
    assert sent == pytest.approx(rows[0]["sends"], rel=1e-9)


#: Code of theirs, and a step that gives its loss to the resolver.
THEIRS, _, OWN = TRAIN.partition("def train(params")
CALLS = (
    "from functools import partial\n\nimport jax\nimport jax.numpy as jnp\nimport their_model\n\n\n"
    + f"def train(loss, params{OWN}".replace(
        "jax.jit(train, ", "jax.jit(partial(train, resolver.constrained(their_model.loss)), "
    )
)


def test_a_line_of_other_peoples_code_is_an_entry_of_the_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    theirs.mkdir()
    mine.mkdir()
    (theirs / "their_model.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(theirs)
    for _ in _folder(mine, monkeypatch):
        (mine / "train.py").write_text(CALLS)
        result = search("--format", "json", "--write", "--patch", "lines.diff", "--within", "40")
        data = json.loads(result.stdout)
        best = data["answers"][data["best"]]
        (line,) = best["lines"]
        assert line["file"].endswith("theirs/their_model.py")
        assert best["sends"] * 2 <= data["now"]["sends"]
        assert 'at: "theirs/their_model.py:layer line ' in (mine / "spec.yaml").read_text()
        assert (mine / "train.py").read_text() == CALLS
        assert (theirs / "their_model.py").read_text() == THEIRS
        assert "lines.diff is not written: the spec has it all" in result.stderr
        for name in ("train", "their_model"):
            sys.modules.pop(name, None)
        cost = json.loads(run("cost", "--step", "train:step", "--format", "json").stdout)
        assert cost["time"]["step_s"] == pytest.approx(best["step_s"], rel=1e-9)
        sent = sum(each["wire_bytes"] for each in cost["collectives"])
        assert sent == pytest.approx(best["sends"], rel=1e-9)


def test_the_order_of_chips_is_written_where_that_is_asked_for(folder: Path) -> None:
    wide = WIDE.replace("2x4", "4x8").replace("fsdp: 2, tensor: 4", "fsdp: 8, tensor: 4")
    (folder / "spec.yaml").write_text(wide)
    shown = search("--over", "order", "--diff")
    assert "lines" not in shown.stdout.partition("\n")[0]
    assert "take fsdp=8 tensor=4 order=ring: " in shown.stdout
    assert "+policy: {order: ring}" in shown.stdout
    assert (folder / "spec.yaml").read_text() == wide
    sys.modules.pop("train", None)
    written = search("--over", "order", "--write")
    assert "spec.yaml gets fsdp=8 tensor=4 order=ring: " in written.stdout
    assert "spec.yaml: wrote fsdp=8 tensor=4 order=ring" in written.stderr
    assert (folder / "spec.yaml").read_text() == f"{wide}policy: {{order: ring}}\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--over", "remat=full"), "--over remat=full needs a `step:` in the spec"),
        (("--over", "mesh,constraints,gather"), "--over gather needs a `step:` in the spec"),
        (("--keep", "fsdp=8"), "--keep is for a search over meshes"),
        (("--over", "mesh", "--confirm", "2"), "--confirm is for a search by the"),
        (("--over", "mesh", "--keep", "tensor=8"), "--keep tensor: no mesh axis"),
        (("--over", "arguments,mesh", "--hardware", "tpu v9"), "machine `tpu v9`"),
    ],
)
def test_what_code_alone_does_not_say_is_refused(
    folder: Path, words: tuple[str, ...], told: str
) -> None:
    result = search(*words, code=2)
    assert told in result.stderr
    assert "Traceback" not in result.output


def test_arguments_are_of_code(folder: Path) -> None:
    result = run("search", "--over", "arguments", code=2)
    assert "--over arguments needs code to trace" in result.stderr


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("train:broken", "ValueError: no data here"),
        ("train:breaks", "NameError"),
        ("train:nothing", "nothing"),
        ("missing:step", "missing"),
    ],
)
def test_code_that_raises_is_a_finding(folder: Path, step: str, told: str) -> None:
    result = search(step=step, code=2)
    assert told in result.stderr
    assert "error[" in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_a_spec_with_errors_is_not_searched(folder: Path) -> None:
    (folder / "spec.yaml").write_text(SPEC.replace("embed -> fsdp", "embed -> fdsp"))
    result = search(code=1)
    assert "nothing is searched: spec.yaml has errors" in result.stderr
    assert "importing" not in result.stderr, "no code runs"


def init(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["init", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_init_goes_from_a_step_to_a_spec_and_its_lines(folder: Path) -> None:
    (folder / "spec.yaml").unlink()
    asked = ["--hardware", "tpu v5e 2x4", "--step", "train:step"]
    done = init(*asked, "--patch", "lines.diff", "--no-compile")
    assert "wrote spec.yaml; now the lines that the code lacks are searched for" in done.stderr
    assert done.exit_code == 0, done.output
    assert "add 1 line" in done.output
    spec = (folder / "spec.yaml").read_text()
    assert "hardware: tpu v5e 2x4" in spec
    assert "embed mlp" in spec
    assert "optimizer" not in spec.partition("# `--step` reads the step")[0]
    subprocess.run(["git", "apply", "lines.diff"], cwd=folder, check=True)
    assert "shardspec.constrain(" in (folder / "train.py").read_text()
    again = init(*asked)
    assert again.exit_code == 2
    assert "already exists" in again.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--step", "train:step"], "--step without --hardware"),
        (["--step", "train:step", "--hardware", "tpu v5e 2x4", "-o", "-"], "needs a file"),
        (["--step", "train:lone", "--hardware", "tpu v5e 2x4"], "given no tree of parameters"),
        (["--step", "train:broken", "--hardware", "tpu v5e 2x4"], "no data here"),
    ],
)
def test_init_says_why_a_step_gives_no_spec(folder: Path, options: list[str], message: str) -> None:
    (folder / "spec.yaml").unlink()
    done = init(*options)
    assert done.exit_code == 2
    assert message in done.output
    assert not (folder / "spec.yaml").exists()


@pytest.mark.parametrize("option", ["--pareto", "--keep=fsdp=8", "--confirm=1", "--by=memory"])
def test_options_of_a_search_over_meshes_are_refused(folder: Path, option: str) -> None:
    done = search(option, code=2)
    assert f"{option.partition('=')[0]} is for a search " in done.output


@pytest.mark.parametrize("option", ["--patch=lines.diff", "--within=3", "--no-compile"])
def test_options_of_a_search_over_code_are_refused_without(folder: Path, option: str) -> None:
    done = run("search", option, code=2)
    assert f"{option.partition('=')[0]} is for a search over code" in done.output


#: A step that is given its cache as one array, and no tree with names.
BARE = """\
import jax
import jax.numpy as jnp


def decode(params, latents, ids):
    x = params["embed"]["embedding"][ids]

    def layer(x, each):
        w, seen = each
        seen = seen.at[0].set(x[:16])
        return jax.nn.relu(x @ w) + jnp.einsum("be,pse->be", x, seen), seen

    x, latents = jax.lax.scan(layer, x, (params["layers"]["up"]["kernel"], latents))
    return x @ params["embed"]["embedding"].T, latents


def step(resolver):
    shape = jax.ShapeDtypeStruct
    params = {"embed": {"embedding": shape((8192, 1024), jnp.bfloat16)}}
    params["layers"] = {"up": {"kernel": shape((4, 1024, 1024), jnp.bfloat16)}}
    latents = shape((4, 512, 16, 1024), jnp.bfloat16)
    return jax.jit(decode, donate_argnums=1), (params, latents, shape((64,), jnp.int32))
"""


def test_a_cache_that_is_an_argument_is_called_as_that(folder: Path) -> None:
    """init lists it, `caches:` places it, and where neither is said, search proposes an entry."""
    (folder / "decoding.py").write_text(BARE)
    sys.modules.pop("decoding", None)
    done = init(
        "--hardware", "tpu v5e 2x4", "--step", "decoding:step", "-o", "new.yaml", "--dry-run"
    )
    assert "latents: bf16[layers" in done.stdout, done.output
    spec = (
        "shardspec: 1\nhardware: tpu v5e 2x4\nmesh: {data: 2, tensor: 4}\n"
        "axes: {batch: 64, pages: 512}\nrules: ['batch, pages -> data', 'vocab -> tensor',"
        " 'embed, out, layers -> none']\n"
        "params: {embed/embedding: vocab embed, layers/up/kernel: layers embed out}\n"
    )
    (folder / "spec.yaml").write_text(spec)
    words = ("--over", "arguments", "--within", "60", "--format", "json")
    data = json.loads(search(*words, step="decoding:step").stdout)
    best = data["answers"][data["best"]]
    assert [each["path"] for each in best["lines"]] == ["latents"]
    assert '"optional:latents": ' in data["patch"]
    named = spec.replace("params: {", 'params: {"optional:latents": layers pages _ _, ')
    cached = f'{spec}caches: {{latents: "bf16[layers=4 pages _=16 embed=1024]"}}\n'
    for text in (named, cached):
        (folder / "spec.yaml").write_text(text)
        sys.modules.pop("decoding", None)
        found = run("check", "--step", "decoding:step", "--format", "concise")
        assert "SHD518" not in found.stdout, found.output

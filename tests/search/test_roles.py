"""A search that starts from roles: their meshes, their rules, and what is written of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result

from shardspec import assets, pipeline
from shardspec.analysis.spec_step import stated_cost
from shardspec.cli.main import cli
from shardspec.ir.spec import Spec
from shardspec.language.reading import Data
from shardspec.search.ranking import Choice, Found, Question, Wanted, asked, search
from shardspec.search.roles import ROLES, role_sets
from shardspec.search.variants import Refusal
from tests.search.specs import TEXT, spec_of

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "specs" / "examples"
#: A model whose spec knows of one mesh axis; it does not fit so.
DATA_ONLY = """\
shardspec: 1
extends: [data-parallel]
axes: {batch: 64, length: 2048, embed: 4096, mlp: 16384, heads: 32, kv: 128, vocab: 32768}
hardware: tpu v5e 4x4
mesh: {data: 16}  # all of it
rules: [classes -> none]
params:
  "**/{query,key,value}": embed heads kv
  "**/out": heads kv embed
  "**/{gate,up}": embed mlp
  "**/down": mlp embed
  "{table,logits}": vocab embed
  kinds: embed classes
arrays:
  "layers_{0..15}/{query,key,value}": f32[4096, 32, 128]
  "layers_{0..15}/out": f32[32, 128, 4096]
  "layers_{0..15}/{gate,up}": f32[4096, 16384]
  "layers_{0..15}/down": f32[16384, 4096]
  "{table,logits}": f32[32768, 4096]
  kinds: f32[4096, 16]
activations: {residual: batch length embed, hidden: batch length mlp}
state: {optimizer: same}
step: {extends: decoder, remat: full}
"""
#: Examples with a target that has speeds, one of each kind of model and of machine.
SEARCHED = {
    "gpt2": "v5e-8",
    "llama-3-8b-decode": "v5e-16",
    "mixtral-8x7b": "v6e-64",
    "vit-b-16": "node",
}


def found(spec: Spec, over: str = "roles", target: str | None = None) -> Found:
    chosen = next(each for each in spec.targets if target in (None, each.name))
    question = asked(spec, spec.params, chosen, Choice(over), Wanted())
    assert isinstance(question, Question), question
    return search(question)


def example(name: str) -> Spec:
    spec, _ = pipeline.load_path(str(EXAMPLES / f"{name}.yaml"))
    assert spec is not None
    return spec


def only(name: str, target: str) -> dict[str, Any]:
    """Return an example with one of its targets, and no phase."""
    data: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text("utf-8"))
    data.pop("phases", None)
    manifest = data.get("manifest")
    if isinstance(manifest, str) and manifest.startswith("."):
        data["manifest"] = str(EXAMPLES / manifest)
    return data | {"targets": {target: data["targets"][target]}}


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


@pytest.mark.parametrize("name", ["", *SEARCHED])
def test_rules_are_those_that_the_presets_and_lines_make(name: str) -> None:
    """Read as text, `extends` and the lines of a set are the rules that were searched."""
    spec = example(name) if name else spec_of(DATA_ONLY)
    sets = role_sets(spec, spec.targets[0].mesh, ())
    assert isinstance(sets, dict)
    assert len(sets) > 5
    for own, roles in sets.values():
        if roles.is_own:
            continue
        data: Data = {"shardspec": 1, "extends": [*roles.extends], "rules": [*roles.rules]}
        read, faults = pipeline.load_text(yaml.safe_dump(data))
        assert read is not None
        assert not [each for each in faults if each.is_error], faults
        assert own.axis_rules == read.axis_rules, str(roles)
        assert {axis for rule in own.axis_rules for axis in rule.mesh_axes} <= {*roles.mesh_axes}


@pytest.mark.parametrize(("name", "target"), SEARCHED.items())
def test_the_best_is_as_fast_as_of_the_meshes_alone(name: str, target: str) -> None:
    spec = example(name)
    meshes, roles = (found(spec, over, target) for over in ("mesh,order", "roles=data|fsdp|tensor"))
    assert {row.candidate for row in meshes.rows} <= {row.candidate for row in roles.rows}
    sides = (next(row for row in each.rows if row.fits is not False) for each in (roles, meshes))
    best, of_meshes = sides
    assert best.pace <= of_meshes.pace


@pytest.mark.parametrize("name", ["", "mixtral-8x7b"])
def test_a_row_costs_what_cost_says(name: str) -> None:
    spec = example(name) if name else spec_of(DATA_ONLY)
    over = "roles=fsdp|expert|tensor|stage" if name else "roles=data|fsdp|tensor|sequence|context"
    made = found(spec, f"{over},microbatches=1|2", "v6e-64" if name else None)
    by_roles = {row.candidate.variant.changes: row for row in made.rows}
    assert len(by_roles) > 12
    for row in by_roles.values():
        cost = stated_cost(made.plan(row))
        assert cost.time is not None
        assert row.seconds == pytest.approx(cost.time.step_seconds, rel=1e-9), str(row.candidate)
        assert row.memory == cost.memory.total, str(row.candidate)


def test_every_axis_of_a_role_is_larger_than_one() -> None:
    made = found(spec_of(DATA_ONLY))
    for row in made.rows:
        roles = row.candidate.variant.roles
        if roles is not None:
            assert min(row.candidate.mesh.sizes[axis] for axis in roles.new) > 1


def test_candidates_are_counted_by_kind() -> None:
    made = found(spec_of(DATA_ONLY))
    kinds = made.ranking.kinds
    assert sum(each.candidates for each in kinds.values()) == made.ranking.seen
    assert {"fsdp", "tensor", "fsdp+tensor+sequence", "data+fsdp"} <= set(map(str, kinds))
    assert sum(len(each.sizes) for each in kinds.values()) >= len(made.rows)


def test_one_layout_is_one_row() -> None:
    """`fsdp+tensor` on the spec's own axes, under its own rules, is that mesh again."""
    text = TEXT.replace("length -> none", "length -> none, kinds -> none")
    rows = found(spec_of(text), "roles=data|fsdp|tensor").rows
    layouts = [
        (frozenset(row.candidate.mesh.splitting(row.candidate.mesh.names)), row.seconds)
        for row in rows
    ]
    assert len(set(layouts)) == len(layouts)


def test_a_cut_search_looks_at_every_kind() -> None:
    spec = spec_of(DATA_ONLY)
    question = asked(spec, spec.params, spec.targets[0], Choice("roles", most=40), Wanted())
    assert isinstance(question, Question)
    made = search(question)
    assert made.left
    assert len(made.ranking.kinds) == 1 + len(
        {each.roles for each in question.variants if each.roles is not None}
    )


@pytest.mark.parametrize(
    ("over", "keep", "said"),
    [
        ("roles=fdsp", {}, "`roles=fdsp` is no role"),
        ("roles=expert", {}, "no array has an axis that `expert` shards"),
        ("roles", {"model": (2,)}, "--keep model: no mesh axis"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    over: str, keep: dict[str, tuple[int, ...]], said: str
) -> None:
    spec = spec_of(DATA_ONLY)
    refused = asked(spec, spec.params, spec.targets[0], Choice(over, keep), Wanted())
    assert not isinstance(refused, Question)
    assert said in refused.message
    assert refused.help


def test_an_axis_of_a_role_may_be_kept() -> None:
    spec = spec_of(DATA_ONLY)
    question = asked(spec, spec.params, spec.targets[0], Choice("roles", {"tensor": (4,)}))
    assert isinstance(question, Question)
    made = search(question)
    assert made.rows
    assert {row.candidate.mesh.sizes["tensor"] for row in made.rows} == {4}


def test_roles_join_a_mesh_of_the_spec_that_has_what_they_build_on() -> None:
    """`own+context`: the presets of added roles, and the spec's own rules for all else."""
    spec = spec_of(TEXT.replace("vocab -> tensor", "vocab -> tensor | none"))
    sets = role_sets(spec, spec.targets[0].mesh, ("context", "sequence"))
    assert isinstance(sets, dict)
    own, roles = sets["own+context"]
    assert roles.mesh_axes == ("data", "fsdp", "context", "tensor")
    assert roles.new == {"context"}
    kept = [str(rule) for rule in own.placed_rules if rule.logical_axis == "vocab"]
    assert kept == ["vocab -> tensor", "vocab -> none"]
    assert "length -> context" in map(str, own.placed_rules)
    assert "length -> none" not in map(str, own.placed_rules)


def test_a_spec_with_one_axis_learns_of_others(tmp_path: Path) -> None:
    """What it learns is in the text, in JSON, and in the file that is written."""
    path = tmp_path / "spec.yaml"
    path.write_text(DATA_ONLY)
    alone = run("search", str(path)).stdout
    assert "--over roles" in alone
    alone = run("search", str(path), "--over", "mesh").stdout
    assert "no other sizes of `data` were searched" in alone
    assert "the best of them" not in alone
    assert "--over roles" in alone
    text = run("search", str(path), "--over", "roles", "--top", "3").stdout
    assert re.search(r"searched: own axes \d+, data|searched: own axes \d+, fsdp", text)
    assert re.search(r"^    rules   extends: \[fsdp", text, re.MULTILINE)
    assert "today's does not fit" in text
    result = run(*("search", str(path), "--over", "roles", "--format", "json", "--write"))
    data = json.loads(result.stdout)
    schema = json.loads(assets.schema_path("search").read_text("utf-8"))
    jsonschema.Draft7Validator(schema).validate(data)
    assert sum(each["candidates"] for each in data["searched"]) == data["seen"]
    best = data["rows"][0]
    written, _ = pipeline.load_path(str(path))
    assert written is not None
    assert written.targets[0].mesh.sizes == best["mesh"]
    after = path.read_text()
    assert [line for line in DATA_ONLY.splitlines() if "layers_" in line] == [
        line for line in after.splitlines() if "layers_" in line
    ]
    assert "classes -> none" in after
    cost = json.loads(run("cost", str(path), "--format", "json").stdout)
    assert cost["time"]["step_s"] == pytest.approx(best["step_s"], rel=1e-9)
    assert run("check", str(path)).exit_code == 0


@pytest.mark.parametrize("form", ["yaml", "shard"])
@pytest.mark.parametrize(("name", "target"), SEARCHED.items())
def test_what_is_written_passes_check(name: str, target: str, form: str, tmp_path: Path) -> None:
    """Over the examples: what `roles` writes has no error, and is the layout that was ranked."""
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(only(name, target), sort_keys=False, width=10_000))
    if form == "shard":
        made = run("fmt", str(path), "--to", "dsl")
        path = path.with_suffix(".shard")
        path.write_text(made.stdout)
    before = errors(path)
    over = "roles=data|tensor" if name == "llama-3-8b-decode" else "roles=fsdp|tensor|sequence"
    result = run("search", str(path), "--over", over, "--format", "json", "--write")
    assert result.exit_code == 0, result.output
    best = next(row for row in json.loads(result.stdout)["rows"] if row["findings"] is not None)
    assert errors(path) <= before
    written, _ = pipeline.load_path(str(path))
    assert written is not None
    (plan,) = pipeline.compile_plans(written)
    time = stated_cost(plan).time
    assert time is not None
    assert time.step_seconds == pytest.approx(best["step_s"], rel=1e-9)


def errors(path: Path) -> set[str]:
    found = json.loads(run("check", str(path), "--format", "json").stdout)
    return {each["code"] for each in found["findings"] if each["severity"] == "error"}


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "target"), [("tiny-t5", "v5e-8"), ("vit-b-16", "v5e-8")])
def test_what_is_written_is_proved(name: str, target: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(only(name, target), sort_keys=False, width=10_000))
    over = ("--over", "roles=data|fsdp|tensor")
    found = run("search", str(path), *over, "--verify", "1", "--write")
    if "is not installed" in found.output:
        pytest.skip("needs the compilers: docs/verify.md")
    assert found.exit_code == 0, found.output
    assert "proved: it fits" in found.stdout
    result = run("verify", str(path))
    assert result.exit_code == 0, result.output


def test_other_targets_are_not_left_worse(tmp_path: Path) -> None:
    """Rules of other mesh axes would leave `two` without any: nothing is written."""
    text = TEXT.replace("fsdp", "model").replace("tensor", "other")
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    result = run("search", str(path), "--over", "roles=fsdp|tensor", "--keep", "fsdp=4", "--write")
    assert result.exit_code == 2, result.output
    assert "on target two" in result.stderr
    assert path.read_text() == text


def test_rules_of_a_role_are_written_among_those_of_the_spec(tmp_path: Path) -> None:
    """A preset would come before the spec's own rules: its rules take the place of theirs."""
    text = DATA_ONLY.replace("extends: [data-parallel]\n", "").replace(
        "rules: [classes -> none]",
        'rules: [batch -> fsdp, "vocab, length, embed -> none", "mlp, heads, kv, classes -> none"]',
    )
    path = tmp_path / "spec.yaml"
    path.write_text(text.replace("data: 16", "fsdp: 16"))
    over = ("--over", "roles=context", "--keep", "context=4")
    result = run("search", str(path), *over, "--write")
    assert "rules   length -> context @ -1\n            embed -> (fsdp, context)" in result.stdout
    assert yaml.safe_load(path.read_text())["rules"] == [
        "batch -> fsdp",
        "vocab -> none",
        "length -> context @ -1",
        "embed -> (fsdp, context) | fsdp",
        "mlp, heads, kv, classes -> none",
    ]
    assert not errors(path)


def test_roles_are_named_as_their_presets_say() -> None:
    """Each preset shards over the axis of its role."""
    for name, role in ROLES.items():
        spec, _ = pipeline.load_text(f"extends: {role.preset}\n")
        assert spec is not None, name
        assert role.mesh_axis in {axis for rule in spec.axis_rules for axis in rule.mesh_axes}


# what a table says of axes of size 1, and what else may be chosen


def test_axes_of_size_one_that_keep_others_idle_are_named(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(
        TEXT.replace("batch -> (data, fsdp)", "batch -> data | fsdp").replace(
            "rest, fsdp: 2", "1, fsdp: rest"
        )
    )
    text = run(
        "search", str(path), "--target", "slice", "--keep", "data=1", "--over", "mesh"
    ).stdout
    assert "today `data` of size 1 takes `batch` before `fsdp`" in text
    path.write_text(path.read_text().replace("data | fsdp", "fsdp | data"))
    text = run(
        "search", str(path), "--target", "slice", "--keep", "data=1", "--over", "mesh"
    ).stdout
    assert "of size 1 takes" not in text


def test_a_table_shows_the_axes_that_split_something(tmp_path: Path) -> None:
    """Twelve axes, as MaxText has them: a row names those that are above 1 in some row."""
    names = ("stage", "fsdp_transpose", "sequence", "context", "autoregressive", "expert", "x", "y")
    others = ", ".join(f"{name}: 1" for name in names)
    path = tmp_path / "spec.yaml"
    path.write_text(TEXT.replace("mesh: {data: rest,", f"mesh: {{{others}, data: rest,"))
    keep = [word for name in names for word in ("--keep", f"{name}=1")]
    text = run("search", str(path), "--target", "slice", *keep, "--top", "4").stdout
    rows = re.findall(r"^ +(?:\d+=?|now) +(\S+=.*?)  ", text, re.MULTILINE)
    assert len(rows) == 5
    assert not any(f"{name}=" in row for name in names for row in rows)
    assert "of size 1 in all rows: `stage`, `fsdp_transpose`" in text


def test_batches_are_ranked_by_tokens_a_second() -> None:
    rows = found(spec_of(), "mesh,batch=32|128").rows
    assert {dict(row.candidate.variant.changes).get("batch") for row in rows} == {None, "32", "128"}
    fitting = [row.tokens_per_s for row in rows if row.fits is not False]
    assert fitting == sorted(fitting, key=lambda rate: -(rate or 0))
    seconds = [row.seconds for row in rows if row.fits is not False]
    assert seconds != sorted(seconds)


def test_a_batch_is_written_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(TEXT)
    keep = ("--keep", "data", "--keep", "fsdp", "--keep", "tensor")
    result = run(
        "search", str(path), "--target", "slice", "--over", "mesh,batch=512", *keep, "--write"
    )
    assert result.exit_code == 0, result.output
    written, _ = pipeline.load_path(str(path))
    assert written is not None
    assert next(axis.size for axis in written.logical_axes if axis.name == "batch") == 512
    assert re.findall(r"#.*", path.read_text()) == re.findall(r"#.*", TEXT)


def test_wider_products_take_longer() -> None:
    rows = found(spec_of(), "mesh,dtype=f32").rows
    times = {(str(row.candidate.mesh), str(row.candidate.variant)): row.seconds for row in rows}
    pairs = [(times[mesh, ""], times[mesh, "dtype=f32"]) for mesh, word in times if not word]
    assert pairs
    assert all(plain < wide for plain, wide in pairs)


def test_orders_of_axes_are_placements_of_the_same_mesh() -> None:
    spec = spec_of()
    plain, ordered = found(spec, "mesh"), found(spec, "mesh,axes")
    assert ordered.ranking.seen > plain.ranking.seen
    assert len(ordered.rows) == len(plain.rows)
    assert ordered.rows[0].seconds <= plain.rows[0].seconds


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ("batch=0", "`batch=0` is no number of sequences"),
        ("dtype=f99", "`dtype=f99` is no dtype"),
        ("axes=a", "`axes` takes no values"),
    ],
)
def test_words_that_cannot_be_read_are_refused(over: str, said: str) -> None:
    spec = spec_of()
    refused = asked(spec, spec.params, spec.targets[0], Choice(over), Wanted())
    assert not isinstance(refused, Question)
    assert said in refused.message


@pytest.mark.parametrize("machine", ["tpu v9 4x4", "tpu v5e 3x3", "(1, 2) * tpu v5e 4x4", "8 of"])
def test_a_machine_that_cannot_be_is_refused_by_its_name(machine: str) -> None:
    spec = spec_of()
    refused = asked(spec, spec.params, spec.targets[0], Choice(machines=(machine,)), Wanted())
    assert isinstance(refused, Refusal)
    assert refused.message.startswith(f"machine `{machine}`: ")
    assert machine not in refused.help

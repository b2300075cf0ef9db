"""What `--write` puts into a spec is the layout that was found, and nothing else changes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from shardspec import pipeline
from shardspec.diagnostics import SourceFile
from shardspec.ir.spec import Spec
from shardspec.language.formatting import formatted
from shardspec.search.ranking import Choice, Question, asked, search
from shardspec.search.rewriting import _placed, differs, rewritten
from shardspec.search.variants import Candidate, Refusal, Variant, variants
from tests.search.specs import TEXT, question


def _dsl(text: str = TEXT) -> str:
    made, faults = formatted(SourceFile("spec.yaml", text), "dsl")
    assert made is not None, faults
    return made


def _loaded(text: str, name: str) -> Spec:
    spec, faults = pipeline.load_text(text, name)
    assert spec is not None, faults
    return spec


@pytest.mark.parametrize(
    ("text", "name"),
    [
        pytest.param(TEXT, "spec.yaml", id="yaml"),
        pytest.param(_dsl(), "spec.shard", id="dsl"),
        pytest.param(f"{TEXT}\n# at the end:\n# of a draft\n", "spec.yaml", id="comments behind"),
    ],
)
def test_the_text_has_the_mesh_that_was_found_and_the_rest_as_it_was(text: str, name: str) -> None:
    spec = _loaded(text, name)
    for row in search(question(spec)).rows:
        made = rewritten(spec, spec.targets[0], row.candidate)
        assert not isinstance(made, Refusal), made
        again = _loaded(made, name)
        assert again.targets[0].mesh.sizes == row.candidate.mesh.sizes
        if row.candidate.mesh.axes[0].submesh is None:
            assert made.count("rest") == text.count("rest"), "what takes the rest goes on to"
        assert again.policy.order == row.candidate.order
        assert again.targets[0].hardware == row.candidate.hardware
        assert again.targets[1:] == spec.targets[1:]
        assert (again.axis_rules, again.params) == (spec.axis_rules, spec.params)
        assert re.findall(r"#.*", made) == re.findall(r"#.*", text)


#: One target for each of three counts of slices, which share a mesh.
FAMILY = TEXT.replace("hardware: tpu v5e 4x4", 'hardware: "{1,2,4} * tpu v5e 4x4"')


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("form", ["yaml", "dsl"])
def test_counts_of_slices_that_share_a_mesh_keep_what_takes_the_rest(count: int, form: str) -> None:
    name = f"spec.{form}" if form == "yaml" else "spec.shard"
    text = FAMILY if form == "yaml" else _dsl(FAMILY)
    spec = _loaded(text, name)
    at = next(i for i, each in enumerate(spec.targets) if each.name == f"slice[{count}]")
    rows = search(question(spec, target=at)).rows
    sizes = set()
    for row in rows:
        made = rewritten(spec, spec.targets[at], row.candidate)
        assert not isinstance(made, Refusal), made
        again = _loaded(made, name)
        assert [each.name for each in again.targets] == [each.name for each in spec.targets]
        assert differs(again, again.targets[at], row.candidate) is None
        if row.candidate.mesh.axes[0].submesh is None:
            assert made.count("rest") == text.count("rest")
        sizes.add(tuple(again.targets[at].mesh.sizes.values()))
    assert len(sizes) == len(rows) > 5


def test_a_mesh_of_other_axes_keeps_the_rest_of_several_counts_of_slices() -> None:
    spec = _loaded(FAMILY, "spec.yaml")
    asks = asked(spec, spec.params, spec.targets[1], Choice("roles=context"))
    assert isinstance(asks, Question), asks
    others = [row for row in search(asks).rows if "context" in row.candidate.mesh.names]
    made = rewritten(spec, spec.targets[1], others[0].candidate)
    assert not isinstance(made, Refusal), made
    written = _loaded(made, "spec.yaml").targets
    assert [each.name for each in written] == [each.name for each in spec.targets]
    assert written[1].mesh.sizes == others[0].candidate.mesh.sizes
    assert made.count("rest") == FAMILY.count("rest")


def test_another_machine_is_not_written_for_one_of_several_counts_of_slices() -> None:
    spec = _loaded(FAMILY, "spec.yaml")
    today = spec.targets[0]
    other = replace(today, hardware=spec.targets[-1].hardware)
    refused = rewritten(spec, today, Candidate(other, "t5x", Variant(spec)))
    assert isinstance(refused, Refusal)
    assert "`slice[1]` shares its machine" in refused.message


#: The same spec with its sections in braces, in blocks, with comments, or without some keys.
FORMS = {
    "blocks": TEXT.replace("state: {optimizer: same}", "state:\n  # of Adam\n  optimizer: same"),
    "braces": TEXT.replace(
        "step:\n  remat: full  # of each layer\n  program:", "step:\n  program:"
    ),
    "policy": f"{TEXT}policy: {{indivisible: error, order: t5x}}\n",
    "policy in a block": f"{TEXT}policy:\n    order: t5x  # as T5X\n    indivisible: error\n",
    "no end": TEXT.rstrip("\n"),
    "line ends": TEXT.replace("\n", "\r\n"),
    "documented": TEXT.replace("batch: 64", "batch: {size: 64, doc: sequences}"),
}
OVER = {
    "state": ("zero1", "zero2"),
    "remat": ("none", "dots"),
    "microbatches": ("2", "4"),
    "gather": ("step",),
    "reduce": ("step",),
    "dtype": ("f32",),
    "batch": ("128",),
    "rule": ("mlp", "embed"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("word", OVER)
def test_what_is_written_is_read_again_as_what_was_found(form: str, word: str) -> None:
    spec = _loaded(FORMS[form], "spec.yaml")
    today = spec.targets[0]
    made = variants(spec, {word: OVER[word]})
    assert not isinstance(made, Refusal)
    for each in made:
        for order in ("t5x", "ring"):
            found = Candidate(today, order, each)  # type: ignore[arg-type]
            text = rewritten(spec, today, found)
            assert not isinstance(text, Refusal), text
            again = _loaded(text, "spec.yaml")
            assert differs(again, again.targets[0], found) is None
            assert again.logical_axes == each.spec.logical_axes
            assert [line for line in text.splitlines() if "# the model of" in line]
            assert ("\r\n" in text) == (form == "line ends")


def test_a_mesh_that_another_file_states_is_left_alone(tmp_path: Path) -> None:
    head, _, rest = TEXT.partition("targets:")
    targets, _, rest = rest.partition("rules:")
    (tmp_path / "base.yaml").write_text(f"shardspec: 1\ntargets:{targets}", encoding="utf-8")
    path = tmp_path / "spec.yaml"
    path.write_text(f"{head}extends: ./base.yaml\nrules:{rest}", encoding="utf-8")
    spec, faults = pipeline.load_path(str(path))
    assert spec is not None, faults
    others = [row for row in search(question(spec)).rows if row.candidate.target != spec.targets[0]]
    refused = rewritten(spec, spec.targets[0], others[0].candidate)
    assert isinstance(refused, Refusal)
    assert "base.yaml" in refused.message
    assert "--write leaves alone" in refused.message


def test_a_new_section_stands_behind_those_that_belong_above_it() -> None:
    data = {"shardspec": 1, "axes": {}, "params": {}, "mesh": {}, "arrays": {}}
    found = _placed(data, "rules", ["a -> b"], ("shardspec", "axes", "mesh"))
    assert list(found) == ["shardspec", "axes", "params", "mesh", "rules", "arrays"]
    assert list(_placed(data, "rules", ["a -> b"], ())) == ["rules", *data]
    assert list(_placed(found, "rules", [], ("mesh",))) == [*data]
    assert list(_placed(found, "rules", ["c -> d"], ())) == [*found]


@pytest.mark.parametrize(
    "mesh",
    [
        "mesh:\n  data: rest\n  model: 4  # from run.gin:4\n",
        "mesh: {data: 4, model: 4}  # from run.gin:4: T5X's own choice\n",
    ],
)
def test_what_is_changed_is_no_longer_from_where_an_import_had_it(mesh: str) -> None:
    text = f"""\
shardspec: 1
hardware: tpu v5e 4x4  # ours
{mesh}rules: [mlp -> model]
policy: {{indivisible: keep, order: t5x}}  # as T5X does
"""
    spec = _loaded(text, "spec.yaml")
    today = spec.targets[0]
    axes = tuple(replace(axis, size=2 if axis.name == "model" else 8) for axis in today.mesh.axes)
    found = Candidate(replace(today, mesh=replace(today.mesh, axes=axes)), "ring", Variant(spec))
    made = rewritten(spec, today, found)
    assert isinstance(made, str), made
    assert "run.gin" not in made
    assert "as T5X does" not in made
    assert "# ours" in made
    assert "order: ring" in made

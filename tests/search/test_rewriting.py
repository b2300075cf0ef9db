"""What `--write` puts into a spec is the layout that was found, and nothing else changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardspec import pipeline
from shardspec.diagnostics import SourceFile
from shardspec.ir.spec import Spec
from shardspec.language.formatting import formatted
from shardspec.search.rewriting import rewritten
from shardspec.search.searching import search
from shardspec.search.variants import Refusal
from tests.search.specs import TEXT, question


def _dsl() -> str:
    text, faults = formatted(SourceFile("spec.yaml", TEXT), "dsl")
    assert text is not None, faults
    return text


def _loaded(text: str, name: str) -> Spec:
    spec, faults = pipeline.load_text(text, name)
    assert spec is not None, faults
    return spec


@pytest.mark.parametrize(("text", "name"), [(TEXT, "spec.yaml"), (_dsl(), "spec.shard")])
def test_the_text_has_the_mesh_that_was_found_and_the_rest_as_it_was(text: str, name: str) -> None:
    spec = _loaded(text, name)
    for row in search(question(spec)).rows:
        made = rewritten(spec, spec.targets[0], row.candidate)
        assert not isinstance(made, Refusal), made
        again = _loaded(made, name)
        assert again.targets[0].mesh.sizes == row.candidate.mesh.sizes
        assert again.policy.order == row.candidate.order
        assert again.targets[0].hardware == row.candidate.hardware
        assert again.targets[1:] == spec.targets[1:]
        assert (again.axis_rules, again.params) == (spec.axis_rules, spec.params)
        for comment in re.findall(r"#.*", text):
            assert comment in made


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

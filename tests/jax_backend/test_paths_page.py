"""`docs/paths.md`: its table is made from the five models, and its spec serves them all."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import pytest

import shardspec
from shardspec.jax_backend.trees import params_of
from tests.jax_backend.same_model import MODELS

PAGE = Path(__file__).parents[2] / "docs" / "paths.md"
_TABLE = re.compile(r"(?<=\n)\| Linen \|.*?\n(?=\n)", re.DOTALL)
_SPEC = re.compile(r"^```yaml\n(params:.*?)^```$", re.DOTALL | re.MULTILINE)

#: The other frameworks' words for what a row is about.
_SAME = {"embeddings": "embedding", "weight": "kernel", "w": "kernel", "b": "bias"}
_HEAD = """\
shardspec: 1
mesh: {data: 2, model: 4}
rules:
  - vocab, mlp -> model
  - embed -> data
"""


def role(path: str) -> str:
    """Return what an array is for, in words that the frameworks share."""
    head, _, last = path.replace("layers_", "layers/").rpartition("/")
    if head.endswith("norm"):
        return f"{head}/{'bias' if last in ('bias', 'offset') else 'scale'}"
    return "embed" if path.startswith("embed") else f"{head}/{_SAME.get(last, last)}"


def paths_by_role(framework: str) -> dict[str, str]:
    return {role(param.path): param.path for param in params_of(MODELS[framework]())}


def table() -> str:
    """Return the table with the arrays of the first layer; the second adds only a number."""
    columns = {framework: paths_by_role(framework) for framework in MODELS}
    roles = [each for each in columns["dict"] if "layers/1" not in each]
    rows = [[f"`{columns[framework][each]}`" for framework in MODELS] for each in roles]
    lines = [list(MODELS), ["---"] * len(MODELS), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace(" --- ", "---")


def test_the_table_is_made_from_the_models(pytestconfig: pytest.Config) -> None:
    text = PAGE.read_text(encoding="utf-8")
    real = _TABLE.sub(lambda _: table(), text)
    if pytestconfig.getoption("--update-cases"):
        PAGE.write_text(real, encoding="utf-8")
    else:
        assert text == real


def test_the_models_have_the_same_arrays() -> None:
    roles = {framework: set(paths_by_role(framework)) for framework in MODELS}
    assert len(roles["dict"]) == 13
    assert all(found == roles["dict"] for found in roles.values())


def test_the_spec_of_the_page_serves_them_all() -> None:
    block = _SPEC.search(PAGE.read_text(encoding="utf-8"))
    assert block is not None
    spec = shardspec.loads(f"{_HEAD}{block[1]}lints: {{unmatched-pattern: allow}}\n")
    answers = {}
    for framework, make in MODELS.items():
        plan = spec.compile(make())
        answers[framework] = {
            role(path): sorted(dim.mesh_axes for dim in plan[path].dims) for path in plan
        }
        jax.block_until_ready(jax.tree.leaves(shardspec.Resolver(spec).put(make())))
    assert all(found == answers["dict"] for found in answers.values())
    assert answers["dict"]["layers/0/wi/kernel"] == [("data",), ("model",)]


def test_the_loop_of_the_page_prints_every_array(capsys: pytest.CaptureFixture[str]) -> None:
    block = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert block is not None
    levels = "lints: {unnamed-array: allow}\n"
    resolver = shardspec.Resolver(shardspec.loads(_HEAD + levels))
    exec(block[1], {"resolver": resolver, "model": MODELS["dict"]()})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 13
    assert printed[0] == "embed f32[32, 8] P(None, None)"

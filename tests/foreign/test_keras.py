"""Keras's LayoutMap: entry by entry, both readings of its keys, and that the spec says the same."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardspec.diagnostics import SourceFile
from shardspec.foreign import keras
from shardspec.foreign.formats import NoAnswer, Options
from shardspec.ir.spec import Mesh, MeshAxis, Param, PartitionSpec
from tests.foreign.proofs import proof, spec_of
from tests.foreign.test_regex import array_paths, patterns

MESH = (("batch", "2"), ("model", "4"))
LAYOUT = """
import keras
class Backbone:
    @staticmethod
    def get_layout_map(device_mesh, model_dim="model", data_dim="batch"):
        layout_map = keras.distribution.LayoutMap(device_mesh)
        layout_map["token_embedding/embeddings"] = (model_dim, data_dim)
        layout_map["decoder_block.*(query|key|value)/kernel"] = (model_dim, data_dim, None)
        layout_map["decoder_block.*ffw_linear/kernel"] = TensorLayout([model_dim, None])
        return layout_map
"""
dims = st.sampled_from(([], [None], ["batch"], [None, "model"], ["batch", "model"]))
maps = st.dictionaries(patterns | array_paths.map("/".join), dims, min_size=1, max_size=5)
arrays = st.lists(
    st.tuples(array_paths.map("/".join), st.sampled_from(((), (1,), (8,), (8, 16)))),
    max_size=6,
    unique_by=lambda each: each[0],
).map(lambda found: tuple(Param(path, shape) for path, shape in found))
matches = st.sampled_from(("search", "fullmatch"))


def read(text: str, file: str = "layout.py", **options: Any) -> Any:
    return keras.read([SourceFile(file, text)], Options(**options))


def test_layout_of_a_backbone() -> None:
    text, _ = spec_of(keras, SourceFile("layout.py", LAYOUT), Options(match="search", mesh=MESH))
    assert (
        "  - match: .*token_embedding/embeddings.*  # from layout.py:7\n    spec: (model, batch)\n"
        "  - match: .*decoder_block.*(query|key|value)/kernel.*  # from layout.py:8\n"
        "    spec: (model, batch, none)\n"
        "  - match: .*decoder_block.*ffw_linear/kernel.*  # from layout.py:9\n"
        "    spec: (model, none)\n"
    ) in text


@given(maps, arrays, matches)
@example({".*": [None, "model"], "c_2": []}, (Param("c_2", (8, 16)),), "search")
def test_the_spec_lays_out_all_as_keras_does(entries: Any, params: Any, match: str) -> None:
    options = Options(match=match, mesh=MESH, params=params)
    found = proof(keras, SourceFile("k.json", json.dumps(entries)), params, options)
    assert [each for each in found if not isinstance(each.theirs, NoAnswer)] == []


@given(maps, arrays, matches)
def test_answer_is_that_of_get_item(entries: Any, params: Any, match: str) -> None:
    imported, _ = read(json.dumps(entries), "k.json", match=match)
    mesh = Mesh((MeshAxis("batch", 2), MeshAxis("model", 4)))
    answers = keras.answer(imported.reading, params, mesh)
    for param, answer in zip(params, answers, strict=True):
        text = "refused" if isinstance(answer, NoAnswer) else str(answer)
        assert text == get_item(entries, param, match)


def get_item(entries: Any, param: Param, match: str) -> str:
    """Return what `LayoutMap.__getitem__` finds, at full rank."""
    found = [key for key in entries if getattr(re, match)(key, param.path)]
    found = [param.path] if param.path in entries else found
    axes = entries[found[0]] if found else []
    if len(found) > 1 or len(axes) > param.rank:
        return "refused"
    full = [*axes, *([None] * (param.rank - len(axes)))]
    return str(PartitionSpec(tuple((axis,) if axis else () for axis in full)))


def test_a_key_that_is_the_path_beats_regexes() -> None:
    text = json.dumps({"a/.*": ["batch"], "a/k": ["model"]})
    imported, _ = read(text, "k.json", match="fullmatch")
    assert [each["match"] for each in imported.data["overrides"]] == ["a/k", "a/.*", "a/k"]


def test_several_matches_are_a_finding() -> None:
    text = json.dumps({"a/.*": ["batch"], ".*/k": ["model"]})
    _, faults = read(text, "k.json", match="fullmatch", params=(Param("a/k", (8,)),))
    assert faults[0].code.id == "SHD601"
    assert faults[0].message.startswith("`a/.*` and `.*/k` match the same variables")


def test_which_keras_is_asked() -> None:
    imported, faults = read(LAYOUT)
    assert imported is None
    assert faults[0].code.id == "SHD604"
    params = (Param("token_embedding/embeddings", (8, 8)),)
    imported, _ = read(LAYOUT, params=params)
    assert imported is not None, "the readings agree on these variables"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("m = LayoutMap(d)\nm['a'] = ('x',)\nm['a'] = ('y',)", "`a` is given twice"),
        ("m = LayoutMap(d)\nm['a'] = (('x', 'y'), None)", "P(('x', 'y'), None): Keras takes"),
        ("m = LayoutMap(d)", "`layout.py` has no LayoutMap"),
    ],
)
def test_what_keras_refuses(text: str, start: str) -> None:
    imported, faults = read(text, match="search")
    assert imported is None
    assert faults[0].message.startswith(start)


def test_entries_that_depend_on_what_runs() -> None:
    text = "m = LayoutMap(d)\nm['a'] = ('x',)\nif big:\n    m['b'] = ('y',)\n"
    imported, faults = read(text, match="fullmatch")
    assert [each["match"] for each in imported.data["overrides"]] == ["a"]
    assert faults[0].message == "`b` is left out: it depends on what runs"

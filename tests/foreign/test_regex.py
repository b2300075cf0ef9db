"""Lists of (regex, PartitionSpec): how they are found and read, and that the spec says the same."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.foreign import regex
from shardspec.foreign.formats import Imported, NoAnswer, NotRead, Options
from shardspec.ir.spec import Mesh, MeshAxis, Param, PartitionSpec
from tests.foreign.proofs import proof, spec_of

MESH = (("data", "2"), ("tensor", "4"))
EASYLM = """
from jax.sharding import PartitionSpec as PS
class Config:
    @staticmethod
    def get_partition_rules():
        return (
            ("transformer/wte/embedding", PS("tensor", "data")),
            ("attention/(wq|wk|wv)/kernel", PS("data", "tensor")),
            ("attention_norm/kernel", PS(None)),
            ("lm_head/kernel", PS("data", "tensor")),
            (".*", PS(None)),
        )
"""
patterns = st.sampled_from(
    ("k", "^a/", "b$", "a/k", ".*", "a|b", ".*/k", "(a|b)/k", "a/[^/]*", "^a/k$", "b/.*k", "a.*b")
)
dims = st.sampled_from(
    ([], [None], ["data"], [None, "tensor"], ["data", "tensor"], [["data", "tensor"], None])
)
lists = st.lists(st.tuples(patterns, dims), min_size=1, max_size=6)
array_paths = st.lists(st.sampled_from(("a", "b", "k", "c_1", "c_2")), min_size=1, max_size=3)
arrays = st.lists(
    st.tuples(array_paths.map("/".join), st.sampled_from(((), (1,), (8,), (8, 16), (8, 8, 8)))),
    max_size=8,
    unique_by=lambda each: each[0],
).map(lambda found: tuple(Param(path, shape) for path, shape in found))


def read(text: str, file: str = "rules.py", **options: Any) -> Any:
    return regex.read([SourceFile(file, text)], Options(**options))


def overrides(found: tuple[Imported | None, tuple[Diagnostic, ...]]) -> Any:
    assert found[0] is not None, found[1]
    return found[0].data.get("overrides")


def test_easylm() -> None:
    text, _ = spec_of(regex, SourceFile("rules.py", EASYLM), Options(match="search", mesh=MESH))
    assert (
        "  - match: .*attention/(wq|wk|wv)/kernel.*  # from rules.py:8\n"
        "    spec: (data, tensor)\n" in text
    )
    assert "match: .*\n" not in text, "what is whole without an entry needs none"


@given(lists, arrays, st.sampled_from(("search", "fullmatch")))
def test_the_spec_lays_out_all_as_the_list_does(entries: Any, params: Any, match: str) -> None:
    options = Options(match=match, mesh=MESH, params=params)
    found = proof(regex, SourceFile("r.json", json.dumps(entries)), params, options)
    assert [each for each in found if not isinstance(each.theirs, NoAnswer)] == []


@given(lists, arrays, st.sampled_from(("search", "fullmatch")), st.booleans())
def test_answer_is_the_first_match(entries: Any, params: Any, match: str, strict: bool) -> None:
    imported, _ = read(json.dumps(entries), "r.json", match=match, strict=strict)
    mesh = Mesh((MeshAxis("data", 2), MeshAxis("tensor", 4)))
    answers = regex.answer(imported.reading, params, mesh)
    for param, answer in zip(params, answers, strict=True):
        assert answer_text(answer) == first_match(entries, param, match, strict)


def answer_text(answer: Any) -> str:
    return "refused" if isinstance(answer, NoAnswer) else str(answer)


def first_match(entries: Any, param: Param, match: str, strict: bool) -> str:
    """Return what scalax (search) or big_vision's conventions (fullmatch) make of it."""
    whole = str(PartitionSpec(((),) * param.rank))
    if match == "search" and param.element_count == 1:
        return whole
    for pattern, given_dims in entries:
        if getattr(re, match)(pattern, param.path):
            if len(given_dims) > param.rank:
                return "refused"
            full = [*given_dims, *([None] * (param.rank - len(given_dims)))]
            split = [[axis] if isinstance(axis, str) else axis or [] for axis in full]
            return str(PartitionSpec(tuple(map(tuple, split))))
    return "refused" if strict else whole


def test_ranks_are_split_where_arrays_are_given() -> None:
    params = tuple(
        Param(path, shape)
        for path, shape in (
            *((f"a/{layer}/k", (8, 8)) for layer in range(4)),
            *((f"a/{layer}/kernel_3d", (8, 8, 8)) for layer in range(4)),
            ("a/k_step", ()),
        )
    )
    found = read("R = [('k', P('data'))]", match="search", params=params)
    assert overrides(found) == [
        {"path": "a/{0..3}/kernel_3d", "spec": "(data, none, none)"},
        {"path": "a/k_step", "spec": "()"},
        {"match": ".*k.*", "spec": "(data, none)"},
    ]
    assert found[1] == ()


def test_without_arrays_the_rank_is_a_finding() -> None:
    imported, faults = read("R = [('a/.*', P('data'))]", match="fullmatch")
    assert overrides((imported, faults)) == [{"match": "a/.*", "spec": "(data)"}]
    assert [fault.code.id for fault in faults] == ["SHD601"]


def test_too_long_a_partition_is_a_finding() -> None:
    params = (Param("a/k", (8,)),)
    _, faults = read("R = [('a/.*', P(None, 'data'))]", match="fullmatch", params=params)
    assert faults[0].message == "P(None, 'data') is too long for 1 dimension: JAX refuses it"


@pytest.mark.parametrize("text", ["R = [('a/k', P('data'))]", "R = [('^a', P('data'))]"])
def test_how_regexes_match_is_asked_where_it_matters(text: str) -> None:
    imported, faults = read(text)
    assert imported is None
    assert [fault.code.id for fault in faults] == ["SHD604"]


def test_how_regexes_match_is_not_asked_where_it_does_not_matter() -> None:
    imported, _ = read("R = [('.*a/k.*', P('data')), ('^b.*', P())]")
    assert imported is not None
    params = (Param("a/k", (8,)), Param("c/d", (8,)))
    imported, _ = read("R = [('a/k', P('data'))]", params=params)
    assert imported is not None
    imported, faults = read("R = [('/k', P('data'))]", params=params)
    assert imported is None
    assert faults[0].code.id == "SHD604"


def test_scalax_says_itself_how_it_matches() -> None:
    imported, _ = read("rule = TreePathShardingRule(('k', P('data')), strict=False)")
    assert (imported.reading.match, imported.reading.is_strict) == ("search", False)
    imported, _ = read("rule = TreePathShardingRule(('k', P('data')))")
    assert imported.reading.is_strict


def test_dotted_paths() -> None:
    text = r"R = [('layers\.\d+\.wq', P('data', None))]"
    found = read(text, match="fullmatch", separator=".", params=(Param("layers/0/wq", (8, 8)),))
    assert overrides(found) == [{"match": r"layers/\d+/wq", "spec": "(data, none)"}]
    assert read(text, separator="--")[0] is None


def test_what_runs_code_is_left_out_and_keeps_its_place() -> None:
    text = "R = [('a/.*', P('data')), ('b/.*', spec(1)), make(), ('c/.*', P('data'))]"
    imported, faults = read(text, match="fullmatch")
    assert [each["match"] for each in overrides((imported, ()))] == ["a/.*", "c/.*"]
    assert [fault.message for fault in faults[:2]] == [
        "`b/.*` is left out: `spec(...)` is bound elsewhere",
        "`?` is left out: `make(...)` is bound elsewhere",
    ]
    mesh = Mesh((MeshAxis("data", 2),))
    params = tuple(Param(path, (8,)) for path in ("a/k", "b/k", "c/k"))
    answers = regex.answer(imported.reading, params, mesh)
    assert [isinstance(each, NotRead) for each in answers] == [False, True, True]


def test_tactics_of_big_vision_are_left_out() -> None:
    text = "R = [('.*/k', P('data')), ('.*', 'fsdp(axis=\"data\")')]"
    _, faults = read(text, match="fullmatch")
    assert "is worked out from sizes when the file runs" in faults[0].message


def test_whole_arrays_at_the_end_are_meant_to_be_whole() -> None:
    imported, _ = read("R = [('a', P('data')), ('norm', P()), ('.*', P())]", match="search")
    assert imported.data["replicate"] == [
        {"match": ".*norm.*", "because": "P() in rules.py:1"},
        {"match": ".*", "because": "P() in rules.py:1"},
    ]
    assert "lints" not in imported.data


@pytest.mark.parametrize(("strict", "lints"), [(True, None), (None, {"unnamed-array": "warn"})])
def test_what_nothing_matches_is_an_error_only_where_the_tool_says_so(
    strict: bool | None, lints: dict[str, str] | None
) -> None:
    imported, _ = read("R = [('.*a', P('data'))]", match="search", strict=strict)
    assert imported.data.get("lints") == lints


@pytest.mark.parametrize(
    ("text", "code", "start"),
    [
        ("R = [('a(', P('data'))]", "SHD603", "`a(` is no regex"),
        ("R = 1", "SHD603", "`rules.py` has no list of regexes"),
        ("R = [('a', P()), 3]", "SHD603", "`rules.py` has no list"),
        ("A = [('a', P())]\nB = [('b', P())]", "SHD604", "`rules.py` has 2 values"),
        ("R = [", "SHD603", "`rules.py` is no Python"),
    ],
)
def test_bad_files(text: str, code: str, start: str) -> None:
    imported, faults = read(text, match="search")
    assert imported is None
    assert faults[0].code.id == code
    assert faults[0].message.startswith(start)


def test_a_list_is_named() -> None:
    text = "class C:\n    A = [('a', P('x'))]\n    B = [('b', P('y'))]"
    for name in ("C.B", "B"):
        found = read(text, match="fullmatch", name=name)
        assert overrides(found) == [{"match": "b", "spec": "(y)"}]
    assert read(text, match="search", name="Z")[0] is None


BIG_VISION = """
def get_config(arg=None):
  c = bvcc.parse_arg(arg)
  c.sharding_rules = [('act_batch', ('data',))]
  c.sharding_strategy = [('.*/bias', 'replicate'), ('.*', 'fsdp(axis="data")')]
  return c
"""


def test_the_strategy_of_a_configuration_is_found_and_what_is_worked_out_is_said() -> None:
    imported, faults = read(BIG_VISION, match="fullmatch", mesh=MESH)
    assert imported is not None
    assert [each["match"] for each in imported.data["overrides"]] == [".*/bias"]
    assert [fault.code.id for fault in faults] == ["SHD601", "SHD601"]
    assert "fsdp" in faults[0].message


def test_a_strategy_that_a_condition_decides_on_is_not_taken_for_certain() -> None:
    text = BIG_VISION.replace("  c.sharding_strategy", "  if x: c.sharding_strategy")
    found, faults = read(text, match="fullmatch", mesh=MESH, name="sharding_strategy")
    assert found is None
    assert "decides whether it is set" in faults[0].message
    alone = text.replace("  c.sharding_rules = [('act_batch', ('data',))]\n", "")
    found, faults = read(alone, match="fullmatch", mesh=MESH)
    assert found is None
    assert "decides whether it is set" in faults[0].message

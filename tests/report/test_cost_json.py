"""A cost as JSON: what stands in it, its schema, and strangers' files that say they are one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import assets
from shardspec.analysis.comparison import By
from shardspec.analysis.cost import cost_of
from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.records import Field, data_of, fields_of, is_record
from shardspec.report.cost_json import CostRecord, cost_text, read_cost
from tests.report.test_cost_text import cost, plan

TEXT = cost_text(cost(), date="2026-11-22")


def read(text: str) -> dict[str, Any] | Diagnostic:
    found = read_cost(SourceFile("cost.json", text))
    return found if isinstance(found, Diagnostic) else data_of(found)


def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(assets.schema_path("cost").read_text("utf-8"))
    return found


def refused(text: str) -> str:
    found = read(text)
    assert isinstance(found, Diagnostic)
    assert (found.code.id, bool(found.help)) == ("SHD023", True)
    return found.message


def test_what_stands_in_it() -> None:
    data = json.loads(cost_text(cost()))
    assert {name: data[name] for name in ("schema", "target", "source", "mesh", "tokens")} == {
        "schema": "shardspec.cost/1",
        "target": "pod",
        "source": "code",
        "mesh": {"fsdp": 16, "tensor": 4},
        "tokens": 4_000_000,
    }
    assert data["memory"]["parameters"] == {"bytes": 2 << 20, "basis": "exact"}
    assert data["memory"]["total"] == {"bytes": 4 << 20, "basis": "floor"}
    assert data["memory"]["fits"] is True
    assert data["time"] == {
        "basis": "modelled",
        "step_s": pytest.approx(1.92),
        "compute_s": 1.61,
        "hbm_s": 0.2,
        "axes": {
            "fsdp": {"s": 0.41, "exposed_s": 0.06},
            "tensor": {"s": 0.25, "exposed_s": 0.25},
            "data": {"s": 0.0041, "exposed_s": 0},
        },
        "bound": "compute",
        "spread": 0.15,
        "scale": 1.0,
        "calibrated": None,
    }
    assert data["mfu"] == 0.514
    sent = data["collectives"]
    assert len(sent) == 13, "layers are not collapsed"
    assert sum(each["wire_bytes"] for each in sent) == 80 * 2**27 + 20 * 2**25 + 2**20 + 2**10
    assert sent[1] == {
        "kind": "all-gather",
        "mesh_axes": ["fsdp"],
        "wire_bytes": 2**26,
        "count": 2,
        "phases": ["forward"],
        "place": {"file": "model/decoder.py", "line": 80},
        "carries": "weight layers_0/mlp/wi",
        "carried": {"kind": "weight", "name": "layers_0/mlp/wi"},
        "because": [
            {
                "mesh_axis": "fsdp",
                "kind": "argument",
                "array": "layers_0/mlp/wi",
                "dim": 0,
                "constraint": None,
                "rule": {"file": "spec.yaml", "line": 4, "text": "embed -> fsdp"},
                "through": [],
            }
        ],
        "forced_by": None,
        "is_invariant": False,
        "is_written": False,
    }


def test_printed_it_holds_no_date() -> None:
    assert "date" not in json.loads(cost_text(cost()))
    assert json.loads(TEXT)["date"] == "2026-11-22"
    assert cost_text(cost()) == cost_text(cost())


def test_arrays_alone() -> None:
    data = json.loads(cost_text(cost(), {"layers_3/mlp/wi"}))
    assert [each["carries"] for each in data["collectives"]] == ["weight layers_3/mlp/wi"]


@pytest.mark.parametrize("by", ["axis", "line", "rule", "array"])
def test_groups(by: By) -> None:
    data = json.loads(cost_text(cost(), by=by))
    sums = (sum(each["wire_bytes"] for each in data[key]) for key in ("groups", "collectives"))
    assert len(set(sums)) == 1
    assert read(cost_text(cost(), by=by)) == data
    assert "groups" not in json.loads(cost_text(cost()))


def test_what_is_written_is_what_the_schema_describes() -> None:
    """By a validator that is not ours, where there is one; and by our own reader."""
    for text in (TEXT, cost_text(cost(None)), cost_text(cost_of(plan()))):
        assert read(text) == json.loads(text)
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft7Validator.check_schema(schema())
    jsonschema.Draft7Validator(schema()).validate(json.loads(TEXT))


def test_every_key_is_in_the_schema_with_its_type() -> None:
    """The schema is for people and for validators; the types of the record are what is read."""
    words = {int: "integer", float: "number", bool: "boolean", str: "string"}

    def same(node: dict[str, Any], field: Field) -> None:
        kinds = node["type"] if isinstance(node["type"], list) else [node["type"]]
        if is_record(field.kind):
            word = "object"
            keys(node, field.kind)
        elif get_origin(field.kind) is tuple:
            word = "array"
            same(node["items"], field.inner[-1])
        elif get_origin(field.kind) is dict:
            word = "object"
            same(node["additionalProperties"], field.inner[-1])
        else:
            word = words.get(field.kind, "string")
        assert word in kinds
        assert "null" in kinds or not field.is_optional or field.is_omitted
        if word in ("integer", "number"):
            assert node.get("minimum", 0) == field.least

    def keys(node: dict[str, Any], kind: type) -> None:
        known = fields_of(kind)
        assert {each.name for each in known} == set(node["properties"])
        least = {each.name for each in known if each.is_required}
        assert (
            least <= set(node["required"]) <= {each.name for each in known if not each.is_omitted}
        )
        for each in known:
            same(node["properties"][each.name], each)

    keys(schema(), CostRecord)


def edited(**more: Any) -> str:
    return json.dumps(json.loads(TEXT) | more)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON: expecting value"),
        (TEXT[:200], "is not JSON: "),
        ("[]", "does not say `shardspec.cost/1`"),
        ('{"schema": "shardspec.cost/2"}', "another version: this shardspec reads"),
        ('{"schema": "shardspec.check/1"}', "is what `shardspec check` makes"),
        ('{"schema": "shardspec.cost/1"}', "`spec` is missing"),
        ("[" * 200_000, "nested too deep"),
        (TEXT.replace('"flops": 0', '"flops": ' + "9" * 5000), "a number is none"),
        (TEXT.replace('"flops": 0', '"flops": NaN'), "a number is none"),
        (edited(flops=-1), "`flops` is out of range"),
        (edited(flops=True), "`flops` should be integer or null"),
        (edited(mfu="high"), "`mfu` should be number or null"),
        (TEXT.replace('"mfu": 0.514', '"mfu": 1e999'), "`mfu` is out of range"),
        (edited(mesh={"x" * 99: 0}), "`mesh.xxx"),
        (edited(collectives=[{}]), "`collectives[0].kind` is missing"),
        (edited(memory={"parameters": {"bytes": 1, "basis": "so"}}), "`memory.gradients` is miss"),
        (edited(time=[]), "`time` should be object or null"),
        (
            TEXT.replace(', "basis": "exact"', "").replace('"basis": "exact"', '"b": 0'),
            "is missing",
        ),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    message = refused(text)
    assert said in message
    assert len(message) < 200


def test_more_than_the_schema_names_is_read() -> None:
    assert not isinstance(read(edited(more={"of": "it"})), Diagnostic)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.data())
def test_total(data: st.DataObject) -> None:
    """A saved cost with anything at all in some place is read, or refused."""
    document = json.loads(TEXT)
    node = document
    while True:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        key = data.draw(st.sampled_from(keys))
        inner = node[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            node[key] = data.draw(json_values)
            break
        node = inner
    found = read(json.dumps(document))
    assert isinstance(found, dict) or found.code.id == "SHD023"


def test_a_file_of_version_0_2_is_read_as_it_was_written() -> None:
    text = (Path(__file__).parent.parent / "data/saved/cost-0.2.json").read_text("utf-8")
    assert read(text) == {**json.loads(text), "basis": "modelled"}

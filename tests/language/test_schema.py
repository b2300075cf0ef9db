from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from shardspec.language.loader import load_text
from shardspec.language.schema import schema, schema_text
from tests.lsp.client import editor, has_tool

SPECS = Path(__file__).parents[2] / "specs"
FILES = [*SPECS.glob("examples/*.yaml"), *SPECS.glob("presets/**/*.yaml")]

SCHEMA = schema()


def properties(node: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        yield from (node.get("properties") or {}).items()
        for inner in node.values():
            yield from properties(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from properties(inner)


def test_it_is_draft_07() -> None:
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_every_property_has_a_description() -> None:
    found = dict(properties(SCHEMA))
    assert {"rules", "policy", "indivisible", "unit"} <= set(found)
    assert [name for name, property_ in found.items() if not property_.get("description")] == []


def test_a_reference_has_no_neighbours() -> None:
    """Draft-07 ignores whatever stands beside `$ref`."""

    def references(node: Any) -> Iterator[dict[str, Any]]:
        if isinstance(node, dict):
            if "$ref" in node:
                yield node
            for inner in node.values():
                yield from references(inner)
        elif isinstance(node, list):
            for inner in node:
                yield from references(inner)

    assert all(set(node) == {"$ref"} for node in references(SCHEMA))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_bundled_specs_are_valid(path: Path) -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(yaml.safe_load(path.read_text("utf-8")))


@pytest.mark.parametrize(
    "document",
    [
        {"rulez": []},
        {"rules": "a -> b"},
        {"axes": {"a": {"sise": 4}}},
        {"policy": {"indivisible": "maybe"}},
        {"targets": {"t": {}}},
        {"lints": {"indivisble": "warn"}},
        {"lints": {"SHD999": "warn"}},
        {"extends": "fsdpp"},
        {"extends": ["fsdp", "t5x/3d"]},
        {"manifest": "t6-1.1-xxl"},
        {"step": {"extends": "decodr"}},
        {"hardware": "tpu v9 4x4", "mesh": {"data": 8}},
        {"targets": {"t": {"hardware": "h1000", "mesh": {"data": 8}}}},
        {"phases": {"decode": {"hardware": "tpu v9 4x4"}}},
        {"phases": {"decode": {"extends": "fsdp"}}},
    ],
)
def test_mistakes_are_not(document: dict[str, Any]) -> None:
    assert list(jsonschema.Draft7Validator(SCHEMA).iter_errors(document))


@pytest.mark.parametrize(
    "document",
    [
        {"extends": "./base.yaml"},
        {"extends": ["fsdp", "../other/base.shard", "/elsewhere/base.yml"]},
        {"manifest": ["./arrays.json", "model.safetensors", "package.module:function"]},
        {"lints": {"SHD3": "warn", "SHD301": "allow", "indivisible": "error", "SHD": "allow"}},
        {"axes": {"length": None, "embed": 64}},
        {"phases": {"decode": {"hardware": "8 cpu", "mesh": {"data": 8}}}},
    ],
)
def test_what_the_language_takes_is_valid(document: dict[str, Any]) -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(document)


MACHINES = [
    *("tpu v4 4x8x8", "v4-512", "2 * tpu v5p 4x4x8", "TPU v6e 8x8", "v5litepod-64", "4 * h100"),
    *("16 h100", "H100", "a3-highgpu-8g", "2 * a3-highgpu-8g", "8 cpu", "gpu b200", "cpu"),
    *("{1..8} * tpu v5e 16x16", "{1,2, 4} * h100", "trillium 4x4", "gb200-nvl72", "64 v5p"),
]
MEASURED = "tpu v5e 4x4 by ../measured/hardware.local.yaml"


@pytest.mark.parametrize("text", MACHINES)
def test_every_form_of_a_machine_is_valid(text: str) -> None:
    found = load_text(f'hardware: "{text}"\nmesh: {{data: rest}}\n')[1]
    assert found == ()
    document = {"hardware": text, "mesh": {"data": "rest"}}
    jsonschema.Draft7Validator(SCHEMA).validate(document)


def test_machines_that_complete_are_there() -> None:
    machine = {"hardware": MEASURED, "mesh": {"data": "rest"}}
    jsonschema.Draft7Validator(SCHEMA).validate(machine)
    snippets = SCHEMA["properties"]["hardware"]["defaultSnippets"]
    names = [each["body"] for each in snippets]
    assert {"8 cpu", "h100", "tpu v5e 4x4"} <= set(names)
    for name in names:
        assert load_text(f"hardware: {name}\nmesh: {{data: rest}}\n")[1] == ()


def test_names_complete() -> None:
    properties_ = SCHEMA["properties"]
    assert "t5x/2d" in properties_["extends"]["anyOf"][0]["anyOf"][0]["enum"]
    assert properties_["lints"]["properties"]["indivisible"]["description"].startswith("SHD301")


def test_nothing_of_ours_shows() -> None:
    """No titles, no class names, and no `null` that an editor would insert for a key."""

    def nodes(node: Any) -> Iterator[dict[str, Any]]:
        if isinstance(node, dict):
            yield node
        for inner in node.values() if isinstance(node, dict) else node:
            if isinstance(inner, dict | list):
                yield from nodes(inner)

    found = [*nodes(SCHEMA)]
    assert not [node for node in found if isinstance(node.get("title"), str)]
    assert not [node for node in found if "default" in node and node["default"] in (None, "")]
    assert "definitions" not in SCHEMA
    assert "Entry" not in schema_text()


@pytest.mark.nightly
def test_an_editor_sees_it(tmp_path: Path) -> None:
    """yaml-language-server marks what is wrong, and completes names without `null`."""
    if not has_tool("yaml-language-server"):
        pytest.skip("npx cannot get yaml-language-server, so it is not tried")
    (tmp_path / "schema.json").write_text(schema_text(), encoding="utf-8")
    head = f"# yaml-language-server: $schema={(tmp_path / 'schema.json').as_uri()}\n"
    command = ["npx", "--yes", "yaml-language-server", "--stdio"]
    with editor(tmp_path, command=command) as session:
        text = f"{head}extends: fsdpp\nlints: {{indivisble: warn}}\nhardware: tpu v9 4x4\n"
        uri = session.open("bad.yaml", text)
        said = {each["range"]["start"]["line"]: each["message"] for each in session.some(uri)}
        assert said[1].startswith("Value is not accepted")
        assert said[2] == "Property indivisble is not allowed."
        assert said[3].startswith("No machine of the catalogue")
        for written, wanted in (
            ("extends: ", "fsdp"),
            ("hardware: ", "tpu v5e 4x4"),
            ("h", "hardware"),
        ):
            text = f"{head}{written}"
            uri = session.open(f"{wanted.replace(' ', '')}.yaml", text)
            where = {"line": 1, "character": len(written)}
            found = session.about("completion", uri, position=where)["items"]
            item = next(each for each in found if each["label"] == wanted)
            assert "null" not in item.get("insertText", "") + item["textEdit"]["newText"]

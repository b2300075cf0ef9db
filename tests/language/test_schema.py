from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from shardspec.language.document import schema

SPECS = Path(__file__).parents[2] / "specs"
FILES = [*SPECS.glob("examples/*.yaml"), *SPECS.glob("presets/**/*.yaml")]


def properties(node: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        yield from (node.get("properties") or {}).items()
        for inner in node.values():
            yield from properties(inner)


def test_it_is_draft_07() -> None:
    assert schema()["$schema"] == "http://json-schema.org/draft-07/schema#"
    jsonschema.Draft7Validator.check_schema(schema())


def test_every_property_has_a_description() -> None:
    found = dict(properties(schema()))
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

    assert all(set(node) == {"$ref"} for node in references(schema()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_bundled_specs_are_valid(path: Path) -> None:
    jsonschema.Draft7Validator(schema()).validate(yaml.safe_load(path.read_text("utf-8")))


@pytest.mark.parametrize(
    "document",
    [
        {"rulez": []},
        {"rules": "a -> b"},
        {"axes": {"a": {"sise": 4}}},
        {"policy": {"indivisible": "maybe"}},
        {"targets": {"t": {}}},
    ],
)
def test_mistakes_are_not(document: dict[str, Any]) -> None:
    assert list(jsonschema.Draft7Validator(schema()).iter_errors(document))

"""The JSON Schema of the YAML format, as editors read it: draft-07."""

from __future__ import annotations

from typing import Any

_DRAFT = "http://json-schema.org/draft-07/schema#"


def schema_text() -> str:
    """Return the schema as JSON text."""
    import json

    return json.dumps(schema(), indent=2, sort_keys=True) + "\n"


def schema() -> dict[str, Any]:
    """Return the schema; every property has a description."""
    from shardspec.frontend.document import Document

    generated = Document.model_json_schema(mode="validation")
    for name, field in Document.model_fields.items():
        generated["properties"][name].setdefault("description", field.description)
    made: dict[str, Any] = _draft_07(generated)
    made["$schema"] = _DRAFT
    made["title"] = "shardspec"
    return made


def _draft_07(node: Any) -> Any:
    """Return `node` with what later drafts renamed put back, and without pydantic's titles.

    Draft-07 ignores what stands beside `$ref`, so a described reference moves into `allOf`.
    """
    if isinstance(node, list):
        return [_draft_07(item) for item in node]
    if not isinstance(node, dict):
        return node
    made: dict[str, Any] = {}
    for key, value in node.items():
        if key == "title" and isinstance(value, str):
            continue
        if key == "$defs":
            made["definitions"] = _draft_07(value)
        elif key == "$ref":
            made["$ref"] = value.replace("#/$defs/", "#/definitions/")
        else:
            made[key] = _draft_07(value)
    if "$ref" in made and len(made) > 1:
        made["allOf"] = [{"$ref": made.pop("$ref")}]
    return made

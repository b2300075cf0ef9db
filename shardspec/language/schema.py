"""The JSON Schema (draft-07) of the YAML format, for editors that have no language server.

It is what the models of `document` say, made fit for people: names of presets, machines and
findings complete and are checked, an optional key inserts no `null`, and no class of ours shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from shardspec import assets
from shardspec.diagnostics import codes
from shardspec.language import catalogue
from shardspec.language.document import Document
from shardspec.language.loader import SPEC_SUFFIXES, bundled_doc
from shardspec.language.sections import SPEC_ALONE

_DRAFT = "http://json-schema.org/draft-07/schema#"
Schema = dict[str, Any]


def schema_text() -> str:
    """Return the schema as JSON text."""
    return json.dumps(schema(), indent=2, sort_keys=True) + "\n"


def schema() -> Schema:
    """Return the schema; every property has a description."""
    generated = Document.model_json_schema(mode="validation")
    definitions = generated.pop("$defs")
    made: Schema = _plain(generated, definitions)
    properties = made["properties"]
    for name, field in Document.model_fields.items():
        properties[name].setdefault("description", field.description)
    _complete(properties)
    properties["phases"]["additionalProperties"] = _phase()
    return {"$schema": _DRAFT, **made}


def _phase() -> Schema:
    """Return the schema of a phase; draft-07 ignores what stands beside `$ref`, hence `allOf`."""
    properties = {
        name: {"allOf": [{"$ref": f"#/properties/{name}"}], "description": field.description}
        for name, field in Document.model_fields.items()
        if name not in SPEC_ALONE
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _plain(node: Any, definitions: Mapping[str, Any]) -> Any:
    """Return what pydantic made, with models in their places, without titles and nulls to insert.

    None as the default of a key means that it may be left out, not that it may be null.
    """
    if isinstance(node, list):
        return [_plain(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    node = dict(node)
    if node.get("default", 0) is None and "anyOf" in node:  # None: it may be left out
        kept = [each for each in node.pop("anyOf") if each != {"type": "null"}]
        node = {**kept[0], **node} if len(kept) == 1 else {**node, "anyOf": kept}
    reference = node.pop("$ref", None)
    if reference is not None:
        node = {**definitions[reference.rpartition("/")[2]], **node}
    if node.get("default") in (None, "", [], {}) and not isinstance(node.get("default"), bool):
        node.pop("default", None)
    if isinstance(node.get("title"), str):
        del node["title"]
    return {key: _plain(value, definitions) for key, value in node.items()}


# names that are known


def _complete(properties: Schema) -> None:
    """Put what names of bundled things may be into their places."""
    _put_texts(properties["extends"], _bundled("presets", _FILE))
    _put_texts(properties["manifest"], _bundled("arrays", _ARRAYS))
    step = properties["step"]["properties"]["extends"]
    step.update(_bundled("steps", _FILE))
    step.pop("type", None)
    for target in (properties, properties["targets"]["additionalProperties"]["properties"]):
        known = {"description": target["hardware"]["description"]}
        target["hardware"] = {**known, **_hardware()}
    unit = properties["axes"]["additionalProperties"]["anyOf"]
    for entry in unit:
        if "unit" in entry.get("properties", ()):
            entry["properties"]["unit"]["default"] = 1
    _put_findings(properties["lints"])


#: A path, `package.module:function`, or a name with a suffix, which has no digit first.
_ARRAYS = r"^\.{0,2}/|/$|:|\.[A-Za-z]\w*$"
_FILE = rf"^\.{{0,2}}/|({'|'.join(map(re.escape, SPEC_SUFFIXES))})$"


def _put_texts(node: Schema, one: Schema) -> None:
    """Say what a text, or each of a list of texts, may be."""
    node.pop("anyOf")
    node["anyOf"] = [one, {"type": "array", "items": one}]


def _bundled(kind: assets.SpecKind, file: str) -> Schema:
    """Return the names of a kind of bundled things, or what spells a file."""
    names = assets.spec_names(kind)
    docs = [bundled_doc(kind, name) for name in names]
    return {"anyOf": [{"enum": [*names], "enumDescriptions": docs}, {"pattern": file}], **_TEXT}


_TEXT = {"type": "string"}


def _hardware() -> Schema:
    """Return what names a machine: the forms of the language, with the names of the catalogue."""
    longest = sorted(catalogue.hardware_names(), key=len, reverse=True)
    names = "|".join(map(_any_case, longest))
    platforms = "|".join(map(_any_case, ("tpu", "gpu", "cpu")))
    slices = r"(([0-9]+|\{[0-9., ]+\})\s*\*\s*)?"
    device = rf"(({platforms})\s+)?({names})(-[0-9]+)?"
    share = r"(\s+memory\s+[0-9.]+)?"
    by = r"(\s+by\s+[\w./-]+\.ya?ml)?"
    return {
        **_TEXT,
        "pattern": rf"^\s*{slices}([0-9]+\s+)?{device}(\s+[0-9]+(x[0-9]+)+)?{share}{by}\s*$",
        "patternErrorMessage": "No machine of the catalogue: as in `tpu v5p 4x4x8`, `2 * h100`, "
        "`v4-512`, `8 cpu`; `shardspec explain --list hardware` shows all.",
        # a list of examples would show in every hover
        "defaultSnippets": [
            {"label": text, "body": text, "description": entry.chip.title}
            for text, entry in catalogue.usual_machines()
        ],
    }


def _any_case(name: str) -> str:
    """Return a pattern for a name in small or large letters, which JSON Schema has no flag for.

    >>> _any_case("v5-a")
    '[vV]5-[aA]'
    """
    letters = (f"[{c}{c.upper()}]" if c.isalpha() else re.escape(c) for c in name)
    return "".join(letters).replace("\\-", "-")


def _put_findings(node: Schema) -> None:
    """Say which findings there are, by name, code, and start of codes."""
    level = node.pop("additionalProperties")
    starts = {code.id[:length] for code in codes.ALL for length in range(3, len(code.id) + 1)}
    node["properties"] = {
        code.name: {**level, "description": f"{code.id}: {code.summary}"} for code in codes.ALL
    }
    node["patternProperties"] = {f"^({_alternatives(starts)})$": level}
    node["additionalProperties"] = False


def _alternatives(words: Iterable[str]) -> str:
    return "|".join(sorted(words))

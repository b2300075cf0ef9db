"""SARIF logs: valid against the schema, and pointing where the findings stand.

The schema is Draft 4; `tests/data/sarif` says where it is from.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft4Validator, FormatChecker

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, codes
from shardspec.report.findings_forms import commands, sarif, sarif_text, uri
from tests.test_docs import NOT_ONE_TEXT, example

SCHEMA = Path(__file__).parents[1] / "data" / "sarif" / "sarif-2.1.0-rtm.4.json"


@pytest.fixture(scope="module")
def validator() -> Draft4Validator:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    Draft4Validator.check_schema(schema)
    return Draft4Validator(schema, format_checker=FormatChecker())


def found_in(text: str, name: str = "spec.yaml") -> tuple[Diagnostic, ...]:
    spec, diagnostics = pipeline.load_text(text, name)
    if spec is None:
        return diagnostics
    return pipeline.checked(spec, diagnostics, pipeline.compile_plans(spec)).shown


@pytest.mark.parametrize(
    "code", [c for c in codes.ALL if c.name not in NOT_ONE_TEXT], ids=lambda code: code.id
)
def test_every_finding_is_valid(code: object, validator: Draft4Validator) -> None:
    found = found_in(example(code, "Bad"))  # type: ignore[arg-type]
    log = json.loads(sarif_text(found))
    assert list(validator.iter_errors(log)) == []
    run = log["runs"][0]
    assert len(run["results"]) == len(found)
    for result in run["results"]:
        rule = run["tool"]["driver"]["rules"][result["ruleIndex"]]
        assert rule["id"] == result["ruleId"]


def test_the_schema_can_fail(validator: Draft4Validator) -> None:
    log = sarif(found_in(BAD))
    log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] = 0
    assert list(validator.iter_errors(log))
    assert list(validator.iter_errors({"version": "2.1.0"}))


BAD = """\
shardspec: 1
mesh: {tensor: 4}
rules:
  - mlp -> tenosr  # é 層
arrays:
  mlp/kernel: bf16[_=64 mlp=128]
"""


def test_places_and_fixes() -> None:
    log = sarif(found_in(BAD, "a dir/spéc#1.yaml"))
    result = next(each for each in log["runs"][0]["results"] if each["ruleId"] == "SHD201")
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "a%20dir/sp%C3%A9c%231.yaml"
    assert place["region"] == {"startLine": 4, "startColumn": 12, "endLine": 4, "endColumn": 18}
    assert result["relatedLocations"][0]["message"]["text"] == "its mesh axes: tensor"
    (change,) = result["fixes"][0]["artifactChanges"]
    assert change["replacements"] == [
        {"deletedRegion": place["region"], "insertedContent": {"text": "tensor"}}
    ]


def test_a_preset_is_no_file(validator: Draft4Validator) -> None:
    text = "extends: [t5x/2d]\nmesh: {model: 2}\narrays: {a/k: 'f32[embed=4 mlp=8]'}\n"
    found = [d for d in found_in(text) if d.primary and d.primary.span.source.name[:7] == "preset:"]
    assert found
    log = sarif(found)
    assert list(validator.iter_errors(log)) == []
    for result in log["runs"][0]["results"]:
        (location,) = result["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"] == "spec.yaml"
        assert location["physicalLocation"]["region"]["startLine"] == 1
        named = location["logicalLocations"][0]["fullyQualifiedName"]
        assert named.startswith("preset:t5x/2d:")


def test_fingerprints_outlive_edits_elsewhere() -> None:
    def prints(text: str) -> list[str]:
        results = sarif(found_in(text))["runs"][0]["results"]
        return sorted(each["partialFingerprints"]["shardspec/v1"] for each in results)

    assert prints(BAD) == prints("# one more line\n\n" + BAD)
    assert prints(BAD) != prints(BAD.replace("mlp -> tenosr", "mlp -> tensro"))
    twice = BAD.replace("  - mlp -> tenosr", "  - mlp -> a1\n  - mlp -> b1")
    assert len(set(prints(twice))) == len(prints(twice))


def test_no_findings(validator: Draft4Validator) -> None:
    log = sarif(())
    assert list(validator.iter_errors(log)) == []
    assert log["runs"][0]["results"] == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("./a/../b/spec.yaml", "b/spec.yaml"),
        ("../up.yaml", f"file://{Path.cwd().parent}/up.yaml"),
        ("100%.yaml", "100%25.yaml"),
        ("a:b.yaml", "a%3Ab.yaml"),
        (str(Path.cwd() / "in here.yaml"), "in%20here.yaml"),
    ],
)
def test_uri(name: str, expected: str) -> None:
    assert uri(name) == expected


def test_uris_are_seen_from_the_top_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GitHub reads them so, wherever the run was started."""
    (tmp_path / ".git").mkdir()
    folder = tmp_path / "a dir" / "specs"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    for name in ("spec.yaml", str(folder / "spec.yaml")):
        assert uri(name) == "a%20dir/specs/spec.yaml"
        assert sarif(found_in(BAD, name))["runs"][0]["results"][0]["locations"][0][
            "physicalLocation"
        ]["artifactLocation"] == {"uri": uri(name), "uriBaseId": "%SRCROOT%"}
        assert "file=a dir/specs/spec.yaml," in next(commands(found_in(BAD, name)))
    assert uri("../other.yaml") == "a%20dir/other.yaml"
    assert uri("../../../elsewhere.yaml") == f"file://{tmp_path.parent}/elsewhere.yaml"

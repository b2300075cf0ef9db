"""The recipes of CONTRIBUTING, followed in a copy: what they say is all there is to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

Change = tuple[str, str, str]

#: A section of patterns: the file, a line that is there, and what goes before it.
SECTION: tuple[Change, ...] = (
    (
        "shardspec/language/sections.py",
        '    Section("activations", "own"',
        '    Section("precision", "pairs", "", "pattern", rules=("precision", "PrecisionRule")),\n',
    ),
    (
        "shardspec/language/document.py",
        "    activations: dict[str, Activation] = _entries(",
        '    precision: dict[str, Literal["high", "low"]] = _entries("How exact products are.")\n',
    ),
    (
        "shardspec/ir/spec.py",
        "@dataclass(frozen=True, slots=True)\nclass Override:",
        "@dataclass(frozen=True, slots=True)\nclass PrecisionRule:\n    pattern: Pattern\n"
        "    precision: str\n    span: Span | None = field(default=None, compare=False)\n\n\n",
    ),
    (
        "shardspec/ir/spec.py",
        "    training: tuple[TrainingRule, ...] = ()\n",
        "    precision: tuple[PrecisionRule, ...] = ()\n",
    ),
)

#: A key of `step:`, `overlap`.
KEY: tuple[Change, ...] = (
    (
        "shardspec/language/document.py",
        '    reduce: Literal["microbatch", "step"] | None = _key(',
        '    overlap: Literal["none", "all"] | None = _key("What is sent while others compute.")\n',
    ),
    (
        "shardspec/ir/program.py",
        '    reduce: Literal["microbatch", "step"] | None = None\n',
        '    overlap: Literal["none", "all"] | None = None\n',
    ),
)

#: What somebody does with the new section.
USES_SECTION = """
from shardspec.diagnostics import SourceFile
from shardspec.language.formatting import formatted
from shardspec.language.loader import load_text
from shardspec.language.schema import schema
from shardspec.language.validate import words_at
from shardspec.report.pages import field_page

PARTS = "mesh: {a: 2}\\narrays: {wi: 'f32[4]', wo: 'f32[4]'}\\nrules: [x -> a]\\n"
yaml = PARTS + "precision: {'**/wi': high, 'optional:re:w.': low}\\n"
yaml += "phases: {one: {precision: {wo: high}}}\\n"
spec, faults = load_text(yaml, "spec.yaml")
assert not faults, faults
assert [(str(each.pattern), each.precision) for each in spec.precision] == [
    ("**/wi", "high"),
    ("re:w.", "low"),
]
assert [str(each.pattern) for each in spec.phases[0].precision] == ["wo", "**/wi", "re:w."]
text, faults = formatted(SourceFile("spec.yaml", yaml), "dsl")
assert 'precision {\\n  **/wi           : high\\n  optional re"w." : low\\n}' in text, text
again, faults = load_text(text, "spec.shard")
assert not faults and again.precision == spec.precision, faults
assert load_text(yaml, "spec.yaml", {"precision.**/wi": "low"})[0].precision[0].precision == "low"
_, faults = load_text(yaml.replace("high", "heigh"), "spec.yaml")
assert "`high` or `low`" in faults[0].message, faults
_, faults = load_text("precision { a b }", "spec.shard")
assert faults[0].message == "expected `:` after `a`", faults
assert "precision" in schema()["properties"]
assert field_page("precision") == ("precision: How exact products are.",)
assert words_at(("precision", "a")) == ("high", "low")

from shardspec.language.yaml_text.reader import read_yaml
from shardspec.lsp.names import uses

reading, _ = read_yaml(SourceFile("spec.yaml", yaml))
assert [use.name for use in uses(reading) if use.kind == "pattern"] == [
    "**/wi",
    "optional:re:w.",
    "wo",
]
"""

USES_KEY = """
from shardspec.diagnostics import SourceFile
from shardspec.language.formatting import formatted
from shardspec.language.loader import load_text
from shardspec.language.schema import schema
from shardspec.language.validate import words_at

yaml = "mesh: {a: 2}\\nrules: [x -> a]\\nstep:\\n  overlap: all\\n  program:\\n  - a, wi -> b\\n"
spec, faults = load_text(yaml, "spec.yaml")
assert spec.step.overlap == "all", faults
text, _ = formatted(SourceFile("spec.yaml", yaml), "dsl")
assert "  overlap all\\n" in text
again, faults = load_text(text, "spec.shard")
assert again.step.overlap == "all" and again.step.program == spec.step.program
assert load_text(yaml, "spec.yaml", {"step.overlap": "none"})[0].step.overlap == "none"
assert schema()["properties"]["step"]["properties"]["overlap"]["enum"] == ["none", "all"]
assert words_at(("step", "overlap")) == ("none", "all")
"""


@pytest.mark.parametrize(
    ("recipe", "changes", "uses", "most"),
    [
        ("A section of patterns takes 3 files", SECTION, USES_SECTION, 3),
        ("A key of `step:` takes 2", KEY, USES_KEY, 2),
    ],
)
def test_a_recipe_takes_as_many_files_as_it_says(
    tmp_path: Path, recipe: str, changes: tuple[Change, ...], uses: str, most: int
) -> None:
    assert recipe in (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    for folder in ("shardspec", "grammars", "specs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.pyc"))
    for file, before, added in changes:
        path = tmp_path / file
        text = path.read_text("utf-8")
        assert text.count(before) == 1, before
        path.write_text(text.replace(before, added + before), "utf-8")
    assert len({file for file, _, _ in changes}) == most
    found = subprocess.run(
        [sys.executable, "-c", uses],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr

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

#: A key of `axes:`, `pad`: a number, as `min_shard` is.
AXIS_KEY: tuple[Change, ...] = (
    (
        "shardspec/language/document.py",
        '    doc: str = _key("What the axis is, for people.", "")',
        '    pad: int = _key("Elements behind the axis.", 0)\n',
    ),
    ("shardspec/ir/spec.py", "    parts: Parts | None = None\n    factors", "    pad: int = 0\n"),
    (
        "grammars/document.lark",
        "[interleaved] [text]",
        "[pad] ",
    ),
    ("grammars/document.lark", "drop: ", 'pad: "pad" INTEGER\n'),
)

#: A key of `overrides:`, `by`: a text, as `because` is.
OVERRIDE_KEY: tuple[Change, ...] = (
    (
        "shardspec/language/document.py",
        '    because: str = _key("Why, for whoever reads this next.", "")',
        '    by: str = _key("Who.", "")\n',
    ),
    ("shardspec/ir/spec.py", "    sums: Sums = NO_SUMS\n\n\n@dataclass", '    by: str = ""\n'),
    ("grammars/document.lark", "[because]\n", "[by] "),
    ("grammars/document.lark", "replicate: ", "by: BY_TEXT text\n"),
    ("grammars/document.lark", "BECAUSE.2", 'BY_TEXT.2: /by(?=\\s*")/\n'),
)

#: A key of `state:`, `copies`: a number.
STATE_KEY: tuple[Change, ...] = (
    (
        "shardspec/language/document.py",
        "    moments: Annotated",
        '    copies: int = _key("How many.", 1)\n',
    ),
    ("shardspec/ir/spec.py", "    moments: int = 2\n", "    copies: int = 1\n"),
)

#: A key of the entries of `targets:`, `price`.
TARGET_KEY: tuple[Change, ...] = (
    (
        "shardspec/language/document.py",
        "class RuleEntry(_Model):",
        '    price: int = _key("Dollars an hour.", 0)\n\n\n',
    ),
    (
        "shardspec/ir/spec.py",
        "    devices: tuple[int, ...] = ()\n\n    def __eq__",
        "    price: int = 0\n",
    ),
)

#: What somebody does with the new section.
USES_SECTION = """
from shardspec.diagnostics import SourceFile
from shardspec.language.formatting import formatted
from shardspec.language.loader import LoadOptions, load_text
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
changed, _ = load_text(yaml, "spec.yaml", LoadOptions({"precision.**/wi": "low"}))
assert changed.precision[0].precision == "low"
_, faults = load_text(yaml.replace("high", "heigh"), "spec.yaml")
assert "`high` or `low`" in faults[0].message, faults
_, faults = load_text("precision { a b }", "spec.shard")
assert faults[0].message == "expected `:` after `a`", faults
assert "precision" in schema()["properties"]
assert field_page("precision") == ("precision: How exact products are.",)
assert words_at(("precision", "a")) == ("high", "low")

from shardspec.language.yaml_text.reader import read_yaml
from shardspec.lsp.types import uses

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
from shardspec.language.loader import LoadOptions, load_text
from shardspec.language.schema import schema
from shardspec.language.validate import words_at

yaml = "mesh: {a: 2}\\nrules: [x -> a]\\nstep:\\n  overlap: all\\n  program:\\n  - a, wi -> b\\n"
spec, faults = load_text(yaml, "spec.yaml")
assert spec.step.overlap == "all", faults
text, _ = formatted(SourceFile("spec.yaml", yaml), "dsl")
assert "  overlap all\\n" in text
again, faults = load_text(text, "spec.shard")
assert again.step.overlap == "all" and again.step.program == spec.step.program
changed, _ = load_text(yaml, "spec.yaml", LoadOptions({"step.overlap": "none"}))
assert changed.step.overlap == "none"
assert schema()["properties"]["step"]["properties"]["overlap"]["enum"] == ["none", "all"]
assert words_at(("step", "overlap")) == ("none", "all")
"""


USES_AXIS_KEY = """
from shardspec.diagnostics import SourceFile
from shardspec.language.formatting import formatted
from shardspec.language.loader import LoadOptions, load_text
from shardspec.language.validate import fields_at
from shardspec.report.pages import field_page

yaml = "axes: {x: {size: 8, pad: 2, min_shard: 4, doc: why}}\\nmesh: {a: 2}\\nrules: [x -> a]\\n"
spec, faults = load_text(yaml, "spec.yaml")
assert spec.logical_axes[0].pad == 2, faults
text, faults = formatted(SourceFile("spec.yaml", yaml), "dsl")
assert 'axis x = 8 min_shard 4 pad 2 "why"' in text, text
again, faults = load_text(text, "spec.shard")
assert again.logical_axes == spec.logical_axes, faults
changed, _ = load_text(yaml, "spec.yaml", LoadOptions({"axes.x.pad": "3"}))
assert changed.logical_axes[0].pad == 3
_, faults = load_text(yaml.replace("pad: 2", "pad: two"), "spec.yaml")
assert "a whole number" in faults[0].message, faults
assert "pad" in fields_at(("axes",))
assert "pad" in str(field_page("axes"))
"""

USES_STATE_KEY = """
from shardspec.diagnostics import SourceFile
from shardspec.language.formatting import formatted
from shardspec.language.loader import LoadOptions, load_text

yaml = "mesh: {a: 2}\\nrules: [x -> a]\\nstate: {copies: 3}\\n"
spec, faults = load_text(yaml, "spec.yaml")
assert spec.state.copies == 3, faults
text, _ = formatted(SourceFile("spec.yaml", yaml), "dsl")
assert "state copies 3\\n" in text
assert load_text(text, "spec.shard")[0].state == spec.state
"""

USES_TARGET_KEY = """
from shardspec.diagnostics import SourceFile
from shardspec.language.formatting import formatted
from shardspec.language.loader import LoadOptions, load_text

yaml = "targets: {pod: {hardware: 8 cpu, mesh: {a: 8}, price: 3}}\\nrules: [x -> a]\\n"
spec, faults = load_text(yaml, "spec.yaml")
assert spec.targets[0].price == 3, faults
text, faults = formatted(SourceFile("spec.yaml", yaml), "dsl")
assert "target pod on 8 cpu { a = 8; price 3 }" in text, text
again, faults = load_text(text, "spec.shard")
assert again.targets[0].price == 3, faults
changed, _ = load_text(yaml, "spec.yaml", LoadOptions({"targets.pod.price": "4"}))
assert changed.targets[0].price == 4
"""

USES_OVERRIDE_KEY = """
from shardspec.diagnostics import SourceFile
from shardspec.language.formatting import formatted
from shardspec.language.loader import LoadOptions, load_text

yaml = "mesh: {a: 2}\\noverrides:\\n- {path: w, axes: x, by: me}\\nrules: [x -> a]\\n"
spec, faults = load_text(yaml, "spec.yaml")
assert spec.overrides[0].by == "me", faults
text, faults = formatted(SourceFile("spec.yaml", yaml), "dsl")
assert 'override w : x by "me"' in text, text
again, faults = load_text(text, "spec.shard")
assert again.overrides == spec.overrides, faults
"""


@pytest.mark.parametrize(
    ("recipe", "changes", "uses", "most"),
    [
        ("A section of patterns takes 3 files", SECTION, USES_SECTION, 3),
        ("A key of `step:` takes 2", KEY, USES_KEY, 2),
        ("A key of `axes:` takes 3", AXIS_KEY, USES_AXIS_KEY, 3),
        ("or `state:` takes 2", STATE_KEY, USES_STATE_KEY, 2),
        ("A key of `targets:` takes 2", TARGET_KEY, USES_TARGET_KEY, 2),
        ("or of the entries of `overrides:`", OVERRIDE_KEY, USES_OVERRIDE_KEY, 3),
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
    if any(file.endswith(".lark") for file, _, _ in changes):
        _run(tmp_path, (ROOT / "tests" / "grammar_tables.py").read_text("utf-8"))
    assert len({file for file, _, _ in changes}) == most
    _run(tmp_path, uses)


def _run(copy: Path, code: str) -> None:
    """Run code with the package of a copy."""
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(copy)},
        cwd=copy,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr

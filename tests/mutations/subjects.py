"""Whole specs that mistakes are made in.

The bundled examples as they stand, in both spellings; the same with their arrays and the rules of
their presets written out, since most examples have neither; and the specs of this folder, which
use what no example does: overrides, regexes, priorities, `at`, `drop`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from shardspec import arrays, pipeline
from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import AxisRule, Spec, target_text
from shardspec.language.loader import File, LoadOptions, load_file, read
from shardspec.language.reading import Reading
from shardspec.lints.context import Context
from shardspec.lints.registry import run

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "specs" / "examples"
OWN = Path(__file__).parent / "specs"

#: Examples of a model that another one has, too.
AGAIN = {"t5-1.0-11b-v4"}

_MANIFEST = re.compile(r"^manifest: \.\./arrays/(.+)\n", re.MULTILINE)
_EXTENDS = re.compile(r"^extends: .+\n", re.MULTILINE)
_RULES = re.compile(r"^rules:\n(?:[ ]+.*\n)+", re.MULTILINE)


@dataclass(frozen=True, eq=False)
class Subject:
    """A spec without findings, its text with positions, and its plans.

    Attributes:
      found: the findings of the default level: none.
      pedantic: code and message of what `--pedantic` says of it.
    """

    name: str
    text: str = field(repr=False)
    folder: Path = field(repr=False)
    reading: Reading = field(repr=False)
    spec: Spec = field(repr=False)
    plans: tuple[ShardingPlan, ...] = field(repr=False)
    found: tuple[Diagnostic, ...] = ()
    pedantic: frozenset[tuple[str, str]] = frozenset()


@cache
def subjects() -> tuple[Subject, ...]:
    """Return every subject, in order of name."""
    files = [
        path
        for path in (*EXAMPLES.iterdir(), *OWN.iterdir())
        if path.is_file() and path.stem not in AGAIN
    ]
    texts = [(path.name, path.read_text("utf-8"), path.parent) for path in sorted(files)]
    texts += [(f"unfolded-{path.name}", unfolded(path), path.parent) for path in _yaml_examples()]
    return tuple(subject(name, text, folder) for name, text, folder in texts)


def _yaml_examples() -> list[Path]:
    return sorted(path for path in EXAMPLES.glob("*.yaml") if path.stem not in AGAIN)


def subject(name: str, text: str, folder: Path) -> Subject:
    """Return one subject; its text is sound."""
    reading, _ = read(file_of(name, text, folder))
    spec, faults = load(name, text, folder)
    assert reading is not None
    assert spec is not None
    plans = pipeline.compile_plans(spec)
    found = pipeline.findings(spec, plans, faults=faults).shown
    every = run(Context(spec, plans))
    pedantic = frozenset((d.code.id, d.message) for d in every if d.code.is_pedantic)
    return Subject(name, text, folder, reading, spec, plans, found, pedantic)


def file_of(name: str, text: str, folder: Path) -> File:
    """Return a text as a file that stands in `folder`."""
    return File(SourceFile(name, text), str(folder), name, name.endswith(".shard"))


def load(name: str, text: str, folder: Path) -> tuple[Spec | None, tuple[Diagnostic, ...]]:
    """Return the spec in a text that stands in `folder`."""
    return load_file(file_of(name, text, folder), LoadOptions(arrays=arrays))


def unfolded(path: Path) -> str:
    """Return an example with its arrays and all of its rules written out.

    Presets that derive arrays stay: they are no rules.
    """
    text = path.read_text("utf-8")
    spec, _ = load(path.name, text, path.parent)
    assert spec is not None
    manifest = _MANIFEST.search(text)
    text = _MANIFEST.sub("", _RULES.sub("", _EXTENDS.sub(_derive_alone, text)))
    text += "\nrules:\n" + "".join(f"  - {line}\n" for line in _rule_lines(spec))
    if manifest:
        listed = (path.parent / "../arrays" / manifest[1]).read_text("utf-8")
        text += "\n" + listed[listed.index("arrays:\n") :]
    return text


def _derive_alone(extends: re.Match[str]) -> str:
    presets = re.findall(r"derive/[\w-]+", extends[0])
    return f"extends: [{', '.join(presets)}]\n" if presets else ""


def _rule_lines(spec: Spec) -> Iterator[str]:
    """Yield the rules that fire somewhere, neighbours of one axis as one."""
    fired = {
        dim.taken.rule
        for plan in pipeline.compile_plans(spec)
        for sharding in (*plan.arrays, *plan.activations)
        for dim in sharding.dims
        if dim.taken is not None
    }
    of_axis: list[list[AxisRule]] = []
    for rule in spec.axis_rules:
        if rule not in fired:
            continue
        if of_axis and of_axis[-1][0].logical_axis == rule.logical_axis:
            of_axis[-1].append(rule)
        else:
            of_axis.append([rule])
    for rules in of_axis:
        alternatives = " | ".join(target_text(rule.mesh_axes) for rule in rules)
        yield f"{rules[0].logical_axis} -> {alternatives}"

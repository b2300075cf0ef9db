"""Every reader takes any text: a spec that loads and stays as `fmt` would write it, or findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardspec.diagnostics import SourceFile
from shardspec.diagnostics.render import render
from shardspec.foreign.formats import FORMATS, Format, Options, module_of, spec_text
from shardspec.ir.spec import Param
from shardspec.language.formatting import formatted

DATA = Path(__file__).parents[1] / "data" / "maxtext"
P = "partitioning.PjitPartitioner"

#: What each format's texts start from: a sound file of it, to be damaged.
SEEDS = {
    "flax": ("rules.py", "RULES = [('embed', ('data', 'model')), ('mlp', None), ('kv', 'é')]\n"),
    "nnx": ("rules.json", '[["embed", ["data", "model"]], ["mlp", null], ["a b", "x"]]'),
    "t5x-gin": (
        "run.gin",
        f"N = 2\n{P}:\n  num_partitions = %N\n  logical_axis_rules = [('embed', 'data')]\n"
        "utils.f.params_axes_names_override = [('a/.*', ('embed', None))]\n",
    ),
    "maxtext": ("base.yml", (DATA / "base.yml").read_text(encoding="utf-8")),
}
OURS = [entry for entry in FORMATS if entry.name in SEEDS]
ARRAYS = (Param("a/b", (8, 6), "f32", ("embed", "mlp")), Param("a/c", (), "f32", None))
JUNK = ("", "[", "]", "(", "{", "'", '"', "\n", "\t", ":", "=", "%", "@", "\\", "é", "\ufeff", "#")


def survives(entry: Format, name: str, text: str, **given_options: Any) -> None:
    source = SourceFile(name, text)
    options = Options(mesh=(("data", "4"), ("model", "2")), **given_options)
    module = module_of(entry)
    imported, faults = module.read([source], options)
    for fault in faults:
        assert render(fault)
        assert "\n" not in fault.message
    if imported is None:
        assert any(fault.is_error for fault in faults)
        return
    written, wrong = spec_text(imported, options, [source], "spec.yaml")
    assert written is not None, [fault.message for fault in wrong]
    assert formatted(SourceFile("spec.yaml", written)) == (written, ())


@st.composite
def damaged(draw: st.DrawFn, text: str) -> str:
    """Return a text with pieces cut out, put in or repeated."""
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 40)))
        middle = draw(st.sampled_from(JUNK) | st.text(max_size=4) | st.just(text[start:end] * 2))
        text = text[:start] + middle + text[end:]
    return text


@pytest.mark.parametrize("entry", OURS, ids=lambda entry: entry.name)
def test_damaged_files(entry: Format) -> None:
    name, seed = SEEDS[entry.name]

    @given(damaged(seed), st.booleans())
    @settings(deadline=None)
    def check(text: str, has_arrays: bool) -> None:
        survives(entry, name, text, params=ARRAYS if has_arrays else None)

    check()


@pytest.mark.parametrize("entry", OURS, ids=lambda entry: entry.name)
def test_any_text(entry: Format) -> None:
    name, _ = SEEDS[entry.name]

    @given(st.text(max_size=80))
    @example("\r\x80")
    @settings(deadline=None)
    def check(text: str) -> None:
        survives(entry, name, text)

    check()


@pytest.mark.parametrize("entry", OURS, ids=lambda entry: entry.name)
@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "(" * 100_000, "a = " + "[" * 3000 + "]" * 3000, "a\n" * 100_000, "{" * 9999],
    ids=("brackets", "parentheses", "nested", "lines", "braces"),
)
def test_enormous_texts(entry: Format, text: str) -> None:
    survives(entry, SEEDS[entry.name][0], text)


def test_many_rules_are_read() -> None:
    pairs = [(f"axis_{index}", "data") for index in range(2000)]
    survives(OURS[1], "rules.py", f"RULES = {pairs!r}")

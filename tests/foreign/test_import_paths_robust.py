"""Readers of path lists, mappings and plans take any text, and never half of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec.foreign.formats import FORMATS, Format, format_named
from tests.foreign.test_haliax import NEWER, OLDER
from tests.foreign.test_hf import CONFIG, LLAMA
from tests.foreign.test_import_robust import ARRAYS, damaged, survives
from tests.foreign.test_import_robust import SEEDS as RULE_SEEDS
from tests.foreign.test_keras import LAYOUT
from tests.foreign.test_regex import EASYLM

SEEDS = (
    ("regex", "rules.py", EASYLM),
    ("regex", "rules.json", '[["a/.*", ["data", null]], ["^b|c$", [["data", "model"]]]]'),
    ("regex", "rules.yaml", "a/.*: [data, null]\n'b.*': []\n"),
    ("keras", "layout.py", LAYOUT),
    ("haliax", "older.yaml", OLDER),
    ("haliax", "newer.yaml", NEWER),
    ("hf-tp-plan", "config.json", CONFIG),
    ("hf-tp-plan", "configuration.py", LLAMA),
    ("dtensor", "parallelize.py", "p(m, {'a.b': RowwiseParallel(), 'é': Colwise, 'c': f()})\n"),
)
CASES = [
    pytest.param(entry, name, text, id=f"{entry.name}-{name}")
    for format_name, name, text in SEEDS
    for entry in FORMATS
    if entry.name == format_name
]


def test_every_format_is_damaged_somewhere() -> None:
    seeded = {*RULE_SEEDS, *(name for name, _, _ in SEEDS)}
    assert seeded == {entry.name for entry in FORMATS if not entry.runs_code}


def options_of(entry: Format) -> dict[str, str]:
    return {"match": "search"} if "match" in entry.options else {}


@pytest.mark.parametrize(("entry", "name", "seed"), CASES)
def test_damaged_files(entry: Format, name: str, seed: str) -> None:
    @given(damaged(seed), st.booleans())
    @settings(deadline=None)
    def check(text: str, has_arrays: bool) -> None:
        survives(entry, name, text, params=ARRAYS if has_arrays else None, **options_of(entry))

    check()


@pytest.mark.parametrize(("entry", "name", "seed"), CASES)
def test_any_text(entry: Format, name: str, seed: str) -> None:
    @given(st.text(max_size=80))
    @settings(deadline=None)
    def check(text: str) -> None:
        survives(entry, name, text, **options_of(entry))

    check()


@pytest.mark.parametrize(("entry", "name", "seed"), CASES)
@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "a = " + "[" * 3000 + "]" * 3000,
        "class A:\n" + "".join(f"{' ' * depth}class A:\n" for depth in range(1, 99)),
        "{" * 9999,
        "if x:\n  " * 2000 + "y",
    ],
    ids=("brackets", "nested", "classes", "braces", "ifs"),
)
def test_enormous_texts(entry: Format, name: str, seed: str, text: str) -> None:
    survives(entry, name, text)


def test_many_entries_are_read() -> None:
    pairs = ", ".join(f"('a_{index}/.*', P('data'))" for index in range(2000))
    entry = format_named("regex")
    assert entry is not None
    survives(entry, "rules.py", f"RULES = [{pairs}]", match="search")


def test_a_control_character_in_a_style_is_spelt_in_the_comment() -> None:
    entry = next(each for each in FORMATS if each.name == "hf-tp-plan")
    plan = '{"layers.*.up_proj": "colwise", "layers.*.down_proj": "\x1frowwise"}'
    text = f"class LlamaConfig(PreTrainedConfig):\n    base_model_tp_plan = {plan}\n"
    survives(entry, "configuration.py", text, params=ARRAYS, **options_of(entry))

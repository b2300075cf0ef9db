"""The tables that come with the package say what lark makes of the grammars."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import lark
import pytest
from lark.lexer import PatternRE

from shardspec import assets
from shardspec.language.grammar import parser as tables
from shardspec.language.grammar.parse_faults import in_words
from shardspec.language.grammar.parser import OPTIONS, STARTS, build_parser

each_grammar = pytest.mark.parametrize("grammar", sorted(STARTS))

#: For each grammar, texts from each of its starts that are right, and one that is not.
TEXTS = {
    "axis_rule": ("axis_rule", ("mlp -> model | data", "a -> (x, y)", "a -> none"), "a -> ->"),
    "names": ("names", ("a b _ c", "embed, mlp"), "a (("),
    "array_type": ("array_type", ("bf16[embed=4096 2*mlp]", "f32[]"), "bf16[["),
    "derived": (
        "derived",
        ("from a/** dims ... -2/any b | 0", "dims 0, _", "from a [b c] = d[b] @ e rank f"),
        "from dims 0 0",
    ),
    "mesh_axis": ("mesh_size", ("8", "rest@dcn", "submesh 2x2 explicit", "over x y2/2"), "8 8"),
    "hardware": ("hardware", ("tpu v5e 4x4", "2 * 8 h100"), "* *"),
    "path_pattern": ("path_pattern", ("**/a_{0..3}/k*", "x[0-9]/?"), "{a"),
    "step": ("step_line", ("a, **/k -> b x 2", "flash(a, b, c[d as e]) -> f[_ g=3]"), "a -> ->"),
    "document": ("rules_entry", ("mlp -> model | data",), "mlp ->"),
}


@each_grammar
def test_fresh(grammar: str) -> None:
    """`make tables` writes them anew."""
    text = tables.table_text(tables.table_of(build_parser(grammar), OPTIONS))
    assert assets.table_path(grammar).read_text(encoding="utf-8") == text


@each_grammar
def test_round_trip(grammar: str) -> None:
    loaded = tables.read_table(grammar)
    assert loaded is not None
    assert tables.table_of(loaded, OPTIONS) == tables.table_of(build_parser(grammar), OPTIONS)


@each_grammar
def test_the_same_trees_and_faults(grammar: str) -> None:
    start, right, wrong = TEXTS[grammar]
    loaded, built = tables.read_table(grammar), build_parser(grammar)
    assert loaded is not None
    for text in right:
        assert parsed(loaded, text, start) == parsed(built, text, start)
        assert not isinstance(parsed(loaded, text, start), str)
    assert parsed(loaded, wrong, start) == parsed(built, wrong, start)
    assert isinstance(parsed(loaded, wrong, start), str)


def parsed(parser: lark.Lark, text: str, start: str) -> Any:
    try:
        return parser.parse(text, start=start)
    except lark.exceptions.UnexpectedInput as fault:
        return f"{type(fault).__name__} {fault.line} {fault.column}"


def test_the_same_text_on_every_run() -> None:
    """Sets of strings have another order under another seed, and states another number."""
    script = (
        "from shardspec.language.grammar import parser as p\n"
        "print(p.table_text(p.table_of(p.build_parser('axis_rule'), p.OPTIONS)))"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


def test_another_lark_works_the_grammar_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lark, "__version__", "9.0.0")
    assert tables.read_table("names") is None


def test_no_more_tables_than_grammars() -> None:
    folder = assets.table_path("names").parent
    assert {path.stem for path in folder.iterdir()} == set(STARTS)


@pytest.mark.parametrize("grammar", STARTS)
def test_what_a_message_may_expect_has_words(grammar: str) -> None:
    parser = tables.parser(grammar)
    ignored = {"SPACE"}  # between words
    patterns = [
        terminal.name
        for terminal in parser.terminals
        if isinstance(terminal.pattern, PatternRE) and terminal.name not in ignored
    ]
    assert patterns
    for name in patterns:
        assert not re.search(r"\(\?|\[\^|\\", in_words(parser, name).replace('re:"', "")), name

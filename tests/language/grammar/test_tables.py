"""The tables that come with the package say what lark makes of the grammars."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from lark.lexer import PatternRE

from shardspec import assets
from shardspec.language.grammar.parse_faults import in_words
from shardspec.language.grammar.parser import parser
from tests.grammar_tables import STARTS, build_parser, table_of, table_text

each_grammar = pytest.mark.parametrize("grammar", sorted(STARTS))


@each_grammar
def test_fresh(grammar: str) -> None:
    """`make tables` writes them anew."""
    text = table_text(table_of(build_parser(grammar)))
    assert assets.table_path(grammar).read_text(encoding="utf-8") == text


def test_the_same_text_on_every_run() -> None:
    """Sets of strings have another order under another seed, and states another number."""
    script = (
        "from tests import grammar_tables as p\n"
        "print(p.table_text(p.table_of(p.build_parser('axis_rule'))))"
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


def test_no_more_tables_than_grammars() -> None:
    folder = assets.table_path("names").parent
    assert {path.stem for path in folder.iterdir()} == set(STARTS)


@each_grammar
def test_what_a_message_may_expect_has_words(grammar: str) -> None:
    ignored = {"SPACE"}  # between words
    patterns = [
        terminal.name
        for terminal in build_parser(grammar).terminals
        if isinstance(terminal.pattern, PatternRE) and terminal.name not in ignored
    ]
    assert patterns
    for name in patterns:
        words = in_words(parser(grammar), name)
        assert not re.search(r"\(\?|\[\^|\\", words.replace('re:"', "")), name


def test_a_spec_is_read_without_lark() -> None:
    script = (
        "import sys\nsys.modules['lark'] = None\n"
        "from shardspec.language.loader import load_text\n"
        "spec, faults = load_text('mesh: {a: 2}\\nrules: [\"b->(a,)|none\", b ->]')\n"
        "print(spec.axis_rules[0], faults[0].message)"
    )
    path = {"PYTHONPATH": ":".join(sys.path)}
    found = subprocess.run([sys.executable, "-c", script], env=path, capture_output=True, text=True)
    assert found.stdout == "b -> a expected a mesh axis, `none` or `(` after `->`\n", found.stderr

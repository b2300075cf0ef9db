"""Lines that are one lexeme are cut as their words would be."""

from __future__ import annotations

import re
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import SourceFile
from shardspec.language.dsl_text import layout, reader

PIECES = (
    *("a", "layers_0/wi", "**/k", "optional", "phase", "arrays", "rules", "mesh", "none", "re:x"),
    *(
        ":",
        " : ",
        "=",
        "bf16[4, 8]",
        "f32[a b]",
        "bf16[",
        "]",
        "embed mlp",
        "_",
        "(",
        ")",
        "{",
        "}",
    ),
    *(" ", "  ", "\t", "\r", "#", " # c", "\\", '"', '"q"', ";", "-> x", "é", "0", ",", "[ [1] ]"),
)
LINE = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
INDENTED = st.tuples(st.sampled_from(("", " ", "  ", "\t")), LINE).map("".join)
ENTRY = st.sampled_from(
    ("  a/b : bf16[4, 8]", "  a/b : embed mlp", "  c: f32[8]  ", "  x : f32[é]")
)
HEADS = st.sampled_from(("arrays {", "params {", "caches {", "phase p {", "rules {", "let a = 1"))
TEXTS = st.lists(st.one_of(ENTRY, INDENTED, HEADS, st.just("}")), max_size=14).map("\n".join)

#: The lexemes without those of whole lines.
SLOW = re.compile(
    layout._LEXEME.pattern.replace(r"(?<=\n)[^\S\n]+(?P<line>", r"(?P<line>(?!)(?:", 1).replace(
        r"(?=[^\S\n]*\n)", ")", 1
    ),
    re.VERBOSE,
)


def outcome(text: str) -> object:
    found, faults = reader.read_dsl(SourceFile("a.shard", text))
    if found is None:
        return faults
    places = found.source_map
    spans = [
        (route, each.text, each.span.start, each.span.end, each.start)
        for excerpts in (places.keys, places.values)
        for route, each in excerpts.items()
    ]
    return found.data, spans, found.comments, faults


@given(TEXTS)
def test_a_plain_line_is_cut_as_its_words_are(text: str) -> None:
    fast = outcome(text)
    with patch.object(layout, "_LEXEME", SLOW):
        assert fast == outcome(text)


def test_whole_lines_are_one_lexeme() -> None:
    lexemes, _ = layout._lexemes("arrays {\n  a/b : f32[4, 8]  \n  c : {x}\n}\n")
    assert [lexemes[at].text for at in range(len(lexemes))].count("a/b : f32[4, 8]") == 1
    assert SLOW.search("\n a b\n", 1).lastgroup != "line"

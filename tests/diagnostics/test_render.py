from __future__ import annotations

import re

import pytest

from shardspec.diagnostics import Diagnostic, Label, ShardspecError, SourceFile, Span, codes
from shardspec.diagnostics.render import render, render_all, render_concise

TEXT = "axes: {embed: 4}\n\nrules:\n  - mlp -> tenosr\n"
SOURCE = SourceFile("spec.yaml", TEXT)


def label(word: str, text: str = "", *, source: SourceFile = SOURCE, primary: bool = True) -> Label:
    at = source.text.index(word)
    return Label(Span(source, at, at + len(word)), text, primary)


def test_two_sides() -> None:
    labels = (label("tenosr", "culprit"), label("axes", "cause", primary=False))
    diagnostic = Diagnostic(codes.SYNTAX, "message", labels, ("a fact",), "do this\nor that")
    assert render(diagnostic) == (
        "error[SHD002]: message\n"
        "  --> spec.yaml:4:12\n"
        "   |\n"
        " 1 | axes: {embed: 4}\n"
        "   | ---- cause\n"
        "...\n"
        " 4 |   - mlp -> tenosr\n"
        "   |            ^^^^^^ culprit\n"
        "   |\n"
        "   = note: a fact\n"
        "   = help: do this\n"
        "           or that"
    )


def test_no_bar_hangs_below_the_last_line() -> None:
    assert render(Diagnostic(codes.SYNTAX, "m", (label("mlp"),))).endswith("^^^")


def test_without_a_place() -> None:
    assert render(Diagnostic(codes.SYNTAX, "m", help="h")) == "error[SHD002]: m\n  = help: h"


def test_two_labels_on_a_line_stand_below_it_once() -> None:
    labels = (label("tenosr"), label("mlp", primary=False))
    text = render(Diagnostic(codes.SYNTAX, "m", labels))
    assert text.count("- mlp -> tenosr") == 1
    assert text.index("---") < text.index("^^^^^^")


def test_a_finding_in_a_preset_says_who_pulled_it_in() -> None:
    extends = SourceFile("a.yaml", "extends: x")
    preset = SourceFile("preset:x", "rules: [y]", label("x", source=extends).span)
    text = render(Diagnostic(codes.SYNTAX, "m", (label("y", source=preset),)))
    assert "= note: preset:x is pulled in by a.yaml:1:2" in text


def test_two_files() -> None:
    other = SourceFile("b.yaml", "mesh: {a: 2}")
    labels = (label("mlp"), label("mesh", "here", source=other, primary=False))
    lines = render(Diagnostic(codes.SYNTAX, "m", labels)).splitlines()
    assert "  --> spec.yaml:4:5" in lines
    assert "  ::: b.yaml:1:1" in lines
    assert lines[lines.index("  ::: b.yaml:1:1") - 1] == "   |"


@pytest.mark.parametrize(
    ("line", "word", "carets"),
    [
        ("層 x", "x", "   ^"),
        ("層", "層", "^^"),
        ("a\u0301 x", "x", "  ^"),
        ("\tx", "x", " ^"),
        ("\x1b[31mx", "x", "     ^"),
    ],
    ids=["wide", "wide itself", "combining", "tab", "escape"],
)
def test_carets_stand_below_the_text(line: str, word: str, carets: str) -> None:
    source = SourceFile("s", line)
    shown = render(Diagnostic(codes.SYNTAX, "m", (label(word, source=source),))).splitlines()
    assert shown[-1] == f"   | {carets}"
    assert "\x1b" not in shown[-2]
    assert "\t" not in shown[-2]


def test_a_long_line_is_cut_around_the_label() -> None:
    source = SourceFile("s", "a" * 5000 + " here " + "b" * 5000)
    shown = render(Diagnostic(codes.SYNTAX, "m", (label("here", source=source),))).splitlines()
    assert max(map(len, shown)) < 200
    assert shown[-2][shown[-1].index("^") :].startswith("here")


def test_a_label_over_several_lines_shows_the_first() -> None:
    shown = render(Diagnostic(codes.SYNTAX, "m", (Label(Span(SOURCE, 18, len(TEXT))),)))
    assert " 3 | rules:\n   | ^^^^^^" in shown


def test_color_is_never_all_there_is() -> None:
    diagnostic = Diagnostic(codes.SYNTAX, "m", (label("mlp", "here"),), help="h")
    import re

    painted = render(diagnostic, color=True)
    assert "\x1b[" in painted
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == render(diagnostic)


def test_concise() -> None:
    assert render_concise(Diagnostic(codes.SYNTAX, "m", (label("mlp"),))) == (
        "spec.yaml:4:5: error[SHD002]: m"
    )
    assert render_concise(Diagnostic(codes.AXIS_WITHOUT_RULE, "m")) == "warning[SHD203]: m"


def test_error_is_the_rendered_text() -> None:
    found = [Diagnostic(codes.SYNTAX, "one"), Diagnostic(codes.SYNTAX, "two")]
    error = ShardspecError(found)
    assert error.diagnostics == tuple(found)
    assert str(error) == "\n" + render_all(found)


def test_nothing_raw_reaches_the_terminal() -> None:
    source = SourceFile("a\x1b]0;t\x07.yaml", "k: 1")
    labels = (Label(Span(source, 0, 1), "said \x1b[2J"),)
    found = Diagnostic(
        codes.SYNTAX, "m \x1b[31m\x00\n", labels, ("note \x9b",), "one \ud800\ntwo \x1b"
    )
    for text in (render(found), render_concise(found)):
        assert all(line.isprintable() for line in text.split("\n"))
    assert "m \\x1b[31m\\x00\\n" in render_concise(found)
    assert "one \\ud800\n" in render(found)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_sentences_go_on_below_and_keep_their_words(width: int) -> None:
    source = SourceFile("spec.yaml", "rules:\n  - embed -> data\n")
    help = "take the rule out; or, if code has it, add `joined_kv: SIZE` to `axes` of the spec"
    note = "4 arrays, first layers_0/key/kernel; replicated: 4.00 KiB on every device, 67 % of all"
    here = Label(Span(source, 11, 16), "here")
    message = "no rule is for `joined_kv`, and every device holds all of what it should split"
    found = Diagnostic(codes.UNKNOWN_LOGICAL_AXIS, message, (here,), (note,), help)
    plain, wrapped = render(found), render(found, width=width)
    assert wrapped.split() == plain.split()
    assert all(len(line) < width for line in wrapped.split("\n"))
    assert "`joined_kv: SIZE`" in wrapped
    assert (wrapped == plain) == (width == 200)
    painted = render(found, width=width, color=True)
    assert re.sub("\x1b\\[[0-9;]*m", "", painted) == wrapped


def test_what_is_wider_than_the_terminal_stays_whole() -> None:
    command = "`shardspec explain decoder/layers_0/self_attention/query/kernel --spec t5.yaml`"
    found = Diagnostic(codes.UNKNOWN_LOGICAL_AXIS, "no", help=f"ask {command} why it is so")
    assert command in render(found, width=50)
    assert render(found, width=20) == render(found)

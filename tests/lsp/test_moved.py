"""Findings of an older text stand at the same words of a newer one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shardspec.lsp import types
from shardspec.lsp.findings import merged, moved

WORDS = st.text("ab \n", max_size=12)


def place(text: str, at: int) -> types.Position:
    return types.Position(text.count("\n", 0, at), at - (text.rfind("\n", 0, at) + 1))


def offset(text: str, at: types.Position) -> int:
    lines = text.split("\n")
    return sum(len(line) + 1 for line in lines[: at.line]) + at.character


def finding(text: str, start: int, end: int, code: str = "SHD301") -> types.Diagnostic:
    where = types.Range(place(text, start), place(text, end))
    return types.Diagnostic(where, "", types.DiagnosticSeverity.Error, code, "shardspec")


@given(WORDS, WORDS, WORDS, WORDS, WORDS, st.booleans(), st.sampled_from(("MARK", "MA\nRK")))
def test_a_finding_stays_at_its_words_wherever_else_is_typed(
    before: str, old: str, new: str, between: str, after: str, is_behind: bool, mark: str
) -> None:
    """One stretch is replaced, before the words or behind them; the words stay as they are."""
    if is_behind:
        texts = [f"{before}{mark}.{between}{typed}{after}" for typed in (old, new)]
    else:
        texts = [f"{before}{typed}{between}{mark}{after}" for typed in (old, new)]
    start = texts[0].index(mark)
    (found,) = moved([finding(texts[0], start, start + len(mark))], *texts, [])
    low, high = offset(texts[1], found.range.start), offset(texts[1], found.range.end)
    assert texts[1][low:high] == mark


def test_faults_of_form_are_not_taken_along_where_a_block_is_read_anew() -> None:
    text = "a\nb\nc\n"
    known = [finding(text, 0, 1, "SHD001"), finding(text, 4, 5, "SHD001"), finding(text, 4, 5)]
    assert [*moved(known, text, text + "d", [(2, 2)])] == [known[0], known[2]]
    assert [*moved(known, text, text + "d", [(1, 1)])] == known


def test_what_several_specs_find_in_a_file_is_said_once_and_for_which_it_is() -> None:
    one, other = finding("abc", 0, 1), finding("abc", 1, 2)
    told = {"/p/a.yaml": [one, other], "/p/sub/b.yaml": [one]}
    first, second = merged(told, "/p/base.yaml", ", and more")
    assert first.message == "\nfor 2 specs: `a.yaml`, `sub/b.yaml`, and more"
    assert second.message == "\nfor 1 spec: `a.yaml`, and more"
    assert (first.range, second.range) == (one.range, other.range)
    assert merged({"/p/base.yaml": [one], "/p/a.yaml": [one]}, "/p/base.yaml") == [one]


def test_what_one_spec_finds_in_two_phases_is_no_two_specs_that_agree() -> None:
    one = finding("abc", 0, 1)
    found = [one, replace(one, message=f"{one.message}\nhelp: another way out in a phase")]
    assert merged({"/p/base.yaml": found}, "/p/base.yaml") == found
    assert merged({"/p/base.yaml": found, "/p/a.yaml": [one]}, "/p/base.yaml") == found

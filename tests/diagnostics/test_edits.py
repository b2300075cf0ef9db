"""Fixes of one text or several: what they cover is replaced, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import Edit, Fix, SourceFile, Span
from shardspec.diagnostics.diagnostic import apply

TEXT = "ab\r\ncd\nef\n"
SOURCE = SourceFile("s.yaml", TEXT)


@st.composite
def fixes(draw: st.DrawFn) -> Fix:
    """One fix, whose own edits do not touch one another."""
    cuts = sorted(draw(st.sets(st.integers(0, len(TEXT)), min_size=2, max_size=6)))
    spans = [Span(SOURCE, a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    return Fix(
        "mend", tuple(Edit(span, draw(st.sampled_from(("", "X", "Y\nZ")))) for span in spans)
    )


@given(st.lists(fixes(), max_size=4))
def test_outside(given_fixes: list[Fix]) -> None:
    edited = apply(given_fixes)
    assert set(edited.taken) | set(edited.left) == set(given_fixes)
    covered = {
        at for fix in edited.taken for edit in fix.edits
        for at in range(edit.span.start, edit.span.end)
    }  # fmt: skip
    outside = "".join(char for at, char in enumerate(TEXT) if at not in covered)
    inside = sorted((e for fix in edited.taken for e in fix.edits), key=lambda e: e.span.start)
    added = sum(len(e.text.replace("\n", "\r\n")) for e in inside)
    new = edited.texts.get("s.yaml", TEXT)
    assert len(new) == len(outside) + added
    kept = iter(new)
    assert all(char in kept for char in outside), "what stays, stays in order"
    for fix in edited.left:
        assert any(_meet(one, other) for one in fix.edits for other in inside)


def _meet(one: Edit, other: Edit) -> bool:
    return one.span.start <= other.span.end and other.span.start <= one.span.end


places = st.tuples(st.integers(0, len(TEXT)), st.integers(0, 3)).map(
    lambda each: Span(SOURCE, each[0], min(each[0] + each[1], len(TEXT)))
)


@given(st.lists(places, max_size=12))
def test_what_is_left_touches_what_was_taken_before_it(spans: list[Span]) -> None:
    """One edit a fix, insertions too: each is held against every one that was taken."""
    fixes = [Fix(f"{at}", (Edit(span, "x"),)) for at, span in enumerate(spans)]
    taken: list[Span] = []
    for span in spans:
        if not any(_touch(span, other) for other in taken):
            taken.append(span)
    assert [fix.edits[0].span for fix in apply(fixes).taken] == taken


def _touch(one: Span, other: Span) -> bool:
    first, second = sorted((one, other), key=lambda span: (span.start, span.end))
    is_empty = one.start == one.end or other.start == other.end
    return second.start < first.end or (second.start == first.end and is_empty)


@given(st.text("a\n", max_size=5), st.booleans())
def test_line_ends(new: str, has_crlf: bool) -> None:
    source = SourceFile("s.yaml", "a\r\nb" if has_crlf else "a\nb")
    text = apply([Fix("put in", (Edit(Span(source, 0, 0), new),))]).texts["s.yaml"]
    assert text == (new.replace("\n", "\r\n") if has_crlf else new) + source.text


def test_the_first_wins_and_equal_ones_are_one() -> None:
    one = Fix("one", (Edit(Span(SOURCE, 0, 2), "x"),))
    two = Fix("two", (Edit(Span(SOURCE, 1, 3), "y"),))
    edited = apply([one, two, one])
    assert (edited.taken, edited.left) == ((one,), (two,))
    assert edited.texts == {"s.yaml": "x" + TEXT[2:]}


def test_a_fix_of_two_files_is_taken_whole_or_not() -> None:
    other = SourceFile("base.yaml", "hello")
    both = Fix("both", (Edit(Span(SOURCE, 0, 1), "x"), Edit(Span(other, 0, 5), "bye")))
    clash = Fix("clash", (Edit(Span(other, 4, 5), ""),))
    assert apply([clash, both]).texts == {"base.yaml": "hell"}
    assert apply([both, clash]).texts == {"s.yaml": "x" + TEXT[1:], "base.yaml": "bye"}

"""What is asked for in one place, in several, and by a part of a name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import Code, Diagnostic, Severity, codes
from shardspec.diagnostics.codes import Levels, LevelTable, known

ALLOW, WARNING, ERROR = Severity.ALLOW, Severity.WARNING, Severity.ERROR
TASTE = Code("SHD999", "a matter of taste", WARNING, "taste", is_pedantic=True)


def level(code: Code, *tables: LevelTable) -> Severity:
    return Levels(tables).severity(code)


def settings(**levels: Severity) -> LevelTable:
    return LevelTable(tuple((name.replace("_", "-"), each) for name, each in levels.items()))


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ((), ERROR),
        ((settings(SHD3=ALLOW),), ALLOW),
        ((settings(indivisible=WARNING),), WARNING),
        ((settings(SHD301=WARNING, SHD3=ALLOW),), WARNING),
        ((settings(SHD3=ALLOW, SHD30=WARNING),), WARNING),
        ((settings(SHD30=WARNING, SHD3=ALLOW),), WARNING),
        ((settings(SHD301=ALLOW, indivisible=WARNING),), WARNING),
        ((settings(SHD301=ALLOW), settings(SHD3=WARNING)), WARNING),
        ((LevelTable(select=("SHD3",)),), ERROR),
        ((LevelTable(select=("SHD4",)),), ALLOW),
        ((LevelTable(select=("SHD301",), ignore=("SHD3",)),), ERROR),
        ((LevelTable(select=("SHD3",), ignore=("SHD301",)),), ALLOW),
        ((LevelTable(select=("SHD3",), ignore=("SHD3",)),), ALLOW),
        ((settings(SHD301=ALLOW), LevelTable(select=("SHD3",))), ERROR),
        ((settings(SHD301=WARNING), LevelTable(select=("SHD3",))), WARNING),
        ((settings(SHD301=ERROR), LevelTable(ignore=("SHD3",))), ALLOW),
        ((LevelTable((("SHD301", WARNING),), select=("SHD4",)),), WARNING),
        ((LevelTable((("SHD3", WARNING),), select=("SHD4",)),), ALLOW),
    ],
)
def test_tables(tables: tuple[LevelTable, ...], expected: Severity) -> None:
    assert level(codes.INDIVISIBLE, *tables) is expected


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ((), ALLOW),
        ((LevelTable(is_pedantic=True),), WARNING),
        ((settings(taste=ERROR),), ERROR),
        ((settings(SHD9=ERROR),), ALLOW),
        ((settings(SHD9=ERROR), LevelTable(is_pedantic=True)), ERROR),
        ((LevelTable(select=("SHD9",)),), ALLOW),
        ((LevelTable(select=("SHD999",)),), WARNING),
        ((settings(taste=ALLOW), LevelTable(is_pedantic=True)), ALLOW),
    ],
)
def test_pedantic_findings_are_asked_for(
    tables: tuple[LevelTable, ...], expected: Severity
) -> None:
    assert level(TASTE, *tables) is expected


selectors = st.sampled_from(
    ("SHD", "SHD0", "SHD00", "SHD002", "syntax", "SHD3", "SHD301", "indivisible", "SHD401")
)
some = st.lists(selectors, max_size=3).map(tuple)
tables = st.builds(
    LevelTable,
    st.lists(st.tuples(selectors, st.sampled_from(Severity)), max_size=4).map(tuple),
    some,
    some,
    st.booleans(),
)
stacks = st.lists(tables, max_size=3).map(tuple)


@given(stacks)
def test_undeniable(tables: tuple[LevelTable, ...]) -> None:
    for code in codes.ALL:
        if code.is_fault:
            assert level(code, *tables) is code.severity


@given(stacks, st.sampled_from(Severity))
def test_exact(tables: tuple[LevelTable, ...], severity: Severity) -> None:
    for name in (codes.INDIVISIBLE.id, codes.INDIVISIBLE.name):
        last = LevelTable(((name, severity), ("SHD3", ALLOW)), select=("SHD4",), ignore=("SHD3",))
        assert level(codes.INDIVISIBLE, *tables, last) is severity


@given(stacks)
def test_hearing_twice_is_hearing_once(tables: tuple[LevelTable, ...]) -> None:
    found = [
        Diagnostic(code, "fact")
        for code in (codes.SYNTAX, codes.INDIVISIBLE, codes.REPLICATED_LARGE)
    ]
    settled = LevelTable(tuple((code.id, level(code, *tables)) for code in codes.ALL))
    once = tuple(Levels(tables).heard(found))
    assert tuple(Levels((settled,)).heard(once)) == once


def test_known() -> None:
    assert all(known(code.id) and known(code.name) and known(code.id[:4]) for code in codes.ALL)
    assert not any(map(known, ("", "SH", "shd3", "indivis", "SHD3011", "SHD7")))

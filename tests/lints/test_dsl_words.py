"""Of a spec in the DSL findings say the same as of its YAML, and quote the DSL.

Over all specs of `tests/cases` and all bad examples that both spellings can say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import pytest

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, SourceFile, codes, quote
from shardspec.diagnostics.diagnostic import apply
from shardspec.language.formatting import formatted
from tests.lints.test_help_works import found_in, specs

#: Findings whose ways out are about the spelling itself.
_ABOUT_SPELLING = {"SHD004", "SHD204", "SHD222"}
_YAML = re.compile(r'"?[\w.*/{},-]+"?: \S.*|\w+:|(?:- )?\{\w+: .*')
_LINES = {
    "spec.yaml": re.compile(r"(?:lints|state|coverage|policy|replicate|memory|extends): .*"),
    "spec.shard": re.compile(
        r"(?:axis|let|lint|state|coverage|policy|replicate|activation|override|memory) .*",
        re.DOTALL,
    ),
}
_WORDS = {"SIZE": "64", "NUMBER": "8", "...": "w"}


@cache
def _both() -> dict[str, tuple[str, str]]:
    found = {}
    for each in specs():
        text, _ = formatted(SourceFile("spec.yaml", each.values[0]), "dsl")
        if text is not None:
            found[str(each.id)] = (each.values[0], text)
    return found


def _said(found: Diagnostic) -> tuple[str, ...]:
    labels = (label.text for label in found.labels)
    return (found.code.id, found.message, *found.notes, found.help or "", *labels)


def _quoted(text: str) -> Iterator[str]:
    yield from (piece for at, piece in enumerate(text.split("`")) if at % 2)


def test_there_are_enough_of_them() -> None:
    assert len(_both()) > 180


@pytest.mark.parametrize("name", list(_both()))
def test_both_spellings_have_the_same_findings(name: str) -> None:
    yaml, dsl = _both()[name]
    of_dsl = found_in(dsl, "spec.shard")
    expected = sorted(
        _said(each.spelt(is_dsl=True))
        for each in found_in(yaml)
        if each.code.id not in _ABOUT_SPELLING
    )
    assert sorted(_said(d) for d in of_dsl if d.code.id not in _ABOUT_SPELLING) == expected
    for each in of_dsl:
        quoted = [piece for text in _said(each) for piece in _quoted(text)]
        assert not [piece for piece in quoted if _YAML.fullmatch(piece)], each


@pytest.mark.parametrize("file", list(_LINES))
@pytest.mark.parametrize("name", list(_both()))
def test_lines_that_a_help_quotes_can_be_read(name: str, file: str) -> None:
    """Each is put behind the spec; a key that stands twice then is refused for that alone."""
    text = _both()[name][file == "spec.shard"]
    found = found_in(text, file)
    before = {each.code.id for each in found}
    for each in found:
        for line in filter(_LINES[file].fullmatch, _quoted(each.help or "")):
            for word, real in _WORDS.items():
                line = line.replace(word, real)
            faults = pipeline.load_text(f"{text}\n{line}\n", file)[1]
            of_reading = {d.code.id for d in faults if d.code.id < "SHD1"}
            assert of_reading <= before | {"SHD005"}, line


@pytest.mark.parametrize("name", list(_both()))
def test_fixes_write_the_dsl(name: str) -> None:
    _, dsl = _both()[name]
    found = found_in(dsl, "spec.shard")
    before = {each.code.id for each in found}
    for each in found:
        texts = apply([each.fix]).texts if each.fix is not None else {}
        for text in texts.values():
            after = {d.code.id for d in pipeline.load_text(text, "spec.shard")[1]}
            assert after <= before, (each.fix, text)


@pytest.mark.parametrize(
    ("text", "word"), [("shardspec: 1\n", "`axes`"), ("shardspec 1\n", "`axis`")]
)
def test_what_decides_and_what_is_shown_have_one_spelling(text: str, word: str) -> None:
    spec, _ = pipeline.load_text(text)
    assert spec is not None
    found = Diagnostic(codes.INDIVISIBLE, f"no place for {quote.section('axes')}")
    told = pipeline.report(spec, [found])
    assert told.loud[0].message == told.shown[0].message == f"no place for {word}"

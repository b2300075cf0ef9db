"""Workflow commands: escaped as GitHub reads them, one line each."""

from __future__ import annotations

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, SourceFile, Span, codes, point
from shardspec.report.findings_forms import commands


def command(diagnostic: Diagnostic) -> str:
    (found,) = commands([diagnostic])
    assert "\n" not in found
    assert "\r" not in found
    return found


def test_all_of_it() -> None:
    source = SourceFile("a,b:c/100%.yaml", "rules:\n- x\n- y\n")
    found = point(
        codes.DEAD_RULE, "50% of `a, b`: gone", Span(source, 9, 13), notes=("n\r\nm",), help="h: i"
    )
    assert command(found) == (
        "::error file=a%2Cb%3Ac/100%25.yaml,line=2,col=3,endLine=3,endColumn=3,title=SHD214"
        "::50%25 of `a, b`: gone%0Anote: n%0D%0Am%0Ahelp: h: i"
    )


def test_without_a_place() -> None:
    assert command(point(codes.SIZE_ONE_AXIS, "fact", None)) == "::warning title=SHD107::fact"


def test_a_preset_stands_where_it_is_pulled_in() -> None:
    text = "extends: [t5x/2d]\nmesh: {model: 2}\narrays: {a/k: 'f32[embed=4 mlp=8]'}\n"
    spec, diagnostics = pipeline.load_text(text, "s.yaml")
    assert spec is not None
    found = pipeline.checked(spec, diagnostics, pipeline.compile_plans(spec)).shown
    inside = [d for d in found if d.primary and d.primary.span.source.name != "s.yaml"]
    assert inside
    for each in inside:
        assert command(each).startswith("::error file=s.yaml,line=1,col=11,endLine=1,endColumn=17,")
        assert "%0Aat preset:t5x/2d:" in command(each)

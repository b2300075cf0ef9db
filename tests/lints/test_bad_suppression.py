"""Comments with anything in them: never a traceback, and a fix that makes them right or gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.diagnostic import apply

SPEC = {
    "s.yaml": "mesh: {x: 2}\nrules:\n  - a -> x | x  # %s\narrays: {k: 'f32[a=8]'}",
    "s.shard": "mesh { x: 2 }\nrules {\n  a -> x | x  # %s\n}\narrays { k : f32[a=8] }",
}
SPEC["s.shard"] = SPEC["s.shard"].replace("x: 2", "x = 2")

_PIECES = """shardspec: ignore ignore-file [ ] ( , # SHD214 SHD30 dead-rule noqa é because"""

comments = st.lists(
    st.sampled_from((*_PIECES.split(), " ", "\t", "# shardspec: ")), max_size=8
).map("".join)


def found_in(text: str, name: str) -> tuple[Diagnostic, ...]:
    spec, faults = pipeline.load_text(text, name)
    assert spec is not None
    assert faults == ()
    return pipeline.checked(spec, faults, pipeline.compile_plans(spec)).shown


def of_comments(text: str, name: str) -> list[Diagnostic]:
    return [d for d in found_in(text, name) if d.code.id in ("SHD011", "SHD013", "SHD014")]


@pytest.mark.parametrize("name", SPEC)
@given(comment=comments)
def test_anything(name: str, comment: str) -> None:
    text = SPEC[name].replace("%s", f"shardspec: {comment}")
    for _ in range(4):
        found = of_comments(text, name)
        for each in found:
            assert each.primary is not None
            assert "shardspec:" in text.split("\n")[each.primary.span.line - 1]
        fixes = [each.fix for each in found if each.fix]
        text = apply(fixes).texts.get(name, text)
    assert not [d for d in of_comments(text, name) if d.fix and d.fix.is_sure]


@pytest.mark.parametrize(
    ("comment", "mended"),
    [
        ("ignore SHD214 why", "ignore[SHD214] why"),
        ("ignore: dead-rule", "ignore[dead-rule]"),
        ("ignore(SHD214) why", "ignore[SHD214] why"),
        ("noqa SHD214", "ignore[SHD214]"),
        ("ignore[SHD214", "ignore[SHD214]"),
        ("ignore[SHD214, SHD302] why", "ignore[SHD214] why"),
        ("ignore[dead-ruel] why", "ignore[dead-rule] why"),
    ],
)
@pytest.mark.parametrize("name", SPEC)
def test_what_was_meant(name: str, comment: str, mended: str) -> None:
    text = SPEC[name].replace("%s", f"shardspec: {comment}")
    fixes = [each.fix for each in of_comments(text, name) if each.fix]
    new = apply(fixes).texts[name]
    assert new == SPEC[name].replace("%s", f"shardspec: {mended}")
    assert found_in(new, name) == ()

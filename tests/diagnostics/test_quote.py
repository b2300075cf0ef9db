"""A message quotes the language of its file, and names of the user stay as they are."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, SourceFile, Span, codes, point, quote
from shardspec.diagnostics.render import ShardspecError, render, render_concise
from shardspec.report.findings_forms import findings_text, sarif_text

_MARK = quote._MARK.strip("\0")
#: Names that look like what messages quote, or like the marks around it.
HOSTILE = (
    *("axes", "`axes`", "lints: {dead-rule: allow}", "policy.indivisible", "replicate:"),
    *("\x00", "\x00\x00", "\x000123456789abcdef\x00", "\x02a\x1fb\x03", "{name}", "%s", "\\1"),
)
names = st.one_of(st.sampled_from(HOSTILE), st.text(min_size=1, max_size=8))
#: Names that can stand in a spec.
plain = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters="`~"),
    min_size=1,
    max_size=8,
).filter(lambda name: not re.match(r"re:|optional:|[-+.\d]", name))


def of(text: str, name: str = "spec.yaml") -> Diagnostic:
    source = SourceFile(name, "rules: []\n")
    return point(codes.SYNTAX, text, Span(source, 0, 5), text, notes=(text,), help=text)


def texts(found: Diagnostic) -> set[str]:
    return {found.message, *found.notes, found.help or "", *(each.text for each in found.labels)}


@given(names, names, names)
def test_names_of_the_user_occur_unchanged(before: str, key: str, after: str) -> None:
    row = quote.override(key, "a b")
    found = of(f"{before}{quote.section('axes')}{row}{after}{quote.word('at', key)}")
    for is_dsl, section in ((False, "`axes`"), (True, "`axis`")):
        (said,) = texts(found.spelt(is_dsl=is_dsl))
        assert said.startswith(f"{before}{section}")
        assert said.endswith(f"{after}`at{'' if is_dsl else ':'} {key}`")
        assert said.count(key.replace("\\", "\\\\").replace('"', '\\"')) >= 1


@given(names)
def test_no_way_out_shows_a_mark(name: str) -> None:
    text = f"{name} {quote.setting('lints', ('dead-rule', 'allow'))}"
    for found in (of(text), of(text, "a.shard").spelt(is_dsl=False), of(text).spelt(is_dsl=True)):
        shown = (
            *(str(found), repr(found), render(found), render_concise(found)),
            *(str(ShardspecError([found])), repr(ShardspecError([found]))),
        )
        forms = (findings_text([found]), sarif_text([found]))
        assert not [each for each in (*texts(found), *shown, *forms) if _MARK in each]


def test_a_finding_is_spelt_as_its_file_until_a_spec_says_otherwise() -> None:
    text = f"add {quote.added('axes', 'mlp', 8)}"
    assert of(text).message == "add `mlp: 8` to `axes`"
    assert of(text, "a.shard").message == "add `axis mlp = 8`"
    both = pickle.loads(pickle.dumps(of(text, "a.shard")))
    assert both.spelt(is_dsl=False).message == "add `mlp: 8` to `axes`"


@pytest.mark.parametrize("is_dsl", [False, True])
@settings(max_examples=40)
@given(name=st.from_regex(r"[a-z]\w*([.-]\w+)*", fullmatch=True), path=plain)
def test_what_is_quoted_can_be_read(is_dsl: bool, name: str, path: str) -> None:
    """Each line or entry, with names that need quotes, is read as what it says."""
    said = (
        quote.setting("lints", ("dead-rule", "allow")),
        quote.setting("policy", ("indivisible", "keep")),
        quote.replicate(path, "REASON"),
    )
    lines = [of(each).spelt(is_dsl=is_dsl).message.strip("`") for each in said]
    added = of(quote.added("axes", name, 8)).spelt(is_dsl=is_dsl).message
    entry = added.removesuffix(" to `axes`").strip("`")
    lines.append(entry if is_dsl else f"axes: {{{entry}}}")
    text = "\n".join(("shardspec 1" if is_dsl else "shardspec: 1", *lines)) + "\n"
    spec, faults = pipeline.load_text(text, "a.shard" if is_dsl else "a.yaml")
    assert spec is not None
    assert not [each for each in faults if each.code not in (codes.YAML_TRAP, codes.BAD_PATTERN)]
    if not faults:
        assert [each.name for each in spec.logical_axes] == [name]
        assert [each.pattern.text for each in spec.replicate] == [path]


def test_a_fault_before_there_is_a_spec_quotes_its_own_language() -> None:
    with pytest.raises(ShardspecError, match="write `shardspec 1`"):
        pipeline_loads("shardspec 9\nrules {\n}\n")
    with pytest.raises(ShardspecError, match="write `shardspec: 1`"):
        pipeline_loads("shardspec: 9\nrules: []\n")


def pipeline_loads(text: str) -> object:
    from shardspec import loads

    return loads(text)


def test_the_cases_have_findings_that_quote_the_language() -> None:
    spec, faults = pipeline.load_text("mesh: {data: 8}\nrules: [batch -> data]\n")
    assert spec is not None
    (found,) = pipeline.check(spec, faults, ()).shown
    assert found.help is not None
    assert "`lints: {nothing-checked: allow}`" in found.help
    assert isinstance(found.help, quote.Text)

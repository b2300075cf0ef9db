"""Baselines: what is in one is not shown, what is new is, and edits elsewhere change nothing."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import Code, Diagnostic, SourceFile, Span, codes, point
from shardspec.report.findings_forms import Baseline, lasting, read_baseline
from tests.report.test_sarif import found_in
from tests.test_docs import NOT_ONE_TEXT, example

#: Characters that JSON, terminals or paths may have trouble with.
_AWKWARD = st.text('ab`1 :\u202e\udc80"\\\n/', max_size=12)
_CODES = st.sampled_from([code for code in codes.ALL if not code.is_fault][:5])


def empty() -> Baseline:
    return Baseline("baseline.json", {})


def reread(baseline: Baseline) -> Baseline:
    read = read_baseline(SourceFile("baseline.json", baseline.text()))
    assert isinstance(read, Baseline), read
    return read


@st.composite
def diagnostics(draw: st.DrawFn) -> Diagnostic:
    source = SourceFile(draw(st.sampled_from(["spec.yaml", "preset:fsdp", "a/b.shard"])), "text")
    span = draw(st.sampled_from([None, Span(source, 0, 2), Span(source, 1, 2)]))
    return point(draw(_CODES), draw(_AWKWARD), span)


@given(st.lists(diagnostics()), diagnostics(), st.data())
def test_clean_and_one_more(found: list[Diagnostic], more: Diagnostic, data: st.DataObject) -> None:
    baseline = reread(empty().rewritten({"spec.yaml": found}, ()))
    assert baseline.compared("spec.yaml", found, ()) == ((), tuple(found), ())
    shuffled = data.draw(st.permutations(found))
    assert baseline.compared("spec.yaml", [*shuffled, more], ()).new == (more,)
    assert baseline.text() == reread(baseline).text()
    assert baseline.text() == empty().rewritten({"spec.yaml": shuffled}, ()).text()


@given(st.lists(diagnostics(), min_size=1))
def test_one_fewer_is_fixed(found: list[Diagnostic]) -> None:
    baseline = empty().rewritten({"spec.yaml": found}, ())
    compared = baseline.compared("spec.yaml", found[1:], ())
    assert (compared.new, sum(count for _, count in compared.fixed)) == ((), 1)
    assert not baseline.compared("spec.yaml", found[1:], ("--target pod",)).fixed


@pytest.mark.parametrize(
    "code", [c for c in codes.ALL if c.name not in NOT_ONE_TEXT], ids=lambda code: code.id
)
def test_every_finding_outlives_moved_lines(code: Code) -> None:
    text = example(code, "Bad")
    found = found_in(text)
    baseline = reread(empty().rewritten({"spec.yaml": found}, ()))
    comment = "# above\n\n" if "{" not in text.split("\n")[0] else ""
    moved = found_in(comment + text)
    assert all(each.code.is_fault for each in baseline.compared("spec.yaml", moved, ()).new)
    faults = {each.code.id for each in found if each.code.is_fault}
    kept = {entry.code for each in baseline.specs.values() for entry in each.counts}
    assert kept == {each.code.id for each in found} - faults


def test_a_fault_hides_nothing_and_nothing_is_fixed_beside_it() -> None:
    found = found_in(example(codes.DEAD_RULE, "Bad"))
    fault = point(codes.UNKNOWN_KEY, "unknown key", None)
    baseline = empty().rewritten({"spec.yaml": [*found, fault]}, ())
    assert baseline.compared("spec.yaml", [fault], ()) == ((fault,), (), ())


def test_names_stay_and_sizes_go() -> None:
    said = "dim 1 of `layers_3/wi` bf16[4, 8] takes 3.0 GiB on `pod[2]`, 4.5 % (spec.yaml:3:4)"
    assert lasting(said) == "dim 1 of `layers_3/wi` bf16[#, #] takes # on `pod[2]`, # (spec.yaml)"
    assert lasting("1 array of v5p-256") == lasting("12 arrays of v5p-256")


def text_of(**changes: object) -> str:
    entry = {"code": "SHD214", "file": "a", "message": "b", "count": 1, **changes}
    specs = {"a": {"options": [], "findings": [entry]}}
    return json.dumps({"schema": "shardspec.baseline/1", "specs": specs})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "does not say"),
        ('{"schema": "shardspec.check/1"}', "does not say"),
        ('{"schema": "shardspec.baseline/9"}', "another version"),
        ('{"schema": "shardspec.baseline/1"}', "`specs` is missing"),
        ('{"schema": "shardspec.baseline/1", "specs": {"a": []}}', "should be object"),
        (text_of(count=0), "out of range"),
        (text_of(count=True), "should be integer"),
        (text_of(count="1"), "should be integer"),
        (text_of(message=None), "should be string"),
        (text_of(code="SHD002"), "SHD002 is a fault"),
        (text_of().replace("1}", "9" * 5000 + "}"), "not JSON"),
    ],
)
def test_what_is_no_baseline_is_refused(text: str, why: str) -> None:
    found = read_baseline(SourceFile("baseline.json", text))
    assert isinstance(found, str)
    assert why in found


@given(st.recursive(st.none() | st.integers() | st.text(), lambda e: st.lists(e) | st.dictionaries(
    st.sampled_from(["specs", "options", "findings", "code", "count", "x"]), e)))  # fmt: skip
def test_any_data_is_read_or_refused(specs: object) -> None:
    text = json.dumps({"schema": "shardspec.baseline/1", "specs": specs})
    assert isinstance(read_baseline(SourceFile("b", text)), Baseline | str)


def test_an_entry_that_is_there_twice_counts_twice() -> None:
    data = json.loads(text_of())
    data["specs"]["a"]["findings"] *= 2
    read = read_baseline(SourceFile("b", json.dumps(data)))
    assert isinstance(read, Baseline)
    assert Counter(read.specs["a"].counts).total() == 2

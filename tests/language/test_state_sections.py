"""`state:`, `coverage:` and `replicate:`: what they say in both spellings, and may not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic
from shardspec.ir.spec import CoverageGate, Pattern, Replicate, Spec, StatePolicy


def load(text: str, name: str = "s.yaml") -> tuple[Spec, tuple[Diagnostic, ...]]:
    spec, diagnostics = pipeline.load_text(text, name)
    assert spec is not None
    return spec, diagnostics


def sound(text: str, name: str = "s.yaml") -> Spec:
    spec, diagnostics = load(text, name)
    assert diagnostics == ()
    return spec


@pytest.mark.parametrize(
    ("yaml", "dsl", "expected"),
    [
        ("{optimizer: zero1}", "state optimizer zero1", StatePolicy("zero1")),
        ("{over: data}", "state over data", StatePolicy(over=("data",))),
        ("{over: '(a, b)'}", "state over (a, b)", StatePolicy(over=("a", "b"))),
        ("{over: (a)}", "state over (a)", StatePolicy(over=("a",))),
        ("{moments: 0}", "state moments 0", StatePolicy(moments=0)),
        ("{dtype: bfloat16}", "state dtype bfloat16", StatePolicy(dtype="bf16")),
        (
            "{optimizer: zero2, over: data, moments: 1, dtype: f32}",
            "state optimizer zero2; state over data; state moments 1; state dtype f32",
            StatePolicy("zero2", ("data",), 1, "f32"),
        ),
    ],
)
def test_state(yaml: str, dsl: str, expected: StatePolicy) -> None:
    assert sound(f"state: {yaml}").state == expected
    assert sound(dsl, "s.shard").state == expected


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        ("2%", CoverageGate(0.02)),
        ("0 %", CoverageGate(0.0)),
        ("64 MiB", CoverageGate(max_bytes=64 << 20)),
        ("1.5KiB", CoverageGate(max_bytes=1536)),
    ],
)
def test_coverage(bound: str, expected: CoverageGate) -> None:
    assert sound(f"coverage: {{max_replicated_bytes: {bound}}}").coverage == expected
    assert sound(f"coverage max_replicated_bytes {bound}", "s.shard").coverage == expected


def test_replicate() -> None:
    expected = (
        Replicate(Pattern("**/norm/**"), "tiny"),
        Replicate(Pattern(r".*/(a|b)\d", "regex"), 'said "so"'),
    )
    yaml = "replicate:\n- {path: '**/norm/**', because: tiny}\n"
    yaml += '- match: .*/(a|b)\\d\n  because: said "so"\n'
    dsl = 'replicate **/norm/** because "tiny"\n'
    dsl += r'replicate re".*/(a|b)\d" because "said \"so\""'
    assert sound(yaml).replicate == sound(dsl, "s.shard").replicate == expected


@pytest.mark.parametrize("text", ["rules: [a -> b]", "state: {}", "coverage: {}", "replicate: []"])
def test_nothing_said(text: str) -> None:
    spec = sound(text)
    assert (spec.state, spec.coverage, spec.replicate) == (None, None, ())


@pytest.mark.parametrize(
    ("text", "code", "marked", "says"),
    [
        ("state:", "wrong-type", "state", "as in `state: {optimizer: zero1}`"),
        ("state: {optimizer: zero3}", "wrong-type", "zero3", "`zero2` gradients"),
        ("state: {optimiser: zero1}", "unknown-key", "optimiser", "`optimizer`"),
        ("state: {over: none}", "syntax", "none", "name a mesh axis"),
        ("state: {over: a b}", "syntax", "b", "in parentheses"),
        ("state: {moments: -1}", "wrong-type", "-1", "Adam"),
        ("state: {dtype: f31}", "syntax", "f31", "`f32`"),
        ("coverage:", "wrong-type", "coverage", "2%"),
        ("coverage: {max_replicated_bytes: 64}", "syntax", "64", "`64 MiB`"),
        ("coverage: {max_replicated_bytes: 0.02}", "syntax", "0.02", "`2%`"),
        ("coverage: {max_replicated_bytes: -1 MiB}", "syntax", "-1 MiB", "`64 MiB`"),
        ("coverage: {max_replicated_bytes: 101%}", "syntax", "101%", "100%"),
        ("coverage: {max_replicated_bytes: true}", "wrong-type", "true", "`64 MiB`"),
        ("replicate: [{path: a}]", "wrong-type", "{path: a}", "`because`"),
        ("replicate: [{path: a, because: ' '}]", "wrong-type", "' '", "say why"),
        ("replicate: [{because: x}]", "wrong-type", "{because: x}", "`path` or `match`"),
        ("replicate: [{path: a, match: b, because: x}]", "wrong-type", "match", "one of the two"),
        ("replicate: [{match: (, because: x}]", "bad-pattern", "(", ""),
        ("replicate: ['**']", "wrong-type", "'**'", "with the reason"),
        ("replicate: [{path: a, because: 5}]", "wrong-type", "5", "why"),
    ],
)
def test_each_fault_is_one_finding(text: str, code: str, marked: str, says: str) -> None:
    (fault,) = load(text)[1]
    assert fault.code.name == code
    assert fault.primary is not None
    assert fault.primary.span.text == marked
    assert says in (fault.help or "")


def test_spans() -> None:
    spec = sound("state: {optimizer: zero1, over: data}\nreplicate: [{path: a, because: b}]")
    assert spec.state is not None
    assert spec.state.span is not None
    assert spec.state.span.text == "state: {optimizer: zero1, over: data}"
    assert spec.state.over_span is not None
    assert spec.state.over_span.text == "data"
    (entry,) = spec.replicate
    assert entry.span is not None
    assert entry.span.text == "{path: a, because: b}"
    assert entry.pattern.span is not None
    assert entry.pattern.span.text == "a"


BASE = """\
state: {optimizer: zero1, over: data}
coverage: {max_replicated_bytes: 2%}
replicate: [{path: a, because: parent}]
"""


@pytest.fixture
def _family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "base.yaml").write_text(BASE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_family")
def test_inheritance() -> None:
    heir = sound("extends: ./base.yaml")
    assert heir.state == StatePolicy("zero1", ("data",))
    assert heir.coverage == CoverageGate(0.02)
    child = sound(
        "extends: ./base.yaml\nstate: {optimizer: zero2, moments: 1}\n"
        "coverage: {max_replicated_bytes: 1 B}\nreplicate: [{path: b, because: child}]"
    )
    assert child.state == StatePolicy("zero2", ("data",), 1)
    assert child.coverage == CoverageGate(max_bytes=1)
    assert [entry.because for entry in child.replicate] == ["child", "parent"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"state.optimizer": "zero2"}, StatePolicy("zero2", ("data",))),
        ({"state.over": "(a, b)"}, StatePolicy("zero1", ("a", "b"))),
        ({"state.moments": "1"}, StatePolicy("zero1", ("data",), 1)),
        ({"coverage.max_replicated_bytes": "1 KiB"}, CoverageGate(max_bytes=1024)),
        ({"replicate.0.because": "else"}, (Replicate(Pattern("a"), "else"),)),
    ],
)
def test_settings(settings: dict[str, str], expected: object) -> None:
    spec, diagnostics = pipeline.load_text(BASE, "s.yaml", settings)
    assert spec is not None
    assert diagnostics == ()
    assert expected in (spec.state, spec.coverage, spec.replicate)

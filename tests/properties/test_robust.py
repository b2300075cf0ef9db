"""No input whatever gives a traceback: a Spec or diagnostics, and nothing else.

Text of any kind, the bundled specs with pieces of them changed, documents with junk at any
place, and files that the DSL's own grammar makes: each goes through the whole pipeline, and
everything that the command line would print of it is printed.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.lark import from_lark

from shardspec import assets, pipeline
from shardspec.diagnostics import Diagnostic, SourceFile, Span
from shardspec.diagnostics.render import render, render_concise
from shardspec.foreign.json_plan import plan_text
from shardspec.ir.spec import Spec
from shardspec.report.findings_forms import findings_text

NAMES = ("spec.yaml", "spec.shard")

names = st.sampled_from(NAMES)
any_text = st.text(max_size=200)

#: Text that the languages are made of, so that random text gets past the first character.
pieces = st.sampled_from(
    [
        *(
            "shardspec: 1",
            "rules:",
            "  - ",
            "a -> b",
            "mesh:",
            "{a: 2}",
            "axes",
            "params:",
            "- ",
            ": ",
        ),
        *(
            "shardspec 1",
            "rules {",
            "}",
            "mesh { a = 2 }",
            "target t on tpu v4 2x2x1 {",
            "axis a = 2",
        ),
        *(
            "\n",
            "\n  ",
            " ",
            "\t",
            "#",
            '"',
            "'",
            "[",
            "]",
            "{",
            "}",
            "&x ",
            "*x",
            "|",
            ">",
            "? ",
            "\\",
        ),
        *(
            "rest",
            "none",
            "auto 4",
            "submesh 2x2x1x1",
            "over x y2/2",
            " @ dcn",
            " explicit",
            "state optimizer zero1\n",
            "coverage max_replicated_bytes 2%\n",
            'replicate a because "b"\n',
            "step { remat full; residual, **/k -> b x 2 }\n",
            "flash(a, b, c) -> d",
            "residual, a[b as c] -> d",
            "->",
            ",",
            "**/k",
            're"',
            "re:",
            "0x1F",
        ),
        *(
            "bf16[a b]",
            "layers@0",
            "no",
            "1e999",
            "{0..3}",
            "...",
            "---",
            "%YAML 9",
            "!!python/object:x",
        ),
        *(
            "\ufeff",
            "\x85",
            "\u2028",
            "\r",
            "\0",
            "é",
            "層",
            "\U0001f600",
            "\u0301",
            "extends",
            "arrays:",
        ),
    ]
)
spec_like_text = st.lists(st.one_of(pieces, st.text(max_size=3)), max_size=40).map("".join)


def survey(text: str, name: str) -> tuple[Spec | None, tuple[Diagnostic, ...]]:
    """Return the spec and all that is found, having printed everything there is to print."""
    spec, diagnostics = pipeline.load_text(text, name)
    if spec is None:
        assert any(diagnostic.is_error for diagnostic in diagnostics)
        _print(diagnostics)
        return None, diagnostics
    plans = pipeline.compile_plans(spec)
    found = pipeline.findings(spec, plans, faults=diagnostics).shown
    _print(found)
    for plan in plans:
        _print_plan(plan)
    return spec, found


#: Of a flood of findings, so many are printed.
_SHOWN = 300


def _print(diagnostics: tuple[Diagnostic, ...]) -> None:
    for diagnostic in diagnostics:
        check_labels(diagnostic)
    for diagnostic in diagnostics[:_SHOWN]:
        for text in (
            render(diagnostic),
            render(diagnostic, color=True),
            render_concise(diagnostic),
        ):
            assert diagnostic.code.id in text
    assert len(json.loads(findings_text(diagnostics))["findings"]) == len(diagnostics)


def _print_plan(plan: pipeline.ShardingPlan) -> None:
    from shardspec.report.explain import explain
    from shardspec.report.table import table

    assert list(table(plan))
    assert json.loads(plan_text(plan))["target"] == plan.target.name
    for sharding in plan.arrays[:3]:
        assert list(explain(sharding, plan))


def check_labels(diagnostic: Diagnostic) -> None:
    """Assert that there is one primary label or none, and that labels lie in their source."""
    primary = sum(label.primary for label in diagnostic.labels)
    assert primary == (1 if diagnostic.labels else 0)
    for label in diagnostic.labels:
        span = label.span
        assert 0 <= span.start <= span.end <= len(span.source.text), diagnostic


def check(text: str, name: str) -> None:
    """Assert that a text is read twice in the same way, without a traceback."""
    spec, found = survey(text, name)
    again, found_again = survey(text, name)
    assert (spec is None) == (again is None)
    assert found == found_again


#: For files of many sections, which take long to draw.
half_as_many = settings(max_examples=settings.default.max_examples // 2)


@given(any_text, names)
def test_any_text(text: str, name: str) -> None:
    check(text, name)


@given(spec_like_text, names)
def test_text_of_familiar_pieces(text: str, name: str) -> None:
    check(text, name)


@given(st.binary(max_size=200))
def test_any_bytes(raw: bytes) -> None:
    from shardspec.language.files import decode

    source = decode(raw, "spec.yaml")
    if isinstance(source, SourceFile):
        check(source.text, "spec.yaml")
    else:
        check_labels(source)
        assert render(source)


# pieces of real specs, changed


@cache
def examples() -> tuple[tuple[str, str], ...]:
    """Return the bundled examples, presets and pages' examples, with the name of each."""
    folder = assets.data_folder() / "specs"
    files = [*folder.glob("examples/*.yaml"), *folder.glob("presets/**/*.yaml")]
    files += folder.glob("examples/*.shard")
    found = ((path.read_text("utf-8"), path.name) for path in sorted(files))
    return tuple(
        (re.sub(r"\.\./arrays/([\w.-]+)\.yaml", r"\1", text), name) for text, name in found
    )


@st.composite
def changed_examples(draw: st.DrawFn) -> tuple[str, str]:
    """Return an example with a few runs of characters removed, repeated or replaced."""
    text, name = draw(st.sampled_from(examples()))
    lines = text.splitlines(keepends=True)
    start = draw(st.integers(0, len(lines)))
    lines = draw(st.sampled_from((lines, lines[start:], lines[:start])))
    text = "".join(lines)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.integers(0, 12)))
        new = draw(st.one_of(pieces, st.text(max_size=4), st.just(text[at:end] * 2)))
        text = text[:at] + new + text[end:]
    return text, draw(st.sampled_from((name, name, *NAMES)))


@given(changed_examples())
def test_changed_examples(changed: tuple[str, str]) -> None:
    check(*changed)


# documents that are whole, but for a few values

SKELETON: dict[str, Any] = {
    "shardspec": 1,
    "doc": "x",
    "extends": ["t5x/2d"],
    "axes": {
        "embed": 64,
        "mlp": {"size": "2 * (embed - 4) + 8", "unit": "2 * 1", "min_shard": 4, "doc": "y"},
        "heads": None,
        "qkv": {"parts": {"q": "2 * embed", "k": "embed"}, "unit": 8, "interleaved": True},
    },
    "targets": {
        "v4": {"hardware": "tpu v4 2x2x2", "mesh": {"data": "rest", "model": "submesh 2x1x1x1"}},
        "cpu": {"hardware": "8 cpu", "mesh": {"data": 4, "model": "auto 2"}},
        "bare": {"mesh": {"replica": "2 @ dcn explicit", "data": "2 manual", "model": 1}},
    },
    "rules": [
        "batch -> (replica, data)",
        {"rule": "mlp, heads -> model | none @ 2", "at": "start"},
        "* -> (replica, data) | data",
    ],
    "let": {"tp": 4, "dp": "2 * tp"},
    "drop": ["kv"],
    "params": {"**/wi_{0,1}": "embed mlp", "re:.*/(q|k)": "embed heads _"},
    "overrides": [
        {"match": r"x/\d+", "axes": "embed mlp", "because": "z"},
        {"path": "y/*", "spec": "(none, model)"},
    ],
    "scan": {"layers/**": "layers@0"},
    "activations": {
        "residual": "batch length embed",
        "**/h_{0,1}": "batch _ embed'",
        "re:b.*": "mlp",
    },
    "arrays": {"l_{0..3}/wi_0": "bf16[64, 128]", "y/k": "f32[embed mlp=3*embed]", "s": "f32[]"},
    "manifest": "gpt2",
    "policy": {"indivisible": "keep", "whole_below": "1 KiB"},
    "state": {"optimizer": "zero1", "over": "(replica, data)", "moments": 1, "dtype": "bf16"},
    "coverage": {"max_replicated_bytes": "2%"},
    "replicate": [{"path": "s", "because": "w"}, {"match": r"y/\w", "because": "v"}],
    "step": {
        "extends": "decoder",
        "tokens": "4K",
        "microbatches": 2,
        "remat": ["query", "hidden"],
        "program": [
            "gather(tokens[batch length], y/k) -> residual[batch length embed]",
            'residual, "l_*/wi_0" -> hidden',
            "flash(hidden, hidden[length as k], hidden[length as k]) -> context x 4",
            "op(context) -> c[batch embed], flops 2 * batch",
        ],
    },
    "lints": {"unmatched-pattern": "allow", "SHD301": "warn", "SHD4": "allow"},
}

words = st.sampled_from(
    [
        *(
            "embed",
            "mlp",
            "model",
            "data",
            "replica",
            "a",
            "_",
            "none",
            "rest",
            "layers",
            "start",
            "x/1",
        ),
        *(
            "->",
            "|",
            ",",
            "(",
            ")",
            "@",
            "*",
            "**",
            "[",
            "]",
            "{",
            "}",
            "=",
            "..",
            "re:",
            "\\",
            " ",
            "0",
        ),
        *(
            "8",
            "-1",
            "10**9",
            "4x4",
            "tpu v4 ",
            "h100",
            "cpu",
            "auto 3",
            "submesh 2x2x1x1",
            "bf16",
            "dcn",
            "explicit",
            "64 MiB",
            "2%",
        ),
        *(
            "before mlp",
            "layers@9",
            "layers@0 layers@0",
            "99999999999999999999",
            "é",
            "\u0301",
            "\x00",
            "\n",
        ),
    ]
)
expressions = st.lists(words, max_size=6).map("".join) | st.lists(words, max_size=6).map(" ".join)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**6), 10**20),
    st.floats(allow_nan=False),
    expressions,
    st.text(max_size=6),
)
junk = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(expressions, inner, max_size=3),
    max_leaves=5,
)


def routes_of(data: Any, route: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the route of everything in a document."""
    if route:
        yield route
    entries = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in entries:
        if isinstance(value, dict | list):
            yield from routes_of(value, (*route, key))
        else:
            yield (*route, key)


ROUTES = tuple(routes_of(SKELETON))


@st.composite
def junk_documents(draw: st.DrawFn) -> dict[str, Any]:
    """Return the skeleton with some values or keys replaced, and some sections left out."""
    data = copy.deepcopy(SKELETON)
    for section in draw(st.lists(st.sampled_from(sorted(SKELETON)), max_size=6, unique=True)):
        del data[section]
    for _ in range(draw(st.integers(1, 5))):
        *parents, last = draw(st.sampled_from(ROUTES))
        _replace(data, parents, last, draw(junk), draw(st.none() | expressions))
    return data


def _replace(data: Any, parents: list[Any], last: Any, value: Any, key: str | None) -> None:
    for step in parents:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return
    if isinstance(data, list) and isinstance(last, int) and last < len(data):
        data[last] = value
    elif isinstance(data, dict):
        if key is not None:
            data[key] = data.pop(last, None)
        else:
            data[last] = value


@half_as_many
@given(junk_documents(), st.booleans())
def test_junk_in_a_whole_document(data: dict[str, Any], as_json: bool) -> None:
    if as_json:
        text = json.dumps(data, indent=1)
    else:
        import yaml

        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    check(text, "spec.yaml")


def test_the_skeleton_is_sound() -> None:
    spec, diagnostics = pipeline.load_text(json.dumps(SKELETON), "spec.yaml")
    assert spec is not None
    assert not [d for d in diagnostics if d.is_error]


# what the grammar of the DSL can make


@cache
def grammar(name: str = "document") -> Any:
    from tests.grammar_tables import build_parser

    return build_parser(name)


@cache
def made(start: str, name: str = "document") -> st.SearchStrategy[str]:
    """Return text that the grammar derives from `start`."""
    terminals, _, _ = grammar(name).grammar.compile([start], ())
    easy = {str(t.name): EASY[t.name] for t in terminals if t.name in EASY}
    return from_lark(grammar(name), start=start, explicit=easy)


#: What stands behind a name or a pattern: expressions of every kind, right or not.
made_expressions = st.deferred(
    lambda: st.one_of(
        made("array_type", "array_type"),
        made("names", "names"),
        made("scan", "names"),
        made("derived", "derived"),
        made("mesh_size", "mesh_axis"),
        made("hardware", "hardware"),
        made("partition", "axis_rule"),
        words,
    )
)


#: Terminals as people write them; the grammar's own would be unreadable noise.
EASY = {
    "KEY": words.filter(lambda text: text.isidentifier()),
    "REST_OF_LINE": words.filter(lambda text: text.isalnum()) | st.just("(a, model)"),
    "PATTERN": st.sampled_from(
        ("**/k", "a/*", "l_{0..3}/wi", "x", "{a,b}", "{3..1}", "**x", "é/層")
    ),
    "STRING": st.sampled_from(('"x"', '""', '"a b"', r'"\""', r'"\q"', '"**/wo"', '"{"')),
    "REGEX": st.sampled_from(('re"a.*"', 're"("', r're"(a)\1"', 're"(?!a)b"', 're""')),
    "SPACE": st.just(" "),
    "TO_END": made_expressions,
    "PIECE": words.filter(lambda text: '"' not in text and text.strip() == text != ""),
}
STATEMENTS = (
    *("version", "doc", "extends", "let", "axis", "drop", "manifest", "policy", "lint"),
    *("override", "scan", "activation", "machine", "state", "coverage", "replicate"),
)
ENTRIES = {
    "rules": "rules_entry",
    "params": "pair_entry",
    "scan": "pair_entry",
    "derive": "pair_entry",
    "arrays": "array_entry",
    "activations": "activation_entry",
    "mesh": "mesh_entry",
    "step": "step_setting",
}
#: Entries that are one expression, with the grammar of that.
WHOLE = {"rules": ("axis_rule", "axis_rule"), "step": ("step_line", "step")}


@st.composite
def dsl_files(draw: st.DrawFn) -> str:
    """Return a file of statements that the grammar makes, some of them blocks."""
    sound = "mesh { a = 2; model = 2 }\narrays { x/k : f32[a=8 embed=4]; b : s8[mlp=6] }"
    parts = [sound] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 8))):
        section = draw(st.sampled_from((*STATEMENTS, *ENTRIES, "target")))
        if section in ENTRIES or section == "target":
            head = draw(made("target")) if section == "target" else section
            entry = made(ENTRIES.get(section, "mesh_entry"))
            if section in WHOLE:
                entry = st.one_of(entry, made(*WHOLE[section]))
            entries = draw(st.lists(entry, max_size=3))
            joint = draw(st.sampled_from(("\n", "; ", "\n# c\n")))
            parts.append(f"{head} {{ {joint.join(entries)} }}")
        else:
            parts.append(draw(made(section)))
    return draw(st.sampled_from(("\n", "\n", ";", "\r\n"))).join(parts)


@half_as_many
@given(dsl_files())
def test_files_of_the_grammar(text: str) -> None:
    check(text, "spec.shard")


# manifests, settings and formats


@given(st.one_of(any_text, spec_like_text, junk.map(json.dumps)))
def test_any_manifest(text: str) -> None:
    params, diagnostics = pipeline.read_manifest(SourceFile("arrays.json", text))
    assert isinstance(params, tuple)
    _print(diagnostics)


@given(
    st.dictionaries(
        st.sampled_from(
            ("mesh.data", "mesh", "rules", "axes.embed", "targets.cpu.mesh.x", "a.b", ".")
        ),
        expressions.filter(bool),
        max_size=3,
    )
)
def test_any_setting(settings: dict[str, str]) -> None:
    spec, diagnostics = pipeline.load_text(json.dumps(SKELETON), "spec.yaml", settings)
    _print(diagnostics)
    assert spec is not None or diagnostics


@given(
    st.one_of(changed_examples(), st.tuples(spec_like_text, names)),
    st.sampled_from((None, "yaml", "dsl")),
)
def test_any_formatting(changed: tuple[str, str], spelling: str | None) -> None:
    from shardspec.language.formatting import formatted

    text, name = changed
    new, diagnostics = formatted(SourceFile(name, text), spelling)
    _print(diagnostics)
    assert new is not None or diagnostics


# known ways to break a reader


def deep(text: str) -> str:
    return text * 100_000


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "\ufeff",
        "\n\n\n",
        "# only a comment",
        "null",
        "[]",
        "42",
        "a",
        deep("["),
        deep("{"),
        deep("- "),
        deep("a:\n ")[:40_000],
        deep("rules {"),
        "rules: " + deep("["),
        "rules: ['" + deep("(") + "']",
        "rules {\n" + deep("(") + "\n}",
        "a: &a [*a]",
        "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n" * 3,
        "axes: {" + ", ".join(f"a{i}: a{i + 1} * 2" for i in range(3000)) + "}",
        "arrays: {'" + "{a,b}" * 60 + "': 'f32[]'}",
        "arrays: {'" + "9" * 5000 + "': 'f32[]'}",
        "arrays: {a: 'f32[" + "9" * 5000 + "]'}",
        "axes: {a: " + "9" * 5000 + "}",
        "params: {'re:" + "(" * 5000 + "': a}",
        "params: {'" + "{" * 5000 + "': a}",
        "mesh: {a: " + "9" * 20 + "}\nrules: ['x -> a']\narrays: {k: 'f32[x=8]'}",
        "shardspec: " + "9" * 5000,
    ],
    ids=range(27),
)
def test_known_trouble(text: str, name: str) -> None:
    check(text, name)


def test_paths_of_many_digits() -> None:
    paths = [f"a/{digit * 5000}" for digit in "987"] + ["a/\u0663" * 900]
    arrays = json.dumps(dict.fromkeys(paths, "f32[x=2]"))
    check(f"mesh: {{m: 2}}\nrules: [x -> m]\narrays: {arrays}", "spec.yaml")


def spans_in(value: object) -> Iterator[Span]:
    """Yield every span that a value holds, however deep."""
    if isinstance(value, Span):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from spans_in(each)
    elif is_dataclass(value):
        for each in fields(value):
            yield from spans_in(getattr(value, each.name))


@given(changed_examples())
def test_in_bounds(changed: tuple[str, str]) -> None:
    """Every span of a spec and of its findings lies in its source."""
    text, name = changed
    spec, found = pipeline.load_text(text, name)
    plans = pipeline.compile_plans(spec) if spec is not None else ()
    for span in spans_in((spec, found, tuple(plan.arrays for plan in plans))):
        assert 0 <= span.start <= span.end <= len(span.source.text)


def test_spans_are_found() -> None:
    """`test_in_bounds` looks at what there is: rules, axes, patterns, arrays, targets."""
    text = "axes: {a: 8}\nmesh: {m: 2}\nrules: [a -> m]\nparams: {x: a}\narrays: {x: 'f32[8]'}"
    spec, _ = pipeline.load_text(text)
    found = {span.text for span in spans_in(spec)}
    assert {"m", "a: 8", "x", "x: a", "2"} <= found


def test_a_false_label_would_be_noticed() -> None:
    from shardspec.diagnostics import Label, codes

    source = SourceFile("x", "abc")
    outside = Diagnostic(codes.SYNTAX, "m", (Label(Span(source, 2, 9)),))
    with pytest.raises(AssertionError):
        check_labels(outside)
    with pytest.raises(AssertionError):
        check_labels(Diagnostic(codes.SYNTAX, "m", (Label(Span(source, 0, 1), primary=False),)))

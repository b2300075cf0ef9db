"""The DSL reader: what a file says, every fault at once, and no text that it cannot take."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.lark import from_lark

from shardspec.diagnostics import Diagnostic, SourceFile, codes
from shardspec.language.dsl_text.layout import lay_out
from shardspec.language.dsl_text.reader import read_dsl
from shardspec.language.grammar.print_expressions import canonical
from shardspec.language.phases import lowered
from shardspec.language.reading import Comments, Reading, Route
from shardspec.language.yaml_text.reader import read_yaml
from tests import grammar_tables as parser

SAMPLE = r"""
shardspec 1
extends t5x/2d

axis batch = 512
axis embed = 4096
axis joined_kv = 4096 unit 64   "heads * kv; one head is 64 wide"

target v4-512 on tpu v4 4x4x8 {
  data  = rest
  model = submesh 4x2x2x1
}
target two-slices on 2 * tpu v5p 4x4x8 { replica = 2 @ dcn; data = rest; model = 8 }

rules {
  batch            -> (replica, data)
  mlp, heads, vocab -> model
  embed            -> model | data
  kv               -> none
}

params {
  **/mlp/wi_{0,1}/kernel                          : embed mlp
  re"(.*)/attention/(query|key|value)/kernel"     : embed joined_kv
}

override re"encoder/layer_\d+/external_mlp/kernel" : embed mlp   because "external module"
override decoder/logits_dense/kernel               = (none, model)

activation residual : batch length embed

arrays {
  decoder/layers_{0..23}/mlp/wi_0/kernel : bf16[embed mlp]
}

policy indivisible next
lint replicated-large error
"""

SAMPLE_YAML = r"""
shardspec: 1
extends: [t5x/2d]
axes:
  batch: 512
  embed: 4096
  joined_kv: {size: 4096, unit: 64, doc: "heads * kv; one head is 64 wide"}
targets:
  v4-512:
    hardware: tpu v4 4x4x8
    mesh: {data: rest, model: submesh 4x2x2x1}
  two-slices:
    hardware: 2 * tpu v5p 4x4x8
    mesh: {replica: 2 @ dcn, data: rest, model: 8}
rules:
  - batch -> (replica, data)
  - mlp, heads, vocab -> model
  - embed -> model | data
  - kv -> none
params:
  "**/mlp/wi_{0,1}/kernel": embed mlp
  "re:(.*)/attention/(query|key|value)/kernel": embed joined_kv
overrides:
  - match: 'encoder/layer_\d+/external_mlp/kernel'
    axes: embed mlp
    because: external module
  - path: decoder/logits_dense/kernel
    spec: (none, model)
activations:
  residual: batch length embed
arrays:
  "decoder/layers_{0..23}/mlp/wi_0/kernel": bf16[embed mlp]
policy: {indivisible: next}
lints: {replicated-large: error}
"""


def read(text: str) -> tuple[Reading, tuple[Diagnostic, ...]]:
    reading, diagnostics = read_dsl(SourceFile("spec.shard", text))
    assert reading is not None
    return reading, diagnostics


def data_of(text: str) -> Any:
    reading, diagnostics = read(text)
    assert diagnostics == ()
    return reading.data


def test_the_sample_says_what_its_yaml_says() -> None:
    yaml_reading, _ = read_yaml(SourceFile("spec.yaml", SAMPLE_YAML))
    assert yaml_reading is not None
    assert canonical(data_of(SAMPLE)) == canonical(yaml_reading.data) == yaml_reading.data


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("shardspec 1", {"shardspec": 1}),
        (r'doc "a \"b\" \\ \n c"', {"doc": 'a "b" \\ \n c'}),
        ('extends a, ./b.yaml, "c d"', {"extends": ["a", "./b.yaml", "c d"]}),
        ("extends a\nextends b", {"extends": ["a", "b"]}),
        ("let tp = 8\nlet dp = 2*tp", {"let": {"tp": 8, "dp": "2*tp"}}),
        ("axis a", {"axes": {"a": None}}),
        ("axis a = heads * kv", {"axes": {"a": "heads * kv"}}),
        ("axis unit unit 4", {"axes": {"unit": {"unit": 4}}}),
        ('axis "8 x" "why"', {"axes": {"8 x": {"doc": "why"}}}),
        (
            "mesh on 8 cpu { a = rest; b=2@dcn }",
            {"hardware": "8 cpu", "mesh": {"a": "rest", "b": "2@dcn"}},
        ),
        ("mesh {}", {"mesh": {}}),
        ("hardware 8 cpu", {"hardware": "8 cpu"}),
        (
            'target 8xh100 { a = 8 }\ntarget "my box" on h100 {\n}',
            {"targets": {"8xh100": {"mesh": {"a": 8}}, "my box": {"hardware": "h100", "mesh": {}}}},
        ),
        (
            "rules { a -> b at start; c -> d }",
            {"rules": [{"rule": "a -> b", "at": "start"}, "c -> d"]},
        ),
        ("rules { a -> b }\nrules { c -> d }", {"rules": ["a -> b", "c -> d"]}),
        ("drop a, b", {"drop": ["a", "b"]}),
        ("params { {a,b}/c : x y }", {"params": {"{a,b}/c": "x y"}}),
        (r'params { "a \"b\": #" : x }', {"params": {'a "b": #': "x"}}),
        (r'params { re"a\"\d" : x }', {"params": {r"re:a\"\d": "x"}}),
        (r'params { re:"a\"\\d" : x }', {"params": {r're:a"\d': "x"}}),
        (
            'params { optional a : x; optional re"b" : y; optional : z; optional  "c d" : w }',
            {"params": {"optional:a": "x", "optional:re:b": "y", "optional": "z"}
             | {"optional:c d": "w"}},
        ),
        ("arrays { optional : f32[] }", {"arrays": {"optional": "f32[]"}}),
        ("override optional = (a)", {"overrides": [{"path": "optional", "spec": "(a)"}]}),
        (
            'override optional re"x" : a memory device',
            {"overrides": [{"match": "x", "optional": True, "axes": "a", "memory": "device"}]},
        ),
        (
            'replicate optional because "y"\nreplicate optional b because "z"',
            {
                "replicate": [
                    {"path": "optional", "because": "y"},
                    {"path": "b", "optional": True, "because": "z"},
                ]
            },
        ),
        ("scan optional a/** : layers@0", {"scan": {"optional:a/**": "layers@0"}}),
        ('override "re:x" : a', {"overrides": [{"path": "re:x", "axes": "a"}]}),
        (
            'override a/{b,c} = ((x, y), none) because "z"',
            {"overrides": [{"path": "a/{b,c}", "spec": "((x, y), none)", "because": "z"}]},
        ),
        ("override a : because", {"overrides": [{"path": "a", "axes": "because"}]}),
        ("scan { a/** : layers@0 }\nscan b: x@1", {"scan": {"a/**": "layers@0", "b": "x@1"}}),
        (
            "activations { a : x }\nactivation b : y",
            {"activations": {"a": "x", "b": "y"}},
        ),
        ("arrays { a : f32[2,\n 3]\n b : f32[] }", {"arrays": {"a": "f32[2,\n 3]", "b": "f32[]"}}),
        ('manifest "a b.json"', {"manifest": "a b.json"}),
        ('manifest"a.json"', {"manifest": "a.json"}),
        ("manifest a.json, b.json", {"manifest": ["a.json", "b.json"]}),
        ("policy indivisible keep", {"policy": {"indivisible": "keep"}}),
        ("policy whole_below 1.5 MiB", {"policy": {"whole_below": "1.5 MiB"}}),
        ('policy whole_below "2 KiB"', {"policy": {"whole_below": "2 KiB"}}),
        ("lint SHD301 warn; lint a-b error", {"lints": {"SHD301": "warn", "a-b": "error"}}),
        ("axis a = 8 unit 2 min_shard 4", {"axes": {"a": {"size": 8, "unit": 2, "min_shard": 4}}}),
        ("axis a min_shard 4 unit 2", {"axes": {"a": {"unit": 2, "min_shard": 4}}}),
        ("axis a = b + 2 unit 2 * c", {"axes": {"a": {"size": "b + 2", "unit": "2 * c"}}}),
        ("axis a = (b - 1) * c unit b", {"axes": {"a": {"size": "(b - 1) * c", "unit": "b"}}}),
        (
            "axis a = parts (q = 2 * b, k = b,) unit b interleaved",
            {"axes": {"a": {"parts": {"q": "2 * b", "k": "b"}, "unit": "b", "interleaved": True}}},
        ),
        (
            'axis a = parts (\n  q = 4\n) "w"; axis parts = parts * 2',
            {"axes": {"a": {"parts": {"q": 4}, "doc": "w"}, "parts": "parts * 2"}},
        ),
        ("axis min_shard = unit * 2", {"axes": {"min_shard": "unit * 2"}}),
        ("mesh { a = 8 explicit }", {"mesh": {"a": "8 explicit"}}),
        (
            'state optimizer zero1\nstate over (a,\n b)  # c\nstate moments 1; state dtype "f32"',
            {"state": {"optimizer": "zero1", "over": "(a,\n b)", "moments": 1, "dtype": "f32"}},
        ),
        (
            "coverage max_replicated_bytes 64 MiB; doc \"x\"",
            {"coverage": {"max_replicated_bytes": "64 MiB"}, "doc": "x"},
        ),
        (
            'replicate {a,b}/** because "x"\nreplicate because because "y"',
            {
                "replicate": [
                    {"path": "{a,b}/**", "because": "x"},
                    {"path": "because", "because": "y"},
                ]
            },
        ),
    ],
)  # fmt: skip
def test_what_each_statement_says(text: str, data: Any) -> None:
    assert data_of(text) == data


def test_every_piece_knows_its_place() -> None:
    reading, _ = read(SAMPLE)
    places = reading.source_map
    for excerpt in (*places.keys.values(), *places.values.values()):
        if excerpt.start is not None:
            assert excerpt.at(0, len(excerpt.text)).text[3:] == excerpt.text[3:]
    assert places.value(("rules", 2)).part(17, 19).span.text == "->"
    assert places.key(("targets", "two-slices", "mesh", "replica")).span.text == "replica"
    assert places.value(("targets", "two-slices", "mesh", "replica")).span.text == "2 @ dcn"
    assert places.key(("axes",)).span.text == "axis"
    assert places.value(("axes", "joined_kv", "unit")).text == "64"
    regex = places.key(("params", r"re:(.*)/attention/(query|key|value)/kernel"))
    assert regex.part(3, 7).span.text == "(.*)"
    match = places.value(("overrides", 0, "match"))
    assert match.at(0, 7).text == "encoder"


def test_comments_belong_to_entries() -> None:
    reading, _ = read(
        "# head\n\n#\n# more\nshardspec 1  # one\nrules {  # block\n  # own\n  a -> (b, # in\n c)\n"
        "  d -> e # f\n  # last in block\n}\nmesh { a = 1; b = 2 }  # mesh\nlint a#b warn\n# end"
    )
    expected: dict[Route, Comments] = {
        ("shardspec",): Comments(("head", "", " ", "more"), "one"),
        ("rules",): Comments((), "block", ("last in block",)),
        ("rules", 0): Comments(("own",), "in"),
        ("rules", 1): Comments((), "f"),
        ("mesh",): Comments((), "mesh"),
        (): Comments(("end",)),
    }
    assert reading.comments == expected


def faults(text: str) -> list[tuple[str, str, str]]:
    """Return code, text under the carets and message of each fault, of expressions too."""
    reading, diagnostics = read_dsl(SourceFile("spec.shard", text))
    if reading is not None:
        diagnostics += lowered(reading).lost
    found = []
    for diagnostic in diagnostics:
        assert diagnostic.primary is not None
        span = diagnostic.primary.span
        found.append((diagnostic.code.id, span.text, f"{diagnostic.message}: {diagnostic.help}"))
    return found


@pytest.mark.parametrize(
    ("text", "under", "says"),
    [
        ("ruls {\n a -> b\n}", "ruls", "did you mean `rules`?"),
        ("axes a = 1", "axes", "did you mean `axis`?"),
        ("rules:\n", "rules:", "a block stands in braces: `rules {`"),
        ("mesh:\n", "mesh:", "a block stands in braces: `mesh {`"),
        ("extends: a\n", "extends:", "no `:` after the word: `extends t5x/2d, ./base.yaml`"),
        ("mesh { fsdp: rest }", ":", "write `fsdp = rest`"),
        ("mesh { fsdp: 4 @ dcn }", ":", "write `fsdp = 4 @ dcn`"),
        ("a -> b", "a", "rules { embed -> model }"),
        ("%", "%", "a statement begins with"),
        (
            "axis a 5",
            "5",
            "text in double quotes, `interleaved`, `=`, `min_shard`, `unit` or the end after `a`",
        ),
        ("axis a = 5 unti 6", "unti", "expected `+`, `-`, `*` or the end after `5`"),
        ("rules", "rules", "expected `{` after `rules`"),
        ("rules { a => b }", "=>", "`embed -> model`"),
        ("rules { a -> b att start }", "att", "`|`"),
        ("rules { a -> (b, c\n d -> e }", "", "expected `,` or `)` after `c`"),
        ("rules { a -> b", "{", "not closed"),
        ("params { a b }", "b", "expected `:` after `a`"),
        ("params { re:x : b }", ":", "a regex stands in quotes"),
        ('params { "a : b }', '"a : b }', "text is not closed"),
        ("params { a : [b] }", "[", "by spaces"),
        ("target a on h100", "target a on h100", "the mesh is missing"),
        ("target a on 8xh100 { }", "8xh100", "`8 h100`"),
        ("mesh { a : 4 }", ":", "expected `=` after `a`"),
        ("mesh { a = 4, b = 2 }", ",", "sizes are separated by `;` or lines"),
        ("rules { - a -> b }", "-", "entries of a block stand without `-`: `a -> b`"),
        ("mesh { a = -1 }", "-1", "`rest`"),
        ("override a", "", "expected `:` or `=` after `a`"),
        ("override a : b becuse", "", "the end"),
        (r'doc "\q"', r"\q", "means nothing in text"),
        ("policy indivisible: next", ":", "policy indivisible next"),
        ("scan a : 0", "0", "layers@0"),
        ("arrays { a : f32(3) }", "(", "write sizes in brackets"),
        ("activation a b", "b", "expected `:`"),
        ("target a on { b = 2 }", "", "name a chip"),
        ("hardware h100 {; mesh { a = 8 }", "{", "the end"),
        ("state optimizer", "", "a value or text in double quotes after `optimizer`"),
        ("state { over a }", "{", "such as `state optimizer zero1`"),
        ("coverage", "", "such as `coverage max_replicated_bytes 2%`"),
        ("replicate a", "", "expected `because` after `a`"),
        ("replicate a : tiny", ":", 'such as `replicate **/norm/** because "tiny"`'),
        ("replicate a because tiny", "tiny", "a reason stands in quotes"),
        ("replicate a because", "", "a reason stands in quotes"),
        ("replicate re:a.* because x", ":", "a regex stands in quotes"),
    ],
)
def test_a_fault_points_and_helps(text: str, under: str, says: str) -> None:
    if "becuse" in text:
        assert data_of(text) == {"overrides": [{"path": "a", "axes": "b becuse"}]}
        return
    found = [fault for fault in faults(text) if fault[0] == codes.SYNTAX.id]
    assert [(code, span) for code, span, _ in found if says in _] == [(codes.SYNTAX.id, under)]


def test_three_broken_places_give_three_faults_and_the_rest_is_read() -> None:
    text = "ruls { a -> b }\naxis x = 1\nrules {\n  a => b\n  c -> d\n}\nlint a\nlint b warn"
    reading, diagnostics = read(text)
    assert [d.code for d in diagnostics] == [codes.SYNTAX] * 2
    rules = ["a -> b", "a => b", "c -> d"]
    assert reading.data == {"axes": {"x": 1}, "rules": rules, "lints": {"b": "warn"}}
    syntax = {fault[1] for fault in faults(text) if fault[0] == codes.SYNTAX.id}
    assert syntax == {"ruls", "=>", ""}


def test_an_open_block_ends_where_the_next_statement_begins() -> None:
    reading, diagnostics = read("rules {\n  a -> (b\n  c -> d\nparams {\n  x : y\n}")
    assert reading.data == {"rules": ["a -> (b", "c -> d"], "params": {"x": "y"}}
    assert len(diagnostics) == 1


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("axis a = 1\naxis a = 2", "a"),
        ("target t { a = 1 }\ntarget t { b = 1 }", "t"),
        ("params { p : a; p : b }", "p"),
        ("mesh { a = 1; a = 2 }", "a"),
        ("shardspec 1\nshardspec 1", "shardspec"),
        ("mesh { }\nmesh { }", "mesh"),
        ("hardware h100\nmesh on h100 { }", "h100"),
        ("lint a warn\nlint a error", "a"),
        ("scan p : a@0\nscan { p : b@0 }", "p"),
    ],
)
def test_what_stands_twice_is_shown_twice_and_the_first_counts(text: str, key: str) -> None:
    _, diagnostics = read(text)
    assert [d.code for d in diagnostics] == [codes.DUPLICATE_KEY]
    again, first = diagnostics[0].labels
    assert again.span.text == key
    assert again.primary
    assert not first.primary
    assert first.span.end <= again.span.start


@pytest.mark.parametrize("text", ["", "\n \t\n", "# only a comment", ";;"])
def test_an_empty_file_is_a_fault(text: str) -> None:
    reading, diagnostics = read_dsl(SourceFile("spec.shard", text))
    assert reading is None
    assert [d.code for d in diagnostics] == [codes.SYNTAX]


def check_robust(text: str) -> None:
    source = SourceFile("spec.shard", text)
    reading, diagnostics = read_dsl(source)
    assert reading is not None or diagnostics
    for diagnostic in diagnostics:
        assert sum(label.primary for label in diagnostic.labels) == 1
        for label in diagnostic.labels:
            assert label.span.source is source
            assert 0 <= label.span.start <= label.span.end <= len(text)
    if reading is not None:
        for excerpt in (*reading.source_map.keys.values(), *reading.source_map.values.values()):
            assert 0 <= excerpt.span.start <= excerpt.span.end <= len(text)


noise = st.text() | st.text(st.sampled_from('ab {}()[]\n;:=->"\\#,*re@1'))


@given(noise)
def test_robust_any_text(text: str) -> None:
    check_robust(text)


@given(st.integers(0, len(SAMPLE)), st.integers(0, 40), noise)
def test_robust_mutated_sample(at: int, removed: int, inserted: str) -> None:
    check_robust(SAMPLE[:at] + inserted + SAMPLE[at + removed :])


_grammar = parser.build_parser("document")
statements = st.sampled_from(
    [s for s in parser.STARTS["document"] if not s.endswith("_entry") and s != "section"]
).flatmap(lambda start: from_lark(_grammar, start=start, alphabet=st.characters(codec="ascii")))
_ENTRIES = {
    "rules": "rules_entry",
    "params": "pair_entry",
    "scan": "pair_entry",
    "arrays": "array_entry",
    "activations": "activation_entry",
    "mesh": "mesh_entry",
    "step": "step_setting",
}
entries = st.sampled_from(sorted(_ENTRIES)).flatmap(
    lambda head: st.tuples(
        st.just(head),
        from_lark(_grammar, start=_ENTRIES[head], alphabet=st.characters(codec="ascii")),
    ).map(lambda pair: f"{pair[0]} {{\n  {pair[1]}\n}}")
)


@given(st.lists(statements | entries, min_size=1, max_size=4))
def test_robust_what_the_grammar_makes(parts: list[str]) -> None:
    check_robust("\n".join(parts))


@given(noise | st.sampled_from((SAMPLE, SAMPLE.replace("}", ""))))
def test_the_layout_keeps_every_character_in_place(text: str) -> None:
    layout = lay_out(text)
    assert len(layout.text) == len(text)
    ends = [0]
    for statement in layout.statements:
        for piece in (statement, *(statement.entries or ())):
            assert ends[-1] <= piece.start < piece.end <= len(text)
            ends.append(piece.end)


@pytest.mark.parametrize(
    "piece",
    [
        "{",
        "(",
        "}",
        '"',
        "\\",
        "a\n",
        "axis a =\n",
        "rules {\n",
        "x {} ",
        " at",
        ";",
        "# a\n",
        "a -> (b\n",
    ],
)
@pytest.mark.parametrize("head", ["", "rules { a -> "])
def test_long_files_are_answered(head: str, piece: str) -> None:
    check_robust(head + piece * (100_000 // len(piece)))


def test_a_text_that_would_take_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardspec.language.dsl_text.reader.MOST_CHARACTERS", 40)
    text = "rules { a -> b }\n"
    assert read_dsl(SourceFile("s.shard", text * 2))[1] == ()
    reading, (fault,) = read_dsl(SourceFile("s.shard", text * 3))
    assert reading is None
    assert fault.code.id == "SHD007"
    assert "51 characters; 40 is the most" in fault.message


def test_lines_of_a_step_with_a_faulty_head_are_no_settings() -> None:
    text = 'step none {\n  a, "**/b" -> c\n  remat full\n}'
    assert [fault[1] for fault in faults(text)] == ["none"]

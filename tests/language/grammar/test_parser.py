"""The parser reads what lark's own reads, makes the same tree, and stops at the same place."""

from __future__ import annotations

from functools import cache
from typing import Any

import lark
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.lark import from_lark

from shardspec.language.grammar import expressions
from shardspec.language.grammar.parser import Node, Token, parser
from tests.grammar_tables import STARTS, build_parser

words = st.sampled_from(
    (
        "8 explicit",
        "rest manual",
        "embed",
        "mlp",
        "none",
        "None",
        "null",
        "rest",
        "a_b",
        "_",
        "x2",
        "é",
    )
)
numbers = st.integers(0, 10**16).map(str) | st.sampled_from(("0", "007", "8"))
types = st.builds(
    lambda dtype, sizes, comma: f"{dtype}[{comma.join(sizes)}]",
    st.sampled_from(("bf16", "f32", "F8_E4M3", "int-8", "none", "_x")),
    st.lists(numbers | words, max_size=4),
    st.sampled_from((", ", ",", " ")),
)
rules = st.builds("{} {} {}".format, words, st.sampled_from(("->", "=>", "->  ")), words | types)
globs = st.text(st.sampled_from("ab/*?{},\\.é1_"), max_size=8)
texts = (
    rules
    | globs
    | words
    | numbers
    | types
    | st.lists(words, max_size=4).map(" ".join)
    | st.text(max_size=12)
)

#: Texts that are plain, or nearly so.
names = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,4}", fullmatch=True) | st.just("rest")
sizes = st.integers(0, 10**5).map(str)
odd = st.sampled_from(("as", "x", "x2", "per", "none", "flash", "in:embed", "_", "flops"))
patterns = st.sampled_from(("**/wi_{0,1}", "a", "*", "é", "a/b", "a b", "")).map('"{}"'.format)
dims = (
    st.lists(st.one_of(*[names] * 8, st.just("as")), min_size=1, max_size=3)
    .map(" ".join)
    .map("[{}]".format)
)
terms = st.builds(
    "{}{}".format, st.one_of(*[names | patterns] * 8, odd), st.one_of(*[st.just("")] * 3, dims)
)
targets = (
    names
    | words
    | st.builds(
        "({}){}".format,
        st.lists(names | words, min_size=1, max_size=3).map(", ".join),
        st.sampled_from(("", "?")),
    )
)
braced = st.recursive(
    st.sampled_from(("a", "b/", "/c", "*", "**", "?", "", "{0..3}", "{09..11}", "{3..1}", "..")),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(lambda each: "{" + ",".join(each) + "}")
        | st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.builds("{},/".format, inner)
    ),
    max_leaves=8,
)
NEARLY: dict[str, st.SearchStrategy[str]] = {
    "array_type": st.builds(
        lambda dtype, dims, comma: f"{dtype}[{comma.join(dims)}]",
        st.sampled_from(("bf16", "f32", "F8_E4M3")),
        st.lists(names | sizes, min_size=1, max_size=4),
        st.sampled_from((", ", " ")),
    ),
    "axis_rule": st.builds(
        lambda left, right, priority: f"{', '.join(left)} -> {' | '.join(right)}{priority}",
        st.lists(names, min_size=1, max_size=3),
        st.lists(targets, min_size=1, max_size=3),
        st.sampled_from(("", "", " @ 5", " @ -1", "@ 2")),
    ),
    "path_pattern": globs | braced,
    "names": st.lists(names, min_size=1, max_size=4).map(" ".join),
    "scan": st.builds("{}@{}".format, names | words, st.integers(-3, 12)),
    "size": st.lists(sizes | numbers | names, min_size=1, max_size=4).flatmap(
        lambda parts: st.lists(
            st.sampled_from((" * ", " + ", " - ", "*")),
            min_size=len(parts) - 1,
            max_size=len(parts) - 1,
        ).map(lambda signs: "".join(map("".join, zip(parts, [*signs, ""], strict=True))))
    ),
    "mesh_size": st.builds(
        "{}{}".format,
        sizes
        | numbers
        | names
        | st.sampled_from((*expressions.NO_LETS, "submesh 4x2", "submesh 0x1")),
        st.sampled_from(("", "", " @ dcn", " @ ici", "@dcn", " explicit")),
    ),
    "hardware": st.builds(
        "{}{}{}{}".format,
        st.sampled_from(("", "", "2 * ", "0 * ", "{2,4} * ", "3*")),
        st.sampled_from(("", "8 ", "tpu ", "GPU ", "cpu ", "8 gpu ", "tpu v4 ")),
        st.sampled_from(
            ("v4", "h100", "cpu", "CPU", "v4-512", "a3-highgpu-8g", "by", "memory", "tpu", "x_1")
        ),
        st.sampled_from(("", "", " 4x4", " 16x16x8", " 4", " by a.yaml", " memory 0.9", " memory")),
    ),
    "step_line": st.builds(
        lambda call, operands, made: (
            f"{call}({', '.join(operands)}) -> {made}"
            if call
            else f"{', '.join(operands)} -> {made}"
        ),
        st.sampled_from(("", "", "", "", "", "", "", "route")),
        st.lists(terms, min_size=1, max_size=3),
        names | terms,
    ),
}


@cache
def built(grammar: str) -> lark.Lark:
    return build_parser(grammar)


@cache
def made(grammar: str, start: str) -> st.SearchStrategy[str]:
    """Return texts that the grammar allows, and some that it nearly does."""
    ascii = st.characters(codec="ascii")
    right = from_lark(built(grammar), start=start, alphabet=ascii)
    torn = st.builds(lambda text, at: text[:at] + text[at + 1 :], right, st.integers(0, 12))
    joined = st.builds("{} {}".format, right, words)
    return st.one_of(right, torn, joined, texts, NEARLY.get(start, right))


def tree_of(found: Any) -> Any:
    """Return a tree of lark, or one of ours, as tuples."""
    if isinstance(found, Node):
        return (found.name, found.start, found.end, [*map(tree_of, found.children)])
    if isinstance(found, Token):
        return (found.type, found.text, found.start, found.end)
    if isinstance(found, lark.Token):
        return (found.type, str(found), found.start_pos, found.end_pos)
    meta = found.meta
    place = (-1, -1) if meta.empty else (meta.start_pos, meta.end_pos)
    return (str(found.data), *place, [*map(tree_of, found.children)])


def stop_in_lark(machine: lark.Lark, start: str, text: str) -> tuple[int, set[str]]:
    """Return where lark stops in a text, and what it would have taken there."""
    steps = machine.parse_interactive(text, start=start)
    at = len(text.rstrip())
    fed: list[lark.Token] = []

    try:
        for token in steps.iter_parse():
            fed.append(token)
    except lark.UnexpectedInput as fault:
        at = at if fault.pos_in_stream is None else fault.pos_in_stream
    steps = machine.parse_interactive("", start=start)
    for token in fed:
        if (token.start_pos or 0) < at:
            steps.feed_token(token)
    return at, steps.accepts()


def check(grammar: str, start: str, text: str) -> bool:
    """Hold the parser to lark's for one text; say whether it can be read."""
    found = parser(grammar).parse(text, start)
    try:
        tree = built(grammar).parse(text, start=start)
    except lark.UnexpectedInput:
        assert found is None
        stop = parser(grammar).stop(text, start)
        at, accepted = stop_in_lark(built(grammar), start, text)
        assert (stop.at, set(stop.accepted)) == (at, accepted)
        return False
    assert found is not None
    assert tree_of(found) == tree_of(tree)
    return True


@pytest.mark.parametrize("grammar", STARTS)
@given(data=st.data())
def test_the_parser_is_the_grammar(grammar: str, data: st.DataObject) -> None:
    start = data.draw(st.sampled_from(STARTS[grammar]))
    check(grammar, start, data.draw(made(grammar, start)))


@pytest.mark.parametrize(
    ("grammar", "start", "text"),
    [
        ("array_type", "array_type", "bf16[4096, 512]"),
        ("array_type", "array_type", "bf16[embed=4096 2*mlp]"),
        ("array_type", "array_type", "f32[]"),
        ("array_type", "size", "inner + 2 * (groups - 1) * state"),
        ("axis_rule", "axis_rule", "mlp, heads -> model | (replica, data)? | none @ -1"),
        ("axis_rule", "partition", "((replica, data), none) unreduced model"),
        ("names", "names", "a b _ c"),
        ("names", "scan", "layers@0, stage@-1"),
        ("names", "place", "before mlp"),
        ("derived", "derived", "from a/** dims ... -2/any b | 0"),
        ("derived", "derived", "from a [b c] = d[b] @ e rank f"),
        ("mesh_axis", "mesh_size", "over x y2/2 explicit"),
        ("mesh_axis", "mesh_size", "(kv_tp = fit kv_heads, attn_dp = rest)"),
        ("hardware", "hardware", "{1..8} * GPU h100 memory 0.9 by a.yaml"),
        ("path_pattern", "path_pattern", "{**/{key,k}{/kernel,/weight,},h.{0..11}.*}"),
        ("step", "step_line", "flash(a, b, c[d as e]) -> f[_ g=3] x 2"),
        ("document", "override", 'override optional re"a" : b memory memory device because "c"'),
        ("document", "axis", 'axis qkv = parts (q = heads * kv, k = kv) unit 4 interleaved "a"'),
        ("document", "rules_entry", "mlp -> model | data at before embed"),
    ],
)
def test_what_can_be_read(grammar: str, start: str, text: str) -> None:
    assert check(grammar, start, text)


@pytest.mark.parametrize(
    ("grammar", "start", "text"),
    [
        ("axis_rule", "axis_rule", "a -> ->"),
        ("names", "names", "a (("),
        ("array_type", "array_type", "bf16[["),
        ("derived", "derived", "from dims 0 0"),
        ("mesh_axis", "mesh_size", "8 8"),
        ("hardware", "hardware", "* *"),
        ("path_pattern", "path_pattern", "{a"),
        ("step", "step_line", "a -> ->"),
        ("document", "mesh_entry", "mlp at"),
        ("document", "policy", ""),
    ],
)
def test_what_cannot_be_read(grammar: str, start: str, text: str) -> None:
    assert not check(grammar, start, text)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardspec.language.grammar import expressions, plain_forms, refusals, step_lines, syntax

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
    "rule": st.builds(
        lambda left, right, priority: f"{', '.join(left)} -> {' | '.join(right)}{priority}",
        st.lists(names, min_size=1, max_size=3),
        st.lists(targets, min_size=1, max_size=3),
        st.sampled_from(("", "", " @ 5", " @ -1", "@ 2")),
    ),
    "glob": globs | braced,
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
        | st.sampled_from((*refusals.NO_LETS, "submesh 4x2", "submesh 0x1")),
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

FORMS: dict[str, tuple[Callable[[str], Any], Callable[[str], Any]]] = {
    "array_type": (
        plain_forms.plain_array_type,
        lambda text: expressions._parse(
            "array_type", "array_type", text, syntax.array_type, refusals.in_array_type
        ),
    ),
    "rule": (
        plain_forms.plain_rule,
        lambda text: expressions._parse(
            "axis_rule", "axis_rule", text, syntax.axis_rule, refusals.in_rule
        ),
    ),
    "glob": (
        plain_forms.plain_glob,
        lambda text: expressions._parse(
            "path_pattern", "path_pattern", text, syntax.path_pattern, refusals.in_glob
        ),
    ),
    "names": (
        plain_forms.plain_names,
        lambda text: expressions._parse("names", "names", text, syntax.names, refusals.in_names),
    ),
    "scan": (
        plain_forms.plain_scan,
        lambda text: expressions._parse("names", "scan", text, syntax.scan, refusals.in_scan),
    ),
    "hardware": (
        plain_forms.plain_hardware,
        lambda text: expressions._parse("hardware", "hardware", text, syntax.hardware),
    ),
    "size": (
        plain_forms.plain_size,
        lambda text: expressions._parse("array_type", "size", text, syntax.size),
    ),
    "mesh_size": (
        plain_forms.plain_mesh_size,
        lambda text: expressions._parse(
            "mesh_axis", "mesh_size", text, syntax.mesh_size, refusals.in_mesh_size
        ),
    ),
    "step_line": (
        step_lines.plain_step_line,
        lambda text: expressions._parse(
            "step", "step_line", text, step_lines.step_line, step_lines.in_step_line
        ),
    ),
}


def places(found: Any) -> list[Any]:
    """Return where the parts of a glob are, which do not count when two are compared."""
    parts = found if isinstance(found, tuple) else getattr(found, "parts", ())
    return [
        (part.start, part.end, *map(places, getattr(part, "alternatives", ())))
        for part in parts
        if hasattr(part, "start")
    ]


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
def test_a_plain_form_is_what_the_parser_says(form: str, data: st.DataObject) -> None:
    text = data.draw(texts if data.draw(st.integers(0, 3)) == 0 else NEARLY[form])
    plain, parse = FORMS[form]
    found = plain(text)
    assume(found is not None)
    assert found == parse(text)
    assert places(found) == places(parse(text))


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("array_type", "bf16[4096, 512]"),
        ("array_type", "bf16[embed mlp]"),
        ("array_type", "bf16[8, embed]"),
        ("rule", "mlp -> model"),
        ("rule", "length -> none"),
        ("glob", "**/block_0/*_proj/kernel"),
        ("glob", "decoder/**"),
        ("glob", "**"),
        ("rule", "mlp, heads -> model | (replica, data)? | none @ -1"),
        ("glob", "{**/{key,k}{/kernel,/weight,},h.{0..11}.*}"),
        ("names", "embed mlp"),
        ("scan", "layers@0"),
        ("size", "4096"),
        ("size", "inner + 2 * groups * state - 1"),
        ("mesh_size", "rest"),
        ("mesh_size", "tp @ dcn"),
        ("mesh_size", "submesh 4x2x2x1"),
        ("hardware", "2 * tpu v5p 4x4x8"),
        ("hardware", "8 cpu"),
        ("hardware", "v4-512"),
        ("step_line", 'residual, "**/{query,key}/kernel" -> query'),
        ("step_line", "flash(query, key, value) -> context"),
        ("step_line", "dispatch(residual, routing) -> arrived[expert batch slot embed]"),
        ("step_line", "route(inputs[batch length]) -> choice[batch length vocab]"),
    ],
)
def test_the_commonest_are_plain(form: str, text: str) -> None:
    plain, parse = FORMS[form]
    assert plain(text) == parse(text)

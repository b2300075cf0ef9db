from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardspec.language.grammar import expressions, refusals, step_lines, syntax

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
NEARLY: dict[str, st.SearchStrategy[str]] = {
    "array_type": st.builds(
        lambda dtype, dims, comma: f"{dtype}[{comma.join(dims)}]",
        st.sampled_from(("bf16", "f32", "F8_E4M3")),
        st.lists(names | sizes, min_size=1, max_size=4),
        st.sampled_from((", ", " ")),
    ),
    "rule": st.builds("{} -> {}".format, names, names | words),
    "glob": globs,
    "names": st.lists(names, min_size=1, max_size=4).map(" ".join),
    "size": sizes | numbers,
    "mesh_size": sizes | numbers | st.just("rest"),
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
        expressions.plain_array_type,
        lambda text: expressions._parse(
            "array_type", "array_type", text, syntax.array_type, refusals.in_array_type
        ),
    ),
    "rule": (
        expressions.plain_rule,
        lambda text: expressions._parse(
            "axis_rule", "axis_rule", text, syntax.axis_rule, refusals.in_rule
        ),
    ),
    "glob": (
        expressions.plain_glob,
        lambda text: expressions._parse(
            "path_pattern", "path_pattern", text, syntax.path_pattern, refusals.in_glob
        ),
    ),
    "names": (
        expressions.plain_names,
        lambda text: expressions._parse("names", "names", text, syntax.names, refusals.in_names),
    ),
    "size": (
        expressions.plain_size,
        lambda text: expressions._parse("array_type", "size", text, syntax.size),
    ),
    "mesh_size": (
        expressions.plain_mesh_size,
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


def places(found: Any) -> list[tuple[int, int]]:
    """Return where the parts of a glob are, which do not count when two are compared."""
    return [(part.start, part.end) for part in getattr(found, "parts", ())]


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
        ("names", "embed mlp"),
        ("size", "4096"),
        ("mesh_size", "rest"),
        ("step_line", 'residual, "**/{query,key}/kernel" -> query'),
        ("step_line", "flash(query, key, value) -> context"),
        ("step_line", "route(inputs[batch length]) -> choice[batch length vocab]"),
    ],
)
def test_the_commonest_are_plain(form: str, text: str) -> None:
    plain, parse = FORMS[form]
    assert plain(text) == parse(text)

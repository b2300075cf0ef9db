"""The small expressions: what they mean, where they break, and that printing undoes parsing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import assets
from shardspec.ir.spec import Factors, Side
from shardspec.language.grammar import expressions, print_expressions
from shardspec.language.grammar.expressions import NO_LETS, Bound, parse_bound, print_bound
from shardspec.language.grammar.syntax import (
    AnyChar,
    ArrayDim,
    ArrayType,
    AxisTarget,
    Braces,
    DerivedExpr,
    DoubleStar,
    Glob,
    GlobText,
    HardwareExpr,
    IntRange,
    MeshSize,
    Name,
    NamesExpr,
    Part,
    PartitionExpr,
    PlaceExpr,
    RuleExpr,
    ScanExpr,
    SizeExpr,
    SizeTerm,
    Star,
    SyntaxFault,
    product,
)
from tests.grammar_tables import STARTS, build_parser

PARSERS: dict[str, Callable[[str], Any]] = {
    "axis_rule": expressions.parse_axis_rule,
    "partition": expressions.parse_partition,
    "place": expressions.parse_place,
    "mesh_axes": expressions.parse_mesh_axes,
    "bound": parse_bound,
    "names": expressions.parse_names,
    "scan": expressions.parse_scan,
    "derived": expressions.parse_derived,
    "size": expressions.parse_size,
    "array_type": expressions.parse_array_type,
    "mesh_size": expressions.parse_mesh_size,
    "hardware": expressions.parse_hardware,
    "glob": expressions.parse_glob,
}


def print_glob(glob: Glob) -> str:
    """Return the text of a glob.

    Invariants:
      round_trip: `parse_glob(print_glob(glob)) == glob`.
    """
    return "".join(_part(part, in_braces=False) for part in glob.parts)


def _part(part: Part, *, in_braces: bool) -> str:
    match part:
        case GlobText():
            return re.sub(r"[*?{}\\,]" if in_braces else r"[*?{}\\]", r"\\\g<0>", part.text)
        case Star():
            return "*"
        case DoubleStar():
            return "**"
        case AnyChar():
            return "?"
        case IntRange():
            first, last = (str(i).zfill(part.width) for i in (part.first, part.last))
            return f"{{{first}..{last}}}"
        case Braces():
            inner = (
                "".join(_part(p, in_braces=True) for p in parts) for parts in part.alternatives
            )
            return f"{{{','.join(inner)}}}"


PRINTERS: dict[str, Callable[[Any], str]] = {
    "axis_rule": print_expressions.print_rule,
    "partition": print_expressions.print_partition,
    "place": print_expressions.print_place,
    "mesh_axes": print_expressions.print_mesh_axes,
    "bound": print_bound,
    "names": print_expressions.print_names,
    "scan": print_expressions.print_scan,
    "derived": print_expressions.print_derived,
    "size": print_expressions.print_size,
    "array_type": print_expressions.print_array_type,
    "mesh_size": print_expressions.print_mesh_size,
    "hardware": print_expressions.print_hardware,
    "glob": print_glob,
}

_TAKEN = {"none", "_", "None", "null", "Null", "NULL", "NONE", "nil"}
texts = st.from_regex(r"[A-Za-z_]\w{0,3}([-.]\w{1,2}){0,2}", fullmatch=True).filter(
    lambda text: text not in _TAKEN
)
names = texts.map(lambda text: Name(text, 0, 0))
roles = st.builds(
    "{}{}{}".format, st.sampled_from(("", "in:")), texts, st.sampled_from(("", "'", "''"))
)
axes = roles.map(lambda text: Name(text, 0, 0))
lets = names.filter(lambda name: name.text not in NO_LETS)
numbers = st.integers(0, 10**6)


parents = st.sampled_from(("**", "a/*/{b,c}", "a b", "a;", "é#|")).map(
    lambda text: Name(text, 0, 0)
)
derived_dims = st.sampled_from(
    (("...", "-2/any", "rank"), ("...",), ("0",), ("_", "1*8"), ("-1", "_", "b-c", "0/128"))
)


own_names = st.none() | st.lists(
    st.lists(roles, min_size=1, max_size=3).map(tuple),
    max_size=2,
    unique_by=len,
).map(tuple)


@st.composite
def products(draw: st.DrawFn) -> DerivedExpr:
    left = Side("a", (draw(roles),))
    right = Side(
        draw(st.sampled_from(("b", "lora_b", "B.=", "é"))), tuple(draw(st.lists(roles, max_size=2)))
    )
    factors = Factors(left, right, draw(st.none() | texts))
    said = (*left.names, *right.names, *filter(None, factors[2:]))
    names = tuple(Name(str(name), 0, 0) for name in said)
    return DerivedExpr(draw(parents), (), draw(own_names), factors, names)


def _derived(parent: Name | None, answers: list[tuple[str, ...]]) -> DerivedExpr:
    by_rank = {(len(each), "..." in each): each for each in answers}
    named = tuple(tuple(Name(dim, 0, 0) for dim in each) for each in by_rank.values())
    is_left_out = parent is not None and list(by_rank.values()) == [("...",)]
    return DerivedExpr(parent, () if is_left_out else named)


def _target(axes: list[str]) -> AxisTarget:
    return AxisTarget(tuple(Name(axis, 0, 0) for axis in axes), 0, 0)


targets = st.lists(texts, max_size=3, unique=True).map(_target)
rule_targets = targets | st.lists(texts, min_size=1, max_size=3, unique=True).map(
    lambda axes: _target(axes)._replace(in_part=True)
)


@st.composite
def partitions(draw: st.DrawFn) -> PartitionExpr:
    axes = draw(st.lists(texts, max_size=6, unique=True))
    cuts = sorted(draw(st.lists(st.integers(0, len(axes)), max_size=3)))
    bounds = zip([0, *cuts], [*cuts, len(axes)], strict=True)
    return PartitionExpr(tuple(_target(axes[a:b]) for a, b in bounds))


_factors = st.lists(numbers | names, min_size=1, max_size=3).map(tuple)


def _sums(factors: st.SearchStrategy[Any]) -> st.SearchStrategy[SizeExpr]:
    """Sums and differences, of which the first term is added, as the grammar has it."""
    rest = st.lists(st.builds(SizeTerm, factors, st.sampled_from((1, -1))), max_size=2)
    return st.builds(lambda first, more: SizeExpr((SizeTerm(first), *more)), factors, rest)


#: A sum in parentheses stands beside another factor, and is no product itself.
_nested = _sums(_factors).filter(lambda size: len(size.terms) > 1)
sizes = _sums(_factors | st.tuples(numbers | names, _nested) | st.tuples(_nested, names))
array_dims = st.one_of(
    axes.map(lambda name: ArrayDim(name, None, 0, 0)),
    st.tuples(names, sizes).map(lambda pair: ArrayDim(*pair, 0, 0)),
    numbers.map(lambda number: ArrayDim(None, product(number), 0, 0)),
    st.tuples(numbers, names).map(lambda pair: ArrayDim(None, product(*pair), 0, 0)),
    names.map(lambda name: ArrayDim(None, product(name), 0, 0)),
)
tiles = st.lists(st.integers(1, 64), min_size=2, max_size=4).map(tuple)
networks = st.sampled_from(("ici", "dcn"))
axis_types = st.sampled_from(("auto", "explicit", "manual"))
bounds = st.builds(
    Bound,
    st.integers(0, 100).map(str) | st.sampled_from(("0.5", "99.99", "0.001")),
    st.sampled_from(("%", "B", "KiB", "MiB", "GiB", "TiB")),
)
chips = st.sampled_from(("v4", "v4-512", "h100", "a3-highgpu-8g", "v5litepod-64", "a100_40gb"))
characters = st.text(st.sampled_from("ab_0.-*?{}\\,/ ü"), min_size=1, max_size=4)
_pieces = st.one_of(
    characters.map(GlobText),
    st.just(Star()),
    st.just(AnyChar()),
    st.tuples(st.integers(0, 12), st.integers(0, 12), st.sampled_from((0, 2))).map(
        lambda t: IntRange(min(t[:2]), max(t[:2]), t[2] if min(t[:2]) < 10 else 0)
    ),
)


def _normal(parts: list[Any]) -> tuple[Any, ...]:
    """Join literals; part `*` and `*`, which side by side would be `**`."""
    result: list[Any] = []
    for part in parts:
        last = result[-1] if result else None
        if isinstance(part, GlobText) and isinstance(last, GlobText):
            result[-1] = GlobText(last.text + part.text)
        elif not (isinstance(part, Star) and isinstance(last, Star)):
            result.append(part)
    return tuple(result)


def _braces(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    alternative = st.lists(inner, max_size=3).map(_normal).filter(_has_no_range_text)
    alternatives = st.lists(alternative, min_size=1, max_size=3).map(tuple)
    return alternatives.filter(lambda parts: parts != ((),)).map(Braces)


def _has_no_range_text(parts: tuple[Any, ...]) -> bool:
    return not any(isinstance(part, GlobText) and ".." in part.text for part in parts)


_parts = st.recursive(_pieces, _braces, max_leaves=8)
globs = st.tuples(st.booleans(), st.lists(_parts, min_size=1, max_size=5)).map(
    lambda t: Glob(
        _normal([*([DoubleStar(), GlobText("/")] if t[0] else []), *t[1]]),
    )
)

NODES: dict[str, st.SearchStrategy[Any]] = {
    "axis_rule": st.builds(
        RuleExpr,
        st.lists(axes, min_size=1, max_size=3).map(tuple) | st.just((Name("*", 0, 0),)),
        st.lists(rule_targets, min_size=1, max_size=3).map(tuple),
        st.integers(-99, 99),
    ),
    "partition": partitions(),
    "mesh_axes": st.lists(texts, min_size=1, max_size=3, unique=True).map(_target),
    "bound": bounds,
    "place": st.sampled_from(("start", "end")).map(PlaceExpr)
    | st.builds(PlaceExpr, st.sampled_from(("before", "after")), names),
    "names": st.lists(axes | st.none(), min_size=1, max_size=4).map(
        lambda found: NamesExpr(tuple(found))
    ),
    "scan": st.lists(names, min_size=1, max_size=3).map(
        lambda found: ScanExpr(tuple((name, i) for i, name in enumerate(found)))
    ),
    "derived": st.builds(_derived, st.none() | parents, st.lists(derived_dims, min_size=1))
    | st.builds(
        lambda parent, own, answers: _derived(parent, answers)._replace(own=own),
        parents,
        own_names,
        st.just([("0/2", "in", "_")]),
    )
    | products(),
    "size": sizes,
    "array_type": st.builds(
        ArrayType,
        st.sampled_from(("bf16", "f32", "f8_e4m3fn")).map(lambda dtype: Name(dtype, 0, 0)),
        st.lists(array_dims, max_size=4).map(tuple),
    ),
    "mesh_size": st.one_of(
        st.builds(MeshSize, st.just(kind), counts, shapes, networks, axis_types)
        for kind, counts, shapes in (
            ("integer", st.integers(1, 4096), st.just(())),
            ("rest", st.just(0), st.just(())),
            ("auto", st.integers(1, 4096), st.just(())),
            ("submesh", st.just(0), tiles),
        )
    )
    | st.builds(
        lambda over, kind: MeshSize("over", 1, axis_type=kind, over=over),
        st.lists(st.sampled_from(("x", "y4", "z4/2", "slice")), min_size=1, max_size=3).map(
            lambda words: tuple(Name(word, 0, 0) for word in words)
        ),
        axis_types,
    )
    | st.builds(
        MeshSize,
        st.sampled_from(("integer", "auto")),
        st.just(1),
        st.just(()),
        networks,
        axis_types,
        lets.map(product) | st.tuples(numbers, lets).map(lambda pair: product(*pair)),
    ),
    "hardware": st.builds(
        HardwareExpr,
        chips.map(lambda chip: Name(chip, 0, 0)),
        st.integers(1, 8),
        st.sampled_from((None, "tpu", "gpu")),
        st.none() | st.integers(1, 64),
        st.just(()) | tiles,
        st.just(()),
        st.none() | st.sampled_from(("h.local.yaml", "../a/b-c.yml")).map(lambda f: Name(f, 0, 0)),
        st.none() | st.sampled_from(("0.9", ".92", "1")).map(lambda share: Name(share, 0, 0)),
    ),
    "glob": globs,
}
kinds_and_nodes = st.sampled_from(sorted(NODES)).flatmap(
    lambda kind: st.tuples(st.just(kind), NODES[kind])
)


def fields_of(node: Any) -> dict[str, Any]:
    """Return the fields of a node by name; nothing for what is no node."""
    if hasattr(node, "_asdict"):
        return dict(node._asdict())
    if not dataclasses.is_dataclass(node):
        return {}
    return {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}


def without_places(node: Any) -> Any:
    """Return a node with every offset 0."""
    fields = {name: without_places(value) for name, value in fields_of(node).items()}
    if fields:
        return type(node)(**{k: 0 if k in {"start", "end"} else v for k, v in fields.items()})
    return tuple(map(without_places, node)) if isinstance(node, tuple) else node


def pieces_of(node: Any) -> list[Any]:
    """Return everything in a node that knows its place."""
    fields = fields_of(node)
    inner = fields.values() if fields else node if isinstance(node, tuple) else ()
    found = [piece for value in inner for piece in pieces_of(value)]
    return [node, *found] if "start" in fields else found


@given(kinds_and_nodes)
def test_printing_then_parsing_gives_the_node(kind_and_node: tuple[str, Any]) -> None:
    kind, node = kind_and_node
    text = PRINTERS[kind](node)
    parsed = PARSERS[kind](text)
    assert without_places(parsed) == without_places(node), text
    assert PRINTERS[kind](parsed) == text


@given(kinds_and_nodes)
def test_the_text_of_a_name_stands_at_its_place(kind_and_node: tuple[str, Any]) -> None:
    kind, node = kind_and_node
    text = "  " * (kind != "glob") + PRINTERS[kind](node)
    for piece in pieces_of(PARSERS[kind](text)):
        under = text[piece.start : piece.end]
        if isinstance(piece, Name):
            assert under == piece.text
        elif isinstance(piece, AxisTarget) and kind != "mesh_axes":
            again = expressions.parse_axis_rule(f"a -> {under}")
            assert isinstance(again, RuleExpr)
            assert without_places(again.targets[0]) == without_places(piece)
        elif isinstance(piece, ArrayDim):
            typed = expressions.parse_array_type(f"f32[{under}]")
            assert isinstance(typed, ArrayType)
            assert without_places(typed.dims[0]) == without_places(piece)
        elif isinstance(piece, Braces | IntRange | GlobText | Star | AnyChar):
            assert expressions.parse_glob(under) == Glob((piece,))


noise = st.text(st.sampled_from("ab_ ->|(),@=*:[]{}.\\/\"'x0194\n#é")) | st.text()


@given(st.sampled_from(sorted(PARSERS)), noise)
def test_any_text_gives_a_node_or_a_fault_within_it(kind: str, text: str) -> None:
    parsed = PARSERS[kind](text)
    if isinstance(parsed, SyntaxFault):
        assert 0 <= parsed.start <= parsed.end <= len(text)
        assert parsed.message
    elif kind != "glob":
        canonical = print_expressions.format_expression(kind, text)
        assert without_places(PARSERS[kind](canonical)) == without_places(parsed)


@given(st.sampled_from(sorted(set(NODES) - {"glob"})), st.data())
def test_a_mutated_expression_gives_a_node_or_a_fault(kind: str, data: st.DataObject) -> None:
    text = PRINTERS[kind](data.draw(NODES[kind]))
    at = data.draw(st.integers(0, len(text)))
    broken = text[:at] + data.draw(noise) + text[at + data.draw(st.integers(0, 3)) :]
    parsed = PARSERS[kind](broken)
    if isinstance(parsed, SyntaxFault):
        assert 0 <= parsed.start <= parsed.end <= len(broken)


def test_a_rule_has_names_alternatives_and_priority() -> None:
    rule = expressions.parse_axis_rule("a, b->x | (y,z,)|none @ -5")
    assert isinstance(rule, RuleExpr)
    assert [name.text for name in rule.names] == ["a", "b"]
    assert [[axis.text for axis in t.mesh_axes] for t in rule.targets] == [["x"], ["y", "z"], []]
    assert rule.priority == -5
    assert rule.targets[1] == AxisTarget((Name("y", 11, 12), Name("z", 13, 14)), 10, 16)


@pytest.mark.parametrize(
    ("kind", "text", "under", "message", "help"),
    [
        ("axis_rule", "a -> x | ", "", "a mesh axis, `none` or `(` after `|`", None),
        ("axis_rule", "a -> x?", "?", "`|`", "`(model, fsdp)?`"),
        ("partition", "((a, b)?, c)", "?", "`,`", "`?` is only for rules"),
        ("mesh_axes", "(a, b)?", "?", "the end", "`?` is only for rules"),
        ("axis_rule", "a => x", "=>", "`->` after `a`", "embed -> model"),
        ("axis_rule", "a = x", "=", "`->`", "embed -> model"),
        ("axis_rule", "a: x", ":", "`->`", "embed -> model"),
        ("axis_rule", "a → x", "→", "`->`", "embed -> model"),
        ("axis_rule", "a b -> x", "b", "`,` or `->`", "separated by `,`"),
        ("axis_rule", "a -> x, y", ",", "`|`", "alternatives are separated by `|`"),
        ("axis_rule", "a -> x y", "y", "`|`", "alternatives are separated by `|`"),
        ("axis_rule", "a -> None", "None", "no mesh axis", "`none`"),
        ("axis_rule", "a -> null", "null", "no mesh axis", "`none`"),
        ("axis_rule", "a -> []", "[", "`(`", "write `a -> none`"),
        ("axis_rule", "a -> [x, y]", "[", "`(`", "write `a -> (x, y)`"),
        ("axis_rule", "a -> [x, y] | z", "[", "`(`", "in parentheses"),
        ("axis_rule", "('a', ('x', 'x'))", "(", "a logical axis", ""),
        ("axis_rule", "('a', None)", "(", "a logical axis", "write `a -> none`"),
        ("axis_rule", "[a, b] -> x", "[", "a logical axis", "write `a, b -> x`"),
        ("axis_rule", "a -> ()", ")", "after `(`", "`none`"),
        ("axis_rule", "a -> 'x'", "'", "a mesh axis", "without quotes"),
        ("axis_rule", "a -> (x, y, x)", "x", "is given twice", "once"),
        ("axis_rule", "none -> x", "none", "a logical axis", "on the right"),
        ("axis_rule", "a -> x @ high", "high", "a whole number", "lower is earlier"),
        ("partition", "none, model", "none", "`(`", "write `(none, model)`"),
        ("partition", "none", "none", "`(`", "`(none, none)` for two"),
        ("partition", "P(f(a))", "P", "`(`", "in parentheses"),
        ("partition", "P('a')", "P", "`(`", "write `(a)`"),
        ("partition", "(a, (b, a))", "a", "is given twice", "once"),
        ("names", "", "", "a logical axis", None),
        ("names", "[embed, mlp]", "[", "a logical axis", "by spaces"),
        ("names", "embed none", "none", "a logical axis", "`_`"),
        ("names", "embed None", "None", "no logical axis", "`_`"),
        ("mesh_axes", "none", "none", "a mesh axis", "`(replica, data)`"),
        ("mesh_axes", "None", "None", "no mesh axis", "of a target"),
        ("mesh_axes", "[a]", "[", "a mesh axis", "in parentheses"),
        ("mesh_axes", "a, b", ",", "the end", "in parentheses"),
        ("mesh_axes", "(a, a)", "a", "is given twice", "once"),
        ("bound", "", "", "missing", "`2%`"),
        ("bound", "64", "64", "no unit", "`64 MiB`"),
        ("bound", "0.02", "0.02", "no unit", "`2%`"),
        ("bound", "4096", "4096", "no unit", "`4096 B`"),
        ("bound", "-1 MiB", "-1 MiB", "less than nothing", "`64 MiB`"),
        ("bound", " 101 %", "101 %", "more than all", "100%"),
        ("bound", "64 MB", "MB", "no unit of bytes", "`64 MiB`"),
        ("bound", "2 percent", "percent", "no unit of bytes", "`2%`"),
        ("bound", "64 elephants", "elephants", "no unit of bytes", "MiB"),
        ("bound", "much", "much", "no amount", "`2%`"),
        ("scan", "layers", "", "`@`", "layers@0"),
        ("scan", "layers@x", "x", "a position", "counted from 0"),
        ("scan", "a@0 b@0", "b", "both stand at position 0", "its own"),
        ("derived", "", "", "`dims` or `from`", "`from **/kernel dims 0 _`"),
        ("derived", "from a 0", "0", "`dims`", "after `dims`"),
        ("derived", "from a dims", "", "a dimension of the parent", "`0/128`"),
        ("derived", "dims 0 none", "none", "`_`", "`_`"),
        ("derived", "dims [0]", "[", "a dimension of the parent", "by spaces"),
        ("derived", "dims 0 -1 0/128", "0/128", "`0` is given twice", "`_`"),
        ("derived", "dims _ ...", "...", "behind other", "`... -2 _`"),
        ("derived", "dims 0/0", "0/0", "multiple of 0", "`any`"),
        ("derived", "dims 0 | 1", "1", "two answers", "another number"),
        ("derived", "dims 0 None", "None", "no logical axis", "`_`"),
        ("derived", "from a = b", "", "`@`", "two sides"),
        ("derived", "from a = b @ c", "", "which dimensions", "`b[embed] @ c`"),
        ("derived", "from a = b[x] @ b", "", "both sides", "`A[in] @ B`"),
        ("place", "befor x", "befor", "`before`", "`before mlp`"),
        ("size", "4x4", "4x4", "a size", "`*`"),
        ("size", "9" * 5000, "9" * 5000, "5000 digits", "15"),
        ("size", "a / 2", "/", "`*`", "multiplied"),
        ("size", "a +", "", "a logical axis", None),
        ("size", "-1", "-1", "a size", "taken off"),
        ("size", "(" * 17 + "a" + ")" * 17, "(", "deep", "a name of its own"),
        ("array_type", "bf16(3)", "(", "`[`", "bf16[embed mlp]"),
        ("array_type", "[3]", "[", "a dtype", "f32[4096, 512]"),
        ("array_type", "f32[_]", "]", "`=`", "`_=4096`"),
        ("mesh_size", "-1", "-1", "`rest`", "`rest`"),
        ("mesh_size", "4x4", "4x4", "`submesh`", "submesh 4x2x2x1"),
        ("mesh_size", "submesh (4, 2)", "(", "4x4x8", "joined by `x`"),
        ("mesh_size", "8 dcn", "dcn", "`@`", "2 @ dcn"),
        ("mesh_size", "0", "", "at least one device", "1 or more"),
        ("mesh_size", "8 explict", "explict", "`explicit`", "types of axes"),
        ("mesh_size", "8 AxisType.Auto", "AxisType.Auto", "`explicit`", "types of axes"),
        ("mesh_size", "explicit 8", "explicit", "a number", "`8 explicit`"),
        ("mesh_size", "8 explicit manual", "manual", "`@`", "one type"),
        ("hardware", "8xh100", "8xh100", "a number", "`2 * h100`"),
        ("hardware", "tpu v4 4*4*8", "4", "4x4x8", "joined by `x`"),
        ("hardware", "tpu v5e 16", "16", "4x4x8", "16 v5e"),
        ("hardware", "h100 memory 90%", "%", "the end", "memory 0.9"),
        ("hardware", "8 cpu by h.json", "h.json", "a file of `shardspec calibrate`", "after `by`"),
        ("glob", "", "", "empty", "`**`"),
        ("glob", "a**", "**", "whole component", "`**/a`"),
        ("glob", "{a/**}b", "**", "whole component", "`**/a`"),
        ("glob", "a/{x,{a,b}", "{", "not closed", "`}`"),
        ("glob", "a}", "}", "closes nothing", r"`\}`"),
        ("glob", "a\\", "\\", "after", r"`\\`"),
        ("glob", "{5..1}", "{5..1}", "empty", "{1..5}"),
        ("glob", "l_{0-3}/q", "0-3", "not as a range", "`{0..3}`"),
        ("glob", "{ 11 : 0 }", " 11 : 0 ", "not as a range", "`{0..11}`"),
        ("glob", "{0 to 3}", "0 to 3", "not as a range", "`{0..3}`"),
        ("glob", "{0..2,5}", "0..2", "no range", "braces of its own"),
        ("glob", "{}", "{}", "empty", "{a,b}"),
        ("glob", "{" * 40, "{", "deep", "several"),
    ],
)  # fmt: skip
def test_a_fault_says_what_was_expected_where_and_what_works(
    kind: str, text: str, under: str, message: str, help: str | None
) -> None:
    fault = PARSERS[kind](text)
    assert isinstance(fault, SyntaxFault)
    assert text[fault.start : fault.end] == under
    assert message in fault.message
    assert (fault.help is None) if help is None else help in (fault.help or "")


@pytest.mark.parametrize(
    ("kind", "text", "spelt"),
    [
        ("axis_rule", "embed->model|data", "embed -> model | data"),
        ("axis_rule", "a -> (x) @ 0", "a -> x"),
        ("mesh_size", "8@dcn", "8 @ dcn"),
        ("axis_rule", "a->( x,y ) ?|(z)?", "a -> (x, y)? | (z)?"),
        ("mesh_size", "2*tp explicit", "2 * tp explicit"),
        ("mesh_size", "(a=2, b = fit  kv@dcn ,)", "(a = 2, b = fit kv @ dcn)"),
        ("mesh_size", "rest @ ici", "rest"),
        ("mesh_size", "2 explicit@dcn", "2 @ dcn explicit"),
        ("mesh_size", "auto 16 auto", "auto 16"),
        ("mesh_axes", "( a,b )", "(a, b)"),
        ("bound", " 02.50%", "2.5%"),
        ("bound", "64MiB", "64 MiB"),
        ("names", "embed,mlp", "embed mlp"),
        ("names", "in:embed , embed''", "in:embed embed''"),
        ("array_type", "f32[ a,b ]", "f32[a b]"),
        ("array_type", "f32[qkv=3*embed 7]", "f32[qkv = 3 * embed, 7]"),
        ("hardware", "1*h100", "h100"),
        ("hardware", "2*8 tpu  v5e", "2 * 8 tpu v5e"),
        ("hardware", "{1..8}*tpu v5e 16x16", "{1..8} * tpu v5e 16x16"),
        ("hardware", "{ 4, 1 .. 2,2 } * h100", "{1,2,4} * h100"),
        ("hardware", "{1,2,3} * h100", "{1..3} * h100"),
        ("hardware", "h100  memory .92 by  h.yaml", "h100 memory .92 by h.yaml"),
        ("hardware", "2*h100  by  ./a-b/h.local.yml", "2 * h100 by ./a-b/h.local.yml"),
        ("size", "broken +", "broken +"),
        ("size", "( (a*b) )+c -(d + 2)", "a * b + c - (d + 2)"),
        ("size", "3*(a - (b))*(c*d)", "3 * (a - b) * c * d"),
        ("array_type", "f32[a+1 , (b)]", "f32[a + 1, b]"),
        ("array_type", "f32[_ = a, _=7, _=2*a]", "f32[_=a, 7, 2 * a]"),
    ],
)
def test_canonical_spellings(kind: str, text: str, spelt: str) -> None:
    assert print_expressions.format_expression(kind, text) == spelt
    assert print_expressions.format_expression(kind, spelt) == spelt


_LONG = 100_000
_LONG_TEXTS = ("a,", "(", "{a,", "a*", "**/", "x|", "{0..9", "a@1 ", "\\", '"', "9", " ", "a -> (")


@pytest.mark.parametrize("kind", sorted(PARSERS))
@pytest.mark.parametrize("piece", _LONG_TEXTS)
def test_long_texts_are_answered(kind: str, piece: str) -> None:
    text = piece * (_LONG // len(piece))
    assert isinstance(PARSERS[kind](text), SyntaxFault)


@pytest.mark.parametrize("grammar", sorted(STARTS))
def test_every_grammar_builds_and_is_used(grammar: str) -> None:
    assert build_parser(grammar).rules


def test_every_grammar_file_has_a_parser() -> None:
    files = assets.grammar_path("*").parent.glob("*.lark")
    assert {path.stem for path in files} == {*STARTS, "tokens"}

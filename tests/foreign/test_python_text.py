"""Python files are parsed, never run: what has a value, what has none, and where it stands."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.foreign.python_text import read_python
from shardspec.foreign.values import MOST_VALUES, Node


def bound(text: str) -> dict[str, Node]:
    read = read_python(SourceFile("rules.py", text))
    assert not isinstance(read, Diagnostic), read
    return {each.name: each.value for each in read}


def plain(node: Node) -> object:
    """Return a node as the Python value that it stands for."""
    if node.kind == "list":
        return [plain(item) for item in node.items]
    if node.kind == "mapping":
        return {plain(k): plain(v) for k, v in zip(node.keys, node.items, strict=True)}
    if node.kind == "text":
        return node.text
    return None if node.kind == "nothing" else node.number


literals = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 10**12) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


@given(literals)
def test_literals_have_their_value(value: object) -> None:
    assert plain(bound(f"X = {value!r}")["X"]) == value


@given(st.lists(st.tuples(st.text(max_size=6), st.text(max_size=6)), min_size=1, max_size=4))
def test_spans_are_the_text_of_the_value(pairs: list[tuple[str, str]]) -> None:
    node = bound("# é\nX = (  # ünïcode\n" + "".join(f"  {pair!r},\n" for pair in pairs) + ")")["X"]
    assert [ast.literal_eval(item.span.text) for item in node.items] == pairs
    assert [item.span.line for item in node.items] == list(range(3, 3 + len(pairs)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A = [1]\nX = A + [2]", [1, 2]),
        ("A = (1,)\nX = [*A, 2]", [1, 2]),
        ("X = [1]\nX += [2]", [1, 2]),
        ("X: list = [1]", [1]),
        ("A = {'k': 1}\nX = {**A, 'l': 2}", {"k": 1, "l": 2}),
        ("X = Y = [1]", [1]),
        ("X = 1\nX = 2", 2),
        ("X = -3", -3),
    ],
)
def test_values_are_put_together(text: str, value: object) -> None:
    assert plain(bound(text)["X"]) == value


@pytest.mark.parametrize(
    "text",
    [
        "X = [f() for f in g]",
        "X = 1\nif y:\n  X = 2",
        "X = 1\nfor X in y: pass",
        "try:\n  X = 1\nexcept E:\n  pass",
        "X = [1]\nX += y",
        "X = [1] + y",
        "X = [*y]",
        "X = f(*y)",
        "X = f(**y)",
        "X = (lambda: 1)()",
        "with a as X: pass",
        "X, Y = 1, 2",
        "X = b'bytes'",
    ],
)
def test_what_depends_on_running_has_no_value(text: str) -> None:
    assert bound(text)["X"].kind == "unreadable"


def test_calls_and_names_stay_what_they_are() -> None:
    call = bound("X = jax.sharding.PartitionSpec('data', None, unreduced=set)")["X"]
    assert (call.kind, call.text, call.last_name) == (
        "call",
        "jax.sharding.PartitionSpec",
        "PartitionSpec",
    )
    assert [item.kind for item in call.items] == ["text", "nothing"]
    assert call.keywords[0][0] == "unreduced"
    assert bound("X = P.UNCONSTRAINED")["X"].last_name == "UNCONSTRAINED"


def test_functions_and_classes_do_not_disturb_names() -> None:
    assert plain(bound("X = [1]\ndef f():\n  X = 2\nclass C:\n  X = 3\n")["X"]) == [1]


def test_nothing_is_run(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    bound("import sys\nprint('run')\nX = print('run')\nsys.exit(3)")
    assert capsys.readouterr().out == ""


def test_escapes_do_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    assert bound("X = 'layer_\\d+'")["X"].text == r"layer_\d+"
    assert not recwarn.list


@pytest.mark.parametrize(
    "text",
    ["X = (", "X = [", "\x00", "X = 1\n  Y = 2", "(" * 5000, "X = " + "-" * 100_000 + "1", "ü = "],
)
def test_what_is_no_python_is_one_finding(text: str) -> None:
    read = read_python(SourceFile("rules.py", text))
    assert isinstance(read, Diagnostic)
    assert read.code.id == "SHD603"
    assert "\n" not in read.message


def test_values_cannot_grow_without_end() -> None:
    lines = ["X0 = ['a', 'b', 'c', 'd']"]
    lines += [f"X{n + 1} = [X{n}, X{n}, X{n}, X{n}]" for n in range(40)]
    values = bound("\n".join(lines))
    assert "unreadable" in {node.kind for node in values.values()}
    assert all(node.size <= MOST_VALUES for node in values.values())


@given(st.text(max_size=60))
def test_any_text_is_bindings_or_a_finding(text: str) -> None:
    source = SourceFile("rules.py", text)
    read = read_python(source)
    for each in () if isinstance(read, Diagnostic) else read:
        assert 0 <= each.span.start <= each.span.end <= len(text)
    if isinstance(read, Diagnostic):
        assert all(label.span.end <= len(text) for label in read.labels)

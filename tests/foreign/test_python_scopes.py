"""Values inside classes and functions, and mappings that are built entry by entry."""

from __future__ import annotations

import pytest

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.foreign.python_text import read_scopes
from shardspec.foreign.values import Node


def values(text: str) -> dict[str, Node]:
    bindings = read_scopes(SourceFile("model.py", text))
    assert not isinstance(bindings, Diagnostic), bindings
    return {binding.name: binding.value for binding in bindings}


def texts(node: Node) -> dict[str, str]:
    return {key.text: value.text for key, value in zip(node.keys, node.items, strict=True)}


def test_class_attributes_have_dotted_names() -> None:
    found = values("A = 1\nclass C:\n    plan = {'a': 'x'}\n    class D:\n        plan = {}\n")
    assert list(found) == ["A", "C.plan", "C.D.plan"]
    assert texts(found["C.plan"]) == {"a": "x"}


def test_what_a_function_returns() -> None:
    found = values("def rules(x):\n    a = 'data'\n    return [('k', P(a, x))]\n")
    call = found["rules"].items[0].items[1]
    assert [item.text for item in call.items] == ["data", "the caller gives it"]


def test_several_returns_are_told_apart() -> None:
    found = values("def f(x):\n    if x:\n        return [1]\n    return [2]\n")
    assert [name for name in found if name.startswith("f:")] == ["f:3", "f:4"]


def test_entries_are_added_to_a_mapping() -> None:
    text = (
        "def f(mesh, axis='model'):\n    m = LayoutMap(mesh)\n    m['a'] = axis\n    m['b'] = 'x'\n"
    )
    assert texts(values(text)["f.m"]) == {"a": "model", "b": "x"}


def test_entries_that_depend_on_what_runs_are_seen() -> None:
    text = "m = {}\nif x:\n    m['a'] = 'data'\nfor i in y:\n    m[f'{i}'] = 'b'\nm.update(z)\n"
    node = values(text)["m"]
    assert [item.kind for item in node.items] == ["unreadable"] * 3
    assert [key.kind for key in node.keys] == ["text", "unreadable", "unreadable"]


def test_a_list_that_grows_is_not_certain() -> None:
    assert values("rules = [('a', P())]\nrules.append(x)\n")["rules"].kind == "unreadable"


def test_methods_do_not_see_the_names_of_their_class() -> None:
    text = "a = 'out'\nclass C:\n    a = 'in'\n    def f(self):\n        return [a]\n"
    assert values(text)["C.f"].items[0].text == "out"


def test_no_python() -> None:
    assert isinstance(read_scopes(SourceFile("x.py", "def f(:")), Diagnostic)
    assert isinstance(read_scopes(SourceFile("x.py", "class C:\n" + "(" * 90_000)), Diagnostic)


CONFIG = "def get_config():\n  config = ml_collections.ConfigDict()\n  {}\n  return config\n"


def attribute(*lines: str) -> Node:
    return values(CONFIG.format("\n  ".join(lines)))["get_config.config.rules"]


def test_attributes_that_a_function_sets() -> None:
    assert attribute("config.rules = ['a']").items[0].text == "a"
    found = values(CONFIG.format("config.train.rules = [1]"))
    assert "get_config.config.train.rules" in found


def test_the_last_attribute_counts() -> None:
    assert attribute("config.rules = ['a']", "config.rules = ['b']").items[0].text == "b"


def test_a_name_in_an_attribute_has_its_value() -> None:
    assert attribute("axis = 'data'", "config.rules = [axis]").items[0].text == "data"


@pytest.mark.parametrize(
    "line",
    [
        "config.rules.append(x)",
        "config.rules += x",
        "config.rules[0] = x",
        "config.update(x)",
        "del config.rules",
        "if x: config.rules = ['b']",
        "for x in y: config.rules.extend(x)",
        "try: config.rules = z\n  except E: pass",
    ],
)
def test_attributes_that_depend_on_what_runs(line: str) -> None:
    assert attribute("config.rules = ['a']", line).kind == "unreadable"


def test_what_decides_on_an_attribute_is_known() -> None:
    text = CONFIG.format("if arg.fsdp:\n    config.rules = ['a']")
    bindings = read_scopes(SourceFile("model.py", text))
    assert not isinstance(bindings, Diagnostic)
    (found,) = [each for each in bindings if each.name.endswith(".rules")]
    assert found.value.items[0].text == "a"
    assert found.under is not None
    assert found.under.text == "arg.fsdp"


def test_a_with_always_runs() -> None:
    text = CONFIG.format("with config.unlocked():\n    config.rules = ['a']")
    bindings = read_scopes(SourceFile("model.py", text))
    assert not isinstance(bindings, Diagnostic)
    (found,) = [each for each in bindings if each.name.endswith(".rules")]
    assert found.under is None


def test_attributes_of_an_object_itself_are_not_read() -> None:
    found = values("class C:\n    def f(self):\n        self.plan = {'a': 'x'}\n")
    assert "C.f.self.plan" not in found


@pytest.mark.parametrize(
    ("after", "axes"),
    [
        ("", ("model",)),
        ("Names = Base", ("data",)),
        ("Names.HEAD = 'data'", None),
        ("if wide:\n    Names.HEAD = 'data'", None),
        ("def widen():\n    Names.HEAD = 'data'", None),
        ("Names = Base if wide else Names", None),
    ],
)
def test_constants_of_classes_stand_for_their_values(
    after: str, axes: tuple[str, ...] | None
) -> None:
    text = (
        "class Base:\n    HEAD = 'data'\n    MLP = ('data', 'model')\n"
        "class Names(Base):\n    HEAD = 'model'\n"
        f"{after}\nRULES = [P(Names.HEAD), P(Names.MLP)]\n"
    )
    found = read_scopes(SourceFile("rules.py", text))
    assert not isinstance(found, Diagnostic)
    head, mlp = next(each.value for each in found if each.name == "RULES").items
    assert (head.items[0].names if head.items[0].kind != "name" else None) == axes
    if not after or after == "Names = Base":
        assert mlp.items[0].names == ("data", "model")

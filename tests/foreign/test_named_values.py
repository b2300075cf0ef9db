"""What a file is read as: by its name, and standard input by what it holds."""

from __future__ import annotations

import pytest

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.foreign.python_text import NamedValues, by_name, read_named_values

LISTS = 'RULES = [("embed", "data")]\nclass Config:\n    rules = None\n'


@pytest.mark.parametrize("name", ["-", "rules.py"])
@pytest.mark.parametrize(
    ("text", "names"),
    [
        (LISTS, ["RULES", "Config.rules"]),
        ("class Config:\n    rules = None\n", ["Config.rules"]),
        ("R = [('kernel', P('data'))]", ["R"]),
    ],
)
def test_python_gives_what_it_binds(name: str, text: str, names: list[str]) -> None:
    values = read_named_values(SourceFile(name, text))
    assert isinstance(values, NamedValues)
    assert [name for name, _ in values.named] == names
    assert values.root is None


@pytest.mark.parametrize("name", ["-", "rules.json", "rules"])
@pytest.mark.parametrize("text", ['[["embed", "data"]]', "rules: [[embed, data]]", '{"a": 1}'])
def test_what_is_data_is_no_python_though_it_parses_as_such(name: str, text: str) -> None:
    values = read_named_values(SourceFile(name, text))
    assert isinstance(values, NamedValues)
    assert values.root is not None


@pytest.mark.parametrize(
    ("name", "word"), [("-", "closed"), ("a.json", "closed"), ("a.py", "Python")]
)
def test_what_is_neither_is_refused_as_what_it_looks_like(name: str, word: str) -> None:
    faults = read_named_values(SourceFile(name, '[["embed", "data"'))
    assert isinstance(faults, tuple)
    assert word in faults[0].message


@pytest.mark.parametrize(
    ("name", "meant"), [("rules", 1), ("a.rules", 2), ("c.rules", 4), ("b", "`a.b`, `c.b`")]
)
def test_a_name_is_whole_or_the_end_of_one(name: str, meant: int | str) -> None:
    bound = [("rules", 0), ("rules", 1), ("a.rules", 2), ("c.rules", 4), ("a.b", 5), ("c.b", 6)]
    found = by_name(bound, name, SourceFile("rules.py", ""), None)
    if isinstance(meant, int):
        assert found == meant
    else:
        assert isinstance(found, Diagnostic)
        assert (found.code.id, found.help) == ("SHD604", f"say more of its name: {meant}")


def test_a_name_that_nothing_has_is_said() -> None:
    found = by_name([("a.rules", 1)], "rule", SourceFile("rules.py", "x"), "here is `a.rules`")
    assert isinstance(found, Diagnostic)
    assert found.message == "`rules.py` binds no `rule`"
    assert (found.code.id, found.help) == ("SHD603", "here is `a.rules`")

"""What a file is read as: by its name, and standard input by what it holds."""

from __future__ import annotations

import pytest

from shardspec.diagnostics import SourceFile
from shardspec.foreign.named_values import NamedValues, read_named_values

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

"""Plain words: what they mean here, and where YAML 1.1 would differ."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from shardspec.diagnostics import codes
from shardspec.language.yaml_text.printer import ScalarFault, read_plain

# fmt: off
TRAPS = [
    "no", "yes", "on", "off", "No", "YES", "oN", "OFF", "True", "FALSE", "Null", "NULL", "010",
    "-017", "0x1F", "0b101", "1_000", "12:30", "1:30:00", "12:30.5", ".inf", "-.Inf", ".nan",
    ".NaN", "2024-01-01", "2024-01-01T10:00:00Z", "1_0.5", "=", "<<",
]
# fmt: on
awkward = st.text("0123456789+-._:eExXobBTtZ ~=<nofysrulaNOY", min_size=1, max_size=12)


@pytest.mark.parametrize("word", TRAPS)
def test_traps(word: str) -> None:
    fault = read_plain(word)
    assert isinstance(fault, ScalarFault)
    assert fault.code is codes.YAML_TRAP
    assert f"`{word}`" in fault.message
    assert f'"{word}"' in fault.help


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("", None), ("~", None), ("null", None), ("true", True), ("false", False), ("0", 0),
        ("-12", -12), ("+5", 5), ("1.5", 1.5), (".5", 0.5), ("2.", 2.0), ("1.2e12", 1.2e12),
        ("1e3", 1000.0), ("y", "y"), ("n", "n"), ("08", "08"), ("4x4x8", "4x4x8"), ("-", "-"),
        ("not", "not"), ("on-chip", "on-chip"), ("0o17", "0o17"),
    ],
)  # fmt: skip
def test_values(word: str, value: object) -> None:
    read = read_plain(word)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize("word", ["9" * 5000, "1.0e999", "-" + "1" * 401, "1" * 500 + ".5"])
def test_numbers_too_large(word: str) -> None:
    fault = read_plain(word)
    assert isinstance(fault, ScalarFault)
    assert fault.code is codes.WRONG_TYPE


def test_worth_of_traps() -> None:
    said = {word: getattr(read_plain(word), "message", "") for word in ("010", "12:30", "0x1F")}
    assert "(8)" in said["010"]
    assert "(750)" in said["12:30"]
    assert "(31)" in said["0x1F"]


@given(awkward)
def test_what_stays_text_is_text_for_yaml_1_1(word: str) -> None:
    """No word that PyYAML reads as something else passes as text, nor as another value."""
    read = read_plain(word)
    assume(not isinstance(read, ScalarFault))
    assume(word == word.strip() and word[0] not in "-:" and ": " not in word)
    tag = yaml.SafeLoader.yaml_implicit_resolvers
    matches = [
        name for name, pattern in tag.get(word[0], []) + tag.get(None, []) if pattern.match(word)
    ]
    if isinstance(read, str):
        assert not matches
    elif matches and not isinstance(read, bool):
        assert yaml.safe_load(word) == read

from __future__ import annotations

import pytest

from shardspec.lints.checks import conflicting_names
from tests.lints.findings_of import found_by, marked

HEAD = """
mesh: {x: 2}
rules: [a -> x, b -> none]
arrays: {'dec/l_{0..2}/{wi,wo}': 'f32[8, 8]', 'enc/{wi,wo}': 'f32[8, 8]', dec/s: 'f32[8]'}
"""


@pytest.mark.parametrize(
    ("params", "count"),
    [
        ("{'dec/**': a b, '**/wo': b a}", 1),
        ("{'**/wo': b a, 'dec/**': a b}", 1),
        ("{'dec/**': a b, '**/wo': a b}", 0),  # the same answer
        ("{'dec/**': a b, '**/s': a}", 0),  # the special one stands behind: SHD215
        ("{'**/wo': b a, '**': a b}", 0),  # special before general
        ("{'dec/l_*/wo': b a, 'dec/**': a b, '**/wo': b a}", 0),  # the overlap has its own entry
        ("{'dec/**': a b, '{dec/s,enc/*}': a}", 0),  # other ranks
    ],
)
def test_which(params: str, count: int) -> None:
    found = found_by(conflicting_names, f"{HEAD}params: {params}")
    assert len(found) == count


@pytest.mark.parametrize(
    ("glob", "words"),
    [
        ("enc/w*", "1 array matches `enc/w*` and `**/wo`, which name it differently"),
        ("dec/**", "3 arrays match `dec/**` and `**/wo`, which name them differently"),
    ],
)
def test_one_array_matches_and_several_match(glob: str, words: str) -> None:
    (found,) = found_by(conflicting_names, f"{HEAD}params: {{'{glob}': a b, '**/wo': b a}}")
    assert found.message.startswith(f"{words}; ")


def test_overrides_conflict_among_themselves() -> None:
    text = f"{HEAD}overrides: [{{path: 'dec/**', axes: a b}}, {{path: '**/wo', spec: '(none, x)'}}]"
    (found,) = found_by(conflicting_names, f"{text}\nparams: {{'**/wi': b a}}")
    assert found.message.startswith("3 arrays match `dec/**` and `**/wo`")
    assert [label.text for label in found.labels] == ["would say `none x`", "says `a b`"]


def test_names_that_arrays_carry_are_not_asked_for() -> None:
    text = HEAD.replace("f32[8, 8]", "f32[a=8 b=8]")
    assert found_by(conflicting_names, f"{text}params: {{'dec/**': a b, '**/wo': b a}}") == []


def test_the_help_works() -> None:
    text = f"{HEAD}params: {{'dec/**': a b, '**/wo': b a}}"
    (found,) = found_by(conflicting_names, text)
    assert marked(found) == ["'**/wo'", "'dec/**'"] or marked(found) == ["**/wo", "dec/**"]
    assert found.help is not None
    glob = found.help.split("`")[1]
    assert glob == "dec/l_{0..2}/wo"
    assert (
        found_by(conflicting_names, text.replace("{'dec/**'", f"{{'{glob}': b a, 'dec/**'")) == []
    )

"""SHD227: ranges that end where their neighbours do not."""

from __future__ import annotations

import pytest

from shardspec.lints.checks import short_range
from tests.lints.findings_of import found_by, marked

SPEC = "rules: [a -> none]\nmesh: {x: 2}\narrays:\n"


def spec(*paths: str) -> str:
    return SPEC + "".join(f'  "{path}": "f32[a=4]"\n' for path in paths)


@pytest.mark.parametrize(
    "paths",
    [
        ("l_{0..31}/a", "l_{0..31}/b"),
        ("l_{0..2}/dense", "l_{0..31}/norm", "l_{3..31}/moe"),
        ("l_{0..31}/a", "l_0/b"),
        ("l_{0..2}/dense", "l_{3..31}/b", "l_{3..30}/c", "l_31/c"),
        ("l_{0..2}/dense", "l_{3..31}/moe", "l_{3..29}/up", "l_{30,31}/up"),
        ("l_{0..31}/a", "l_{2..5}/b"),
        ("l_{0..31}/a", "l_{0,1}/b"),
        ("encoder/l_{0..11}/a", "decoder/l_{0..23}/a"),
        ("l_{0..31}/a_{0..3}/w", "l_{0..31}/a_{0..7}/v"),
    ],
)
def test_layers_may_differ(paths: tuple[str, ...]) -> None:
    assert found_by(short_range, spec(*paths)) == []


@pytest.mark.parametrize(
    ("paths", "odd", "usual"),
    [
        (("l_{0..31}/a", "l_{0..3}/b"), "{0..3}", "{0..31}"),
        (("l_{0..31}/a", "l_{0..31}/b", "l_{0..331}/c"), "{0..331}", "{0..31}"),
        (("l_{0..22}/a", "l_{0..23}/b", "l_{0..23}/c"), "{0..22}", "{0..23}"),
        (("l_{0..2}/a", "l_{3..60}/a", "l_{3..59}/b", "l_{3..60}/c"), "{3..59}", "{3..60}"),
        (("l_{3..59}/a", "l_{3..60}/b", "l_{0..60}/c"), "{3..59}", "{3..60}"),
        (("l_{00..23}/a", "l_{00..24}/b"), "{00..23}", "{00..24}"),
    ],
)
def test_the_odd_one_is_told(paths: tuple[str, ...], odd: str, usual: str) -> None:
    (found,) = found_by(short_range, spec(*paths))
    assert marked(found) == [odd, usual]
    assert f"write `{usual}`" in (found.help or "")

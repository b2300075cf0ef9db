from __future__ import annotations

import re

import pytest

from tests.lints.findings_of import findings_of, marked

TEXT = """\
targets: {{s: {{mesh: {{d: 4, t: 8}}}}, l: {{mesh: {{d: 4, t: {t}}}}}}}
axes: {{mlp: {{size: {size}, unit: {unit}, min_shard: {least}}}, batch: 16}}
rules: [batch -> d, '{rule}']
arrays: {{'l_{{0..3}}/wi': 'bf16[_=64 mlp]'}}
activations: {{hidden: batch mlp}}
lints: {{indivisible: allow, cut-unit: allow}}
"""


def text(
    size: int = 4096, t: int = 64, least: int = 128, unit: int = 1, rule: str = "mlp -> t"
) -> str:
    return TEXT.format(size=size, t=t, least=least, unit=unit, rule=rule)


@pytest.mark.parametrize(
    ("size", "t", "least", "count"),
    [
        (4096, 64, 128, 1),
        (4096, 32, 128, 0),
        (4096, 64, 64, 0),
        (4096, 64, 65, 1),
        (4097, 64, 99, 0),
    ],
)
def test_which(size: int, t: int, least: int, count: int) -> None:
    assert len(findings_of(text(size, t, least), only="below-minimum")) == count


def test_what_it_says() -> None:
    (found,) = findings_of(text())
    assert found.message == (
        "`mlp` = 4096 over `t` = 64 is 64, below its minimum of 128, on target `l`"
    )
    assert found.is_error
    assert found.target == "l"
    assert "4 arrays" in found.notes[0]
    assert "activation `hidden`" in found.notes[1]
    assert marked(found) == ["t", "mlp: {size: 4096, unit: 1, min_shard: 128}"]


def test_the_sizes_in_the_help_would_work() -> None:
    (found,) = findings_of(text(size=3072, t=48, unit=32))
    sizes = re.findall(r"\d+", (found.help or "").partition("{")[2].partition("}")[0])
    assert [int(size) for size in sizes] == [4, 6, 8, 12, 16, 24]
    for size in sizes:
        assert findings_of(text(3072, int(size), unit=32), only="below-minimum") == ()
    least = re.search(r"min_shard: (\d+)", found.help or "")
    assert least
    assert findings_of(text(3072, 48, int(least[1]), 32)) == ()


def test_of_a_tuple_the_product_counts() -> None:
    (found,) = findings_of(text(t=16, rule="mlp -> (d, t) | t", least=100), only="below-minimum")
    assert "`(d, t)` = 4 x 16 = 64 is 64" in found.message
    assert "`d` in {1, 2}; or `t` in {1, 2, 4, 8}" in (found.help or "")


def test_a_dimension_that_is_whole_is_not_a_shard() -> None:
    assert findings_of(text(size=64, rule="mlp -> none"), only="below-minimum") == ()

from __future__ import annotations

import re

import pytest

from tests.lints.findings_of import findings_of

TEXT = """\
hardware: {hardware}
mesh: {{data: {data}, other: rest}}
lints: {{size-one-axis: allow, unused-mesh-axis: allow}}
rules: [embed -> data]
arrays: {{'l_{{0..{layers}}}/k': '{array}'}}
"""


def found_in(
    array: str = "f32[embed=4096 _=16 _=4]",
    hardware: str = "tpu v5e 8x8",
    data: int = 64,
    layers: int = 1599,
) -> list[str]:
    text = TEXT.format(array=array, hardware=hardware, data=data, layers=layers)
    return [d.help or "" for d in findings_of(text, only="below-tile")]


def test_it_is_for_tpus() -> None:
    assert len(found_in()) == 1
    assert found_in(hardware="8 * h100") == []
    assert found_in(hardware="64 cpu") == []


@pytest.mark.parametrize(
    ("array", "count"),
    [
        ("f32[embed=4096 _=16 _=4]", 1),
        ("bf16[embed=4096 _=16 _=4 _=2]", 1),
        ("f32[embed=4096 _=16 _=128]", 0),
        ("f32[embed=4096 _=4096]", 0),
        ("f32[_=16 _=4 _=256]", 0),
        ("s4[embed=4096 _=16 _=4]", 0),
    ],
)
def test_which_arrays(array: str, count: int) -> None:
    assert len(found_in(array)) == count


def test_a_little_padding_is_not_told() -> None:
    assert found_in(layers=3) == []
    assert found_in("f32[embed=4096]") == []
    assert found_in("bf16[embed=2048 _=8]", layers=20000) == []
    assert len(found_in("bf16[embed=4096 _=8]", layers=20000)) == 1


def test_less_than_a_hundredth_of_what_a_device_holds_is_little() -> None:
    text = TEXT.format(
        array="f32[embed=4096 _=16 _=4]", hardware="tpu v5e 8x8", data=64, layers=1599
    )
    alone = text.rstrip().removesuffix("}")
    for size, count in ((8192, 1), (1 << 20, 0)):
        found = findings_of(f"{alone}, other: 'bf16[_=65536 _={size}]'}}", only="below-tile")
        assert len(found) == count


def test_what_is_padded_whole_already_is_not_the_split_s_fault() -> None:
    assert found_in("f32[embed=64 _=8 _=60 _=2]", data=2, layers=9999) == []


def test_the_help_works() -> None:
    (help,) = found_in()
    size = re.search(r"`data` of (\d+) or less", help)
    assert size
    assert found_in(data=int(size[1])) == []
    assert int(size[1]) == 32

"""What SHD242 proposes fits, is the only answer, and agrees with the other side; else nothing."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline

SPEC = """\
shardspec: 1
mesh: {{data: 2, model: 4}}
rules: [embed -> data, mlp -> model]
params: {{"**/w": {names}}}
derive:
{derive}
arrays: {{{arrays}}}
"""


def helps(derive: dict[str, str], arrays: dict[str, str], names: str = "embed mlp") -> list[str]:
    """Return the help of each SHD242."""
    text = SPEC.format(
        names=names,
        derive="\n".join(f'  "{key}": "{value}"' for key, value in derive.items()),
        arrays=", ".join(f'{path}: "f32{shape}"' for path, shape in arrays.items()),
    )
    spec, faults = pipeline.load_text(text)
    assert spec is not None
    assert faults == ()
    found = pipeline.findings(spec, pipeline.compile_plans(spec)).shown
    return [each.help or "" for each in found if each.code.id == "SHD242"]


def proposed(found: str) -> str | None:
    """Return the entry that a help proposes, None where it proposes none."""
    match = re.search(r"`([^`]*)` fits, and", found)
    return match and match[1]


SIDE = {"**/a": "from **/w dims 1 _"}


@pytest.mark.parametrize(
    ("derive", "arrays", "names", "cure"),
    [
        # The exact answer is not one for every 64 of another dimension.
        (SIDE, {"x/w": "[4096, 64]", "x/a": "[4096, 8]"}, None, "dims 0 _"),
        (SIDE, {"x/w": "[64, 128]", "x/a": "[8, 128]"}, None, "dims _ 1"),
        (SIDE, {"x/w": "[128, 128]", "x/a": "[8, 128]"}, None, None),
        (SIDE, {"x/w": "[4096, 64]", "x/a": "[2048, 8]"}, None, None),
        # An entry that is right for other arrays stays.
        (
            SIDE,
            {"x/w": "[64, 32]", "x/a": "[64, 8]", "y/w": "[48, 16]", "y/a": "[16, 8]"},
            None,
            None,
        ),
        # The other side has another rank, or the same dimension.
        (
            SIDE | {"**/b": "from **/w dims _ 1"},
            {"x/w": "[64, 32]", "x/a": "[64, 8]", "x/b": "[8, 32]"},
            None,
            "dims 0 _",
        ),
        (
            SIDE | {"**/b": "from **/w dims _ 1"},
            {"x/w": "[64, 32]", "x/a": "[64, 8]", "x/b": "[4, 32]"},
            None,
            None,
        ),
        (
            SIDE | {"**/b": "from **/w dims _ 0"},
            {"x/w": "[64, 32]", "x/a": "[64, 8]", "x/b": "[8, 64]"},
            None,
            None,
        ),
        # Blocks, where one number alone fits.
        (
            {"**/a": "from **/w dims 0 1"},
            {"x/w": "[1024, 4096]", "x/a": "[8, 4096]"},
            None,
            "dims 0/128 1",
        ),
        # Where no number is said, it may be the side of a LoRA as well.
        ({"**/a": "from **/w"}, {"x/w": "[1024, 4096]", "x/a": "[8, 4096]"}, None, None),
        (
            {"**/a": "from **/w dims 0/64 1"},
            {"x/w": "[1024, 1024]", "x/a": "[8, 1024]"},
            None,
            None,
        ),
        # What a weight reads is not told by sizes.
        (
            {"**/lora_{A,B}": "from **/w [out in] = B @ A[in]"},
            {"x/w": "[64, 128]", "x/lora_A": "[8, 64]", "x/lora_B": "[128, 8]"},
            None,
            None,
        ),
    ],
)
def test_one_answer_or_none(
    derive: dict[str, str], arrays: dict[str, str], names: str | None, cure: str | None
) -> None:
    names = names or "embed mlp"
    found = helps(derive, arrays, names)
    assert {proposed(each) for each in found} == {cure}
    if cure is None:
        return
    key = next(iter(derive))
    assert helps(derive | {key: f"from **/w {cure}"}, arrays, names) == []


sizes = st.sampled_from((4, 8, 16, 24))


@given(st.tuples(sizes, sizes), st.tuples(sizes, sizes), st.permutations(("0", "1", "_")))
def test_what_is_proposed_fits(
    whole: tuple[int, int], own: tuple[int, int], dims: tuple[str, ...]
) -> None:
    """cure: an entry that is proposed is no error, and it is the only one of its kind."""
    arrays = {"x/w": str([*whole]), "x/a": str([*own])}
    for found in helps({"**/a": f"from **/w dims {' '.join(dims[:2])}"}, arrays):
        cure = proposed(found)
        if cure is not None:
            assert helps({"**/a": f"from **/w {cure}"}, arrays) == []
            swapped = cure.translate(str.maketrans("01", "10")) if "/" not in cure else ""
            reverse = " ".join(["dims", *reversed(cure.split()[1:])])
            others = {swapped, reverse, reverse.translate(str.maketrans("01", "10"))} - {cure, ""}
            assert all(
                "/" in each or helps({"**/a": f"from **/w {each}"}, arrays) for each in others
            )

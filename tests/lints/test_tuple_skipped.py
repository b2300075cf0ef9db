from __future__ import annotations

import re

import pytest

from shardspec.lints import tuple_skipped
from tests.lints.findings_of import found_by

HEAD = "mesh: {fsdp: 8, expert: 4, tensor: 2}\narrays: {w: 'f32[expert=8 embed=64 mlp=96]'}\n"


@pytest.mark.parametrize(
    ("rules", "part"),
    [
        ("[expert -> expert, 'embed -> (fsdp, expert)']", "fsdp"),
        ("[expert -> expert, 'embed -> (fsdp, expert) | fsdp']", None),
        ("[expert -> expert, 'embed -> (fsdp, expert) | tensor']", "fsdp"),
        ("[expert -> expert, 'embed -> (fsdp, expert) | none']", None),
        ("[expert -> expert, 'embed -> (fsdp, tensor, expert)']", "(fsdp, tensor)"),
        ("['expert -> (expert, tensor)', 'embed -> (fsdp, tensor)']", "fsdp"),
        ("['embed -> (fsdp, expert)', expert -> expert]", None),
        ("[expert -> expert, 'embed -> (fsdp, expert)', mlp -> fsdp]", None),  # no gain
        ("[expert -> expert, 'embed -> expert | (fsdp, expert)']", None),  # SHD214
    ],
)
def test_which(rules: str, part: str | None) -> None:
    found = found_by(tuple_skipped, f"{HEAD}rules: {rules}")
    assert [each.message.split("`")[-2] for each in found] == ([part] if part else [])


def test_what_does_not_divide_is_not_offered() -> None:
    text = HEAD.replace("embed=64", "embed=12")
    assert (
        found_by(tuple_skipped, f"{text}rules: [expert -> expert, 'embed -> (fsdp, expert)']") == []
    )


def test_the_bytes_and_the_fix_are_true() -> None:
    rules = "rules: [expert -> expert, 'embed -> (fsdp, expert)']"
    (found,) = found_by(tuple_skipped, f"{HEAD}{rules}")
    whole = 2 * 64 * 96 * 4
    saved = re.search(r"([\d.]+) KiB per device more", found.notes[0])
    assert saved
    assert float(saved[1]) == (whole - whole // 8) / 1024
    assert found.fix is not None
    (edit,) = found.fix.edits
    text = edit.span.source.text
    fixed = text[: edit.span.start] + edit.text + text[edit.span.end :]
    assert "'embed -> (fsdp, expert) | fsdp'" in fixed
    assert found_by(tuple_skipped, fixed) == []

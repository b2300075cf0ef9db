"""Mistakes in targets: hardware and meshes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations

from tests.mutations.subjects import Subject
from tests.mutations.text import (
    Change,
    Mistake,
    exchanged,
    mesh_entries,
    parts,
    replaced,
    typos,
    values,
)

_OTHER_CHIPS = {
    "v2": ("v4",),
    "v3": ("v2", "v4"),
    "v4": ("v5p", "v3"),
    "v5p": ("v4", "v5e"),
    "v5e": ("v6e", "v5p"),
    "v6e": ("v5e",),
    "h100": ("a100", "h200"),
    "a100": ("h100",),
}


def typo_in_mesh(subject: Subject) -> Iterator[Mistake]:
    """Typo in a mesh axis of a target."""
    for target, axis, key, _ in mesh_entries(subject):
        for typo in typos(axis):
            yield replaced(f"`{axis}` as `{typo}` in {target}", key, typo)


def mesh_axis_renamed(subject: Subject) -> Iterator[Mistake]:
    """A mesh axis of a target with another's name."""
    for target, axis, key, _ in mesh_entries(subject):
        for name in sorted((subject.spec.mesh_axis_names | {"data", "model"}) - {axis}):
            yield replaced(f"`{name}` for `{axis}` in {target}", key, name)


def mesh_product_wrong(subject: Subject) -> Iterator[Mistake]:
    """A mesh size off by one, doubled or halved."""
    for target, axis, _, value in mesh_entries(subject):
        for number in parts(value, r"^\d+"):
            size = int(number.text)
            for other in {size + 1, size * 2, size // 2} - {0, size}:
                yield replaced(f"`{axis}: {other}` for {size} in {target}", number, str(other))


def mesh_does_not_divide(subject: Subject) -> Iterator[Mistake]:
    """One mesh size larger and `rest` smaller, so that the product holds."""
    for target, axis, _, value in mesh_entries(subject):
        has_rest = any(t == target and v.text == "rest" for t, _, _, v in mesh_entries(subject))
        for number in parts(value, r"^\d+"):
            if has_rest:
                for factor in (2, 4):
                    size = str(int(number.text) * factor)
                    yield replaced(f"`{axis}: {size}` in {target}", number, size)


def rest_twice(subject: Subject) -> Iterator[Mistake]:
    """`rest` for a second mesh axis."""
    for target, axis, _, value in mesh_entries(subject):
        for number in parts(value, r"^\d+"):
            yield replaced(f"`{axis}: rest` in {target}", number, "rest")


def dcn_dropped(subject: Subject) -> Iterator[Mistake]:
    """`@ dcn` dropped."""
    for target, axis, _, value in mesh_entries(subject):
        for found in parts(value, r"\s*@\s*dcn"):
            yield replaced(f"`{axis}` in {target} without `@ dcn`", found, "")


def dcn_moved(subject: Subject) -> Iterator[Mistake]:
    """`@ dcn` on the wrong mesh axis."""
    found = mesh_entries(subject)
    for (target, one, _, value), (other_target, other, _, other_value) in combinations(found, 2):
        if target == other_target and ("dcn" in value.text) != ("dcn" in other_value.text):
            sizes = [(v, re.sub(r"\s*@\s*dcn", "", v.text)) for v in (value, other_value)]
            changes = tuple(
                Change(
                    v.start or 0,
                    (v.start or 0) + len(v.text),
                    size if "dcn" in v.text else f"{size} @ dcn",
                )
                for v, size in sizes
            )
            yield Mistake(f"`@ dcn` moved between `{one}` and `{other}` in {target}", changes)


def mesh_axis_dropped(subject: Subject) -> Iterator[Mistake]:
    """A mesh axis dropped from a target."""
    for target, axis, key, value in mesh_entries(subject):
        start, end = key.start or 0, value.span.end
        text = subject.text
        after = re.match(r"\s*[,;]\s*", text[end:])
        before = re.search(r"\s*[,;]\s*$", text[:start])
        if after:
            yield Mistake(f"no `{axis}` in {target}", (Change(start, end + after.end(), ""),))
        elif before:
            yield Mistake(f"no `{axis}` in {target}", (Change(before.start(), end, ""),))


def mesh_sizes_swapped(subject: Subject) -> Iterator[Mistake]:
    """Two sizes of a mesh in each other's place."""
    for (target, one, _, value), (other_target, other, _, other_value) in combinations(
        mesh_entries(subject), 2
    ):
        if target == other_target and value.text != other_value.text:
            yield exchanged(f"sizes of `{one}` and `{other}` in {target}", value, other_value)


def submesh_turned(subject: Subject) -> Iterator[Mistake]:
    """The sizes of a submesh in another order."""
    for target, axis, _, value in mesh_entries(subject):
        for tile in parts(value, r"\d+(?:x\d+){3}"):
            x, y, z, core = tile.text.split("x")
            for turned in {(y, x, z), (x, z, y), (z, y, x)} - {(x, y, z)}:
                new = "x".join((*turned, core))
                yield replaced(f"`{axis}: submesh {new}` in {target}", tile, new)


def generation_wrong(subject: Subject) -> Iterator[Mistake]:
    """Another generation of hardware."""
    for (_, target, _), value in values(subject, "targets", None, "hardware"):
        for chip in parts(value, r"\bv\d\w*|\b[ah]\d00\b"):
            for other in _OTHER_CHIPS.get(chip.text, ()):
                yield replaced(f"{other} for {chip.text} in {target}", chip, other)


def hardware_size_wrong(subject: Subject) -> Iterator[Mistake]:
    """Another size of the hardware."""
    for (_, target, _), value in values(subject, "targets", None, "hardware"):
        for number in parts(value, r"(?<![a-z\d])\d+(?!\d*00)"):
            for other in (int(number.text) * 2, int(number.text) // 2, int(number.text) + 1):
                if other:
                    yield replaced(f"{other} for {number.text} in {target}", number, str(other))


MUTATORS = (
    typo_in_mesh,
    mesh_axis_renamed,
    mesh_product_wrong,
    mesh_does_not_divide,
    rest_twice,
    dcn_dropped,
    dcn_moved,
    mesh_axis_dropped,
    mesh_sizes_swapped,
    submesh_turned,
    generation_wrong,
    hardware_size_wrong,
)

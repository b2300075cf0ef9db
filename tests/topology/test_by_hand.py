"""Orders by hand: what is placed is a permutation, and what is none is refused by name."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic
from shardspec.ir.spec import Hardware, MeshAxis, Stretch, Target, divisors
from shardspec.topology.by_hand import device_coordinates, digits_over, free_digits
from shardspec.topology.machine import machine_of
from shardspec.topology.placement import Placement, place
from tests.topology.machines import covers_once, machines, target

AXES = ("data", "fsdp", "model")


@st.composite
def by_hand(draw: st.DrawFn) -> Target:
    """A machine each of whose directions is cut into digits, dealt out to mesh axes."""
    machine = draw(machines())
    stretches: list[Stretch] = []
    for axis in machine_of(machine):
        left, step = axis.extent, 1
        while left > 1:
            size = draw(st.sampled_from(divisors(left)[1:]))
            stretches.append(Stretch(axis.name, size, step))
            left, step = left // size, step * size
    owners: dict[str, list[Stretch]] = {}
    for stretch in draw(st.permutations(stretches)):
        owners.setdefault(draw(st.sampled_from(AXES)), []).append(stretch)
    axes = (
        MeshAxis(name, math.prod(each.size or 1 for each in own), over=tuple(own))
        for name, own in owners.items()
    )
    return target(machine, *axes)


@given(by_hand())
def test_permutation_of_digits(wanted: Target) -> None:
    """Every device stands at one place, the one that its digits say."""
    found = place(wanted)
    assert isinstance(found, Placement)
    places = found.coordinates()
    physical = machine_of(wanted.hardware)  # type: ignore[arg-type]
    assert sorted(places) == [*itertools.product(*(range(axis.extent) for axis in physical))]
    names = [axis.name for axis in physical]
    stretches = [each for axis in wanted.mesh.axes for each in axis.over]
    for values, coordinate in zip(
        itertools.product(*(range(each.size or 1) for each in stretches)), places, strict=True
    ):
        counted = [0] * len(names)
        for value, each in zip(values, stretches, strict=True):
            counted[names.index(each.direction)] += value * each.step
        assert tuple(counted) == coordinate


@given(by_hand(), st.data())
def test_what_is_not_stated_is_shared_by_the_others(wanted: Target, data: st.DataObject) -> None:
    axes = [
        MeshAxis(axis.name, axis.size) if data.draw(st.booleans()) else axis
        for axis in wanted.mesh.axes
    ]
    found = place(target(wanted.hardware, *axes))  # type: ignore[arg-type]
    assert isinstance(found, Placement)
    extents = [axis.extent for axis in found.machine]
    assert covers_once([digit for axis in found.axes for digit in axis.digits], extents)
    for placed in found.axes:
        if placed.axis.over:
            assert placed.digits == digits_over(placed.axis, found.machine)


@given(by_hand())
def test_free_digits_fill_up(wanted: Target) -> None:
    machine = machine_of(wanted.hardware)  # type: ignore[arg-type]
    stated = [digit for axis in wanted.mesh.axes for digit in digits_over(axis, machine)][::2]
    free = free_digits(stated, machine)
    assert covers_once([*stated, *free], [axis.extent for axis in machine])


def load(mesh: str, machine: str, more: str = "") -> tuple[Any, list[Diagnostic]]:
    spec, found = pipeline.load_text(f"hardware: {machine}\nmesh: {{{mesh}}}\n{more}", "s.yaml")
    return spec, [each for each in found if each.is_error]


_STRETCHES = st.builds(
    lambda name, size, step: str(Stretch(name, size, step if size else 1)),
    st.sampled_from("xyz"),
    st.sampled_from((None, 1, 2, 3, 4, 8)),
    st.sampled_from((1, 1, 2, 4)),
)
_OVERS = st.lists(_STRETCHES, min_size=1, max_size=3).map(lambda each: f"over {' '.join(each)}")
_TILES = st.builds(
    lambda *sizes: f"submesh {'x'.join(map(str, sizes))}x1",
    *(st.sampled_from((1, 1, 2, 4)) for _ in "xyz"),
)
_SIZES = _OVERS | _TILES | st.sampled_from(("2", "4", "auto 4", "auto 8"))


@given(st.lists(_SIZES, min_size=1, max_size=3), st.booleans())
@settings(max_examples=120)
def test_a_mesh_lies_or_is_refused(sizes: list[str], rest: bool) -> None:
    """Nothing in between: what loads without a finding about its mesh is a permutation."""
    stated = [f"a{at}: {size}" for at, size in enumerate(sizes)]
    spec, errors = load(", ".join([*stated, *(["r: rest"] if rest else [])]), "tpu v4 4x4x8")
    if errors:
        assert {each.code.id for each in errors} <= {"SHD102", "SHD105", "SHD117"}
        assert all(each.help and each.primary for each in errors)
        return
    found = place(spec.targets[0])
    if isinstance(found, Diagnostic):
        assert found.code.id == "SHD105"
        assert any("auto" in size for size in sizes)
        return
    assert len(set(found.coordinates())) == 128
    for placed in found.axes:
        if placed.axis.submesh is not None:
            ways = [1] * len(found.machine)
            for digit in placed.digits:
                ways[digit.axis] *= digit.size
            assert tuple(ways[1:]) == placed.axis.submesh


@pytest.mark.parametrize(
    ("mesh", "runs"),
    [
        (
            "d: rest, f: submesh 1x1x4x1, m: submesh 2x2x1x1",
            ("x 2 of 4, every 2nd", "z 4 of 8, line", "x 2 of 4, line; y 2 of 4, line"),
        ),
        (
            "a: submesh 2x1x1x1, b: submesh 2x1x1x1, d: rest",
            ("x 2 of 4, every 2nd, line", "x 2 of 4, line", "y 4, ring; z 8, ring"),
        ),
        (
            "a: over x2, b: submesh 2x1x1x1, d: rest",
            ("x 2 of 4, line", "x 2 of 4, every 2nd, line", "y 4, ring; z 8, ring"),
        ),
        (
            "a: over x2/2 z, b: auto 8, d: rest",
            ("x 2 of 4, every 2nd, line; z 8, ring", "x 2 of 4, line; y 4, ring", ""),
        ),
    ],
)
def test_who_gets_which_devices(mesh: str, runs: tuple[str, ...]) -> None:
    from shardspec.topology.placement import explain_axes

    spec, errors = load(mesh, "tpu v4 4x4x8")
    assert errors == []
    found = place(spec.targets[0])
    assert isinstance(found, Placement)
    said = ["; ".join(map(str, axis.runs)) for axis in explain_axes(found)]
    assert all(text in each for text, each in zip(runs, said, strict=True)), said


@pytest.mark.parametrize("order", ["t5x", "ring"])
def test_a_stated_order_is_not_walked_otherwise(order: Any) -> None:
    spec, _ = load("d: rest, m: over y x2", "tpu v5e 4x4")
    found = place(spec.targets[0], order)
    assert isinstance(found, Placement)
    assert [place_[1:3] for place_ in found.axis("m").route[:4]] == [(0, 0), (1, 0), (0, 1), (1, 1)]


@pytest.mark.parametrize(
    ("mesh", "machine", "text"),
    [
        ("a: over x1000000000000", "tpu v4 4x4x8", "x is 4 long"),
        ("a: over x2/999999999999", "tpu v4 4x4x8", "take 1999999999998"),
        ("a: over x, b: over x y z", "tpu v4 4x4x8", "share devices along x"),
        ("a: over nod", "4 * h100", "is no direction"),
        ("a: over x", "", "needs hardware"),
    ],
)
def test_what_is_no_order_is_said(mesh: str, machine: str, text: str) -> None:
    _, errors = load(mesh, machine)
    assert text in errors[0].message
    assert errors[0].help


def test_slices_that_are_asked_for_are_no_surprise() -> None:
    spec, found = pipeline.load_text(
        "hardware: 2 * tpu v5e 4x4\nmesh: {data: over slice x, model: over y}\n", "s.yaml"
    )
    assert spec is not None
    assert not found
    assert spec.targets[0].mesh.sizes == {"data": 8, "model": 4}
    alone, _ = load("replica: over slice, model: rest", "2 * tpu v5e 4x4")
    assert [axis.network for axis in alone.targets[0].mesh.axes] == ["dcn", "ici"]


def listed(numbers: Any, count: int = 8, mesh: str = "a: 2, b: rest") -> Any:
    return load(mesh, f"{count} cpu", f"devices: {numbers}")


@given(st.permutations(range(8)), st.booleans())
def test_permutation_of_devices(numbers: list[int], as_text: bool) -> None:
    spec, errors = listed(" ".join(map(str, numbers)) if as_text else numbers)
    assert errors == []
    assert spec.targets[0].devices == tuple(numbers)
    found = place(spec.targets[0])
    assert isinstance(found, Placement)
    assert [device for _, device in found.coordinates()] == numbers


@given(st.lists(st.integers(0, 9), min_size=1, max_size=10))
def test_a_list_that_is_none_names_the_device(numbers: list[int]) -> None:
    _, errors = listed(numbers)
    if sorted(numbers) == [*range(8)]:
        assert errors == []
        return
    (fault,) = errors
    assert fault.code.id == "SHD117"
    beyond = [number for number in numbers if number > 7]
    again = [number for at, number in enumerate(numbers) if number in numbers[:at]]
    missing = [number for number in range(8) if number not in numbers]
    named = beyond[:1] or again[:1] or missing[:1]
    assert f"device {named[0]}" in fault.message or f"devices {named[0]}" in fault.message
    assert fault.primary is not None
    if beyond:
        assert fault.primary.span.text == str(beyond[0])


@pytest.mark.parametrize(
    ("numbers", "mesh", "text"),
    [
        ("0..999999999999", "a: 8", "there is no device 8"),
        ("999999999999..0", "a: 8", "there is no device 999999999999"),
        ("0..3 0..7", "a: 8", "device 0 is listed twice, as are 1, 2, 3"),
        ("0 " * 9_000, "a: 8", "device 0 is listed twice"),
        ("0 " * 11_000, "a: 8", "too long"),
        ("0..7", "a: submesh 2x2x2x1", "lists the order"),
        ("0 - 7", "a: 8", "`-` is no number"),
        ("0 0x1", "a: 8", "`0x1` is no number"),
        ("'" + "9" * 40 + "'", "a: 8", "digits"),
        ("", "a: 8", "is empty"),
        ("[]", "a: 8", "no device"),
        ("{a: 1}", "a: 8", "`devices`"),
    ],
)
def test_lists_that_are_refused(numbers: str, mesh: str, text: str) -> None:
    machine = "tpu v4 2x2x2" if "submesh" in mesh else "8 cpu"
    _, errors = load(mesh, machine, f"devices: {numbers}")
    assert text in errors[0].message


def test_a_list_for_a_mesh_beyond_any_machine_is_bounded() -> None:
    spec, found = pipeline.load_text(
        "mesh: {a: 1000000000000}\ndevices: 0..999999999999\n", "s.yaml"
    )
    assert [each.code.id for each in found if each.is_error] == ["SHD117"]
    assert spec is None or spec.targets[0].devices == ()


def test_a_list_holds_for_each_count_of_slices_or_is_refused() -> None:
    _, errors = load("a: rest", '"{1..2} * tpu v5e 2x2"', "devices: 3..0")
    assert [(each.target, each.code.id) for each in errors] == [("default[2]", "SHD117")]


@given(machines())
def test_numbers_of_devices_are_those_of_jax(machine: Hardware) -> None:
    """Core, x, y, z, slice on a TPU, the first fastest; elsewhere node by node."""
    places = [*device_coordinates(machine)]
    extents = [axis.extent for axis in machine_of(machine)]
    assert len(places) == len(set(places)) == math.prod(extents)
    if machine.chip.platform == "tpu":
        assert places == sorted(places, key=lambda p: (p[0], p[3], p[2], p[1], p[4]))
    else:
        assert places == sorted(places)

"""Traffic over the links of a torus: that of each message, and what the predicted time says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from shardspec import pipeline
from shardspec.diagnostics.words import binary_bytes
from shardspec.ir.operations import CollectiveKind
from shardspec.ir.plan import ShardingPlan
from shardspec.report.page import machine_data
from shardspec.topology.machine import Coordinate, links_between
from shardspec.topology.placement import Placement, placed
from shardspec.topology.walk import legs, walk_seconds
from tests.report.browser import opened, started
from tests.report.test_page import page_of
from tests.report.test_page_browser import choose, file, plans, written  # noqa: F401
from tests.test_wheel import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

WEB = ROOT / "shardspec" / "report" / "web"
#: Whole dimensions, tiles, cores of one chip, slices, an order along a ring.
MESHES = (
    "{hardware: tpu v4 4x4x8, mesh: {a: 8, b: 4, c: 4}}",
    "{hardware: tpu v4 4x4x8, mesh: {a: rest, b: submesh 4x2x1x1}}",
    "{hardware: tpu v5p 4x4x4, mesh: {a: 2, b: rest, c: submesh 2x2x1x1}}",
    "{hardware: tpu v3 4x8, mesh: {a: rest, b: 8}}",
    "{hardware: 2 * tpu v5e 4x4, mesh: {a: 2 @ dcn, b: rest, c: 4}}",
    "{hardware: tpu v6e 16x16, mesh: {a: 32, b: 8}}",
)
_Link = tuple[Coordinate, int, int]
_SENT = 2520.0 * 64


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as found:
        yield found


@pytest.fixture(scope="module")
def blank(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    yield page
    page.close()


def plan_of(target: str) -> ShardingPlan:
    spec, _ = pipeline.load_text(f"{{targets: {{t: {target}}}, rules: [x -> a]}}")
    assert spec is not None
    return pipeline.compile_plans(spec, None)[0]


def of_page(blank: Page, plan: ShardingPlan, axes: tuple[str, ...], way: str) -> list[float]:
    """Return the bytes that the page counts, for each chip: both ways along x, y and z."""
    machine, traffic, array = (
        (WEB / f"{name}.js").read_text(encoding="utf-8") for name in ("machine", "traffic", "array")
    )
    parts = (
        machine[: machine.index("/** Return the devices of one group")],
        array[array.index("function range(") : array.index("function product(")],
        traffic,
    )
    of = {
        "mesh": [[axis.name, axis.size] for axis in plan.mesh.axes],
        "machine": machine_data(plan),
    }
    script = "; ".join(("\n".join(parts), "const found = new Traffic(of); found.add(sent)"))
    found: list[float] = blank.evaluate(
        f"([of, sent]) => {{ {script}; return [...found.bytes]; }}", [of, [axes, way, _SENT]]
    )
    return found


def groups(placement: Placement, axes: tuple[str, ...]) -> Iterator[list[Coordinate]]:
    """Yield where the devices of each group are, in the order of some mesh axes."""
    sizes, found = placement.mesh.sizes, {}
    for number, at in enumerate(placement.coordinates()):
        index = {}
        for name in reversed(sizes):
            number, index[name] = divmod(number, sizes[name])
        rest = tuple(value for name, value in index.items() if name not in axes)
        found.setdefault(rest, []).append((tuple(index[name] for name in axes), at))
    for group in found.values():
        yield [at for _, at in sorted(group)]


def one_by_one(placement: Placement, axes: tuple[str, ...], way: str) -> Counter[_Link]:
    """Return what goes over each link, message by message."""
    machine, found = placement.machine[1:4], Counter[_Link]()

    def go(start: Coordinate, end: Coordinate, size: float) -> None:
        if start[0] == end[0]:
            for place, dim, sign in links_between(start[1:4], end[1:4], machine):
                found[(start[0], *place), dim, sign] += size

    for group in groups(placement, axes):
        carried = _SENT if way == "shift" else _SENT * len(group) / (len(group) - 1)
        if way == "shift":
            for start, end in zip(group, (*group[1:], group[0]), strict=True):
                go(start, end, carried)
            continue
        for part in {at[0] for at in group}:
            devices = [at for at in group if at[0] == part]
            chips = list(dict.fromkeys(at[:4] for at in devices))
            if way == "pairs":
                share = carried * len(devices) / len(chips) ** 2
                for start, end in permutations(chips, 2):
                    go(start, end, share)
            else:
                half = carried * (len(chips) - 1) / len(chips) / 2
                for start, end in zip(chips, (*chips[1:], chips[0]), strict=True):
                    go(start, end, half)
                    go(end, start, half)
    return found


@pytest.mark.parametrize("target", MESHES)
@pytest.mark.parametrize("way", ["pairs", "shift", "ring"])
def test_links_have_what_each_message_takes_over_them(blank: Page, target: str, way: str) -> None:
    plan = plan_of(target)
    placement = placed(plan.target)
    assert placement is not None
    extents = [axis.extent for axis in placement.machine[:4]]
    names = plan.mesh.names
    for axes in {names, *((name,) for name in names), names[::-1], names[-2:]}:
        count = of_page(blank, plan, axes, way)
        known = one_by_one(placement, axes, way)
        if way == "ring" and sum(count) != pytest.approx(sum(known.values())):
            assert sum(count) < sum(known.values()), "along whole dimensions a ring goes along each"
            continue
        for (chip, dim, sign), size in known.items():
            at = 0
            lower = list(chip)
            if sign < 0:
                lower[dim + 1] = (lower[dim + 1] - 1) % extents[dim + 1]
            for value, extent in zip(lower, extents, strict=True):
                at = at * extent + value
            assert count[at * 6 + dim * 2 + (sign < 0)] == pytest.approx(size)
        assert sum(count) == pytest.approx(sum(known.values()))


@pytest.mark.parametrize("target", MESHES)
def test_the_busiest_link_takes_the_predicted_time(blank: Page, target: str) -> None:
    plan = plan_of(target)
    placement = placed(plan.target)
    assert placement is not None
    speed = plan.target.hardware.chip.link_bytes_per_s  # type: ignore[union-attr]
    assert speed is not None
    for axes in (plan.mesh.names, *((name,) for name in plan.mesh.names)):
        found = legs(placement, axes) or ()
        ways = plan.mesh.device_count
        for name in plan.mesh.names:
            ways //= 1 if name in axes else plan.mesh.sizes[name]
        kinds = [CollectiveKind.ALL_GATHER]
        if plan.target.hardware.chip.devices_per_chip == 1:  # type: ignore[union-attr]
            kinds.append(CollectiveKind.COLLECTIVE_PERMUTE)
        for kind in kinds:
            way = kind.traits.way
            scale = 1e6  # no hop is short enough to count
            carried = scale * _SENT * (1 if way == "shift" else ways / (ways - 1))
            inside = 1
            for leg in found:
                if leg.link == "ici":
                    takes = walk_seconds(kind, carried / (inside if way == "ring" else 1), [leg])
                    count = max(of_page(blank, plan, axes, way)) * scale
                    assert count / speed == pytest.approx(takes)
                inside *= leg.ways


def test_a_page_says_the_bytes_of_the_busiest_link(
    browser: Browser,
    file: Path,  # noqa: F811
    plans: tuple[ShardingPlan, ...],  # noqa: F811
) -> None:
    with opened(browser, file) as page:
        for plan in plans:
            choose(page, plan)
            shown = page.locator("#machine-tools").is_visible()
            if not shown:
                continue
            options = page.locator("#heat option").all_inner_texts()
            assert options[:2] == ["no traffic", "all mesh axes"]
            said = page.locator("#heat-keys").inner_text()
            is_torus = plan.target.hardware.chip.torus_rank > 0  # type: ignore[union-attr]
            assert ("the busiest ~ " in said) is is_torus
            hot = page.locator("#machine-picture [class^=heat-]:not([d=''])")
            assert (hot.count() > 0) is is_torus
            page.select_option("#heat", "")
            assert page.locator("#heat-keys").inner_text() == ""
            assert hot.count() == 0
            page.select_option("#heat", "all")


def test_a_slider_goes_through_the_planes_of_8960_chips(browser: Browser, tmp_path: Path) -> None:
    target = "{hardware: tpu v5p 16x20x28, mesh: {data: rest, model: submesh 4x2x1x1}}"
    text = (ROOT / "specs" / "examples" / "t5-1.1-xxl.yaml").read_text(encoding="utf-8")
    text = text.replace("../arrays", str(ROOT / "specs" / "arrays"))
    begin, end = text.index("targets:"), text.index("\nrules:")
    page_text = page_of(f"{text[:begin]}targets: {{pod: {target}}}\n{text[end:]}")
    with opened(browser, written(page_text, tmp_path)) as page:
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        print({"first paint ms": paint})
        plane = page.locator("#plane")
        assert (plane.input_value(), plane.get_attribute("max")) == ("0", "27")
        assert page.locator("#plane-text").inner_text() == "z 0"
        chips = page.locator("#machine-picture .chips.far-2")
        assert (chips.get_attribute("d") or "").count("M") == 16 * 20 - 8
        plane.focus()
        page.keyboard.press("ArrowRight")
        assert page.locator("#plane-text").inner_text() == "z 1"
        assert (chips.get_attribute("d") or "").count("M") == 16 * 20
        page.fill("#device", "8959")
        assert page.locator("#plane-text").inner_text() == "z 27"
        assert "its links: x ~ " in page.locator("#machine-told").inner_text()
        plane.fill("-1")
        assert page.locator("#plane-text").inner_text() == "all"
        assert page.locator("#turn").is_visible()
        assert binary_bytes(0) not in page.locator("#heat-keys").inner_text()

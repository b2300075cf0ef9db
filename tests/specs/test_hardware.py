"""The catalogue: every figure beside its source, every name found, nothing out of scale."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardspec.assets import spec_path
from shardspec.language.catalogue import catalogue_entry, hardware_names

_NAMES = spec_path("hardware", "names")
assert _NAMES is not None
_FILES = sorted(path for path in _NAMES.parent.glob("*.yaml") if path != _NAMES)
#: Keys that name or describe and hold no figure.
_WORDS = {"name", "title", "platform", "names", "device_kinds", "prefixes", "counts", "source"}


#: Figures without which nothing can be laid out, or nothing timed.
_NEEDED = {
    "cpu": "devices_per_chip torus_rank host_shape",
    "tpu": "devices_per_chip torus_rank host_shape cores_per_chip hbm_bytes bf16_flops_per_s "
    "hbm_bytes_per_s link_bytes_per_s links clock_hz matmul_efficiency",
    "gpu": "devices_per_chip torus_rank host_shape domain hbm_bytes bf16_flops_per_s "
    "hbm_bytes_per_s link_bytes_per_s links network_bytes_per_s matmul_efficiency",
}
#: Ends of figures that are speeds or shares, written as YAML likes: `989e12` is text to it.
_FRACTIONS = ("_per_s", "_hz", "_efficiency")


def _data(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(path.read_text())
    return data


def figures_without_source(data: Any, has_source: bool = False, route: str = "") -> Iterator[str]:
    """Yield the route of every number or shape with no `source` beside or above it."""
    if isinstance(data, dict):
        sourced = has_source or bool(data.get("source"))
        for key, value in data.items():
            if key not in _WORDS:
                beside = sourced or bool(data.get(f"{key}_source"))
                yield from figures_without_source(value, beside, f"{route}/{key}")
    elif not has_source and data is not None and any(char.isdigit() for char in str(data)):
        yield route


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_every_figure_has_a_source(path: Path) -> None:
    assert list(figures_without_source(_data(path))) == []
    for figure in _data(path)["figures"].values():
        assert set(figure) == {"value", "source"}
        assert len(figure["source"]) > 10


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_a_chip_has_what_its_platform_needs(path: Path) -> None:
    data = _data(path)
    figures = {key: figure["value"] for key, figure in data["figures"].items()}
    missing = [key for key in _NEEDED[data["platform"]].split() if key not in figures]
    assert not missing, f"{path.name} lacks {', '.join(missing)}"
    counts = {key: value for key, value in figures.items() if not key.endswith(_FRACTIONS)}
    counts |= dict(enumerate(counts.pop("host_shape")))
    written = {key: value for key, value in counts.items() if not isinstance(value, int)}
    assert not written, f"whole numbers are written out, not {written}"


def test_a_figure_without_a_source_is_found() -> None:
    data = {"figures": {"links": {"value": 6}, "rank": {"value": 3, "source": "a paper"}}}
    assert list(figures_without_source(data)) == ["/figures/links/value"]


def test_the_index_is_what_the_files_say() -> None:
    said = {}
    for path in _FILES:
        data = _data(path)
        prefixes = data.get("accelerator_types", {}).get("prefixes", [])
        for name in [*data["names"], *prefixes, *data.get("machines", {})]:
            said[name] = path.stem
    assert dict(hardware_names()) == said


def test_the_catalogue_has_every_generation() -> None:
    chips = {catalogue_entry(path.stem).chip.name for path in _FILES}
    assert chips >= {"v2", "v3", "v4", "v5e", "v5p", "v6e", "v7x", "cpu"}
    assert chips >= {"a100", "h100", "h200", "b200", "gb200"}


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_figures_are_in_scale(path: Path) -> None:
    chip = catalogue_entry(path.stem).chip
    if chip.platform == "cpu":
        assert chip.hbm_bytes is None
        return
    assert chip.hbm_bytes is not None
    assert 8e9 < chip.hbm_bytes < 400e9
    assert chip.bf16_flops_per_s is not None
    assert 1e13 < chip.bf16_flops_per_s < 1e16
    assert chip.hbm_bytes_per_s is not None
    assert 5e11 < chip.hbm_bytes_per_s < 2e13
    assert chip.link_bytes_per_s is not None
    assert 4e10 <= chip.link_bytes_per_s < 1e12
    assert chip.device_kinds
    if chip.platform == "tpu":
        assert chip.torus_rank in (2, 3)
        assert chip.links == 2 * chip.torus_rank
        assert len(chip.host_shape) == chip.torus_rank
        assert (chip.wrap_size is None) != (chip.wrap_multiple is None)


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_listed_slices_are_whole_hosts_or_less(path: Path) -> None:
    entry = catalogue_entry(path.stem)
    for shape in entry.shapes.listed:
        assert len(shape) == entry.chip.torus_rank
        assert all(
            size % held == 0 or size < held
            for size, held in zip(shape, entry.chip.host_shape, strict=True)
        )


def test_the_chips_own_link_of_v7x_is_about_six_times_ici() -> None:
    chip = catalogue_entry("tpu_v7x").chip
    assert chip.pair_bytes_per_s is not None
    assert chip.link_bytes_per_s is not None
    assert chip.pair_bytes_per_s / chip.link_bytes_per_s == pytest.approx(6)

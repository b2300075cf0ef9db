"""One file of `specs/hardware/`: a kind of chip, its names, and the slices it comes in.

Only the file that a spec needs is read; `names.yaml` says which one that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from shardspec.frontend.slice_shapes import SliceShapes, parse_shape
from shardspec.ir.hardware import Chip


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One kind of chip as the catalogue knows it.

    Attributes:
      names: what a spec may call it.
      prefixes: what accelerator types begin with: `v5litepod` of `v5litepod-64`.
      counts: what the number of an accelerator type counts.
      machines: machine type -> GPUs of one machine.
      domain: chips that NVLink joins; 0 where there is a torus or nothing.
    """

    chip: Chip
    names: tuple[str, ...]
    shapes: SliceShapes
    prefixes: tuple[str, ...] = ()
    counts: Literal["cores", "chips"] | None = None
    machines: tuple[tuple[str, int], ...] = ()
    domain: int = 0


@cache
def hardware_names() -> Mapping[str, str]:
    """Return every name a spec may use for hardware, with the file that describes it."""
    return {str(name): str(file) for name, file in _read("names").items()}


@cache
def catalogue_entry(name: str) -> CatalogueEntry:
    """Return the entry with this file name: `tpu_v4`, `h100`."""
    data = _read(name)
    figures = {key: figure["value"] for key, figure in data["figures"].items()}
    accelerator_types = data.get("accelerator_types", {})
    shapes = data.get("shapes", {})
    return CatalogueEntry(
        chip=_chip(data, figures),
        names=tuple(data["names"]),
        shapes=SliceShapes(
            listed=tuple(parse_shape(shape) for shape in shapes.get("listed", ())),
            rank=figures["torus_rank"],
            cube=shapes.get("cube"),
            most_chips=shapes.get("most_chips", 0),
            one_host=tuple(parse_shape(shape) for shape in shapes.get("one_host", ())),
        ),
        prefixes=tuple(accelerator_types.get("prefixes", ())),
        counts=accelerator_types.get("counts"),
        machines=tuple(data.get("machines", {}).items()),
        domain=figures.get("domain", 0),
    )


def _chip(data: Mapping[str, Any], figures: Mapping[str, Any]) -> Chip:
    wraps = data.get("wraps", {})
    speeds = {key: float(value) for key, value in figures.items() if key.endswith("_per_s")}
    return Chip(
        name=data["name"],
        title=data["title"],
        platform=data["platform"],
        device_kinds=tuple(data["device_kinds"]),
        devices_per_chip=figures["devices_per_chip"],
        torus_rank=figures["torus_rank"],
        host_shape=tuple(figures["host_shape"]),
        cores_per_chip=figures.get("cores_per_chip", 1),
        hbm_bytes=figures.get("hbm_bytes"),
        links=figures.get("links"),
        wrap_size=wraps.get("axis_equals"),
        wrap_multiple=wraps.get("all_multiples_of"),
        **speeds,
    )


def _read(name: str) -> dict[str, Any]:
    """Return the data of one catalogue file."""
    import yaml

    from shardspec.assets import spec_path

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    path = spec_path("hardware", name)
    assert path is not None, f"the catalogue has no file {name}.yaml"
    data: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    return data

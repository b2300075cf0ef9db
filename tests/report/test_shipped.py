"""What comes along can be read: presets as they stand, machines with their sources, lists."""

from __future__ import annotations

import click
import pytest

from shardspec import assets
from shardspec.cli.explain import command
from shardspec.diagnostics.codes import ALL
from shardspec.language.catalogue import catalogue_data, hardware_names
from shardspec.report.pages import file_page, hardware_page, list_lines, names, near_names, page_of


@pytest.mark.parametrize("name", assets.spec_names("presets"))
def test_a_preset_is_shown_as_it_stands(name: str) -> None:
    path = assets.spec_path("presets", name)
    assert path is not None
    head, _, *lines = file_page("preset", name)
    assert head.startswith(f"preset:{name}   ")
    assert "\n".join(lines) == path.read_text(encoding="utf-8").rstrip("\n")


@pytest.mark.parametrize("name", sorted(hardware_names()))
def test_every_name_of_hardware_has_a_page_with_all_sources(name: str) -> None:
    page = "\n".join(hardware_page(name))
    for key, figure in catalogue_data(hardware_names()[name])["figures"].items():
        assert any(
            line.startswith(key) and line.endswith(figure["source"]) for line in page.split("\n")
        )


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("2 * tpu v5p 4x4x8", "2 slices of 4x4x8: 256 chips, 256 devices, 64 hosts"),
        ("tpu v3 4x4", "1 slice of 4x4: 16 chips, 32 devices, 4 hosts"),
        ("v4-512", "1 slice of 4x8x8: 256 chips, 256 devices, 64 hosts"),
        ("4 * h100", "4 nodes of 8: 32 GPUs, 32 devices, 4 hosts"),
    ],
)
def test_a_machine_is_counted(text: str, counts: str) -> None:
    assert counts in hardware_page(text)


@pytest.mark.parametrize(
    ("page", "near"),
    [
        (file_page("preset", "exprt"), "did you mean `expert`?"),
        (hardware_page("h10"), "`h100`"),
        (hardware_page("8xH100"), "did you mean `8 h100`?"),
        (hardware_page("tpu v5p 3x3x3"), "slices near it"),
        (hardware_page("tpu v5p 4x"), "`shardspec explain --list hardware` shows all"),
    ],
)
def test_what_is_not_there_is_answered_by_what_is(page: str, near: str) -> None:
    assert isinstance(page, str)
    assert near in page


def test_lists_name_everything() -> None:
    for kind in ("presets", "examples"):
        names = assets.spec_names(kind)  # type: ignore[arg-type]
        lines = list(list_lines(kind))
        assert [line.split()[0] for line in lines] == list(names)
        assert all(len(line.split()) > 3 for line in lines)
    listed = next(each for each in command.params if each.name == "listed")
    assert isinstance(listed.type, click.Choice)
    assert all(list(list_lines(kind)) for kind in listed.type.choices)


def test_every_line_of_a_file_is_shown_with_those_around_it_and_no_other() -> None:
    _, _, *lines = file_page("preset", "fsdp")
    for number, text in enumerate(lines, 1):
        _, _, *around = file_page("preset", f"fsdp:{number}")
        (marked,) = [each for each in around if each.startswith(">")]
        assert marked == f"> {number:>4} | {text}"
        numbers = [int(each[1:].split("|")[0]) for each in around]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert 1 <= numbers[0] <= number <= numbers[-1] <= len(lines)
    for outside in (0, len(lines) + 1):
        assert isinstance(file_page("preset", f"fsdp:{outside}"), str)


def test_a_name_leads_to_its_page_with_and_without_its_kind() -> None:
    """A name that two kinds share leads to a page of one of them."""
    pages = {name: [*(page_of(name) or ())] for name in names()}
    assert all(pages.values())
    for bare in {name.partition(":")[2] for name in pages}:
        own = [page for name, page in pages.items() if name.partition(":")[2] == bare]
        assert [*(page_of(bare) or ())] in own
        assert page_of(f"{bare}-of-nothing") is None


def test_a_name_is_near_to_itself_and_a_typo_of_it_is_near_to_it() -> None:
    every = [*names()]
    for bare in sorted({name.partition(":")[2] for name in every})[::3]:
        own = [f"`{name}`" for name in every if name.partition(":")[2] == bare]
        assert any(name in (near_names(bare) or "") for name in own), bare
        assert near_names(f"axis:{bare}") in (None, near_names(f"axis:{bare}-"))
    for finding in ALL[::10]:
        for word in (finding.name, finding.name.replace("-", "_").upper(), f"{finding.name}x"):
            assert f"`{finding.name}`" in (near_names(word) or ""), word

"""MaxText's list of rules, read a second time and by itself: the witness of an import.

Nothing here is shared with `maxtext_config`, which the spec is made of: files are read by PyYAML,
as MaxText reads them, into plain lists, and joined by code written down from MaxText's own. A
mistake in the import shows as a difference between the two.
Source: AI-Hypercomputer/maxtext, `maxtext/configs/pyconfig.py`: `_load_config`,
`_merge_logical_axis_rules`, `_apply_rules`; `types.py`: `set_derived_and_validate_values`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shardspec.diagnostics import SourceFile
from shardspec.language.files import leads_out, read_source
from shardspec.language.yaml_text.scalars import load_as_pyyaml

Pair = tuple[str | None, tuple[str, ...]]

_RULES = "logical_axis_rules"
_MOST_BELOW = 16


def maxtext_rules(files: Sequence[tuple[str, str]], folders: Sequence[str]) -> tuple[Pair, ...]:
    """Return the rules that MaxText has in the end.

    Args:
      files: name and text of each file, in the order they were given.
      folders: where files that they name are looked for, beside the places MaxText knows.
    """
    given = [(Path(name), _load(text)) for name, text in files]
    starts = [place for place, each in enumerate(given) if place == 0 or each[1].get("base_config")]
    config = _config(*given[starts[-1]], given, folders, 0)
    rules: list[Any] = config.get(_RULES) or []
    path = given[starts[-1]][0]
    rest = [each for place, each in enumerate(given) if place not in starts]
    over = [each for each in rest if not _is_custom(each)]
    settings = dict(config)
    for _, values in over:
        settings.update(values)
    model = str(settings.get("model_name") or "default").replace("-Instruct", "")
    if model != "default" and not any(each[0].resolve().parent.name == "models" for each in over):
        found = _look_up(f"models/{model}.yml", path.parent, folders)
        over[:0] = [] if found is None else [_opened(found)]
    for _, values in over:
        rules = _applied(rules, values.get(_RULES) or [], values.get("override_logical_axis_rules"))
    for _, values in (
        *(each for each in rest if _is_custom(each)),
        *_custom(settings, given, folders),
    ):
        rules = values.get(_RULES, rules)
    return tuple(_pairs(rules))


def _load(text: str) -> dict[Any, Any]:
    loaded = load_as_pyyaml(text)
    return loaded if isinstance(loaded, dict) else {}


def _opened(path: Path) -> tuple[Path, dict[Any, Any]]:
    """Return a file that another names, with what it says; nothing where it may not be read."""
    found = None if leads_out(str(path)) else read_source(path)
    return path, _load(found.text) if isinstance(found, SourceFile) else {}


def _config(
    path: Path, values: dict[Any, Any], given: Sequence[Any], folders: Sequence[str], depth: int
) -> dict[Any, Any]:
    """Return a configuration over the one that it is based on: each of its keys replaces."""
    below = values.get("base_config")
    if not isinstance(below, str) or not below or depth > _MOST_BELOW:
        return values
    found = _look_up(below, path.parent, folders)
    if found is not None:
        base = _opened(found)
    else:
        same = [each for each in given if each[0] != path and each[0].name == Path(below).name]
        if not same:
            return values
        base = same[0]
    return {**_config(*base, given, folders, depth + 1), **values}


def _look_up(name: str, folder: Path, folders: Sequence[str]) -> Path | None:
    """Return a file beside another, one folder up, in a folder of ours, or in MaxText's own."""
    absolute = folder.absolute()
    configs = [each for each in (absolute, *absolute.parents) if each.name == "configs"]
    for each in (folder, folder / "..", *map(Path, folders), *configs[:1]):
        if (each / name).is_file():
            return each / name
    return None


def _custom(
    settings: dict[Any, Any], given: Sequence[Any], folders: Sequence[str]
) -> Iterator[Any]:
    """Yield the custom mesh and rule file that the settings name."""
    name = settings.get("custom_mesh_and_rule")
    if not isinstance(name, str) or name in ("", "default"):
        return
    for path, _ in reversed(given):
        found = _look_up(f"custom_mesh_and_rule/{name}.yml", path.parent, folders)
        if found is not None:
            yield _opened(found)
            return


def _is_custom(file: tuple[Path, dict[Any, Any]]) -> bool:
    """Say whether a file holds a mesh and rules, and nothing that a model or a run has."""
    own = {"mesh_axes", _RULES}
    beside = {"data_sharding", "context_sharding", "input_data_sharding_logical_axes"}
    return own <= file[1].keys() <= own | beside


def _applied(rules: list[Any], new: list[Any], override: Any) -> list[Any]:
    """Return a list under another: names of the new one leave the old one, and stand at its end."""
    if override is True or (
        isinstance(override, str) and override.lower() in ("true", "yes", "on")
    ):
        return new
    names = {rule[0] for rule in new}
    return [rule for rule in rules if rule[0] not in names] + new


def _pairs(rules: list[Any]) -> Iterator[Pair]:
    for name, axes in rules:
        listed = axes if isinstance(axes, list) else [] if axes in (None, "") else [axes]
        yield name, tuple(str(axis) for axis in listed)

"""MaxText's models under its rule sets, for real_plans.py: names, shapes, and what is split.

MaxText's tests keep the logical axes and shardings of a few models, one folder for each model,
machine and rule set. Where there is a folder, what it says is the truth. For the other rule sets
of these models it is Flax's `logical_to_mesh_axes`, which MaxText calls, on the axes of the mesh.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_GOLDENS = "tests/utils/sharding_info"
_CONFIGS = "src/maxtext/configs"
_RULES = "custom_mesh_and_rule"
#: The keys that say how MaxText shards; no other text of its files is kept.
_KEYS = (
    *("mesh_axes", "data_sharding", "logical_axis_rules", "override_logical_axis_rules"),
    *("input_data_sharding_logical_axes", "shard_mode"),
)
#: Meshes of rule sets that no folder has.
_SIZES = {"fsdp": 4, "expert": 2, "context": 2, "tensor": 2}


def models(checkout: Path) -> Iterator[dict[str, Any]]:
    """Yield a model for each folder of MaxText's tests, and for each rule set without one."""
    base = _rules(checkout, "base.yml")
    sets = {"default": {"base.yml": base}}
    for name in sorted(_files(checkout, f"{_CONFIGS}/{_RULES}")):
        path = name.removeprefix(f"{_CONFIGS}/")
        sets[Path(name).stem] = {"base.yml": base, Path(name).name: _rules(checkout, path)}
    known: dict[str, dict[str, Any]] = {}
    seen = set()
    for file in _files(checkout, _GOLDENS):
        if not file.endswith("named_shardings.json"):
            continue
        _, _, _, model, machine, _, rule, _ = file.split("/")
        logical = json.loads(_text(checkout, file.replace("named_", "logical_")))
        known.setdefault(model, logical)
        name = next(each for each in sorted(sets, key=len)[::-1] if f"rule_{each}" in rule)
        options = rule.removeprefix(f"rule_{name}").strip("_")
        seen.add((model, name))
        named = json.loads(_text(checkout, file))
        mesh = {a: n for a, n in named[".step"]["mesh"]["shape"].items() if n > 1}
        split = {path: each["partition_spec"] for path, each in _params(named).items()}
        title = f"{model}.{machine}.{name}{f'.{options}' if options else ''}"
        yield _raw(title, logical, split, mesh, sets[name])
    for model, logical in known.items():
        for name, files in sets.items():
            if (model, name) in seen:
                continue
            keys = {key: value for each in files.values() for key, value in each.items()}
            mesh = {axis: _SIZES[axis] for axis in keys["mesh_axes"] if axis in _SIZES}
            yield _raw(f"{model}.{name}", logical, _by_flax(logical, keys, mesh), mesh, files)


def _by_flax(
    logical: Mapping[str, Any], keys: Mapping[str, Any], mesh: Mapping[str, int]
) -> dict[str, Sequence[Any]]:
    """Return what Flax makes of the logical axes; axes that are not in the mesh split nothing."""
    from flax.linen import logical_to_mesh_axes

    rules = [
        (name, tuple([to] if isinstance(to, str) else to))
        for name, to in keys["logical_axis_rules"]
    ]
    found = {}
    for path, each in _params(logical).items():
        spec = logical_to_mesh_axes(tuple(each["partition_spec"]), rules)
        found[path] = [
            [axis for axis in ([dim] if isinstance(dim, str) else dim or ()) if axis in mesh]
            for dim in spec
        ]
    return found


def _raw(
    title: str,
    logical: Mapping[str, Any],
    split: Mapping[str, Sequence[Any]],
    mesh: Mapping[str, int],
    files: Mapping[str, Any],
) -> dict[str, Any]:
    params = _params(logical)
    ways = {path: list(_ways(split.get(path, ()), mesh)) for path in params}
    return {
        "name": f"maxtext.{title}",
        "tool": "maxtext",
        "shapes": {path: each["shape"] for path, each in params.items()},
        "names": {path: each["partition_spec"] for path, each in params.items()},
        "split": {path: dims for path, dims in ways.items() if dims},
        "packed": [],
        "plan": {"files": files, "mesh": mesh},
        "raises": {},
    }


def _ways(dims: Sequence[Any], mesh: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    for at, axes in enumerate(dims):
        ways = 1
        for axis in [axes] if isinstance(axes, str) else axes or ():
            ways *= mesh.get(axis, 1)
        if ways > 1:
            yield at, ways


def _params(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters among all that is listed, by path."""
    found = {}
    for key, each in data.items():
        parts = re.findall(r"\['([^']*)'\]", key)
        if key.startswith(".params") and each["shape"]:
            found["/".join(parts[1:])] = each
    return found


def _rules(checkout: Path, path: str) -> dict[str, Any]:
    import yaml

    data = yaml.safe_load(_text(checkout, f"{_CONFIGS}/{path}"))
    return {key: data[key] for key in _KEYS if key in data}


def _files(checkout: Path, folder: str) -> list[str]:
    return _git(checkout, "ls-tree", "-r", "--name-only", "HEAD", folder).split()


def _text(checkout: Path, path: str) -> str:
    return _git(checkout, "show", f"HEAD:{path}")


def _git(checkout: Path, *arguments: str) -> str:
    command = ("git", "-C", str(checkout), *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout

"""The line for `params:` that would name arrays, where their paths and sizes allow one answer."""

from __future__ import annotations

from collections.abc import Sequence

from shardspec.diagnostics import quote
from shardspec.diagnostics.words import collapsed, natural, template
from shardspec.ir.spec import Param, Spec, axis_of


def proposed_names(spec: Spec, params: Sequence[Param]) -> str | None:
    """Return the names that fit all of some arrays, `embed mlp`; None where there are several.

    Those in the types of `arrays:` come first: they do not name the arrays of code.
    """
    from shardspec.naming import proposing

    stated = {each.path: each.logical_axes for each in spec.params if each.logical_axes}
    listed = {stated.get(param.path) for param in params}
    only = listed.pop() if len(listed) == 1 else None
    if only is not None and all(len(only) == len(param.shape) for param in params):
        return " ".join(name or "_" for name in only)
    axes = (axis for axis in spec.logical_axes if axis_of(axis.name) == axis.name)
    sizes = {axis.name: axis.size for axis in axes if axis.size is not None}
    names = proposing.proposed_names(params, sizes) if sizes else None
    return None if names is None else " ".join(name or "_" for name in names)


def params_line(spec: Spec, params: Sequence[Param]) -> str | None:
    """Return an entry of `params:` for exactly these arrays: `"decoder/wi/kernel": embed mlp`."""
    glob = _glob([param.path for param in params])
    names = None if glob is None else proposed_names(spec, params)
    return None if names is None or glob is None else quote.pattern(glob, names)


def _glob(paths: Sequence[str]) -> str | None:
    """Return one glob for exactly some paths; None where no line could hold it."""
    from shardspec.naming.patterns import exact

    if not all(path.isprintable() for path in paths):
        return None
    if len(paths) == 1:
        return exact(paths[0])
    is_plain = all(path == exact(path) for path in paths)
    alike = {template(path) for path in paths}
    return collapsed(sorted(paths, key=natural)) if is_plain and len(alike) == 1 else None

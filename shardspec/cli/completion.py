"""What a shell offers for the word under the cursor: names of the spec, of findings, and files.

All of it is read off files, without jax, and a spec that cannot be read offers nothing: an error
has no place in a line that somebody is still typing. `shardspec.cli.shells` tells the shells.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import click

from shardspec import assets

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from shardspec.ir.spec import Spec

#: Of a verb's values, those that may name the spec; what a line not yet ended leaves over as well.
_SPECS = ("spec_name", "named", "subjects", "new", "old")


def _starting(names: Iterable[str], start: str) -> list[str]:
    """Return the names that begin so, each once."""
    return [name for name in dict.fromkeys(names) if name.startswith(start)]


def spec_of(ctx: click.Context) -> Spec | None:
    """Return the spec that a line names so far, or the one that is found; None where none is read.

    No word is said of a spec that cannot be read, nor of a line that names none.
    """
    from shardspec.cli.request import quiet_spec

    named: list[str] = []
    for key in _SPECS:
        value = ctx.params.get(key) or ()
        named += [value] if isinstance(value, str) else value
    return quiet_spec(next(filter(os.path.exists, (*named, *ctx.args)), None))


Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def _completing(names_of: Callable[[click.Context], Iterable[str]]) -> Completer:
    """Return what completes one of the names that a line leaves open."""
    return lambda ctx, param, start: _starting(names_of(ctx), start)


def _in_spec(names_of: Callable[[Spec], Iterable[str]]) -> Completer:
    """Return what completes a name of the spec."""

    def names(ctx: click.Context) -> Iterable[str]:
        spec = spec_of(ctx)
        return () if spec is None else names_of(spec)

    return _completing(names)


targets = _in_spec(lambda spec: (each.name for each in spec.targets))
phases = _in_spec(lambda spec: (each.phase for each in spec.phases))
paths = _in_spec(lambda spec: (each.path for each in spec.params))
presets = _completing(lambda ctx: assets.spec_names("presets"))
examples = _completing(lambda ctx: assets.spec_names("examples"))


def findings(ctx: click.Context, param: click.Parameter, start: str) -> list[str]:
    """Complete a finding, the last of several: `SHD301,indiv`."""
    before, comma, last = start.rpartition(",")
    return [f"{before}{comma}{name}" for name in _findings(last)]


def _findings(start: str) -> list[str]:
    """Return codes, and names; codes in small letters as well, where they are typed so."""
    from shardspec.diagnostics import codes

    names = [code.id for code in codes.ALL]
    names += [code.name for code in codes.ALL]
    if start.startswith("shd"):
        names += [code.id.lower() for code in codes.ALL]
    return _starting(names, start)


def machines(ctx: click.Context, param: click.Parameter, start: str) -> list[str]:
    """Complete a machine of the catalogue."""
    from shardspec.language import catalogue

    return _starting(catalogue.hardware_names(), start)


def subjects(ctx: click.Context, param: click.Parameter, start: str) -> list[CompletionItem[str]]:
    """Complete what `explain` takes: an array, an activation, an axis, a finding, what comes along.

    A file as well: the spec stands before the subject, and a line of it may be one.
    """
    from click.shell_completion import CompletionItem

    from shardspec.report.pages import FILES

    names = dict.fromkeys(_subjects(ctx, param, start))
    is_word = start.startswith(("axis:", *(f"{kind}:" for kind in ("hardware", *FILES))))
    return [*map(CompletionItem, names), *([] if is_word else files(ctx, param, start))]


def _subjects(ctx: click.Context, param: click.Parameter, start: str) -> Iterator[str]:
    from shardspec.report.pages import FILES

    spec = spec_of(ctx)
    if spec is not None:
        names = [each.path for each in spec.params] + [each.name for each in spec.activations]
        names += [f"axis:{name}" for name in _axes(spec)]
        yield from _starting(names, start)
    kind, colon, name = start.partition(":")
    for along, folder in FILES.items():
        if kind and f"{along}:".startswith(kind + colon):
            yield from (f"{along}:{each}" for each in _starting(assets.spec_names(folder), name))
    if kind and "hardware:".startswith(kind + colon):
        yield from (f"hardware:{each}" for each in machines(ctx, param, name))
    if start:
        yield from _findings(start)


def _axes(spec: Spec) -> dict[str, None]:
    """Return mesh axes, sorted, and logical axes."""
    logical = [rule.logical_axis for rule in spec.axis_rules]
    logical += [axis.name for axis in spec.logical_axes]
    return dict.fromkeys((*sorted(spec.mesh_axis_names), *logical))


def files(ctx: click.Context, param: click.Parameter, start: str) -> list[CompletionItem[str]]:
    """Have the shell complete files, as it does for programs that complete nothing themselves."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(start, type="file")]


def folders(ctx: click.Context, param: click.Parameter, start: str) -> list[CompletionItem[str]]:
    """Have the shell complete folders."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(start, type="dir")]

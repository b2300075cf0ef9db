"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def spec_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--spec FILE`."""
    return click.option(
        "--spec", "spec_name", metavar="FILE", help="The spec; found by itself when left out."
    )(function)


def target_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--target NAME`, which completes."""
    return click.option(
        "--target", "-t", metavar="NAME", shell_complete=_targets, help="A target of the spec."
    )(function)


def set_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--set KEY=VALUE` for what-ifs."""
    return click.option(
        "--set",
        "settings",
        metavar="KEY=VALUE",
        multiple=True,
        callback=_settings,
        help="A what-if: `--set mesh.model=8`.",
    )(function)


def params_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--params FILE`, which may be a checkpoint or a function."""
    return click.option(
        "--params",
        "manifest",
        metavar="FILE",
        help="Arrays from a manifest, a checkpoint or `package.module:function`, not the spec.",
    )(function)


def findings_option(flag: str, help: str) -> Decorator:
    """Add a flag that takes findings: ids, names or starts of ids, with commas or repeated."""
    return click.option(flag, metavar="FINDINGS", multiple=True, callback=_findings, help=help)


def color_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--color WHEN`."""
    return click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        show_default=True,
        help="Colour; NO_COLOR turns it off.",
    )(function)


def format_option(*formats: str, name: str = "--format") -> Decorator:
    """Add `--format`, the first of `formats` being the default."""
    return click.option(
        name, "output_format", type=click.Choice(formats), default=formats[0], show_default=True
    )


def _settings(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    settings = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key or not text:
            raise click.BadParameter(f"`{value}` is not KEY=VALUE", ctx, param)
        settings[key.strip()] = text.strip()
    return settings


def _findings(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    given = (name.strip() for value in values for name in value.split(",") if name.strip())
    names = tuple(
        name.upper() if name[:3].lower() == "shd" else name.lower().replace("_", "-")
        for name in given
    )
    for name in names:
        from shardspec.diagnostics.levels import known

        if not known(name):
            from shardspec.diagnostics.codes import ALL
            from shardspec.diagnostics.suggest import did_you_mean

            near = did_you_mean(name, [code.name for code in ALL])
            hint = near or "`shardspec explain --list` shows them all"
            raise click.BadParameter(f"no finding is called `{name}`; {hint}", ctx, param)
    return names


def _targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a target."""
    from shardspec.cli.session import quiet_spec

    spec = quiet_spec(ctx.params.get("spec_name") or ctx.params.get("spec_file"))
    names = [target.name for target in spec.targets] if spec else []
    return [name for name in names if name.startswith(incomplete)]


def complete_subjects(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete what `explain` explains: an array, an activation, or `axis:` and an axis."""
    from shardspec.cli.session import quiet_spec

    spec = quiet_spec(ctx.params.get("spec_name"))
    if spec is None:
        return []
    axes = {rule.logical_axis: None for rule in spec.axis_rules}
    axes |= {axis.name: None for axis in spec.logical_axes}
    names = [array.path for array in spec.params]
    names += [activation.name for activation in spec.activations]
    names += [f"axis:{name}" for name in dict.fromkeys((*sorted(spec.mesh_axis_names), *axes))]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]

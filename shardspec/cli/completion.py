"""What a shell offers for the word under the cursor: names of the spec, of findings, and files.

All of it is read off files, without jax, and a spec that cannot be read offers nothing: an error
has no place in a line that somebody is still typing.

bash, zsh and fish ask what to offer, and hear it: `eval "$(... shardspec)"`. Click's own scripts
lose three things that are kept here. bash parts words at `:` and `=`, so that `axis:em` came in
pieces; where files are offered beside names, its script threw the names away; and what follows
`--target=` replaced the option in zsh and fish. In `completion.bash` the line up to the cursor goes
over whole. Of a reply, what is before the last `:` or `=` is on the line already. Files alone are
left to readline, which knows `~` and quotes names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

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


class _Whole(ShellComplete):
    """Offers each for the whole word, `--target=` with it; nothing for a line that is no good."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return what to offer."""
        try:
            items = ShellComplete.get_completions(self, args, incomplete)
        except (click.ClickException, click.exceptions.Exit, OSError):
            return []
        option, equals, _ = incomplete.partition("=")
        if option.startswith("--") and equals:
            for each in items:
                if each.type == "plain":
                    each.value = f"{option}={each.value}"
        return items


class _Bash(_Whole, BashComplete):
    source_template = Path(__file__).with_name("completion.bash").read_text("utf-8")

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, and the one that is being typed."""
        line = os.environ.get("COMP_WORDS", "")
        words = split_arg_string(line)[1:]
        return (words[:-1], words[-1]) if words and not line[-1:].isspace() else (words, "")


class _Zsh(_Whole, ZshComplete):
    pass


class _Fish(_Whole, FishComplete):
    pass


def register() -> None:
    """Have click use what is here."""
    for each in (_Bash, _Zsh, _Fish):
        add_completion_class(each)

"""`shardspec help` and `shardspec completion`: what is read off the verbs for a person or a shell.

The man page has the texts of `--help`, so that nothing has to be kept in step by hand.
"""

from __future__ import annotations

import click

from shardspec.assets import DOCS
from shardspec.cli.options import EXITS, HELP
from shardspec.cli.streams import echo, echo_data

#: Shell -> the line for its start-up file.
SHELLS = {
    "bash": 'eval "$(_SHARDSPEC_COMPLETE=bash_source shardspec)"',
    "zsh": 'eval "$(_SHARDSPEC_COMPLETE=zsh_source shardspec)"',
    "fish": "_SHARDSPEC_COMPLETE=fish_source shardspec | source",
}


#: Under the help of verbs that make nothing of a spec; their examples stand in their text.
_PAGE = "Documentation: docs/command-line.md"


@click.command("completion", context_settings=HELP, epilog=_PAGE)
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion(shell: str) -> None:
    """Print the line that turns on completion, for the shell's start-up file.

    \b
    bash   shardspec completion bash >> ~/.bashrc
    zsh    shardspec completion zsh >> ~/.zshrc
    fish   shardspec completion fish > ~/.config/fish/completions/shardspec.fish
    """  # noqa: D301
    echo(SHELLS[shell])


@click.command("help", context_settings=HELP, epilog=_PAGE)
@click.argument("verb", required=False)
@click.option("--man", is_flag=True, help="Print the man page of all verbs.")
@click.pass_context
def help(context: click.Context, verb: str | None, man: bool) -> None:
    """Show the help of VERB, or of shardspec itself.

    To read the man page: shardspec help --man | man -l -
    """
    above = context.parent
    assert above is not None
    if man:
        echo_data(man_page(above))
        return
    if verb is None:
        echo(above.get_help())
        return
    _, command, _ = above.command.resolve_command(above, [verb])  # type: ignore[attr-defined]
    with click.Context(command, info_name=verb, parent=above) as asked:
        echo(command.get_help(asked))


def man_page(context: click.Context) -> str:
    """Return a man page of every verb, for section 1."""
    from shardspec import __version__
    from shardspec.cli.main import VERBS

    group = context.command
    assert isinstance(group, click.Group)
    lines = [
        f'.TH SHARDSPEC 1 "" "shardspec {__version__}"',
        ".SH NAME",
        r"shardspec \- compile sharding specs for JAX",
        ".SH SYNOPSIS",
        ".B shardspec",
        "VERB [OPTIONS]",
        ".SH VERBS",
    ]
    for name, summary in VERBS.items():
        command = group.get_command(context, name)
        assert command is not None
        lines += [f".SS {name}", _roff(summary), ".PP", ".nf"]
        with click.Context(command, info_name=name, parent=context) as asked:
            lines += [*map(_roff, command.get_help(asked).splitlines()), ".fi"]
    lines += [".SH EXIT STATUS"]
    for code, meaning in EXITS:
        lines += [".TP", code, _roff(meaning)]
    return "\n".join([*lines, ".SH SEE ALSO", f"{DOCS}command\\-line.md", ""])


def _roff(line: str) -> str:
    """Return a line that no macro or escape of roff is read in."""
    escaped = line.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped[:1] in (".", "'") else escaped

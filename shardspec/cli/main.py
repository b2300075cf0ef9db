"""`shardspec`: the verbs, each loaded when it is called."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import click

from shardspec.cli.options import HELP, version_option, write_exits

#: Verb -> what it is for, in the order of `--help`. The module has the verb's name.
VERBS = {
    "compile": "Resolve every array on one target and print the table.",
    "cost": "Show what a device holds, and what a step sends and takes.",
    "search": "Rank meshes by what a step takes, and say why the best is.",
    "verify": "Have the real compiler prove it, for machines that are not here.",
    "calibrate": "Find out how fast a kind of chip is, and keep it in a file.",
    "explain": "Say why: an array, a line of the spec, a mesh axis, a finding, a field.",
    "check": "Report everything that is wrong, on all targets.",
    "fmt": "Format specs, or turn YAML into the DSL and back.",
    "lock": "Write what every device holds, for git; --check compares.",
    "diff": "Show what moved between two specs, locks or revisions.",
    "manifest": "List the arrays of a checkpoint, for git.",
    "import": "Make a spec of the rules of another tool, with the proof.",
    "export": "Write the rules or the plan of a spec for another tool.",
    "mesh": "Show which devices each mesh axis runs over.",
    "report": "Write a page to look at in a browser: all of it, and why.",
    "init": "Write a first spec for the arrays of a model, to begin with.",
    "example": "Copy an example, to begin with.",
    "schema": "Print the JSON Schema of the YAML format.",
    "lsp": "Answer an editor: findings as you type, hover, completion, rename.",
}

#: Verbs that are words of Python, which no module can be called.
_MODULES = {"import": "import_verb"}


class _Verbs(click.Group):
    """A group that imports a verb when it is asked for, and says what failed as a finding does."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one verb."""
        if cmd_name not in VERBS:
            return None
        module = import_module(f"shardspec.cli.{_MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = module.command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; where there are none, show what there could be."""
        if not args and not ctx.resilient_parsing:
            from shardspec.cli.streams import FAILED, echo

            echo(ctx.get_help(), err=True)
            ctx.exit(FAILED)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb, or fail with the nearest one."""
        is_asked = not ctx.resilient_parsing  # not by a shell that completes a line
        if is_asked and args and args[0] not in VERBS and not args[0].startswith("-"):
            from shardspec.cli.streams import fail
            from shardspec.diagnostics.words import did_you_mean

            help = did_you_mean(args[0], VERBS) or f"verbs: {', '.join(VERBS)}"
            fail(f"no verb is called `{args[0]}`", help)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs without importing them, and the exit codes of all."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))
        write_exits(formatter)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a verb and exit; Ctrl-C ends it with 130."""
        from shardspec.cli.streams import FAILED, show_failure

        extra["standalone_mode"] = False
        try:
            exit_code = super().main(*args, **extra)
        except click.exceptions.Abort:
            exit_code = 130
        except click.ClickException as failure:
            show_failure(failure)
            exit_code = FAILED
        sys.exit(exit_code if isinstance(exit_code, int) else 0)


@click.group(
    cls=_Verbs,
    context_settings=HELP,
    params=[version_option()],
    no_args_is_help=False,
)
def cli() -> None:
    """Compile sharding specs for JAX: rules in, NamedShardings and reasons out."""


def main() -> None:
    """Run the command line, `| head` behind it or not."""
    # A plugin of pydantic is for the models of a program: to look for one costs milliseconds.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from shardspec.cli.streams import FAILED, Failure, give_up, settle_streams, show_failure

    if "_SHARDSPEC_COMPLETE" in os.environ:
        from shardspec.cli.shells import register

        register()
    settle_streams()
    exit_code: Any = FAILED
    try:
        if sys.stdout is None:
            raise OSError(0, "standard output is closed")
        try:
            cli.main(prog_name="shardspec")
        except SystemExit as end:
            exit_code = end.code
        sys.stdout.flush()
    except OSError as error:
        give_up()
        message = f"cannot write: {error.strerror or error}"
        show_failure(Failure(message, "make room, or name another place with -o FILE"))
        exit_code = FAILED
    sys.exit(exit_code)


if __name__ == "__main__":
    main()

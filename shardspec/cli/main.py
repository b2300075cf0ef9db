"""`shardspec`: the verbs, each loaded when it is called."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from typing import Any

import click

from shardspec import __version__

#: Verb -> what it is for, in the order of `--help`. The module has the verb's name.
VERBS = {
    "compile": "Resolve every array on one target and print the table.",
    "explain": "Say why: an array, a line of the spec, a mesh axis, a finding, a field.",
    "check": "Report everything that is wrong, on all targets.",
    "fmt": "Format a spec, or turn YAML into the DSL and back.",
    "lock": "Write what every device holds, for git; --check compares.",
    "diff": "Show what moved between two specs, locks or revisions.",
    "manifest": "List the arrays of a checkpoint, for git.",
    "import": "Make a spec of the rules of another tool, with the proof.",
    "export": "Write the rules or the plan of a spec for another tool.",
    "mesh": "Show which devices each mesh axis runs over.",
    "schema": "Print the JSON Schema of the YAML format.",
}

_MODULES = {
    "compile": "compile_verb",
    "import": "import_verb",
    "export": "export_verb",
    "fmt": "fmt",
    "mesh": "mesh",
}


class _Verbs(click.Group):
    """A group that imports a verb when it is asked for."""

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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb, or fail with the nearest one."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from shardspec.diagnostics.suggest import did_you_mean

            hint = did_you_mean(args[0], VERBS) or f"verbs: {', '.join(VERBS)}"
            raise click.UsageError(f"no verb is called `{args[0]}`; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs without importing them."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="shardspec %(version)s")
def cli() -> None:
    """Compile sharding specs for JAX: rules in, NamedShardings and reasons out."""


def _show(error: click.ClickException) -> None:
    """Print an error as click does; what an argument or a file name holds cannot steer it."""
    from shardspec.cli.streams import echo

    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None:
        echo(context.get_usage(), err=True)
        if context.command.get_help_option(context) is not None:
            option = context.help_option_names[-1]
            echo(f"Try '{context.command_path} {option}' for help.\n", err=True)
    echo(f"Error: {error.format_message()}", err=True)


def _remark(text: str) -> None:
    from shardspec.cli.streams import echo

    echo(text, err=True)


def main() -> None:
    """Run the command line. Ctrl-C ends it with 130; a pipe that is read no further, as ever."""
    gc.disable()  # short-lived: collecting while modules load costs a tenth of the start-up
    from shardspec.cli.streams import give_up, settle_streams

    settle_streams()
    if sys.stdout is None:
        _remark("Error: cannot write: standard output is closed")
        sys.exit(2)
    try:
        exit_code = _run()
        sys.stdout.flush()
    except OSError as error:
        give_up()
        _remark(f"Error: cannot write: {error.strerror or error}")
        exit_code = 2
    sys.exit(exit_code)


def _run() -> int:
    """Run the verb that is asked for, and return the exit code."""
    try:
        exit_code: Any = cli.main(standalone_mode=False, prog_name="shardspec")
    except SystemExit as end:
        exit_code = end.code
    except click.exceptions.Abort:
        exit_code = 130
    except click.ClickException as error:
        _show(error)
        exit_code = 2
    return exit_code if isinstance(exit_code, int) else 0


if __name__ == "__main__":
    main()

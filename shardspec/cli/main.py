"""`shardspec`: the verbs, each loaded when it is called."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import click

from shardspec.assets import DOCS
from shardspec.cli.options import HELP, undo_option, version_option, write_exits
from shardspec.cli.streams import FAILED, Failure, echo, fail, give_up, settle_streams, show_failure

#: Verb -> what it is for, in the order of `--help`. The module has the verb's name.
VERBS = {
    "compile": "Resolve every array on one target and print the table.",
    "cost": "Show what a device holds, and what a step sends and how long it takes.",
    "search": "Rank meshes by step time, or find the constraints that your code lacks.",
    "verify": "Compile a step with the real compiler, for machines that are not here.",
    "calibrate": "Measure how fast a chip is and write the figures to a file.",
    "explain": "Explain why an array is sharded the way it is, or what a name means.",
    "check": "Report every mistake in a spec, on all targets.",
    "fmt": "Format specs, or convert between YAML and the DSL.",
    "lock": "Write the layout of every device to a lock file; --check compares.",
    "diff": "Show what moved between two specs, locks or revisions.",
    "manifest": "List the arrays of a checkpoint.",
    "import": "Convert another tool's rules to a spec, and prove that they agree.",
    "export": "Convert a spec to another tool's rules.",
    "mesh": "Show which devices each mesh axis runs over.",
    "report": "Write one HTML page with the plan, the reasons and the costs.",
    "init": "Write a first spec for the arrays of a model.",
    "example": "Copy an example spec.",
    "schema": "Print the JSON Schema of the YAML format.",
    "lsp": "Run the language server for editors.",
}

#: The exit code after Ctrl-C, as a shell has it.
INTERRUPTED = 130
#: Commands about the verbs themselves, each with its summary.
HELPERS = {
    "help": "Show the help of a verb; --man prints the man page.",
    "completion": "Print the line that turns on completion in bash, zsh or fish.",
}

#: Verbs that are words of Python, which no module can be called.
_MODULES = {"import": "import_verb"}


class _Verbs(click.Group):
    """A group that imports a verb when it is asked for, and says what failed as a finding does."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs, then the commands about them."""
        return [*VERBS, *HELPERS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one verb."""
        if cmd_name in HELPERS:
            helper: click.Command = getattr(import_module("shardspec.cli.help"), cmd_name)
            return helper
        if cmd_name not in VERBS:
            return None
        module = import_module(f"shardspec.cli.{_MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = module.command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; where there are none, show what there could be."""
        if not args and not ctx.resilient_parsing:
            echo(ctx.get_help(), err=True)
            ctx.exit(FAILED)
        given = tuple(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as failure:
            self._point_behind(ctx, failure.option_name, given)
            raise

    def _point_behind(self, ctx: click.Context, option: str, given: tuple[str, ...]) -> None:
        """Fail with the place of an option of a verb that is given ahead of the verb."""
        verb = next((each for each in given if each in VERBS), "")
        command = self.get_command(ctx, verb)
        if command is not None and any(option in each.opts for each in command.params):
            help = f"`{option}` is an option of `{verb}`: `shardspec {verb} {option}`"
            fail(f"`shardspec` has no option `{option}`", help)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb, or fail with the nearest one."""
        is_asked = not ctx.resilient_parsing  # not by a shell that completes a line
        if is_asked and args and args[0] not in (*VERBS, *HELPERS) and not args[0].startswith("-"):
            from shardspec.diagnostics.words import near_or_known

            help = near_or_known(
                args[0], (*VERBS, *HELPERS), "verbs", "`shardspec --help` lists all"
            )
            fail(f"no verb is called `{args[0]}`", help)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs without importing them, and the exit codes of all."""
        with formatter.section("Verbs"):
            formatter.write_dl(list((VERBS | HELPERS).items()))
        write_exits(formatter)
        formatter.write(f"\nStart with `shardspec example tiny-t5`, or read {DOCS}tutorial.md.\n")

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a verb and exit; Ctrl-C ends it with `INTERRUPTED`."""
        extra["standalone_mode"] = False
        try:
            exit_code = super().main(*args, **extra)
        except click.exceptions.Abort:
            exit_code = INTERRUPTED
        except click.ClickException as failure:
            show_failure(failure)
            exit_code = FAILED
        sys.exit(exit_code if isinstance(exit_code, int) else 0)


@click.group(
    cls=_Verbs,
    context_settings=HELP,
    params=[version_option(), undo_option()],
    no_args_is_help=False,
)
def cli() -> None:
    """Compile sharding specs for JAX: rules in, NamedShardings and reasons out."""


def main(began: float | None = None) -> None:
    """Run the command line, `| head` behind it or not.

    Args:
      began: when the process did, by `time.monotonic`.
    """
    # A plugin of pydantic is for the models of a program: to look for one costs milliseconds.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if "_SHARDSPEC_COMPLETE" in os.environ:
        from shardspec.cli.shells import register

        register()
    settle_streams()
    exit_code: Any = FAILED
    try:
        if sys.stdout is None:
            raise OSError(0, "standard output is closed")
        try:
            cli.main(prog_name="shardspec", obj=began)
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

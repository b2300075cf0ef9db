"""Every option that verbs share, said once; `verb` makes a verb of those that it names.

What is shared reaches the verb as one `Request`; what is its own comes as keywords. Some options
are everywhere: `--color`, `-q`, `-V`, and exit codes in `--help`. Old spellings are read for one
version, with a remark that says the new one.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import click

from shardspec.assets import DOCS
from shardspec.cli import completion
from shardspec.cli.streams import DRY_RUN, STDOUT, Failure, echo, fail, show, waiting, write_file

EXITS = (
    ("0", "fine, or the same"),
    ("1", "findings, or different"),
    ("2", "usage error, unreadable input or missing extra"),
)

#: How help is asked for.
HELP = {"help_option_names": ["-h", "--help"]}

#: Old spelling -> new one. They go with the next minor version.
RENAMED = {"--params": "--arrays", "--output-format": "--format"}

_RENAMED_USED = "shardspec.renamed"
_JSON = "--json"


class Verb(click.Command):
    """A verb: its help ends with an example, its page and the exit codes; old spellings are read.

    Attributes:
      example: a command line that works as typed, in a folder with the files that it names.
      page: the page of the documentation, below `DOCS`.
    """

    example = ""
    page = ""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes, what the verb adds, the example and the page."""
        write_exits(formatter)
        super().format_epilog(ctx, formatter)
        formatter.write(f"\nExample:\n  $ {self.example}\n")
        formatter.write(f"\nDocumentation: {DOCS}{self.page}\n")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments, old spellings as new ones."""
        taken = {name for param in self.params for name in param.opts}
        new = list(_in_new_words(args, taken))
        ctx.meta[_RENAMED_USED] = dict.fromkeys(
            (old.partition("=")[0], now.partition("=")[0])
            for old, now in zip(args, new, strict=True)
            if old not in (now, _JSON)
        )
        try:
            return super().parse_args(ctx, new)
        except click.UsageError as failure:
            failure.ctx = failure.ctx or ctx
            raise


def write_exits(formatter: click.HelpFormatter) -> None:
    """Write what the exit codes mean, as every `--help` does."""
    with formatter.section("Exit codes"):
        formatter.write_dl(EXITS)


def _in_new_words(args: Sequence[str], taken: Iterable[str]) -> Iterator[str]:
    """Yield the arguments with new spellings for old ones, up to a `--`.

    Where a verb chooses arrays by `--only`, a `--select` that names no finding is the old word.
    """
    for at, arg in enumerate(args):
        if arg == "--":
            yield from args[at:]
            return
        flag, equals, value = arg.partition("=")
        if arg == _JSON and _JSON in taken:
            yield "--format=json"
            continue
        new = RENAMED.get(flag, flag)
        if flag == "--select" and "--only" in taken:
            following = value if equals else " ".join(args[at + 1 : at + 2])
            new = flag if _names_findings(following) else "--only"
        yield f"{new}{equals}{value}" if new in taken else arg


def verb(
    name: str,
    *options: click.Parameter,
    example: str,
    page: str,
    epilog: str | None = None,
    has_request: bool = True,
) -> Callable[[Callable[..., None]], Verb]:
    """Return a decorator that makes a verb of a function.

    The function gets a `Request` with all that is shared, and its own options as keywords. Its
    docstring is the help.

    Args:
      example: as in `Verb`.
      page: as in `Verb`.
      has_request: False for a verb that has to be there before what reads specs is loaded.
    """

    def decorated(function: Callable[..., None]) -> Verb:
        def run(**values: Any) -> None:
            if not has_request:
                return function(**{each.name: values[each.name] for each in options if each.name})
            began = click.get_current_context().obj
            with waiting(f"shardspec {name}", is_quiet=values["is_quiet"], began=began):
                from shardspec.cli.request import request_of
                from shardspec.language.files import forget_what_was_read

                forget_what_was_read()
                request, own = request_of(values)
                context = click.get_current_context()
                for old, new in context.meta.get(_RENAMED_USED, ()):
                    request.remark(f"`{old}` is now `{new}`; 0.3 removes the old spelling")
                return function(request, **own)

        made = Verb(
            name,
            callback=run,
            params=[*options, *_json_option(options), *EVERYWHERE],
            help=inspect.cleandoc(function.__doc__ or ""),
            epilog=epilog,
            context_settings=HELP,
        )
        made.example, made.page = example, page
        return made

    return decorated


def option(*declared: str, **how: Any) -> click.Option:
    """Return an option of one verb."""
    return click.Option(declared, **how)


def repeated(*declared: str, **how: Any) -> click.Option:
    """Return an option that may be given several times."""
    return option(*declared, multiple=True, **how)


class _FormatName(click.Choice[str]):
    """The name of another tool's format, in any capitals, or a part that no other name has."""

    def __init__(self, titles: dict[str, str]) -> None:
        """Keep what each format is for, by name."""
        super().__init__(tuple(titles))
        self.titles = titles

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name in full, or fail with the nearest one."""
        asked = value.lower()
        found = [name for name in self.titles if asked == name or asked in name.split("-")]
        if len(found) == 1:
            return found[0]
        near = self._meant(asked)
        message = f"no format is called `{value}`"
        known = f"formats: {', '.join(self.titles)}"
        help = f"did you mean `{near}`?" if near else known
        if os.path.exists(value):
            line = f"{ctx.command_path if ctx else ''} {near or 'FORMAT'} {value}".strip()
            message, help = f"no format is given before `{value}`", f"write `{line}`; {known}"
        raise Failure(message, help)

    def _meant(self, asked: str) -> str | None:
        """Return the format with a similar name, or the only one for files or a tool called so."""
        from shardspec.diagnostics.words import nearest

        letters = re.sub(r"[\W_]", "", asked.rpartition(".")[2])
        spelt = re.compile(r"\b" + r"\W*".join(letters), re.IGNORECASE)
        found = [each for each, title in self.titles.items() if letters and spelt.search(title)]
        return next(iter(nearest(asked, self.titles)), found[0] if len(found) == 1 else None)


def format_argument(titles: dict[str, str]) -> click.Argument:
    """Return the argument `FORMAT`, one of these names; what each is for ends `--help`."""
    return click.Argument(["tool"], metavar="FORMAT", type=_FormatName(titles))


def format_page(titles: dict[str, str]) -> str:
    """Return the list of formats that ends the help of a verb."""
    return "\b\nFormats:\n" + "\n".join(f"  {n:<12} {title}" for n, title in titles.items())


def file_option(*declared: str, **how: Any) -> click.Option:
    """Return an option that takes a file, which shells complete."""
    metavar = how.pop("metavar", "FILE")
    return click.Option(declared, metavar=metavar, shell_complete=completion.files, **how)


def flag(name: str, help: str) -> click.Option:
    """Return an option without a value."""
    return click.Option([name], is_flag=True, help=help)


def seconds_option(name: str, default: float, help: str, least: float = 0) -> click.Option:
    """Return an option that is a number of seconds, `wait_s` of `--wait`."""
    how = {"type": click.FloatRange(min=least, max=86400), "metavar": "SECONDS"}
    return option(name, f"{name[2:]}_s", default=default, show_default=True, help=help, **how)


def count_option(name: str, help: str, least: int = 0, **how: Any) -> click.Option:
    """Return an option that is a number of things."""
    return option(name, type=click.IntRange(min=least), metavar="N", help=help, **how)


def top(help: str) -> click.Option:
    """Return `--top`: how many rows are shown."""
    return count_option("--top", help, 1, default=10, show_default=True)


def choice_option(*declared: str, of: Sequence[str], help: str, **how: Any) -> click.Option:
    """Return an option that is one of some words, the first of them where it is left out."""
    how |= {"type": click.Choice(of), "default": of[0], "show_default": True}
    return option(*declared, help=help, **how)


def format_option(*formats: str) -> click.Option:
    """Return `--format`, the first of `formats` being the default."""
    return choice_option("--format", "form", of=formats, help="What is printed.")


def _json_option(options: Iterable[click.Parameter]) -> tuple[click.Option, ...]:
    """Return `--json` for a verb that has `--format json`, which `_in_new_words` makes of it."""
    forms = (each.type for each in options if each.name == "form")
    if not any(isinstance(each, click.Choice) and "json" in each.choices for each in forms):
        return ()
    help = "The same as `--format json`."
    return (click.Option([_JSON], is_flag=True, expose_value=False, help=help),)


def print_version(ctx: click.Context, param: click.Parameter, is_asked: bool) -> None:
    """Print the version and the compilers that `verify` would use, and end."""
    if is_asked and not ctx.resilient_parsing:
        from shardspec import __version__
        from shardspec.jax_backend.xla.compiling import compiler_lines

        show((f"shardspec {__version__}", *compiler_lines()))
        ctx.exit()


def version_option() -> click.Option:
    """Return `-V`, which the verbs and `shardspec` itself have."""
    return click.Option(
        ["-V", "--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=print_version,
        help="Show the version and the compilers found, and exit.",
    )


def _undo(ctx: click.Context, param: click.Parameter, name: str | None) -> None:
    """Put back what a file held before a verb wrote over it, and end."""
    if name is None or ctx.resilient_parsing:
        return
    from shardspec.cli.streams import replaced

    old = replaced(os.path.realpath(name))
    if old is None:
        why = "shardspec has not replaced its text, or it has changed since"
        fail(f"nothing to undo in `{name}`: {why}", "git or your editor may have an older text")
    write_file(name, old, is_forced=True)
    done = "restored the text before the last write; --undo again brings the newer one back"
    echo(f"{name}: {done}", err=True)
    ctx.exit()


def undo_option() -> click.Option:
    """Return `--undo`, of `shardspec` itself."""
    return click.Option(
        ["--undo"],
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_undo,
        shell_complete=completion.files,
        help="Restore the text that shardspec last replaced in FILE, and exit.",
    )


def _settings(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    settings = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key or not text:
            fail(f"--set `{value}` is not KEY=VALUE", "as in `--set mesh.model=8`")
        settings[key.strip()] = text.strip()
    return settings


def _finding_names(values: Iterable[str]) -> tuple[str, ...]:
    """Return ids and names of findings as they are spelt in the code."""
    given = (name.strip() for value in values for name in value.split(",") if name.strip())
    return tuple(
        name.upper() if name[:3].lower() == "shd" else name.lower().replace("_", "-")
        for name in given
    )


def _names_findings(value: str) -> bool:
    """Say whether a value is of findings, known or not, and not of arrays."""
    from shardspec.diagnostics.codes import known

    names = _finding_names([value])
    return any(known(name) or re.fullmatch(r"SHD\d*", name) for name in names)


def _findings(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    names = _finding_names(values)
    for name in names:
        from shardspec.diagnostics.codes import MEND_IT, fault_named, known

        if not known(name):
            from shardspec.diagnostics import codes
            from shardspec.diagnostics.words import did_you_mean

            near = did_you_mean(name, [code.name for code in codes.ALL])
            all_of_them = "`shardspec explain --list` shows them all"
            fail(f"{param.opts[0]}: no finding is called `{name}`", near or all_of_them)
        if param.name == "ignore" and (fault := fault_named(name)):
            fail(f"{param.opts[0]}: {fault}", MEND_IT)
    return names


def _file_name(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    if name == "":
        fail("-o names no file", "write the name of a file, or `-` for stdout")
    return "-" if name in STDOUT else name


NAMED = file_option("--spec", "spec_name", help="The spec; found when left out.")

#: One spec: by name, or the one in a folder.
ONE_SPEC = (
    click.Argument(
        ["named"],
        required=False,
        metavar="[SPEC|FOLDER]",
        shell_complete=completion.files,
        callback=lambda ctx, param, value: (value,) if value else (),
    ),
    NAMED,
)
#: Any number of specs: by name, and all in folders.
SPECS = (
    click.Argument(
        ["named"], nargs=-1, metavar="[SPEC|FOLDER]...", shell_complete=completion.files
    ),
    NAMED,
)

TARGET = option(
    "-t",
    "--target",
    metavar="NAME",
    shell_complete=completion.targets,
    help="A target of the spec.",
)
PHASE = option(
    "--phase",
    metavar="NAME",
    shell_complete=completion.phases,
    help="A phase of the spec, such as `decode`, in place of the spec itself.",
)
#: One spec, on one of its targets and in one of its phases.
ONE_PLAN = (*ONE_SPEC, TARGET, PHASE)
#: For verbs that take one target after the other.
TARGETS = repeated(
    "-t",
    "--target",
    "target_names",
    metavar="NAME",
    shell_complete=completion.targets,
    help="A target of the spec; repeat it for several.",
)
ARRAYS = file_option(
    "--arrays",
    help="Arrays in place of the spec's own: a manifest, a checkpoint, `package.module:function`.",
)
ONLY = option(
    "--only",
    metavar="GLOB",
    shell_complete=completion.paths,
    help="Only arrays whose path matches.",
)
SET = repeated(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    callback=_settings,
    help="A what-if: `--set mesh.model=8`.",
)
#: What counts in place of what the spec says, for one run.
GIVEN = (ARRAYS, SET)
COST = file_option(
    "--cost",
    help="Say what it costs, too, by what `cost -o FILE` saved; else by `[tool.shardspec] cost`.",
)
FORCE = click.Option(
    ["--force", "is_forced"], is_flag=True, help="Overwrite an input file or a spec."
)


def _note_dry_run(ctx: click.Context, param: click.Parameter, is_given: bool) -> None:
    if is_given:
        ctx.meta[DRY_RUN] = True


#: For verbs that write files.
WRITES = (
    FORCE,
    click.Option(
        ["--dry-run"],
        is_flag=True,
        expose_value=False,
        callback=_note_dry_run,
        help="Write nothing; show what would change as a diff.",
    ),
)
OUTPUT = (
    file_option("-o", "--output", callback=_file_name, help="The file to write; `-` is stdout."),
    *WRITES,
)
FINDINGS = tuple(
    repeated(
        flag,
        metavar="FINDINGS",
        callback=_findings,
        shell_complete=completion.findings,
        help=help,
    )
    for flag, help in (
        ("--select", "Findings to show, and no others: `SHD3`, `indivisible`."),
        ("--ignore", "Findings not to show."),
    )
)
EVERYWHERE = (
    choice_option(
        "--color",
        of=("auto", "always", "never"),
        help="Colour; NO_COLOR turns it off, FORCE_COLOR on.",
    ),
    click.Option(
        ["-q", "--quiet", "is_quiet"],
        is_flag=True,
        help="Say nothing on stderr but findings and errors.",
    ),
    version_option(),
)

"""Pages of the site that the program itself says: verbs, keys, presets, machines, findings, Python.

Each is read off what the command line reads, so nothing here can be older than the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

import shardspec
from docs.site import findings
from shardspec import assets
from shardspec.cli.main import VERBS, cli
from shardspec.cli.options import EXITS
from shardspec.diagnostics import Code
from shardspec.diagnostics.codes import ALL
from shardspec.language import catalogue, document
from shardspec.language.loader import bundled_doc
from shardspec.report import pages as shipped

#: Path below the root of the site -> Markdown.
Pages = dict[str, str]

#: Public names of Python by what they are for: page -> title and names.
PYTHON = {
    "load": (
        "Load and compile",
        "load loads Spec Plan Param Target Mesh PartitionSpec ParamSharding DimSharding Attempt "
        "Alike ActivationSharding StateSharding Drawing",
    ),
    "resolver": (
        "In JAX code",
        "Resolver constrain Batch DataLayout Accumulation Moved LockWarning",
    ),
    "findings": ("What is wrong", "ShardspecError Diagnostic Severity Label Span"),
    "cost": (
        "Memory and cost",
        "Cost Memory Figure Held StepMemory Amount Interval StepTime AxisTime Scale "
        "TrafficRow Asker Calibration Curve",
    ),
    "step": (
        "A traced step",
        "Step StepArgument StepArray StepTensor StepOp Collective CollectiveKind Carried Cause "
        "Place Unknown",
    ),
    "search": ("Search", "Search SearchRow"),
    "proof": ("Proof by a compiler", "Proof AxisProof CompiledMemory HeldValue"),
    "numbers": ("Same numbers", "Numbers OutputDifference FirstDifference"),
}


def reference_pages(guides: Pages) -> Pages:
    """Return all pages of the reference.

    Args:
      guides: pages that are written by hand, to say where a verb is used.
    """
    return (
        verb_pages(guides)
        | finding_pages()
        | preset_pages()
        | hardware_pages()
        | python_pages()
        | {"keys.md": keys_page(), "grammar.md": grammar_page()}
    )


def title_of(text: str) -> str:
    """Return the heading of a page."""
    return next(line[2:] for line in text.splitlines() if line.startswith("# "))


def cell(text: str) -> str:
    """Return text as a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def fenced(text: str, language: str = "text") -> str:
    """Return text in a block of its own."""
    return f"```{language}\n{text.strip(chr(10))}\n```\n"


# verbs


def verbs() -> dict[str, click.Command]:
    """Return every verb of the command line, in the order of `--help`."""
    with click.Context(cli, **cli.context_settings) as context:
        found = {name: cli.get_command(context, name) for name in VERBS}
    return {name: command for name, command in found.items() if command is not None}


def verb_pages(guides: Pages) -> Pages:
    """Return a page for each verb, and one that lists them."""
    rows = [f"| [`{name}`]({name}.md) | {cell(says)} |" for name, says in VERBS.items()]
    index = [
        "# Verbs",
        "`shardspec VERB` does one thing. What verbs have in common says "
        "[the command line](../command-line.md).",
        "\n".join(["| verb | what |", "|---|---|", *rows]),
        _exits(),
    ]
    pages = {"verbs/index.md": "\n\n".join(index)}
    for name, command in verbs().items():
        users = [path for path, text in guides.items() if f"$ shardspec {name} " in text]
        pages[f"verbs/{name}.md"] = "\n\n".join(_verb_parts(name, command, guides, users))
    return pages


def _verb_parts(
    name: str, command: click.Command, guides: Pages, users: list[str]
) -> Iterator[str]:
    with click.Context(
        command, info_name=f"shardspec {name}", **command.context_settings
    ) as context:
        yield f"# shardspec {name}"
        yield (command.help or "").replace("\b", "").strip()
        yield fenced(context.get_usage().removeprefix("Usage: "))
        options = (each for each in command.params if isinstance(each, click.Option))
        records = (each.get_help_record(context) for each in options)
        rows = [f"| {_declared(said)} | {cell(help)} |" for said, help in filter(None, records)]
        yield "\n".join(["## Options\n", "| option | what |", "|---|---|", *rows])
        if command.epilog:
            title, _, rest = command.epilog.replace("\b", "").strip().partition("\n")
            yield f"## {title.strip(': ')}\n\n{fenced(rest)}"
    yield _exits()
    if users:
        shown = ", ".join(f"[{title_of(guides[path])}](../{path})" for path in users)
        yield f"## Where it is shown\n\n{shown}."


def _declared(said: str) -> str:
    """Return `-t, --target NAME` as code that may break between the spellings."""
    return ", ".join(f"`{cell(each)}`" for each in said.split(", "))


def _exits() -> str:
    rows = [f"| {code} | {cell(says)} |" for code, says in EXITS]
    return "\n".join(["## Exit codes\n", "| code | what |", "|---|---|", *rows])


# findings


def finding_path(code: Code) -> str:
    """Return where the page of a finding stands."""
    return f"findings/{code.id}.md"


def finding_pages() -> Pages:
    """Return a page for each finding, and one that lists them by family."""
    lines = [findings.introduction().replace("; `make docs` writes this file anew", "")]
    for digit, family in findings.FAMILIES.items():
        lines += [f"\n## {family}\n"]
        lines += findings.table_lines(in_family(digit), lambda code: f"{code.id}.md")
    pages = {"findings/index.md": "\n".join(lines)}
    for code in ALL:
        parts = [f"# {code.id} {code.name}\n", *findings.section_lines(code)]
        pages[finding_path(code)] = "\n".join(parts)
    return pages


def in_family(digit: str) -> list[Code]:
    """Return the findings whose codes begin alike."""
    return [code for code in ALL if code.id[3] == digit]


# what comes along


def preset_pages() -> Pages:
    """Return each preset as it stands, comments and all, and a list."""
    names = assets.spec_names("presets")
    rows = [f"| [{name}]({name}.md) | {cell(bundled_doc('presets', name))} |" for name in names]
    index = [
        "# Presets",
        "Rule sets that a spec may `extends:`; [how they are used](../presets.md).",
        "\n".join(["| preset | what it is for |", "|---|---|", *rows]),
    ]
    pages = {"presets/index.md": "\n\n".join(index)}
    for name in names:
        _, _, *lines = shipped.file_page("preset", name)
        said = f"# {name}\n\n{bundled_doc('presets', name)}.\n\n`extends: {name}`\n\n"
        pages[f"presets/{name}.md"] = said + fenced("\n".join(lines), "yaml")
    return pages


def chips() -> dict[str, str]:
    """Return the name of every chip of the catalogue, with its file."""
    files = dict.fromkeys(catalogue.hardware_names().values())
    return {catalogue.catalogue_entry(file).names[0]: file for file in files}


def hardware_pages() -> Pages:
    """Return each chip of the catalogue, figures with their sources, and a list."""
    rows = []
    pages: Pages = {"hardware/index.md": ""}
    for name, file in chips().items():
        _, says = shipped.machine_cells(file)
        rows.append(f"| [{name}]({name}.md) | {cell(says)} |")
        pages[f"hardware/{name}.md"] = "\n\n".join(_chip_parts(name, file))
    index = [
        "# Hardware",
        "What `hardware:` of a target may name, and every figure with its source. How machines are "
        "written stands in [the language](../language.md#targets-and-meshes); how fast yours is, "
        "[`calibrate`](../calibrate.md) finds out.",
        "\n".join(["| chip | what |", "|---|---|", *rows]),
    ]
    return {**pages, "hardware/index.md": "\n\n".join(index)}


def _chip_parts(name: str, file: str) -> Iterator[str]:
    entry, data = catalogue.catalogue_entry(file), catalogue.catalogue_data(file)
    yield f"# {name}\n\n{entry.chip.title}."
    rows = (f"| {cell(key)} | {cell(says)} |" for key, says in shipped.name_rows(entry, data))
    yield "\n".join(["## Names and shapes\n", "| who | says |", "|---|---|", *rows])
    figures = shipped.figure_rows(data["figures"])
    cells = (f"| `{key}` | {cell(value)} | {cell(source)} |" for key, value, source in figures)
    yield "\n".join(["## Figures\n", "| figure | value | source |", "|---|---|---|", *cells])
    path = assets.spec_path("hardware", file)
    assert path is not None
    yield f"## The file\n\n{fenced(path.read_text(encoding='utf-8'), 'yaml')}"


# Python


def python_pages() -> Pages:
    """Return the reference of every public name, by what it is for; docstrings are filled in later.

    Raises:
      ValueError: a public name stands on no page, or one that is none does.
    """
    placed = [name for _, names in PYTHON.values() for name in names.split()]
    wrong = set(placed) ^ set(shardspec.__all__)
    if wrong or len(placed) != len(set(placed)):
        raise ValueError(f"PYTHON of {__file__} and shardspec.__all__ differ by {sorted(wrong)}")
    index = ["# Python", "`import shardspec` loads neither jax nor numpy; `Resolver` loads jax."]
    pages: Pages = {"python/index.md": ""}
    for page, (title, names) in PYTHON.items():
        links = ", ".join(f"[{name}]({page}.md#shardspec.{name})" for name in names.split())
        index.append(f"**[{title}]({page}.md)**: {links}")
        parts = [f"# {title}", *(f"::: shardspec.{name}" for name in names.split())]
        pages[f"python/{page}.md"] = "\n\n".join(parts)
    return {**pages, "python/index.md": "\n\n".join(index)}


# the language


def keys_page() -> str:
    """Return every key of a spec with its description, as `explain FIELD` prints it."""
    lines = [
        "# Keys",
        "Every key that a spec may have, as `shardspec explain KEY` says it; "
        "[the language](language.md) tells how they work together, `shardspec schema` prints them "
        "for editors.",
    ]
    for key, field in document.Document.model_fields.items():
        lines.append(f"## {key}\n\n{field.description}")
        if key in document.ENTRIES:
            members = document.ENTRIES[key].model_fields.items()
            rows = (f"| `{name}` | {cell(member.description or '')} |" for name, member in members)
            lines.append("\n".join(["| key | what |", "|---|---|", *rows]))
    return "\n\n".join(lines)


def grammar_page() -> str:
    """Return every grammar of the language as it stands, the file first."""
    folder = assets.grammar_path("document").parent
    lines = [
        "# Grammar",
        "The DSL and the expressions that strings of YAML hold, as the parsers are made of them, "
        "in the notation of Lark.",
    ]
    names = sorted(
        (path.stem for path in folder.glob("*.lark")), key=lambda name: name != "document"
    )
    for name in names:
        text = Path(folder, f"{name}.lark").read_text(encoding="utf-8")
        said = [line.removeprefix("//").strip() for line in text.split("\n\n")[0].splitlines()]
        lines.append(f"## {name}\n\n{' '.join(filter(None, said))}\n\n{fenced(text)}")
    return "\n\n".join(lines)

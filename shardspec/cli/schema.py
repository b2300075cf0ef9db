"""`shardspec schema`: what editors need to complete and check a spec, and which versions count."""

from __future__ import annotations

from shardspec import assets
from shardspec.cli import options
from shardspec.cli.request import Request
from shardspec.cli.streams import show
from shardspec.versions import version_lines

_OUTPUTS = ("cost", "search", "cure")


@options.verb(
    "schema",
    *options.OUTPUT,
    options.choice_option(
        "--of",
        of=("spec", *_OUTPUTS),
        help="What the schema is of: a spec, or the JSON of `cost`, `search`, or `search` over code"
        " (`cure`).",
    ),
    options.flag("--versions", "Show the versions of language, lock and JSON instead."),
    example="shardspec schema -o shardspec.schema.json",
    page="editors.md",
)
def command(request: Request, *, of: str, versions: bool) -> None:
    """Print the JSON Schema (draft-07) of the YAML format, or of the JSON of a verb.

    In an editor with yaml-language-server, put this at the top of a spec:

    # yaml-language-server: $schema=shardspec.schema.json
    """
    if versions:
        show(version_lines())
        return
    if of in _OUTPUTS:
        request.write(assets.schema_path(of).read_text("utf-8"))
        return
    from shardspec.language.schema import schema_text

    request.write(schema_text())

"""`shardspec schema`: what editors need to complete and check a spec, and which versions count."""

from __future__ import annotations

from shardspec.cli import options
from shardspec.cli.request import Request
from shardspec.cli.streams import show


@options.verb(
    "schema",
    options.OUTPUT,
    options.flag("--versions", "Show the versions of language, lock and JSON instead."),
)
def command(request: Request, *, versions: bool) -> None:
    """Print the JSON Schema (draft-07) of the YAML format.

    In an editor with yaml-language-server, put this at the top of a spec:

    # yaml-language-server: $schema=shardspec.schema.json
    """
    if versions:
        from shardspec.versions import version_lines

        show(version_lines())
        return
    from shardspec.language.document import schema_text

    request.write(schema_text())

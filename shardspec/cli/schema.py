"""`shardspec schema`: what editors need to complete and check a spec."""

from __future__ import annotations

import click

from shardspec.cli.session import write_file


@click.command("schema")
@click.option("-o", "--output", metavar="FILE", default="-", help="Where to write it.")
def command(output: str) -> None:
    """Print the JSON Schema (draft-07) of the YAML format.

    In an editor with yaml-language-server, put this at the top of a spec:

    # yaml-language-server: $schema=shardspec.schema.json
    """
    from shardspec.frontend.schema import schema_text

    write_file(output, schema_text())

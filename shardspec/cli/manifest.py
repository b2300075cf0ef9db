"""`shardspec manifest`: the arrays of a checkpoint as a small file to keep in git."""

from __future__ import annotations

import os

import click

from shardspec.cli import options
from shardspec.cli.session import arrays_or_exit, fail, write_file


@click.command("manifest")
@click.argument("checkpoint")
@options.format_option("yaml", "json")
@click.option("-o", "--output", metavar="FILE", default="-", help="Where to write it.")
def command(checkpoint: str, output_format: str, output: str) -> None:
    """List the arrays of a checkpoint as a manifest: names, shapes, dtypes.

    CHECKPOINT is a safetensors file or index, an Orbax checkpoint, Flax msgpack, `.npz`, T5X's
    `model-info.txt`, a folder of these, another manifest, or `package.module:function`. No
    weights are read. A spec names the result by `manifest: ./arrays.yaml`.
    """
    from shardspec.report import manifest_text

    params = arrays_or_exit(checkpoint)
    odd = next((p.path for p in params if set(p.path) & set(manifest_text.UNWRITABLE)), None)
    if odd is not None:
        fail(f"`{odd}` has a brace, which is a range in a manifest")
    name = os.path.basename(os.path.abspath(checkpoint))
    write = manifest_text.manifest_json if output_format == "json" else manifest_text.manifest_yaml
    write_file(output, write(params, name))

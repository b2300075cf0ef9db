"""`shardspec manifest`: the arrays of a checkpoint as a small file to keep in git."""

from __future__ import annotations

import os

import click

from shardspec.arrays import listing
from shardspec.cli import completion, options
from shardspec.cli.request import Request, matching, unknown_path
from shardspec.cli.streams import fail


@options.verb(
    "manifest",
    click.Argument(["checkpoint"], shell_complete=completion.files),
    options.ONLY,
    options.format_option("yaml", "json"),
    *options.OUTPUT,
    example="shardspec manifest model.safetensors -o arrays.yaml",
    page="arrays.md",
)
def command(request: Request, *, checkpoint: str) -> None:
    """List the arrays of a checkpoint as a manifest: names, shapes, dtypes.

    CHECKPOINT is a safetensors file or index, an Orbax checkpoint, Flax msgpack, `.npz`, T5X's
    `model-info.txt`, a folder of these, another manifest, or `package.module:function`. No
    weights are read. A spec names the result by `manifest: ./arrays.yaml`.
    """
    params = request.read_arrays(checkpoint)
    if request.only is not None:
        paths = [param.path for param in params]
        kept = matching(request.only, paths) or unknown_path(request.only, paths)
        params = tuple(param for param in params if param.path in kept)
    odd = next((p.path for p in params if set(p.path) & set(listing.UNWRITABLE)), None)
    if odd is not None:
        others = "leave it out with --only, or rename the array"
        fail(f"`{odd}` has a brace, which is a range in a manifest", others)
    name = os.path.basename(os.path.abspath(checkpoint))
    is_json = request.form == "json"
    write = listing.manifest_json if is_json else listing.manifest_yaml
    request.write(write(params, name))

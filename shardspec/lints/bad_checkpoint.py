"""A checkpoint is damaged, or holds no arrays with names.

Names, shapes and dtypes are read from a file that another tool wrote: safetensors, Orbax, Flax
msgpack, `.npz`, T5X's `model-info.txt`. What breaks the rules of its own format is refused as a
whole, since the arrays that seem to be in it may be others: a download that stopped, an index
whose shard is missing, offsets that overlap, a header of gigabytes. Refused, too, is a file or
folder that holds nothing with a name and a shape; the message says what was looked for.

Bad:
    # model.safetensors is 1 GiB of a download of 16 GiB
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    manifest: ./model.safetensors
    rules:
      - mlp -> tensor

Good:
    # the arrays are listed until the download is whole
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import BAD_CHECKPOINT as CODE

__all__ = ["CODE"]

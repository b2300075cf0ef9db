"""Reading the arrays would run code from a file.

A pickle (PyTorch's `.pt` and `.bin`, numpy arrays of objects) is a program, and unpickling runs
it: no file is ever unpickled, not even to look. A function, `package.module:function`, has to be
imported and called. The command line may ask for that by name, `--params models.gpt:init`; a
spec may not, so that a spec from somewhere else can be checked without a thought.

Bad:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    manifest: models.gpt:init
    rules:
      - mlp -> tensor

Good:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import UNSAFE_MANIFEST as CODE

__all__ = ["CODE"]

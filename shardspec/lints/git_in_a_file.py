"""A file asks for a revision, which runs git.

`git:REV:PATH` is for the command line: `shardspec diff git:main spec.yaml`. Git obeys the
configuration of the folder it runs in, so that a spec that could start it could start whatever
a cloned repository says. To check a spec that came from somewhere else must stay safe. A spec
that was itself read by `git:` may name others so; what it extends by a relative name is read from
the same revision.

Bad:
    shardspec: 1
    extends: git:main:./base.yaml
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]

Good:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import GIT_IN_A_FILE as CODE

__all__ = ["CODE"]

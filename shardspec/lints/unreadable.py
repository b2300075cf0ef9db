"""A file cannot be read as text.

It is not there, is a folder, may not be read, or is not UTF-8. Nothing else can be said about
it, and the command ends with exit code 2. A wrong byte is shown with its offset and line; most
often the file was saved in another encoding, and `iconv` turns it into UTF-8.

Bad:
    # embed is the model's width, in Café style   (saved as Latin-1: the byte 0xe9)
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - embed -> tensor

Good:
    # embed is the model's width, in Café style   (saved as UTF-8)
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - embed -> tensor
"""

from __future__ import annotations

from shardspec.diagnostics.codes import UNREADABLE as CODE

__all__ = ["CODE"]

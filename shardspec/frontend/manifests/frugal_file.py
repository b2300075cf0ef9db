"""A file of which little is read: names and shapes cost kilobytes of a checkpoint of gigabytes.

The limit is not a matter of taste. Lengths in a damaged or hostile file say anything, and a
reader that believed them would fill the memory.
"""

from __future__ import annotations

import io
import os

from shardspec.frontend.files import open_regular

MIB = 2**20

#: What may be read of one file in all. The largest header that safetensors allows has 100 MB.
MOST_BYTES_READ = 128 * MIB


class DamageError(Exception):
    """A file ends too early or is not what it says; caught where a reader starts.

    Its only argument is the fact, for a message that has the file's name in front.
    """


class FrugalFile(io.FileIO):
    """A file open for reading that refuses more than `MOST_BYTES_READ`.

    Attributes:
      size: of the file, in bytes.
      bytes_read: so far.
    """

    def __init__(self, path: str) -> None:
        """Open the file at `path`."""
        super().__init__(path, "rb", opener=open_regular)
        self.size = os.fstat(self.fileno()).st_size
        self.bytes_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to `size` bytes from where the file stands."""
        wanted = self.size - self.tell() if size is None or size < 0 else size
        if self.bytes_read + wanted > MOST_BYTES_READ:
            limit = MOST_BYTES_READ // MIB
            raise DamageError(f"names and shapes alone would be more than {limit} MiB")
        data = super().read(wanted) or b""
        self.bytes_read += len(data)
        return data

    def exactly(self, size: int) -> bytes:
        """Return `size` bytes; a file that ends before them is damaged."""
        here = self.tell()
        if size > self.size - here:
            at = (
                f"byte {here:,}: {size:,} more are needed and {max(self.size - here, 0):,} are left"
            )
            raise DamageError(f"is cut off at {at}")
        return self.read(size)

"""The bytes of a file taken in order, in pieces of known length: the ground of readers that never seek.

A reader that only goes forward reads a packed file (`.tar.gz`, `.mds.zstd`) as it reads a plain one, and holds no more
than one record. What ends too early is a BadFile that says in which part.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from promptkit.readers.limits import CHUNK, plain_chunks
from promptkit.readers.records import BadFile, Limits


class Stream:
    """A cursor over pieces of bytes; `at` counts the bytes that were taken."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")
        self.at = 0

    @classmethod
    def of(cls, path: Path, limits: Limits) -> Stream:
        """Return the unpacked bytes of a file."""
        return cls(plain_chunks(path, limits))

    @classmethod
    def of_plain(cls, path: Path) -> Stream:
        """Return the bytes of a file as they are: ids may begin with the magic number of a packer."""

        def chunks() -> Iterator[bytes]:
            with open(path, "rb", buffering=0) as file:
                yield from iter(lambda: file.read(CHUNK), b"")

        return cls(chunks())

    def some(self, n: int) -> bytes:
        """Return the next `n` bytes, fewer only at the end."""
        if n <= len(self._rest):
            part, self._rest = self._rest[:n], self._rest[n:]
            self.at += n
            return bytes(part)
        out = bytearray(self._rest)
        self._rest = memoryview(b"")
        while len(out) < n and (piece := next(self._chunks, b"")):
            out += piece
        self._rest = memoryview(bytes(out[n:]))
        self.at += min(n, len(out))
        return bytes(out[:n])

    def take(self, n: int, what: str) -> bytes:
        """Return the next `n` bytes. Raises BadFile where the file ends before them."""
        data = self.some(n)
        if len(data) != n:
            raise BadFile(f"truncated: the file ends inside {what}")
        return data

    def skip(self, n: int, what: str) -> None:
        """Pass over `n` bytes. Raises BadFile where the file ends before them."""
        while n:
            step = min(n, 1 << 20)
            self.take(step, what)
            n -= step

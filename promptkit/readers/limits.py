"""Bytes of a file, unpacked if need be, in pieces of at most a few MiB.

gzip, zstd, xz and bzip2 are told by their first bytes, read member after member, and unpacked twice at most
(`.jsonl.gz.gz` happens). Three promises that the libraries' own file objects do not make:

- a cut stream is an error. `zstandard.stream_reader` ends silently at a cut, so frames are fed to a decompressor that
  knows whether it has seen the end of its frame;
- a bomb is refused while it is small: the bytes given out are held against the packed bytes taken in;
- what came before the damage has already been given out, so a line-based reader keeps its rows.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from promptkit.readers.records import BadFile, Limits
from promptkit.workers import beat

CHUNK = 1 << 20
# A zstd block of 4 bytes can stand for 128 KiB, and its decompressor takes no bound on what it gives back, so it is
# fed little at a time: 1 KiB in is at most 32 MiB out.
ZSTD_CHUNK = 1 << 10
# Below this no ratio is a danger, and small test files of equal rows pack extremely well.
HARMLESS = 16 << 20

MAGIC = {b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst", b"\xfd7zXZ\x00": "xz", b"BZh": "bz2"}


def packing(head: bytes) -> str | None:
    """Return "gz", "zst", "xz" or "bz2" when `head` begins like one, else None."""
    for magic, name in MAGIC.items():
        if head.startswith(magic):
            return name
    if head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5:  # a skippable zstd frame
        return "zst"
    return None


def plain_chunks(path: Path, limits: Limits, *, chunk: int = CHUNK) -> Iterator[bytes]:
    """Yield the unpacked bytes of a file. Raises BadFile where the packed data is cut, damaged or a bomb.

    Who needs a beginning alone asks for small chunks: bytes read at a time, and at most given out at a time.
    """
    with open(path, "rb", buffering=0) as file:
        chunks: Iterator[bytes] = iter(lambda: file.read(chunk), b"")
        for _ in range(2):
            head, chunks = peek(chunks, 6)
            kind = packing(head)
            if kind is None:
                break
            chunks = unpack(kind, chunks, limits, chunk=chunk)
        yield from chunks


def peek(chunks: Iterator[bytes], n: int) -> tuple[bytes, Iterator[bytes]]:
    """Return the first `n` bytes (fewer at the end) and an iterator that still holds them."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= n:
            break
    return head[:n], _chain(head, chunks)


def _chain(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from rest


def unpack(kind: str, chunks: Iterable[bytes], limits: Limits, *, chunk: int = CHUNK) -> Iterator[bytes]:
    """Yield what `chunks`, packed as `kind`, unpack to; members and frames that follow each other are one stream."""
    taken = given = 0
    machine: Any = None
    for data in chunks:
        while data or (machine is not None and not machine.eof and not machine.needs_input):
            if machine is None:
                if kind in ("gz", "xz") and not data.strip(b"\0"):  # tapes and xz pad with zeros
                    data = b""
                    continue
                machine = _machine(kind, chunk)
            try:
                out = machine.feed(data)
            except Exception as error:
                # zlib.error, lzma.LZMAError, OSError (bz2), zstandard.ZstdError: the data is not what it says
                what = "damaged or followed by other data" if given else "damaged"
                raise BadFile(f"{NAMES[kind]} data is {what}") from error
            taken += len(data) - len(machine.unused)
            data = machine.unused
            if machine.eof:
                machine = None
            if out:
                given += len(out)
                if given > limits.inflate_bytes:
                    raise BadFile(f"unpacks to more than {limits.inflate_bytes} bytes (--inflate-bytes)")
                if given > max(HARMLESS, limits.inflate_ratio * taken):
                    raise BadFile(f"unpacks to more than {limits.inflate_ratio} times its size (--inflate-ratio)")
                beat()
                yield out
    if machine is not None:
        raise BadFile(f"{NAMES[kind]} data is cut: its end is missing")


NAMES = {"gz": "gzip", "zst": "zstd", "xz": "xz", "bz2": "bzip2"}


def _machine(kind: str, chunk: int) -> Any:
    return _Zstd() if kind == "zst" else _Bounded(kind, chunk)


class _Bounded:
    """zlib, bz2 and lzma in one shape: at most `chunk` bytes out for each `feed`, `unused` is what follows the end."""

    def __init__(self, kind: str, chunk: int) -> None:
        self._chunk = chunk
        self._zlib = zlib.decompressobj(31) if kind == "gz" else None
        self._other: Any = None
        if kind == "bz2":
            self._other = bz2.BZ2Decompressor()
        elif kind == "xz":
            self._other = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=128 << 20)
        self.unused = b""
        self.eof = False
        self.needs_input = True

    def feed(self, data: bytes) -> bytes:
        if self._zlib is not None:
            out = self._zlib.decompress(self._zlib.unconsumed_tail + data, self._chunk)
            self.eof = self._zlib.eof
            self.unused = self._zlib.unused_data
            self.needs_input = not self._zlib.unconsumed_tail and len(out) < self._chunk
        else:
            out = self._other.decompress(data, self._chunk)
            self.eof = self._other.eof
            self.unused = self._other.unused_data
            self.needs_input = self._other.needs_input
        return out


class _Zstd:
    """One zstd frame. The rest of a chunk is handed back as `unused`, to be fed in small pieces."""

    def __init__(self) -> None:
        import zstandard

        self._frame = zstandard.ZstdDecompressor(max_window_size=128 << 20).decompressobj()
        self.unused: bytes | memoryview = b""
        self.eof = False
        self.needs_input = True

    def feed(self, data: bytes | memoryview) -> bytes:
        view = memoryview(data)  # the rest of a chunk would be copied for each piece of it
        out: bytes = self._frame.decompress(view[:ZSTD_CHUNK])
        self.eof = self._frame.eof
        rest = view[ZSTD_CHUNK:]
        self.unused = b"".join([self._frame.unused_data, rest]) if self.eof else rest
        return out


class Unpacked(io.RawIOBase):
    """The unpacked bytes of a file as a readable stream; damage raises OSError, as a real file would."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self._chunks = plain_chunks(path, limits)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts: list[memoryview] = []
        wanted = size if size >= 0 else 1 << 62
        while wanted:
            if not self._rest:
                try:
                    self._rest = memoryview(next(self._chunks, b""))
                except BadFile as error:
                    raise OSError(str(error)) from error
                if not self._rest:
                    break
            part, self._rest = self._rest[:wanted], self._rest[wanted:]
            parts.append(part)
            wanted -= len(part)
        return b"".join(parts)


MAX_DIRECTORY = 64 << 20


class ModestReads:
    """A file for zipfile, which reads as many bytes at once as the end of the archive says its directory has."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, n: int = -1) -> bytes:
        if n > MAX_DIRECTORY:
            raise BadFile(f"a ZIP directory of {n:,} bytes, more than {MAX_DIRECTORY:,}")
        return self._file.read(n)

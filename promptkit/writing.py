"""Files and directories that appear whole or not at all.

Everything is written under a temporary name in the folder of its target (so that the rename stays inside one file
system), flushed to the disk, renamed, and the folder flushed. A reader sees what was there before or what is there
now, never a part of either; a directory that exists is exchanged with the new one in one step where the system can
(Linux, macOS), else there is a moment between two renames in which it is missing, never torn.

The promise is "old or new", not "an error means old": when flushing the *folder* fails after the rename, the new
file is already visible and the error is still raised. Killed processes leave names like `.pack.0f3a9c12b4de.tmp`;
`only_one` sweeps them the next time.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from promptkit.errors import PromptkitError, ResourceError, UsageError

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `path`, whole or not at all; the folder is made where missing."""
    with temporary_beside(path) as temporary, explained(path, needed=len(data)):
        _write(temporary, data)


def write_new(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to a file inside a directory that is not published yet: no rename, `publish` flushes it."""
    with explained(path, needed=len(data)):
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        _write(Path(path), data)


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Return the hash of a file's bytes, 64 hex, read in blocks."""
    digest = hashlib.sha256()
    with open(path, "rb") as data:
        while block := data.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def temporary_beside(target: str | os.PathLike[str], *, directory: bool = False) -> Iterator[Path]:
    """Yield a new path in the folder of `target`, which is made where missing.

    A file is published to `target` when the block ends well. A directory is room to work in (`publish` moves what is
    ready out of it) and is removed in any case. Errors of the system become ResourceError or UsageError.
    """
    target = Path(target)
    with explained(target):
        made = _make_parents(target.parent)
        temporary = target.parent / f".{target.name}.{secrets.token_hex(6)}.tmp"
        done = False
        try:
            if directory:
                os.mkdir(temporary)
            with explained(target):  # before anything is removed, which would change how much is free
                yield temporary
            if not directory:
                publish(temporary, target)
            done = True
        finally:
            try:
                _remove(temporary)
            except BaseException:  # Ctrl-C in the middle of it
                _remove(temporary)
                raise
            if not done:
                _remove_empty(made)


def publish(temporary: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Move a finished file or directory to `target`, flushed to the disk, replacing what is there in one step.

    Both must lie in one file system. Raises UsageError where a file would replace a directory or the reverse.
    """
    temporary, target = Path(temporary), Path(target)
    with explained(target):
        made = _make_parents(target.parent)
        try:
            _flush_tree(temporary)
            is_directory = temporary.is_dir()
            if target.is_symlink() or (target.exists() and target.is_dir() != is_directory):
                kind = "a link" if target.is_symlink() else "a directory" if target.is_dir() else "a file"
                raise UsageError(f"output {target}: is {kind}", hint="remove it or give another place")
            if target.exists() and not (target.is_dir() or target.is_file()):
                raise UsageError(f"output {target}: is a device or a FIFO", hint="give another place")
            if is_directory and target.exists():
                _exchange(temporary, target)
            else:
                os.rename(temporary, target) if is_directory else os.replace(temporary, target)
        except BaseException:
            _remove_empty(made)
            raise
        _flush(target.parent)
        if is_directory:
            _remove(temporary)  # now the old one, after an exchange


def check_writable(target: str | os.PathLike[str]) -> None:
    """Raise UsageError before any work is done if `target` could not be written."""
    target = Path(target).absolute()
    if target.is_dir():
        raise UsageError(f"output {target}: is a directory", hint="name a file")
    _check_folder(target.parent)


def _check_folder(folder: Path) -> None:
    nearest = next(p for p in [folder, *folder.parents] if p.exists() or p == p.parent)
    if not nearest.is_dir():
        raise UsageError(f"output {folder}: {nearest} is not a directory", hint="give another place")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError(
            f"output {folder}: no permission to write in {nearest}",
            hint="give another place, or ask for the permission",
        )


@contextmanager
def only_one(out: str | os.PathLike[str]) -> Iterator[None]:
    """Hold `out` for this process; UsageError naming the holder if another one is writing there now.

    The lock belongs to the open file, so the system frees it when its process dies, however that happens.
    """
    out = Path(out).absolute()
    if out.exists() and not out.is_dir():
        raise UsageError(f"output {out}: is a file, expected a directory", hint="give another place")
    _check_folder(out)
    with explained(out):
        made = _make_parents(out)
    lock = out / ".lock"
    try:
        with explained(out):
            handle = _take(lock, out)
        try:
            with explained(out):
                for left in sorted(out.iterdir()):
                    if _TEMPORARY.fullmatch(left.name):  # of a killed run: nobody else works here now
                        _remove(left)
            yield  # what fails in here, such as reading, is not about `out`
        finally:
            with contextlib.suppress(OSError):
                os.unlink(lock)
            os.close(handle)
    finally:
        _remove_empty(made)


def _take(lock: Path, out: Path) -> int:
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            _lock(handle)
        except BlockingIOError:
            holder = os.read(handle, 64).decode("ascii", "replace").strip()
            os.close(handle)
            raise UsageError(
                f"output {out}: another promptkit is writing there" + (f" (process {holder})" if holder else ""),
                hint="wait for it, or give another --out",
            ) from None
        # The holder unlinks the file when it is done: a lock on a file that has no name any more locks nothing.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(lock)):
                os.truncate(handle, 0) if os.truncate in os.supports_fd else None
                os.write(handle, f"{os.getpid()}\n".encode())
                return handle
        os.close(handle)


def _lock(handle: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError from error
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def explained(path: str | os.PathLike[str], *, needed: int | None = None) -> Iterator[None]:
    """Turn an OSError of the block into ResourceError or UsageError that names the path and the room."""
    try:
        yield
    except PromptkitError:
        raise
    except OSError as error:
        raise _explain(Path(path), error, needed) from error


def _explain(path: Path, error: OSError, needed: int | None) -> PromptkitError:
    reason = error.strerror or type(error).__name__
    if error.errno in _FULL:
        room = f", {needed:,} bytes needed" if needed is not None else ""
        free = _free(path)
        room += f", {free:,} bytes free" if free is not None else ""
        return ResourceError(f"{path}: {reason.lower()} while writing{room}", hint="free some space or write elsewhere")
    if error.errno in _REFUSED:
        return UsageError(f"{path}: {reason.lower()}", hint="give another place, or ask for the permission")
    return ResourceError(f"{path}: {reason.lower()} while writing", hint="check the disk and try again")


def _free(path: Path) -> int | None:
    for folder in path.absolute().parents:
        with contextlib.suppress(OSError):
            return shutil.disk_usage(folder).free
    return None


def _write(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        view = memoryview(data)
        while len(view):
            view = view[os.write(handle, view) :]
    finally:
        os.close(handle)


def _make_parents(folder: Path) -> list[Path]:
    """Make `folder`; return what had to be made, deepest first, so that a failure leaves no empty folders."""
    missing = [p for p in [folder, *folder.parents] if not p.exists()]
    try:
        os.makedirs(folder, exist_ok=True)
    except FileExistsError as error:  # a file, or a link that leads nowhere
        raise UsageError(f"output {error.filename}: is no directory", hint="give another place") from None
    return missing


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path, ignore_errors=True)
            if os.path.lexists(path):  # a passing fault, such as no free descriptor, must not leave it for ever
                shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


def _flush_tree(path: Path) -> None:
    if not path.is_dir():
        _flush(path)
        return
    for folder, _, names in os.walk(path):
        for name in names:
            _flush(Path(folder) / name)
        _flush(Path(folder))


def _flush(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no directories
    handle = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _exchange(new: Path, old: Path) -> None:
    """Let two directories trade names; the old one is under the temporary name afterwards."""
    if _swap(new, old):
        return
    aside = old.parent / f".{old.name}.{secrets.token_hex(6)}.tmp"
    os.rename(old, aside)
    try:
        os.rename(new, old)
    except BaseException:
        os.rename(aside, old)
        raise
    _remove(aside)


def _swap(a: Path, b: Path) -> bool:
    """Exchange two names in one step; False where the system or the file system cannot."""
    names = {"linux": "renameat2", "darwin": "renamex_np"}
    call = getattr(ctypes.CDLL(None, use_errno=True), names[sys.platform], None) if sys.platform in names else None
    if call is None:
        return False
    first, second = os.fsencode(a), os.fsencode(b)
    exchange, here = ctypes.c_uint(2), ctypes.c_int(-100)  # RENAME_EXCHANGE = RENAME_SWAP = 2, AT_FDCWD
    result = call(here, first, here, second, exchange) if sys.platform == "linux" else call(first, second, exchange)
    if result == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(b))

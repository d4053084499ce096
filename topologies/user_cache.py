"""What is kept from one command to the next, in the user's folder of caches.

A file is sealed: its first line is the hash of its name and of the rest, so that what
was cut off, changed or renamed counts as absent. It is written under a name of its own
and renamed, so that any number of processes may read and write at once; its name says
all that its contents depend on, so that they all write the same.
"""

import hashlib
import os
import tempfile
from pathlib import Path

MOST_BYTES = 64 * 2**20
"""Larger files are not ours: they count as absent."""


def cache_folder(kind: str) -> Path | None:
    """Return ``$NESTSIM_CACHE_DIR/kind``, or its like among the user's caches.

    None if there is no home folder to look for them in.
    """
    given = os.environ.get("NESTSIM_CACHE_DIR")
    if given:
        return Path(given) / kind
    import platformdirs

    try:
        return Path(platformdirs.user_cache_dir("nestsim")) / kind
    except (OSError, RuntimeError):
        return None


def read_sealed(file: Path, *, is_private: bool = True) -> bytes | None:
    """Return the contents of a file, or None if there is no sound one.

    Parameters
    ----------
    file
        As `write_sealed` wrote it.
    is_private
        Whether nothing is read from a file that somebody else owns or may write.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(stream.fileno())
            is_ours = status.st_uid == os.geteuid() and not status.st_mode & 0o022
            if is_private and not is_ours:
                return None
            if status.st_size > MOST_BYTES:
                return None
            seal, _, contents = stream.read().partition(b"\n")
    except OSError:
        return None
    return contents if seal == _seal(file, contents) else None


def write_sealed(file: Path, contents: bytes) -> None:
    """Write a file in one step.

    Raises
    ------
    OSError
        If the folder cannot be made or written; nothing is left behind.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(_seal(file, contents) + b"\n" + contents)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _seal(file: Path, contents: bytes) -> bytes:
    return hashlib.sha256(file.name.encode() + b"\n" + contents).hexdigest().encode()

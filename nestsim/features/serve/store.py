"""Where answers lie: a folder, or whatever fsspec reaches, such as S3.

An answer is a folder of files, known by its key. It is there whole or not at all: in a
folder it comes by one renaming, elsewhere the file that says so comes last.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Protocol
from uuid import uuid4

from nestsim.features.serve.worker import ANSWER
from topologies.errors import InputError


class AnswerStore(Protocol):
    """Answers by their keys."""

    def put(self, key: str, folder: Path) -> None:
        """Take a folder as the answer of a key; it may be moved."""

    def read(self, key: str, name: str) -> bytes | None:
        """Return a file of an answer; None if there is none."""

    def names(self, key: str) -> list[str]:
        """Return the names of an answer's files; none without the answer."""

    def delete(self, key: str) -> bool:
        """Forget an answer; return whether there was one."""


class FolderAnswers:
    """Answers in a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".*"):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)

    def put(self, key: str, folder: Path) -> None:
        """Take a folder as the answer of a key; see `AnswerStore`."""
        for file in _files_in(folder):
            _flushed(folder / file)
        with suppress(FileExistsError, OSError):
            folder.rename(self._folder / key)
        if not (self._folder / key / ANSWER).exists():
            raise OSError(f"{key} cannot be stored")
        _flushed(self._folder)

    def read(self, key: str, name: str) -> bytes | None:
        """Return a file of an answer; see `AnswerStore`."""
        if name != ANSWER and name not in self.names(key):
            return None
        with suppress(OSError):
            return (self._folder / key / name).read_bytes()
        return None

    def names(self, key: str) -> list[str]:
        """Return the names of an answer's files; see `AnswerStore`."""
        return _files_in(self._folder / key)

    def delete(self, key: str) -> bool:
        """Forget an answer; see `AnswerStore`."""
        gone = self._folder / f".{uuid4().hex}"
        try:
            (self._folder / key).rename(gone)
        except OSError:
            return False
        shutil.rmtree(gone, ignore_errors=True)
        return True


class RemoteAnswers:
    """Answers in a store that fsspec reaches, such as ``s3://bucket/answers``.

    Parameters
    ----------
    url
        Where they lie; the settings of the store, such as its keys, are those of its
        own library.

    Raises
    ------
    InputError
        If the library of such stores is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs

            self._files, self._root = url_to_fs(url, **_FRESH)
        except (ImportError, ValueError) as error:
            raise InputError(
                f"cannot be reached: {error}",
                where="--store",
                got=url,
                expected="a folder, or an address such as s3://bucket/answers",
                hint='pip install "nestsim[s3]"',
            ) from None

    def put(self, key: str, folder: Path) -> None:
        """Take a folder as the answer of a key; see `AnswerStore`."""
        names = sorted(_files_in(folder), key=lambda name: name == ANSWER)
        for name in names:
            self._files.pipe_file(self._at(key, name), (folder / name).read_bytes())
        shutil.rmtree(folder)

    def read(self, key: str, name: str) -> bytes | None:
        """Return a file of an answer; see `AnswerStore`."""
        try:
            content: bytes = self._files.cat_file(self._at(key, name))
        except FileNotFoundError:
            return None
        return content

    def names(self, key: str) -> list[str]:
        """Return the names of an answer's files; see `AnswerStore`."""
        if self.read(key, ANSWER) is None:
            return []
        place = self._at(key)
        found: list[Any] = self._files.find(place)
        return sorted(str(file)[len(place) :].lstrip("/") for file in found)

    def delete(self, key: str) -> bool:
        """Forget an answer; see `AnswerStore`."""
        if self.read(key, ANSWER) is None:
            return False
        self._files.rm_file(self._at(key, ANSWER))
        self._files.rm(self._at(key), recursive=True)
        return True

    def _at(self, key: str, name: str = "") -> str:
        if ".." in PurePosixPath(name).parts:
            raise FileNotFoundError(name)
        return "/".join(filter(None, (self._root, key, name)))


_FRESH = {"use_listings_cache": False, "skip_instance_cache": True}
"""What others have put there since is seen."""


def answer_store(place: str, folder: Path) -> AnswerStore:
    """Return the store at an address; in a folder of the server without one."""
    if "://" in place:
        return RemoteAnswers(place)
    return FolderAnswers(Path(place) if place else folder)


def _files_in(folder: Path) -> list[str]:
    return list(_walk(folder)) if (folder / ANSWER).is_file() else []


def _walk(folder: Path) -> Iterator[str]:
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.is_symlink():
            yield file.relative_to(folder).as_posix()


def _flushed(path: Path) -> None:
    """Have a file or a folder survive a fall of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

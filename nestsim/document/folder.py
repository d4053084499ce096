"""Where results go: whose a folder or a file is, and how files get there whole.

One rule for every command. New, empty, or made by nestsim: it may be written to.
Anything else is of other origin and stays as it is, unless the user insists; then
files of the names that nestsim writes are replaced, and no others. Nothing of other
origin is ever removed: no file, no empty folder, no socket.

A folder of results is known by its ``manifest.json``, which lists the files that
nestsim wrote. One process writes into a folder at a time: it locks the folder before
work begins. Everything is written into a temporary folder of an unpredictable name
inside (for a single file, beside it), and then put in its place by renaming; no link
inside the folder is followed. A temporary folder is locked by the process that fills
it. The kernel lifts the lock when that process ends, however it ends, so that the next
one to write into the same place knows what a killed run has left, and clears it.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from nestsim.document.dumps import FORMAT, Record, dump_json, json_pieces
from nestsim.running.interruption import deferred_signals
from nestsim.running.store import is_part_of_store, is_store
from planner.work import Progress
from topologies.errors import InputError

MANIFEST = "manifest.json"
"""Says that nestsim made a folder, and which files of it."""


class ManifestRecord(Record):
    """What a folder of results says of itself; beside it what the command says."""

    nestsim: str
    """Version that wrote the folder."""

    format: int
    """Form of the JSON in the folder: `nestsim.document.dumps.FORMAT`."""

    files: Mapping[str, str | None]
    """File of the folder -> its SHA-256, in hexadecimal digits; null for a file that
    differs from run to run, or while files are being replaced."""


PAGE = "page.html"
"""Everything to look at in one file, where it was asked for."""

REPORT = "report.txt"
"""All that a result says, as a terminal would show it with its details."""

Writer = Callable[[Path], object]
"""Writes one file."""


def writer_of(content: str | bytes) -> Writer:
    """Return what writes this content."""
    data = content.encode() if isinstance(content, str) else content
    return lambda path: path.write_bytes(data)


def json_writer(record: object) -> Writer:
    """Return what writes a record as `dump_json` says it, piece by piece."""

    def write(path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="") as file:
            file.writelines(json_pieces(record))

    return write


_PREFIX, _SUFFIX = ".nestsim-", ".partial"
_OWNER = ".nestsim"
"""A file in each temporary folder: without it, a folder of such a name is not ours."""

_FIRST, _LAST = f"{_OWNER}-first", f"{_OWNER}-last"
"""Manifests in a temporary folder: while files are replaced, and then."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LONGEST_MANIFEST = 1 << 24
"""No manifest of ours is longer [byte]."""

_ENDS = 1 << 14
"""Read of each end of a file to see who wrote it [byte]."""

_UNLOCKABLE = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EBADF)
"""How file systems say that they have no locks of folders."""


class ResultsFolder:
    """A folder of results that this process alone writes into.

    Made by `claimed_folder`.
    """

    def __init__(self, path: Path, descriptor: int, *, force: bool) -> None:
        self.path = path
        """The folder, links resolved."""

        self.is_written = False
        """Whether it holds the results of this process."""

        self._descriptor, self._force = descriptor, force

    def write(
        self,
        writers: Mapping[str, Writer],
        facts: Mapping[str, Any],
        *,
        unhashed: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> None:
        """Write all files, then replace those of earlier results by them.

        Files of earlier results that are out of date are removed. If anything goes
        wrong, the folder is as it was.

        Parameters
        ----------
        writers
            What writes each file, by name relative to the folder.
        facts
            What else the manifest says.
        unhashed
            Files that differ from run to run, which the manifest has no hash of.
        progress
            Told about every file.

        Raises
        ------
        InputError
            If the folder cannot be written, or one of the files is of other origin.
        """
        with _worded(self.path), temporary_folder(self.path) as new:
            hashes: dict[str, str | None] = {}
            for done, (name, write) in enumerate(writers.items()):
                if progress is not None:
                    progress(f"report: {name}", done / len(writers))
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                write(new / name)
                digest = hashlib.sha256((new / name).read_bytes()).hexdigest()
                hashes[name] = None if name in unhashed else digest
            self.check(hashes)
            listed = self._listed() - {MANIFEST}
            both = dict.fromkeys(sorted({*listed, *hashes}))
            _write_manifest(new / _FIRST, {}, both)
            _write_manifest(new / _LAST, facts, hashes)
            with deferred_signals():
                self._put(new, hashes, outdated=sorted(listed - hashes.keys()))
                self.is_written = True

    def add(self, name: str, write: Writer) -> None:
        """Write one more file beside earlier results, or replace it.

        Raises
        ------
        InputError
            If the folder holds no results or cannot be written, or a file of the name
            is of other origin.
        """
        with _worded(self.path), temporary_folder(self.path) as new:
            if not self._listed():
                raise InputError(
                    "holds no results of nestsim",
                    got=str(self.path),
                    expected=f"a folder with the {MANIFEST} of one of its commands",
                )
            write(new / name)
            digest = hashlib.sha256((new / name).read_bytes()).hexdigest()
            self.check([name])
            facts = self._manifest()
            hashes = {**facts.pop("files"), name: digest}
            for manifest in (_FIRST, _LAST):
                _write_manifest(new / manifest, facts, hashes)
            with deferred_signals():
                self._put(new, [name], outdated=())
                self.is_written = True

    def stores(self) -> list[str]:
        """Return the names of stores that hold points of unfinished work."""
        return sorted(
            store.name
            for store in self.path.glob("*.sqlite")
            if store.stat(follow_symlinks=False).st_size and is_store(store)
        )

    def check(self, names: Sequence[str] | Mapping[str, object]) -> None:
        """Refuse if the folder, or a file of one of these names, is of other origin.

        Raises
        ------
        InputError
            In that case, unless the user insists; and if something that is not to
            be removed is in the way.
        """
        listed = self._listed()
        foreign = [] if listed else self._foreign()
        for name in (MANIFEST, *names):
            kind = self._kind(name)
            if kind is not None and stat.S_ISDIR(kind):
                raise InputError(
                    "holds a folder where a file is to be written",
                    got=str(self.path / name),
                    expected="another folder of results",
                )
            if kind is not None and name not in listed:
                foreign.append(name)
        if foreign and not self._force:
            shown = ", ".join(list(dict.fromkeys(foreign))[:3])
            raise InputError(
                "holds files that nestsim did not write",
                got=f"{self.path}: {shown}",
                expected="a new or empty folder, or one with earlier results",
                hint="choose another folder, or add --force: files that nestsim "
                "writes are replaced, all others stay",
            )

    def _put(self, new: Path, names: Iterable[str], *, outdated: Sequence[str]) -> None:
        """Move files to their places, and remove what is out of date.

        First comes a manifest that lists old and new files: whoever is killed in
        between leaves nothing that looks like a file of the user's. All is written
        by now: a file system that is full cannot stop it half-way.
        """
        os.replace(new / _FIRST, MANIFEST, dst_dir_fd=self._descriptor)
        for name in names:
            with self._inside(name, make=True) as folder:
                os.replace(new / name, PurePosixPath(name).name, dst_dir_fd=folder)
        for name in outdated:
            self._remove(name)
        os.replace(new / _LAST, MANIFEST, dst_dir_fd=self._descriptor)

    def _remove(self, name: str) -> None:
        """Remove an outdated file; what stands in its place by now is not ours."""
        kind = self._kind(name)
        if kind is not None and stat.S_ISREG(kind):
            with self._inside(name) as folder:
                os.unlink(PurePosixPath(name).name, dir_fd=folder)

    def _kind(self, name: str) -> int | None:
        """Return the mode of what has a name in the folder, None if nothing has."""
        try:
            with self._inside(name) as folder:
                last = PurePosixPath(name).name
                return os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None

    @contextmanager
    def _inside(self, name: str, *, make: bool = False) -> Iterator[int]:
        """Open the folder that holds a file, without following a link to it."""
        with ExitStack() as stack:
            inner = self._descriptor
            for part in PurePosixPath(name).parts[:-1]:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=inner)
                try:
                    inner = os.open(part, _FOLDER, dir_fd=inner)
                except NotADirectoryError:  # or a link
                    raise InputError(
                        "holds a file or a link where a folder is to be made",
                        got=str(self.path / part),
                        expected="another folder of results",
                    ) from None
                stack.callback(os.close, inner)
            yield inner

    def _manifest(self) -> dict[str, Any]:
        """Return what the manifest says, whoever wrote it."""
        with _opened(MANIFEST, self._descriptor) as stream:
            manifest: dict[str, Any] = json.loads(stream.read(LONGEST_MANIFEST))
        return manifest

    def _listed(self) -> frozenset[str]:
        """Return the files that a manifest of ours lists, itself included."""
        try:
            manifest = self._manifest()
            names = [PurePosixPath(name) for name in manifest["files"]]
            is_ours = isinstance(manifest["nestsim"], str)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return frozenset()  # no manifest, or one of another tool
        if not is_ours or any(p.is_absolute() or ".." in p.parts for p in names):
            return frozenset()
        return frozenset([MANIFEST, *(str(name) for name in names)])

    def _foreign(self) -> list[str]:
        """Return some of what nestsim did not write into a folder without manifest."""
        foreign: list[str] = []
        for folder, folders, files in os.walk(self.path):
            here = Path(folder)
            folders[:] = sorted(inner for inner in folders if not _is_temporary(inner))
            links = [inner for inner in folders if (here / inner).is_symlink()]
            foreign += [
                (here / name).relative_to(self.path).as_posix()
                for name in sorted([*files, *links])
                if not is_part_of_store(here / name)
            ]
            if len(foreign) >= 3:
                break
        return foreign


@contextmanager
def claimed_folder(
    directory: Path,
    names: Sequence[str] = (),
    *,
    inputs: Sequence[Path] = (),
    force: bool = False,
) -> Iterator[ResultsFolder]:
    """Take hold of a folder of results before work begins.

    It is made if it is not there, and goes again if nothing has been written into it.

    Parameters
    ----------
    directory
        Where to; parents are made.
    names
        Files that may be written.
    inputs
        Files that are read: no folder that holds one is written into.
    force
        Write into a folder of other origin, and replace files of these names.

    Raises
    ------
    InputError
        If the folder cannot be written into, holds files of other origin, or another
        process is writing into it.
    """
    with _worded(directory):
        target = _place(directory)
        _refuse_inputs(target, inputs)
    made: list[Path] = []
    descriptor: int | None = None
    try:
        with _worded(directory):
            with deferred_signals():
                made = _make(target)
                descriptor = _locked(target)
            if not os.access(target, os.W_OK | os.X_OK):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
            clear_abandoned(target)
            folder = ResultsFolder(target, descriptor, force=force)
            folder.check(names)
        yield folder
    finally:
        with deferred_signals():
            for new in reversed(made):
                with suppress(OSError):  # it is not empty
                    new.rmdir()
            if descriptor is not None:
                os.close(descriptor)


def check_file(
    file: Path,
    is_ours: Callable[[bytes], bool],
    *,
    inputs: Sequence[Path] = (),
    force: bool = False,
) -> None:
    """Refuse a file that results may not be written to, before work begins.

    Parameters
    ----------
    file
        Where to; parents are made when it is written.
    is_ours
        Whether nestsim wrote a file, by its beginning and its end.
    inputs
        Files that are read.
    force
        Replace a file of other origin.

    Raises
    ------
    InputError
        If something that is no file is there, or one of other origin, or it cannot be
        written.
    """
    with _worded(file):
        folder = _place(file.parent)
        nearest = next(place for place in (folder, *folder.parents) if place.exists())
        if not nearest.is_dir():
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        target = folder / file.name
        if not os.path.lexists(target):
            return
        _refuse_same(target, inputs)
        mode = target.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            expected = "the name of a file"
            raise InputError(f"is {kind}", got=str(file), expected=expected)
        if not (force or (stat.S_ISREG(mode) and is_ours(_both_ends(target)))):
            raise InputError(
                "is a file that nestsim did not write",
                got=str(file),
                expected="a new file, or one with earlier results",
                hint="choose another file, or add --force to replace this one",
            )


def replace_file(file: Path, write: Writer) -> None:
    """Write a file whole or not at all; a link in its place is not followed.

    Raises
    ------
    InputError
        If it cannot be written.
    """
    with _worded(file):
        folder = _place(file.parent)
        made = _make(folder)
        try:
            with temporary_folder(folder) as new:
                write(new / file.name)
                with deferred_signals():
                    (new / file.name).replace(folder / file.name)
        finally:
            for one in reversed(made):
                with suppress(OSError):  # it is not empty
                    one.rmdir()


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Give a new folder that is gone at the end; clear what killed ones have left.

    Nobody can foresee its name, and only this user may enter it.
    """
    clear_abandoned(parent)
    made: tuple[Path, int] | None = None
    try:
        with deferred_signals():
            made = _made_temporary(parent)
        yield made[0]
    finally:
        if made is not None:
            with deferred_signals():
                shutil.rmtree(made[0], ignore_errors=True)
                os.close(made[1])


def clear_abandoned(parent: Path) -> None:
    """Remove temporary folders whose processes have ended."""
    for path in parent.glob(f"{_PREFIX}*{_SUFFIX}"):
        with suppress(OSError), deferred_signals():
            descriptor = os.open(path, _FOLDER)
            try:
                if _lock(descriptor) and _is_ours(path):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


def _made_temporary(parent: Path) -> tuple[Path, int]:
    """Make a temporary folder; return it and the descriptor that holds its lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, suffix=_SUFFIX, dir=parent))
        try:
            descriptor = os.open(path, _FOLDER)
        except FileNotFoundError:  # another one cleared it: it had no lock yet
            continue
        try:
            _lock(descriptor)
            (path / _OWNER).touch(exist_ok=False)
        except (BlockingIOError, FileNotFoundError):  # likewise
            os.close(descriptor)
            continue
        except OSError:
            os.close(descriptor)
            shutil.rmtree(path, ignore_errors=True)
            raise
        return path, descriptor


def _is_ours(folder: Path) -> bool:
    """Return whether we made a temporary folder: it is empty, or says so."""
    names = {file.name for file in folder.iterdir()}
    return not names or _OWNER in names


def _is_temporary(name: str) -> bool:
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def _place(directory: Path) -> Path:
    """Return a folder with links resolved; refuse what cannot be one of results."""
    target = Path(os.path.realpath(directory))
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return target
    if not stat.S_ISDIR(mode):
        raise InputError("is not a folder", got=str(directory), expected="a folder")
    return target


def _refuse_inputs(target: Path, inputs: Sequence[Path]) -> None:
    """Refuse folders that hold the user's own files, whatever the user insists on."""
    # Unlike pathlib's, it does not fail where there is no home.
    home = Path(os.path.realpath(os.path.expanduser("~")))  # noqa: PTH111
    expected = "a folder for results alone, e.g. results/first"
    if target == Path(target.anchor) or target in {home, *home.parents}:
        what = "your home folder" if target == home else "a folder of the system"
        raise InputError(f"is {what}", got=str(target), expected=expected)
    for file in inputs:
        if target in Path(os.path.realpath(file)).parents:
            raise InputError(
                f"holds an input of this command, {file}",
                got=str(target),
                expected=expected,
            )


def _refuse_same(target: Path, inputs: Sequence[Path]) -> None:
    for file in inputs:
        if file.exists() and target.exists() and target.samefile(file):
            raise InputError(
                "is an input of this command", got=str(target), expected="another file"
            )


def _make(folder: Path) -> list[Path]:
    """Make a folder and its parents; return those that were not there."""
    made = []
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        with suppress(FileExistsError):
            place.mkdir()
            made.append(place)
    return made


def _locked(folder: Path) -> int:
    """Open a folder and lock it.

    Raises
    ------
    InputError
        If another process has.
    """
    while True:
        descriptor = os.open(folder, _FOLDER)
        try:
            _lock(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            raise InputError(
                "is being written by another process",
                got=str(folder),
                expected="one command at a time in a folder",
            ) from None
        # The one before may have made it, and removed it just now.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return descriptor
        os.close(descriptor)
        _make(folder)


def _lock(descriptor: int) -> bool:
    """Lock a folder; return False where the file system cannot.

    Raises
    ------
    BlockingIOError
        If another process has.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _UNLOCKABLE:
            return False
        raise
    return True


def _write_manifest(
    file: Path, facts: Mapping[str, Any], hashes: Mapping[str, str | None]
) -> None:
    manifest = ManifestRecord.dump(
        nestsim=version("nestsim"), format=FORMAT, files=hashes
    )
    files = manifest.pop("files")
    text = dump_json({**manifest, **facts, "files": files})
    file.write_text(text, encoding="utf-8")


@contextmanager
def _opened(name: str | Path, folder: int | None = None) -> Iterator[BinaryIO]:
    """Open a file that is a file: not through a link, and no pipe that never ends."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        yield stream


def _both_ends(file: Path) -> bytes:
    """Return enough of a file to see who wrote it."""
    try:
        with _opened(file) as stream:
            beginning = stream.read(_ENDS)
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(len(beginning), size - _ENDS))
            return beginning + stream.read(_ENDS)
    except OSError:
        return b""


@contextmanager
def _worded(path: Path) -> Iterator[None]:
    """Say what the system reports as a mistake that a user can act on."""
    if "\0" in str(path):
        expected = "a name without it"
        raise InputError("holds a null character", got=str(path), expected=expected)
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot be written: {reason}", got=str(path)) from None

"""Hold the files of a folder of results against its manifest.

The manifest has the SHA-256 of every file. It is not signed: who changes a file can
change the manifest. What it tells is that nothing was damaged, mixed up with another
run, or edited by hand since; a hash of the manifest that is kept elsewhere tells the
rest.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nestsim.document.dumps import Record
from nestsim.document.folder import LONGEST_MANIFEST, MANIFEST, ManifestRecord
from nestsim.document.parts import Document, FactList, Headline, Section, Sentences
from nestsim.document.wording import plural
from nestsim.features.certificate.recheck import Inspection, inspection
from topologies.errors import InputError, located, short_repr
from topologies.input_file import read_json

EXPECTED = f"a folder of results of this version, with its {MANIFEST}"


class FolderCheckRecord(Record):
    """What became of a folder of results."""

    folder: str
    verdict: str
    written_by: str
    manifest_sha256: str
    num_files: int
    num_compared: int
    not_listed: tuple[str, ...]
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderCheck:
    """What became of a folder of results."""

    name: str
    """Name of the folder."""

    manifest: ManifestRecord
    """What it says of itself."""

    manifest_sha256: str
    """Hash of its manifest, to be kept elsewhere."""

    inspections: tuple[Inspection, ...]
    """What was checked."""

    not_listed: tuple[str, ...]
    """Files in the folder that the manifest does not list."""

    __repr__ = short_repr

    @property
    def failures(self) -> tuple[str, ...]:
        """Sentences on what does not hold; none if all does."""
        return tuple(text for checked in self.inspections for text in checked.failures)

    @property
    def holds(self) -> bool:
        """Whether all files are those of the manifest."""
        return not self.failures


def check_folder(folder: Path) -> FolderCheck:
    """Hold the files of a folder of results against its manifest.

    Raises
    ------
    InputError
        If the folder has no manifest that can be read. A file that differs is a result.
    """
    path = folder / MANIFEST
    with located(str(path), ": "):
        written = read_json(path, expected=EXPECTED, most_bytes=LONGEST_MANIFEST)
        try:
            manifest = ManifestRecord.read(written)
        except ValueError:
            raise InputError("is not a manifest", expected=EXPECTED) from None
        for name in manifest.files:
            parts = PurePosixPath(name)
            if parts.is_absolute() or ".." in parts.parts:
                raise InputError("leads out of the folder", where="files", got=name)
    how = "SHA-256 of each file beside that of the manifest"
    failures = _failures(folder, manifest)
    present = {
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*")
        if not file.is_dir()
    }
    return FolderCheck(
        name=folder.name or str(folder),
        manifest=manifest,
        manifest_sha256=_digest(path),
        inspections=(inspection("files", len(manifest.files), how, failures),),
        not_listed=tuple(sorted(present - {MANIFEST, *manifest.files})),
    )


def _failures(folder: Path, manifest: ManifestRecord) -> Iterator[str]:
    for name, digest in manifest.files.items():
        file = folder / name
        if not file.is_file() or file.is_symlink():
            yield f"{name} is not there."
        elif digest is not None and _digest(file) != digest:
            yield f"{name} is not the file that was written: its hash differs."


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def folder_json(check: FolderCheck) -> dict[str, object]:
    """Return what became of a folder, for programs."""
    files = check.manifest.files
    return FolderCheckRecord.dump(
        folder=check.name,
        verdict="holds" if check.holds else "fails",
        written_by=check.manifest.nestsim,
        manifest_sha256=check.manifest_sha256,
        num_files=len(files),
        num_compared=sum(digest is not None for digest in files.values()),
        not_listed=check.not_listed,
        failures=check.failures,
    )


def folder_document(check: FolderCheck) -> Document:
    """Return what became of a folder, the verdict first."""
    files = check.manifest.files
    apart = [name for name, digest in files.items() if digest is None]
    sentence = f"All {plural(len(files), 'file')} are those that were written."
    if not check.holds:
        sentence = f"{plural(len(check.failures), 'file')} differ from the manifest."
    facts = {
        "written by": f"nestsim {check.manifest.nestsim}",
        "manifest": f"SHA-256 {check.manifest_sha256}",
    }
    rest = [
        "The manifest is not signed: keep its hash elsewhere to know that it is the "
        "one that was written.",
        *(f"{name} differs from run to run, and has no hash." for name in apart),
        *(f"{name} is not of this folder." for name in check.not_listed),
    ]
    sections = [
        Section("folder", "The folder", (FactList(facts),)),
        Section("not-checked", "What was not checked", (Sentences(tuple(rest)),)),
    ]
    if check.failures:
        failures = Sentences(check.failures)
        sections.insert(0, Section("failures", "What does not hold", (failures,)))
    return Document(
        subject=check.name,
        doing="verify",
        headline=Headline(
            verdict="HOLDS" if check.holds else "DOES NOT HOLD",
            tone="good" if check.holds else "bad",
            sentences=(sentence,),
        ),
        sections=tuple(sections),
    )

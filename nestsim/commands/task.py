"""What a command line asks for, ready to be done, and what is printed of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nestsim.document.folder import Writer
from nestsim.document.parts import Document
from nestsim.document.terminal import print_document

if TYPE_CHECKING:
    from rich.console import Console


class Printable(Protocol):
    """What a command prints: a report, or an `Reply`."""

    @property
    def notices(self) -> tuple[str, ...]:
        """What users should know beside it, one sentence each."""

    @property
    def succeeded(self) -> bool:
        """Whether the command ends with exit status 0."""

    def printed_dict(self) -> Mapping[str, Any]:
        """Return what is printed with ``--json``."""

    def print_to(self, console: "Console", *, verbose: bool = False) -> None:
        """Print it for people, with ``verbose`` in detail."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a command prints that makes no report."""

    record: Callable[[], Mapping[str, Any]]
    """Function that returns everything under stable keys, in SI units."""

    text: Callable[["Console"], object] | None = None
    """Function that prints it for people; None where a document says it."""

    document: Callable[[], Document] | None = None
    """Function that makes the document that is printed; None without."""

    succeeded: bool = True
    """Whether the command ends with exit status 0."""

    notices: tuple[str, ...] = ()
    """What users should know beside it, one sentence each."""

    about: Any = None
    """What a file is written of."""

    def printed_dict(self) -> Mapping[str, Any]:
        """Return what is printed with ``--json``."""
        return self.record()

    def print_to(self, console: "Console", *, verbose: bool = False) -> None:
        """Print it for people, with ``verbose`` in detail."""
        if self.document is not None:
            print_document(self.document(), console, verbose=verbose)
        elif self.text is not None:
            self.text(console)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOutput:
    """The one file that a command writes."""

    path: Path
    """Place of the file."""

    is_ours: Callable[[bytes], bool]
    """Whether a file of this content may be replaced."""

    title: str
    """What the note that says where it is begins with."""

    writer: Callable[[Any], Writer]
    """Function that makes what writes it, of what the call returns."""

    doing: str = ""
    """What is being done meanwhile, where that takes time."""

    is_added: bool = False
    """Whether it joins a folder of earlier results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a command line asks for: checked, and ready to be done."""

    call: Callable[..., Printable]
    """Function that does it; takes ``progress``."""

    inputs: Sequence[Path] = ()
    """Files that are read: none of them is written over."""

    folder: Path | None = None
    """Folder of results; None for none."""

    files: Sequence[str] = ()
    """Files that may be written into the folder."""

    file: FileOutput | None = None
    """The one file that is written; None for none."""

    prints: bool = True
    """Whether what the call returns is printed."""


def known(answer: Reply) -> Task:
    """Return a task whose answer is there already."""
    return Task(call=lambda **_: answer)

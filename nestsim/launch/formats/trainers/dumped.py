"""Arguments that Megatron-LM prints when it starts, or stores in a checkpoint.

All values are resolved, so no shell is to be followed. A log has them line by line
(``_print_args`` of ``megatron/training/arguments.py``); a checkpoint has the
``argparse.Namespace`` under ``args`` (``megatron/training/checkpointing.py``), which
people also dump as text, JSON or YAML.
"""

import ast
import io
import pickle
import re
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from nestsim.launch.formats.trainers.renaming import CORE, tree_job
from nestsim.launch.formats.trainers.trees import parsed_table
from nestsim.launch.read import ImportedJob, LaunchSource
from topologies.errors import InputError

_PRINTED = re.compile(
    r"-{10,} (?:\w+ )?arguments -{10,}.*?(?:(-{10,} end of) (?:\w+ )?arguments|\Z)"
    r"|\b(?:Simple)?Namespace\(.*?(?:(\))\s*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
"""All of it, and what is there if it is whole."""
_LINE = re.compile(
    r"\b([A-Za-z]\w+) (?:\.{1,48} |(?<=\w{48} ) ?)(.*)$"
    r"|(?:(?<=\()|(?<=, ))(\w+)=(.*?)(?=, \w+=|\)\s*$)",
    re.MULTILINE,
)
"""A line of a log, or a word of a namespace."""
_OBJECT = re.compile(r"<([\w.]+)(?:: [^<>]*)?>")
_EXPECTED = "the arguments that Megatron-LM prints when it starts, to their end"
_MOST_PICKLED = 64_000_000
_BROKEN = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError),
    *(RecursionError, StopIteration, TypeError, ValueError),
    *(pickle.UnpicklingError, zipfile.BadZipFile),
)
_BACKENDS = ("", "flash", "fused", "unfused", "local", "auto")
"""``AttnBackend`` of ``megatron/core/transformer/enums.py``."""


def read_dump(source: LaunchSource) -> ImportedJob:
    """Read a log, or a namespace as text, JSON or YAML.

    Raises
    ------
    InputError
        If the arguments are not all there.
    """
    printed = _PRINTED.search(source.text)
    if printed is None:
        document = parsed_table(source.text, _EXPECTED)
        attributes = document.get("args", document)
    elif not (printed[1] or printed[2]):
        raise InputError("ends in the middle of the arguments", expected=_EXPECTED)
    else:
        lines = _LINE.findall(printed[0])
        attributes = {a or c: _value(b or d) for a, b, c, d in lines}
    return tree_job(source, attributes, CORE)


def _value(text: str) -> Any:
    """Return what a printed value is; the text itself if it is no literal."""
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return _OBJECT.sub(r"\1", text.strip())
    return text.strip() if isinstance(value, tuple | set | dict) else value


def stored_arguments(path: Path) -> str | None:
    """Return the arguments in a checkpoint of Megatron-LM, as Python shows them.

    Only the index of the checkpoint is read (``model_optim_rng.pt``, or ``common.pt``
    of a distributed one), no tensor of it. Nothing is imported or called: whatever is
    no plain value is an empty object.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    str or None
        None if the file is no checkpoint.

    Raises
    ------
    InputError
        If it is a broken one, or has no arguments.
    """
    if not path.is_file() or not zipfile.is_zipfile(path):
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(
                name for name in archive.namelist() if name.endswith("data.pkl")
            )
            with archive.open(name) as stored:
                content = stored.read(_MOST_PICKLED)
            document = _PlainUnpickler(io.BytesIO(content)).load()
        values = vars(document["args"]).items()
        return repr(Namespace(**{k: v for k, v in values if _is_plain(v)}))
    except _BROKEN:
        raise InputError(
            "is no whole checkpoint with arguments", expected="one of Megatron-LM"
        ) from None


def _is_plain(value: Any) -> bool:
    parts = value if isinstance(value, list) else [value]
    return all(isinstance(part, str | int | float) for part in parts)


class _Empty(dict[Any, Any]):
    """What stands for an object that is no plain value: nothing happens to it."""

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def append(self, *_: Any) -> None:
        """Take no value."""

    __setstate__ = append


_STAND_INS: dict[tuple[str, str], Any] = {
    ("argparse", "Namespace"): Namespace,
    ("megatron.core.transformer.enums", "AttnBackend"): _BACKENDS.__getitem__,
    **{("torch", name): f"torch.{name}" for name in ("float32", "float16", "bfloat16")},
}
"""Module and name of what a checkpoint has -> what it is here."""


class _PlainUnpickler(pickle.Unpickler):
    """Reads plain values, dictionaries and namespaces, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a class or a constant."""
        return _STAND_INS.get((module, name), _Empty)

    def persistent_load(self, pid: Any) -> Any:
        """Return nothing for the values of a tensor."""

"""What all drivers share: a line of JSON in, a line of JSON out, and ranks on paper.

A request has the files that nestsim writes. They lie in a folder of their own, where
the framework's code runs, and scripts are run as they are, with something in the place
of the launcher that keeps its words. Every rank of the job is in turn this process: a
process group of torch's fake backend, in which nothing is sent.

Runs inside the environments: nothing but the standard library, and torch for ranks.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar
from unittest import mock

Facts = dict[str, Any]
Launch = Callable[[int], Facts]
"""Makes what it can of the files of this folder for a number of devices."""

AT_END: list[Callable[[], None]] = []
"""What forgets the groups of a rank."""


class Stub(ModuleType):
    """A package that is not there: whatever is asked of it is."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock(name=name)


RECORDING = r"""
record() { printf '%s\0' "${CUDA_DEVICE_MAX_CONNECTIONS-}" "$@" > "words.$BASHPID"; }
torchrun() { record "$@"; }; deepspeed() { record "$@"; }
python() { record "$@"; }; python3() { record "$@"; }
. "./$0"
"""


def answer_all(launch: Launch) -> None:
    """Answer each request with the facts of its launch, or why it is refused.

    Whatever ``launch`` raises is the framework's refusal, exits of argument parsers
    included.
    """
    out = sys.stdout
    for line in sys.stdin:
        request = json.loads(line)
        answer: Facts = {"reason": "", "facts": {}}
        noise = io.StringIO()
        try:
            with (
                tempfile.TemporaryDirectory() as folder,
                contextlib.chdir(folder),
                contextlib.redirect_stdout(noise),
                contextlib.redirect_stderr(noise),
            ):
                for name, text in request["files"].items():
                    Path(name).write_text(text, "utf-8")
                answer["facts"] = launch(request["world"])
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # frameworks refuse by any of them
            answer["reason"] = _reason(error, noise.getvalue())
        out.write(f"{json.dumps(answer)}\n")
        out.flush()


def _reason(error: BaseException, noise: str) -> str:
    """Return what was raised, and the file and the line of it."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = str(error).strip()
    if isinstance(error, SystemExit) or not text:
        written = noise.strip().splitlines() if isinstance(error, SystemExit) else []
        text = written[-1] if written else (place.line or "").strip()
    file = "/".join(Path(place.filename).parts[-3:])
    first = " ".join(text.split())[:300]
    return f"{type(error).__name__}: {first} ({file}:{place.lineno})"


def launched_words(script: str, program: str) -> list[str]:
    """Return the words behind a program that a script starts, in its environment.

    Parameters
    ----------
    script
        A file of this folder.
    program
        Name of a file, or a word of a command.
    """
    subprocess.run(["bash", "-c", RECORDING, script], capture_output=True, check=True)
    file = next(Path().glob("words.*"))
    connections, *words = file.read_text("utf-8").split("\0")[:-1]
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = connections
    if not connections:
        del os.environ["CUDA_DEVICE_MAX_CONNECTIONS"]
    starts = [at for at, word in enumerate(words) if Path(word).name == program]
    return words[starts[0] + 1 :]


@contextlib.contextmanager
def as_rank(rank: int, world: int) -> Iterator[None]:
    """Be a rank of a world in which processes only keep books."""
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group(
        "fake", store=FakeStore(), rank=rank, world_size=world
    )
    try:
        yield
    finally:
        for end in AT_END:
            end()
        distributed.destroy_process_group()


def all_groups(world: int, of_rank: Callable[[], Mapping[str, Any]]) -> Facts:
    """Return the groups of all ranks by kind, sorted.

    Parameters
    ----------
    world
        Ranks.
    of_rank
        Starts a rank, and returns its groups: process groups or numbers of ranks.
    """
    from torch import distributed

    seen: dict[str, set[tuple[int, ...]]] = {}
    for rank in range(world):
        with as_rank(rank, world):
            for kind, group in of_rank().items():
                ranks: Iterable[int] = group
                if not isinstance(group, list | tuple):
                    ranks = distributed.get_process_group_ranks(group)
                seen.setdefault(kind, set()).add(tuple(sorted(ranks)))
    return {kind: sorted(map(list, groups)) for kind, groups in seen.items()}


def sharded_states(blocks: Iterable[Any]) -> set[tuple[int, bool]]:
    """Return the ZeRO stages of blocks under FSDP2, and whether hosts keep states."""
    from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule

    states = set()
    for block in blocks:
        if not isinstance(block, FSDPModule):
            states.add((0, False))
            continue
        for group in block._get_fsdp_state()._fsdp_param_groups:
            again = group.post_forward_mesh_info is not None
            stage = (3 if again else 2) if group.mesh_info.shard_mesh_size > 1 else 0
            states.add((stage, isinstance(group.offload_policy, CPUOffloadPolicy)))
    return states

"""Measure collectives among processes, as nccl-tests does: trains of launches.

Every process runs the same sweep; the first one decides what is still measured, keeps
the times and returns them. A time is the median over trains of launches, each as long
as its launches together over their number, the mean over the ranks: what the host does
for a launch is hidden behind the one before where the device has a queue.

Tensors are of 32-bit numbers, all of them zero. In send/receive each rank sends to the
next one while it receives from the one before.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from estimators.measuring.operators import Progress, device_name, synchronise
from estimators.operators.profile import OperatorTiming
from estimators.user_files import LinkPoint, LinkSweep
from topologies.errors import InputError

FIRST_SIZES = (2**10, 2**20)
"""Sizes measured in any case: a latency and a bandwidth follow from them [byte]."""

SIZES = (*FIRST_SIZES, *(4**k for k in range(6, 10)), *(4**k for k in range(11, 16)))
"""Sizes from 1 KiB to 1 GiB, in the order in which they are measured [byte]."""

QUICK_SIZES = (*FIRST_SIZES, 2**14, 2**18, 2**22)
"""Sizes of a quick look [byte]."""

BACKENDS = MappingProxyType({"cpu": "gloo", "cuda": "nccl"})
"""Kind of device -> the library that its collectives are measured with."""

MEMORY_PART = 8
"""Part of the free memory that the two tensors of a rank together may take: libraries
have buffers of their own."""

_ELEMENT = 4
_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainEffort:
    """How much is put into one time."""

    warm_up: int = 5
    """Launches before the first one that counts."""

    trains: int = 7
    """Number of trains of which the median is taken."""

    train_seconds: float = 0.03
    """Duration of a train, unless it has the most or the fewest launches [s]."""

    most_launches: int = 200
    """Most launches of a train."""

    long_launch: float = 0.2
    """Duration from which a launch has no more warm-up, and the fewest trains [s]."""

    fewest_trains: int = 3
    """Number of trains of long launches."""

    def launches(self, first: float) -> int:
        """Return the launches of a train, by the time of one [s]."""
        return max(1, min(self.most_launches, round(self.train_seconds / first)))


QUICK = TrainEffort(warm_up=2, trains=3, train_seconds=0.005, most_launches=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One of the processes that measure together."""

    rank: int
    """Number of this process; processes of a node have numbers in a row."""

    num_ranks: int
    """Number of all processes."""

    local_rank: int
    """Number of this process on its node."""

    num_local: int
    """Number of processes of each node."""

    device: str
    """Kind of device: ``"cpu"`` or ``"cuda"``."""

    meeting: str = "env://"
    """Address where processes find each other, as torch.distributed writes it."""

    @property
    def num_nodes(self) -> int:
        """Nodes that the processes run on."""
        return self.num_ranks // self.num_local


class MeasuredRanks(NamedTuple):
    """The first ranks, which communicate among themselves."""

    num_ranks: int
    """Members of the group."""
    num_nodes: int
    """Nodes that the members are on."""


def groups_of(num_ranks: int, num_local: int) -> tuple[MeasuredRanks, ...]:
    """Return what is measured: powers of two and all, inside a node and across nodes.

    Parameters
    ----------
    num_ranks, num_local
        All processes, and those of each node.
    """
    inside = [MeasuredRanks(size, 1) for size in _doublings(num_local)]
    nodes = num_ranks // num_local
    return (*inside, *(MeasuredRanks(n * num_local, n) for n in _doublings(nodes)))


def _doublings(most: int) -> list[int]:
    """Return 2, 4, 8 .. and the largest; nothing for one alone."""
    powers = [2**k for k in range(1, most.bit_length()) if 2**k < most]
    return [*powers, most] if most > 1 else []


def measure_links(
    world: World,
    *,
    budget: float,
    quick: bool = False,
    progress: Progress | None = None,
) -> LinkSweep | None:
    """Sweep over groups, sizes and operations, together with all other processes.

    Parameters
    ----------
    world
        Which process this is.
    budget
        No measurement begins later than that [s]; `FIRST_SIZES` are measured in any
        case.
    quick
        Fewer sizes, fewer launches.
    progress
        Called before each measurement, in the first process.

    Returns
    -------
    LinkSweep | None
        In the first process; None in all others.
    """
    device = torch.device("cpu")
    if world.device == "cuda":
        device = torch.device("cuda", world.local_rank)
        torch.cuda.set_device(device)
    _join(world)
    try:
        sweep = _Sweep(
            world=world,
            device=device,
            effort=QUICK if quick else TrainEffort(),
            sizes=QUICK_SIZES if quick else SIZES,
            budget=budget,
            progress=progress,
        )
        sweep.run()
    finally:
        dist.destroy_process_group()
    if world.rank != 0:
        return None
    return LinkSweep(
        backend=BACKENDS[world.device],
        device=device_name(device),
        torch_version=torch.__version__,
        num_ranks=world.num_ranks,
        num_nodes=world.num_nodes,
        points=tuple(sweep.points),
        num_skipped=sweep.num_skipped,
    )


def _join(world: World) -> None:
    """Wait until all processes have found each other."""
    # What ranks tell each other about the sweep goes by gloo, whatever is measured.
    backends = {"cpu": "gloo", world.device: BACKENDS[world.device]}
    try:
        dist.init_process_group(
            ",".join(f"{kind}:{name}" for kind, name in backends.items()),
            init_method=world.meeting,
            rank=world.rank,
            world_size=world.num_ranks,
            timeout=_TIMEOUT,
        )
    except (RuntimeError, ValueError) as error:
        raise InputError(
            "the processes did not find each other",
            where="--links",
            got=str(error).splitlines()[0],
            expected="MASTER_ADDR and MASTER_PORT as torchrun sets them, an address "
            "that all processes reach",
        ) from None


@dataclass(kw_only=True)
class _Sweep:
    """One process's part of a sweep."""

    world: World
    """Processes that take part."""
    device: torch.device
    """Device of this process."""
    effort: TrainEffort
    """How often each point is measured."""
    sizes: Sequence[int]
    """Sizes of the full tensor in the order in which they are measured [byte]."""
    budget: float
    """Time of the whole sweep [s]."""
    progress: Progress | None
    """Called before each measurement, in the first process."""
    points: list[LinkPoint] = field(default_factory=list)
    """Points measured so far, in the first process."""
    num_skipped: int = 0
    """Points that the time or the memory did not suffice for."""
    _begun: float = field(default_factory=time.perf_counter)
    """Clock when the sweep began [s]."""
    _last: dict[tuple[MeasuredRanks, str], tuple[int, float]] = field(
        default_factory=dict
    )
    """Group and operation -> size [byte] and time [s] of its last measurement."""

    def run(self) -> None:
        """Measure one point after the other."""
        groups = groups_of(self.world.num_ranks, self.world.num_local)
        members = {ranks: _new_group(ranks.num_ranks) for ranks in groups}
        room = self._room()
        planned = list(self._planned(groups))
        for done, (size, group, operation) in enumerate(planned):
            if self.progress is not None:
                words = f"{operation} of {group.num_ranks} ranks, {size:,} bytes"
                self.progress(words, done / len(planned))
            if size > room or not self._goes_on(size, group, operation):
                self.num_skipped += 1
                continue
            if self.world.rank < group.num_ranks:
                self._measure(size, group, operation, members[group])

    def _planned(
        self, groups: Sequence[MeasuredRanks]
    ) -> Iterator[tuple[int, MeasuredRanks, str]]:
        for size in self.sizes:
            for group in groups:
                for operation in OPERATIONS:
                    yield size, group, operation

    def _room(self) -> int:
        """Return the largest size that every rank has memory for [byte]."""
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
        else:
            free = _free_memory() // self.world.num_local
        least = torch.tensor([free // MEMORY_PART], dtype=torch.int64)
        dist.all_reduce(least, op=dist.ReduceOp.MIN)
        return int(least)

    def _goes_on(self, size: int, group: MeasuredRanks, operation: str) -> bool:
        """Return whether the first process finds that there is time for a point."""
        left = self.budget - (time.perf_counter() - self._begun)
        before, seconds = self._last.get((group, operation), (size, 0.0))
        needed = (2 + self.effort.fewest_trains) * seconds * max(1.0, size / before)
        goes_on = torch.tensor([int(size in FIRST_SIZES or needed < left)])
        dist.broadcast(goes_on, src=0)
        return bool(goes_on)

    def _measure(
        self, size: int, group: MeasuredRanks, operation: str, handle: Any
    ) -> None:
        call = OPERATIONS[operation](
            _Buffers.of(size, group.num_ranks, self.device, handle), self.world.rank
        )
        num_bytes = size // (_ELEMENT * group.num_ranks) * _ELEMENT * group.num_ranks
        timing = self._timing(call, group, handle)
        if self.world.rank == 0:
            self._last[group, operation] = size, timing.seconds
            self.points.append(
                LinkPoint(
                    operation=operation,
                    num_ranks=group.num_ranks,
                    num_nodes=group.num_nodes,
                    num_bytes=num_bytes,
                    timing=timing,
                )
            )

    def _timing(
        self, call: Callable[[], object], group: MeasuredRanks, handle: Any
    ) -> OperatorTiming:
        """Return the median over trains, the same in all ranks of the group."""
        effort = self.effort

        def train(launches: int) -> float:
            synchronise(self.device)
            _meet(handle)
            start = time.perf_counter()
            for _ in range(launches):
                call()
            synchronise(self.device)
            taken = (time.perf_counter() - start) / launches
            mean = torch.tensor([taken], dtype=torch.float64)
            dist.all_reduce(mean, group=handle)
            return float(mean) / group.num_ranks

        train(1)
        first = max(train(1), 1e-7)
        is_long = first >= effort.long_launch
        if not is_long:
            first = max(train(effort.warm_up), 1e-7)
        launches = effort.launches(first)
        count = effort.fewest_trains if is_long else effort.trains
        samples = [train(launches) for _ in range(count)]
        lower, upper = np.quantile(samples, (0.25, 0.75))
        return OperatorTiming(median(samples), float(upper - lower), count)


def _meet(handle: Any) -> None:
    """Wait for all of a group on the host, whatever its devices' library is."""
    dist.all_reduce(torch.zeros(1), group=handle)


def _new_group(num_ranks: int) -> Any:
    """Return the group of the first ranks; every process has to ask."""
    return dist.new_group(list(range(num_ranks)), timeout=_TIMEOUT)


def _free_memory() -> int:
    """Return what processes may still take [byte]."""
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as lines:
            known = dict(line.split(":", 1) for line in lines)
        return int(known["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Buffers:
    """What a rank sends from and receives into."""

    whole: Tensor
    """The full tensor."""

    other: Tensor
    """Tensor of the size of the full tensor."""

    part: Tensor
    """This rank's part of a full tensor."""

    num_ranks: int
    """Members of the group."""
    group: Any
    """Group of torch.distributed."""

    @classmethod
    def of(
        cls, size: int, num_ranks: int, device: torch.device, group: Any
    ) -> "_Buffers":
        """Make tensors of a size that the ranks can share evenly [byte]."""
        part_size = size // (_ELEMENT * num_ranks)
        whole, second = (
            torch.zeros(part_size * num_ranks, device=device) for _ in range(2)
        )
        return cls(
            whole=whole,
            other=second,
            part=second[:part_size],
            num_ranks=num_ranks,
            group=group,
        )


def _function(*names: str) -> Callable[..., Any]:
    """Return the first function of these names that this torch has."""
    function: Callable[..., Any] = next(
        getattr(dist, name) for name in names if hasattr(dist, name)
    )
    return function


def _all_reduce(buffers: _Buffers, rank: int) -> Callable[[], object]:
    del rank
    return lambda: dist.all_reduce(buffers.whole, group=buffers.group)


def _all_gather(buffers: _Buffers, rank: int) -> Callable[[], object]:
    del rank
    gather = _function("all_gather_single", "all_gather_into_tensor")
    return lambda: gather(buffers.whole, buffers.part, group=buffers.group)


def _reduce_scatter(buffers: _Buffers, rank: int) -> Callable[[], object]:
    del rank
    scatter = _function("reduce_scatter_single", "reduce_scatter_tensor")
    return lambda: scatter(buffers.part, buffers.whole, group=buffers.group)


def _all_to_all(buffers: _Buffers, rank: int) -> Callable[[], object]:
    del rank
    return lambda: dist.all_to_all_single(
        buffers.other, buffers.whole, group=buffers.group
    )


def _send_recv(buffers: _Buffers, rank: int) -> Callable[[], object]:
    after, before = (rank + 1) % buffers.num_ranks, (rank - 1) % buffers.num_ranks

    def send_and_receive() -> None:
        messages = [
            dist.P2POp(dist.isend, buffers.whole, after, buffers.group),
            dist.P2POp(dist.irecv, buffers.other, before, buffers.group),
        ]
        for work in dist.batch_isend_irecv(messages):
            work.wait()

    return send_and_receive


OPERATIONS: Mapping[str, Callable[[_Buffers, int], Callable[[], object]]] = (
    MappingProxyType(
        {
            "all_reduce": _all_reduce,
            "all_gather": _all_gather,
            "reduce_scatter": _reduce_scatter,
            "all_to_all": _all_to_all,
            "send_recv": _send_recv,
        }
    )
)
"""Operation -> function that launches it once."""

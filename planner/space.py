"""The configurations that a search considers, and how many it cannot.

Letters: ``tp`` tensor-parallel size, ``b`` micro-batch size, ``pp`` stages, ``dp``
replicas, ``N`` devices.
"""

from collections import Counter
from typing import NamedTuple

from estimators.layer_work import Degrees
from estimators.models.spec import TransformerSpec
from estimators.sharding import divisibility_problem
from planner.search_spec import SearchSpec

LARGEST_MICRO_BATCH = 64
"""Searched when the scenario does not say: powers of two up to this."""


class Configuration(NamedTuple):
    """One point of the outer search; its splits and placements are the inner one."""

    tp: int
    b: int
    pp: int
    dp: int


class Inner(NamedTuple):
    """What layer tables depend on, and the outer sizes that go with it."""

    degrees: Degrees
    sizes: tuple[tuple[int, int], ...]
    """Pairs ``(pp, dp)``."""


def inner_configurations(
    model: TransformerSpec,
    spec: SearchSpec,
    *,
    num_devices: int,
    num_layers: int,
    global_batch_size: int,
) -> tuple[tuple[Inner, ...], Counter[str]]:
    """Enumerate the space.

    Sizes that the scenario leaves out are searched: every tensor-parallel size that
    divides the model, micro-batch sizes that are powers of two, every number of
    stages and of replicas that the cluster holds, dividing it or not.

    Returns
    -------
    tuple
        The configurations, and how many were left out for which reason.
    """
    dropped: Counter[str] = Counter()
    inner: list[Inner] = []
    tps = spec.tensor_model_parallel_sizes or range(1, num_devices + 1)
    powers = [2**k for k in range(LARGEST_MICRO_BATCH.bit_length())]
    for tp in sorted(tps):
        for b in sorted(spec.micro_batch_sizes or powers):
            degrees = Degrees(
                tp=tp,
                micro_batch_size=b,
                sequence_parallel=_sequence_parallel(spec, tp),
            )
            if divisibility_problem(model, degrees) is not None:
                dropped["not divisible"] += 1
                continue
            sizes = _outer_sizes(
                spec,
                num_groups=num_devices // tp,
                num_layers=num_layers,
                most_replicas=global_batch_size // b,
            )
            if sizes:
                inner.append(Inner(degrees, sizes))
            else:
                dropped["too large for the cluster or the batch"] += 1
    return tuple(inner), dropped


def _sequence_parallel(spec: SearchSpec, tp: int) -> bool:
    return tp > 1 and spec.sequence_parallel is not False


def _outer_sizes(
    spec: SearchSpec, *, num_groups: int, num_layers: int, most_replicas: int
) -> tuple[tuple[int, int], ...]:
    stages = spec.pipeline_model_parallel_sizes or range(1, num_layers + 1)
    replicas = spec.data_parallel_sizes or range(1, most_replicas + 1)
    return tuple(
        (pp, dp)
        for pp in sorted(stages)
        if pp <= min(num_layers, num_groups)
        for dp in sorted(replicas)
        if dp <= min(most_replicas, num_groups // pp)
    )

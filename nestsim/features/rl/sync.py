"""New weights on their way from the trainer's layout to the engines'.

As verl and NeMo RL do it, whole tensors are put together where the trainer is: the
ranks that hold one copy of the model among them all-gather it, tensor by tensor, all
copies at the same time. On devices that training and rollout share, every engine then
takes its own part out of the device's memory. Where the rollout has devices of its own,
the first rank of the trainer broadcasts the tensors to all of them. Every rank of an
engine receives whole tensors, whatever it keeps.

Each of the two collectives is priced by its closed form, algorithm by algorithm, and
replayed over the links by the cheapest, all groups at the same time.

Sources: NeMo RL, ``nemo_rl/models/policy/workers/megatron_policy_worker.py`` (refit);
verl, ``verl/utils/megatron_utils.py`` (``per_tensor_generator``).
"""

from dataclasses import dataclass

import numpy as np

from estimators.collectives.algorithms import algorithms_for
from estimators.collectives.messages import exchange_rates, placed_exchanges
from nestsim.features.collectives.runs import Repeated, durations, wires_of
from nestsim.simulator.work import EdgePhase
from planner.step.plan import Plan
from topologies.arrays import IntArray
from topologies.network import Network

WIRE_BYTES = 2
"""Of a parameter on its way, in 16 bits [byte]."""

MOST_PAIRS = 2**18
"""Of devices in all groups: with more, nothing is sent directly between all pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightExchange:
    """One collective that carries the weights."""

    operation: str
    """Name of the operation, ``"all_gather"`` or ``"broadcast"``."""

    algorithm: str
    """The cheapest algorithm by its closed form."""

    num_groups: int
    """Groups that do it at the same time."""

    num_members: int
    """Devices of each group."""

    num_bytes: float
    """Size of the weights of one copy of the model [byte]."""

    closed_form: float
    """Time by the closed form [s]."""

    time: float
    """Time in the replay [s]."""

    phases: tuple[EdgePhase, ...]
    """Who sends what to whom, phase by phase."""


def copy_groups(plan: Plan) -> IntArray:
    """Return the devices that hold one copy of the model among them, ``(copies, n)``.

    All stages of a replica; of several replicas next to each other where experts are
    spread over them, and of all where ZeRO-3 shards weights.
    """
    devices = np.array([stage.devices for stage in plan.stages], dtype=np.int64)
    num_replicas = devices.shape[1]
    parallel, sizes = plan.parallel, plan.parallel.sizes()
    expert_ranks = sizes.ep * (parallel.grouping.etp or sizes.tp)
    together = -(-expert_ranks // (sizes.tp * sizes.cp)) if sizes.ep > 1 else 1
    shards = max(
        stage.sharding_group_size if stage.zero_stage == 3 else 1
        for stage in plan.stages
    )
    together = max(together, -(-shards // sizes.cp))
    if num_replicas % together:
        together = num_replicas
    by_replica = devices.transpose(1, 0, 2)
    return by_replica.reshape(num_replicas // together, -1)


def exchange(
    network: Network, operation: str, groups: IntArray, num_bytes: float
) -> WeightExchange | None:
    """Return one collective of all groups at once; None where no group has two members.

    Parameters
    ----------
    network
        Whose links are used.
    operation
        ``"all_gather"`` or ``"broadcast"``, from the first member.
    groups
        Device numbers, shape ``(G, n)``.
    num_bytes
        Of the full tensor [byte].
    """
    num_groups, num_members = groups.shape
    if num_members < 2:
        return None
    times = {}
    for name in algorithms_for(operation, network.rules, network.num_axes):
        if "direct" in name and groups.size * num_members > MOST_PAIRS:
            continue
        latency, inverse = exchange_rates(network, operation, groups[None], name)[0]
        times[name] = float(latency + num_bytes * inverse)
    algorithm = min(times, key=lambda name: times[name])
    placed = placed_exchanges(network, operation, groups, algorithm)
    wires = wires_of(network, placed)
    (taken,) = durations(network.links, [Repeated(wires, num_bytes, (0.0,))])
    return WeightExchange(
        operation=operation,
        algorithm=algorithm,
        num_groups=num_groups,
        num_members=num_members,
        num_bytes=num_bytes,
        closed_form=times[algorithm],
        time=float(taken[0]),
        phases=tuple(
            EdgePhase(
                phase.sources,
                phase.targets,
                phase.fraction * num_bytes,
                phase.num_steps,
            )
            for phase in placed
        ),
    )


def gather_weights(
    network: Network, plan: Plan, num_parameters: int
) -> WeightExchange | None:
    """Return what puts whole tensors together on the trainer's devices.

    Parameters
    ----------
    network
        Of all devices.
    plan
        Of the trainer.
    num_parameters
        Of the model.
    """
    num_bytes = float(WIRE_BYTES * num_parameters)
    return exchange(network, "all_gather", copy_groups(plan), num_bytes)


def broadcast_weights(
    network: Network, trainer: IntArray, rollout: IntArray, num_parameters: int
) -> WeightExchange | None:
    """Return what carries the weights to devices of the rollout alone, if any.

    Parameters
    ----------
    network
        Of all devices.
    trainer
        Devices of the trainer, of which the first one broadcasts.
    rollout
        Devices of the rollout alone.
    num_parameters
        Of the model.
    """
    group = np.concatenate((trainer[:1], rollout))[None]
    return exchange(network, "broadcast", group, float(WIRE_BYTES * num_parameters))

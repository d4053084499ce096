"""The passes in flight that memory has room for, against trying every number."""

import numpy as np

from planner.kernels.tables import (
    ACTIVATIONS,
    GRADIENTS,
    NUM_MODES,
    ON_THE_WAY,
    OPTIMIZER,
    WEIGHTS,
    Choices,
    ClassSums,
    JobConstants,
    most_in_flight,
)
from planner.step.ledger import KERNEL_LEDGER, KERNEL_TERMS

MOST = 25
NUM_CLASSES = 4
NUM_CHOICES = 6


def random_case(rng):
    """Return the kernel's arguments; all sums of them are exact."""

    def amounts(high, *shape):
        return 8.0 * rng.integers(0, high + 1, shape)

    zero_stage = rng.integers(0, len(KERNEL_TERMS), NUM_CHOICES)
    kinds = NUM_MODES, NUM_CLASSES
    sums = ClassSums(
        *(amounts(0, NUM_CLASSES), amounts(0, *kinds)),
        saved=amounts(3, *kinds) + 8.0,
        working=amounts(4, *kinds),
        once=amounts(2, NUM_CLASSES),
        frozen=amounts(2, NUM_CLASSES),
        num_layers=np.ones(NUM_CLASSES),
        parameters=amounts(8, NUM_CLASSES),
        expert_parameters=amounts(4, NUM_CLASSES) * rng.integers(0, 2),
        largest_layer=amounts(2, NUM_CLASSES),
        most_saved=amounts(2, *kinds),
    )
    away = rng.choice([0.0, 0.5, 1.0], (NUM_CHOICES, 4))
    choices = Choices(
        recompute=rng.integers(0, NUM_MODES, NUM_CHOICES),
        zero_stage=zero_stage,
        sharding=np.where(zero_stage > 0, rng.integers(0, 3, NUM_CHOICES), 0),
        counting=np.zeros(NUM_CHOICES, dtype=np.int64),
        unless=np.full(NUM_CHOICES, -1),
        offload=away * rng.integers(0, 2, (NUM_CHOICES, 1)),
        host_step=np.zeros(NUM_CHOICES),
        host_once=np.zeros(NUM_CHOICES),
    )
    job = JobConstants(
        *(2.0, 4.0, 8.0, float(rng.choice([0.0, 4.0])), 2.0, 2.0, 4.0, 0.0),
        memory=float(rng.integers(0, 2000)),
        expert_group=float(rng.choice([1, 2, 4])),
        host_memory=float(rng.choice([np.inf, rng.integers(0, 1500)])),
    )
    return sums, choices, np.array([8.0, 4.0, 1.0]), job


def fits(case, c, k, passes):
    """Tell whether both memories have room for a class under a choice."""
    sums, choices, group_sizes, job = case
    holds = KERNEL_TERMS[choices.zero_stage[c]]
    away, mode = choices.offload[c], choices.recompute[c]
    group = group_sizes[choices.sharding[c]]
    dense, expert = sums.parameters[k], sums.expert_parameters[k]
    layer = sums.largest_layer[k]

    def shard(is_sharded):
        return (
            dense / group + expert / job.expert_group if is_sharded else dense + expert
        )

    updated = shard(holds.shards_optimizer)
    states = {
        OPTIMIZER: job.optimizer_bytes * updated,
        GRADIENTS: job.gradient_bytes * shard(holds.shards_gradients),
        WEIGHTS: job.weight_bytes * shard(holds.shards_weights),
    }
    kept = sums.once[k] + passes * sums.saved[mode, k]
    on_host = sum(away[kind] * state for kind, state in states.items())
    least = min(group, job.expert_group) if expert else group
    staged = {
        WEIGHTS: job.weight_bytes * layer / (least if holds.shards_weights else 1),
        GRADIENTS: job.gradient_bytes
        * layer
        / (least if holds.shards_gradients else 1),
        ACTIVATIONS: sums.most_saved[mode, k],
    }
    static = sums.frozen[k] + sum(states.values()) - on_host
    static += ON_THE_WAY * sum(away[kind] * part for kind, part in staged.items())
    in_step = static + job.copies_bytes * updated * (1 - away[OPTIMIZER])
    whole = holds.whole_gradients * job.reduce_bytes
    whole += holds.whole_weights * job.gather_bytes
    in_passes = static + (1 - away[ACTIVATIONS]) * kept + sums.working[mode, k]
    in_passes += whole * layer if max(group, job.expert_group) > 1 else 0
    on_host += away[ACTIVATIONS] * kept
    return max(in_step, in_passes) <= job.memory and on_host <= job.host_memory


def test_as_many_passes_as_fit_on_the_device_and_the_host_are_in_flight():
    counts = set()
    for seed in range(25):
        case = random_case(np.random.default_rng(seed))
        most = most_in_flight(*case, KERNEL_LEDGER)
        for (c, k), passes in np.ndenumerate(most):
            exact = 0
            while exact < MOST and fits(case, c, k, exact + 1):
                exact += 1
            assert min(passes, MOST) == exact, (seed, c, k)
            counts.add(exact)
    assert len(counts) > 10

"""From the times of phases to the time of a step, for every schedule.

With ``r`` the phases of the rollout, ``t`` those of the trainer and ``b`` those in
which both take part (new weights, states that come and go), a step takes

- synchronous, on shared devices as well as on pools of their own:
  ``sum r + sum t + sum b``;
- one step off and asynchronous: ``max(sum r, sum t) + sum b``, as the rollout makes the
  next batch while the trainer has this one. The asynchronous rollout goes through up to
  ``s`` batches ahead: it makes ``k + 1 <= s + 1`` of them in one go, and waits for its
  last response once for all of them.

No schedule is faster than the busier pool: ``max(sum r, sum t)``.
"""

from collections.abc import Sequence
from typing import NamedTuple

ROLLOUT, TRAINING, BOTH = "rollout", "training", "both"
"""Who works in a phase."""

IDLE = "idle"
"""Name of what is no phase: a pool waits for the other one."""


class StepPhase(NamedTuple):
    """What a step does for a while."""

    name: str
    """Name of the phase."""

    pool: str
    """Pool that works: `ROLLOUT`, `TRAINING` or `BOTH`."""

    time: float
    """Time of the phase in a step [s]."""

    closed_form: float | None = None
    """Time by the closed form; None where the phase has no other [s]."""

    basis: str = ""
    """Basis of the time, in words."""

    devices_wait: bool = False
    """Whether devices stand idle in the phase, as hosts work."""


class StepTime(NamedTuple):
    """How long a step takes, and how much of it pools work."""

    time: float
    """Time of a step [s]."""

    bound: float
    """Time of the busier pool, below which no schedule gets [s]."""

    training_idle: float
    """Part of the step in which devices of the trainer have nothing to do."""

    rollout_idle: float
    """Part of the step in which devices of the rollout have nothing to do."""


def busy(phases: Sequence[StepPhase], *pools: str) -> float:
    """Return the time of the phases of some pools [s]."""
    return sum(phase.time for phase in phases if phase.pool in pools)


def step_time(
    phases: Sequence[StepPhase], *, overlaps: bool, is_split: bool
) -> StepTime:
    """Return the time of a step.

    Parameters
    ----------
    phases
        Of a step.
    overlaps
        Whether the rollout makes another batch while the trainer works.
    is_split
        Whether both have devices of their own.
    """
    rollout, training, both = (busy(phases, pool) for pool in (ROLLOUT, TRAINING, BOTH))
    time = max(rollout, training) if overlaps else rollout + training
    time += both
    waits = sum(phase.time for phase in phases if phase.devices_wait)
    if not is_split:
        idle = waits / time
        return StepTime(time, time, idle, idle)
    return StepTime(
        time=time,
        bound=max(rollout, training),
        training_idle=1.0 - (training + both) / time,
        rollout_idle=1.0 - (rollout - waits + both) / time,
    )


def lanes(
    phases: Sequence[StepPhase], *, overlaps: bool, is_split: bool
) -> dict[str, list[tuple[str, float]]]:
    """Return what each pool does in a step, phase after phase, and when it idles [s].

    Pools that overlap begin together, and take the weights together at the end.
    """
    if not is_split:
        return {"all devices": [(phase.name, phase.time) for phase in phases]}
    time = step_time(phases, overlaps=overlaps, is_split=True).time
    lanes: dict[str, list[tuple[str, float]]] = {}
    for pool in (ROLLOUT, TRAINING):
        lane = []
        for phase in phases:
            works = phase.pool in (pool, BOTH)
            if works and not (overlaps and phase.pool == BOTH):
                lane.append((phase.name, phase.time))
            elif not overlaps:
                lane.append((IDLE, phase.time))
        if overlaps:
            together = [(p.name, p.time) for p in phases if p.pool == BOTH]
            rest = time - sum(length for _, length in (*lane, *together))
            waits = [(IDLE, rest)] if rest > 1e-9 * time else []
            lane = [*lane, *waits, *together]
        lanes[pool] = lane
    return lanes

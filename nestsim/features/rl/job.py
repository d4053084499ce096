"""From a scenario to a step of reinforcement learning, and its best pools.

Choices of pools are searched (`nestsim.features.rl.pools`) and evaluated
(`nestsim.features.rl.evaluate`); the best one is confirmed by SimPy.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from nestsim.features.rl.batch import PackedBatch
from nestsim.features.rl.evaluate import Pools, RlStep
from nestsim.features.rl.pools import (
    PoolChoice,
    PoolSearch,
    search_pools,
)
from nestsim.scenario.errors import asked
from nestsim.scenario.load import Scenario
from nestsim.scenario.rl import RlSpec
from planner.work import Progress
from topologies.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RlResult:
    """What `nestsim rl` finds."""

    scenario_name: str
    """Name of the scenario."""

    num_devices: int
    """Devices of the cluster."""

    device_name: str
    """What they are called."""

    device_memory: float
    """Memory of a device [byte]."""

    spec: RlSpec
    """What was asked."""

    batch: PackedBatch
    """What is trained in a step."""

    search: PoolSearch
    """What the search has looked at."""

    contention: Mapping[PoolChoice, float]
    """What sharing links costs a step of each choice that was replayed on one fabric
    [s]."""

    step: RlStep | None
    """The fastest step; None if there is none."""

    shortfall: str
    """Why there is none; empty if there is one."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens of prompts and responses over the time of a step [token/s]."""
        assert self.step is not None
        return self.batch.num_tokens / self.step.time.time


def rl_job(scenario: Scenario, *, progress: Progress | None = None) -> RlResult:
    """Find the time of a step of reinforcement learning, and the best pools for it.

    Raises
    ------
    InputError
        If there is no table [rl], or parts of the scenario do not go together.
    """
    spec = asked(
        scenario.rl,
        "rl",
        "there is nothing to say of a step",
        "a table [rl] with prompts, samples and lengths",
    )
    if scenario.module is not None:
        raise InputError(
            "has sequences of one length alone",
            where="model",
            got="a module of your own",
            expected="a model of the library or an architecture, for nestsim rl",
        )
    pools = Pools.of(scenario, spec, progress)
    search = search_pools(pools.choices(), pools.bound, pools.evaluate, pools.guess)
    step = None if search.best is None else pools.confirmed(search.best)
    reasons = dict.fromkeys(entry.reason for entry in search.explored)
    return RlResult(
        scenario_name=scenario.name,
        num_devices=pools.wires.num_devices,
        device_name=scenario.device_names,
        device_memory=scenario.accelerator.memory_bytes,
        spec=spec,
        batch=pools.trainers.batch,
        search=search,
        contention={
            choice: known.fabric.contention
            for choice, known in pools.steps.items()
            if known.fabric is not None
        },
        step=step,
        shortfall="" if step is not None else "; ".join(filter(None, reasons)),
    )

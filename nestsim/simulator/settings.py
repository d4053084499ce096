"""How a training step is replayed."""

from dataclasses import dataclass

GRANULARITIES = ("stage", "layer")
ENGINES = ("auto", "simpy", "compiled")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """What the replay simulates event by event, and what it may leave out exactly.

    What the framework hides behind compute is part of the job instead:
    `planner.step.execution`.
    """

    granularity: str = "stage"
    """``"stage"``: in-layer collectives are part of the stages' durations, priced with
    all groups active at once; ``"layer"``: each is a flow over the links."""

    folding: bool = True
    """Simulate one of each class of actors that are provably alike."""

    skipping: bool = True
    """Skip whole periods once the state of the pipeline repeats bit for bit."""

    engine: str = "auto"
    """``"simpy"``, ``"compiled"``, or ``"auto"``: compiled when the run will be long.
    Both give the same bits."""

    seed: int = 0
    """Of everything drawn at random."""

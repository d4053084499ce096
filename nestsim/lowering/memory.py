"""What one device of a stage holds, and from when to when.

It has the amounts of the planner's bound (`planner.step.memory`), chunk by chunk and by
name. The planner takes them all to be there at once; here

- activations, and the logits that the head saves, are held from the forward pass to the
  backward pass; what weight gradients need in their place until those are done;
- gathered layers are there in forward and backward passes, the gradients of a layer
  that are not reduced yet in passes that complete gradients (`planner.step.ledger`);
- working memory, with what recompute brings back, in the pass that needs it.

Buckets of other collectives are views of weights and gradients, and cost nothing
(Megatron-LM, ``_ParamAndGradBuffer``).
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from estimators.layers.work import LayerTable
from estimators.training import ParameterBytes
from nestsim.simulator.work import Held, StageMemory
from planner.cost.objective import StageCost
from planner.step import recompute
from planner.step.instructions import BACKWARD, FORWARD, WEIGHT
from planner.step.ledger import LEDGER
from planner.step.memory import FROZEN, SECOND_COPY, STEP_END, stage_activations
from planner.step.offload import STAGING
from planner.step.plan import Plan, Stage
from planner.step.schedules import SCHEDULES

BUBBLES = "activations of bubbles"
"""Part of a stage's memory: what is kept for turns of a loop over all stages in which
this one has no microbatch."""

_STATIC = ("weights", "gradients", "optimizer", FROZEN, SECOND_COPY, STAGING)
"""Parts of a stage's memory that are held for the whole step, if they are there."""


def held_memory(
    table: LayerTable,
    plan: Plan,
    index: int,
    cost: StageCost,
    parameter_bytes: ParameterBytes,
) -> StageMemory:
    """Return the memory of a stage's devices by what it is for."""
    stage = plan.stages[index]
    schedule = SCHEDULES[plan.schedule]
    splits = schedule.splits_backward
    sizes = len(plan.stages), plan.num_microbatches, len(stage.chunks)
    held: list[Held] = []
    for chunk, layers in enumerate(stage.chunks):
        alone = replace(stage, chunks=(layers,))
        held += _kept(table, alone, chunk, splits=splits)
        held += _working(
            table, alone, chunk, splits=splits, pairs=schedule.pairs_layers
        )
        held += _parameters(
            stage, chunk, cost.memory["buffers"], parameter_bytes, splits=splits
        )
    copies = cost.memory["optimizer"] * parameter_bytes.copies
    copies /= parameter_bytes.optimizer
    static = {name: cost.memory[name] for name in _STATIC if name in cost.memory}
    bubbles = schedule.bubbles_kept(len(plan.stages))
    in_loops = {}
    if bubbles:
        saved = stage_activations(table, stage).saved
        stays = 1.0 - stage.offload.activations
        in_loops[BUBBLES] = stays * bubbles * max(saved)
    return StageMemory(
        static=static,
        held=tuple(part for part in held if part.num_bytes > 0.0),
        until_step_end=in_loops,
        step_end={STEP_END: copies} if copies else {},
        warmup=schedule.in_flight(index, *sizes) if schedule.pairs_layers else None,
    )


def _kept(
    table: LayerTable, stage: Stage, chunk: int, *, splits: bool
) -> Iterator[Held]:
    """Return what one pass leaves to another.

    While a backward pass runs, what was saved and what weight gradients will need come
    and go layer by layer: the larger of the two is charged.
    """
    activations = stage_activations(table, stage, splits_backward=splits)
    (saved,), (kept,) = activations.saved, activations.kept
    logits = 0.0
    if stage.recompute != "stage" and stage.chunks[0][1] == table.num_layers - 1:
        logits = float(recompute.saved_bytes(table, stage)[-1])
        # A head whose input outlives its logits is counted as activations.
        logits = logits if kept + logits <= saved else 0.0
    # What the host keeps is gone when the pass is.
    stays = 1.0 - stage.offload.activations
    logits, rest, kept = stays * logits, stays * (saved - logits), stays * kept
    yield Held("logits", chunk, FORWARD, BACKWARD, logits)
    if splits:
        yield Held("activations", chunk, FORWARD, WEIGHT, min(rest, kept))
        yield Held("activations", chunk, BACKWARD, WEIGHT, max(0.0, kept - rest))
    yield Held("activations", chunk, FORWARD, BACKWARD, max(0.0, rest - kept))


def _working(
    table: LayerTable, stage: Stage, chunk: int, *, splits: bool, pairs: bool
) -> Iterator[Held]:
    """Return what is alive inside of a pass only: of its largest layer."""
    activations = stage_activations(
        table, stage, splits_backward=splits, pairs_layers=pairs
    )
    if stage.recompute == "stage":
        works, saves = table.working_bytes["none"], table.saved_bytes["none"]
    else:
        works = recompute.working_bytes(table, stage)
        saves = recompute.saved_bytes(table, stage)
    inside = recompute.alive_inside(
        table, works, stage.chunks[0], splits_backward=splits
    )
    layer = stage.chunks[0][0] + int(np.argmax(inside))
    part = "logits" if layer == table.num_layers - 1 else "working"
    yield Held(part, chunk, FORWARD, FORWARD, activations.forward_working)
    added = max(0.0, activations.kept[0] - activations.saved[0])
    working = activations.backward_working - added
    again = working - activations.forward_working
    if stage.recompute != "stage":
        again = min(float(table.saved_bytes["none"][layer] - saves[layer]), working)
    yield Held("recomputed", chunk, BACKWARD, BACKWARD, again)
    yield Held(part, chunk, BACKWARD, BACKWARD, working - again)


def _parameters(
    stage: Stage,
    chunk: int,
    buffers: float,
    parameter_bytes: ParameterBytes,
    *,
    splits: bool,
) -> Iterator[Held]:
    """Return the whole layers that ZeRO has on a device (`static_bytes`)."""
    ledger = LEDGER[stage.zero_stage]
    gradients = ledger.whole_gradients * parameter_bytes.gradients
    gathered = ledger.whole_weights * parameter_bytes.gather
    if gradients + gathered == 0:
        return
    reduced = buffers * gradients / (gradients + gathered)
    completing = WEIGHT if splits else BACKWARD
    yield Held("gradient bucket", chunk, completing, completing, reduced)
    for kind in (FORWARD, BACKWARD):
        yield Held("gathered layers", chunk, kind, kind, buffers - reduced)

"""What one device of a stage holds, and from when to when.

The amounts are those of the planner's bound (`planner.step.memory`), chunk by chunk
and by name. The planner takes them all to be there at once; here

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

from estimators.layers.table import LayerTable
from estimators.training import ParameterBytes
from nestsim.simulator.work import Held, StageMemory
from planner.cost.objective import StageCost
from planner.step.ledger import LEDGER
from planner.step.memory import STEP_END, stage_activations
from planner.step.plan import Plan, Stage
from planner.step.schedules import BACKWARD, FORWARD, SCHEDULES, WEIGHT

_STATIC = ("weights", "gradients", "optimizer")


def stage_account(
    table: LayerTable, plan: Plan, index: int, cost: StageCost, each: ParameterBytes
) -> StageMemory:
    """Return the memory of a stage's devices by what it is for."""
    stage = plan.stages[index]
    splits = SCHEDULES[plan.schedule].splits_backward
    held: list[Held] = []
    for chunk, layers in enumerate(stage.chunks):
        alone = replace(stage, chunks=(layers,))
        held += _kept(table, alone, chunk, splits=splits)
        held += _working(table, alone, chunk, splits=splits)
        held += _parameters(stage, chunk, cost.memory["buffers"], each, splits=splits)
    copies = cost.memory["optimizer"] * each.copies / each.optimizer
    return StageMemory(
        static={name: cost.memory[name] for name in _STATIC},
        held=tuple(one for one in held if one.num_bytes > 0.0),
        step_end={STEP_END: copies} if copies else {},
    )


def _kept(
    table: LayerTable, stage: Stage, chunk: int, *, splits: bool
) -> Iterator[Held]:
    """Return what one pass leaves to another.

    While a backward pass runs, what was saved and what weight gradients will need come
    and go layer by layer: the larger of the two is charged.
    """
    found = stage_activations(table, stage, splits_backward=splits)
    (saved,), (kept,) = found.saved, found.kept
    logits = 0.0
    if stage.recompute != "stage" and stage.chunks[0][1] == table.num_layers - 1:
        logits = float(table.saved_bytes[stage.recompute][-1])
        # A head whose input outlives its logits is not told apart.
        logits = logits if kept + logits <= saved else 0.0
    rest = saved - logits
    yield Held("logits", chunk, FORWARD, BACKWARD, logits)
    if splits:
        yield Held("activations", chunk, FORWARD, WEIGHT, min(rest, kept))
        yield Held("activations", chunk, BACKWARD, WEIGHT, max(0.0, kept - rest))
    yield Held("activations", chunk, FORWARD, BACKWARD, max(0.0, rest - kept))


def _working(
    table: LayerTable, stage: Stage, chunk: int, *, splits: bool
) -> Iterator[Held]:
    """Return what is alive inside of a pass only: of its largest layer."""
    found = stage_activations(table, stage, splits_backward=splits)
    mode = "none" if stage.recompute == "stage" else stage.recompute
    first, last = stage.chunks[0]
    span = slice(first, last + 1)
    layer = first + int(np.argmax(table.working_bytes[mode][span]))
    part = "logits" if layer == table.num_layers - 1 else "working"
    yield Held(part, chunk, FORWARD, FORWARD, found.forward_working)
    added = max(0.0, found.kept[0] - found.saved[0])
    working = found.backward_working - added
    again = working - found.forward_working
    if stage.recompute != "stage":
        again = float(table.saved_bytes["none"][layer] - table.saved_bytes[mode][layer])
    yield Held("recomputed", chunk, BACKWARD, BACKWARD, again)
    yield Held(part, chunk, BACKWARD, BACKWARD, working - again)


def _parameters(
    stage: Stage, chunk: int, buffers: float, each: ParameterBytes, *, splits: bool
) -> Iterator[Held]:
    """Return the whole layers that ZeRO has on a device (`static_bytes`)."""
    ledger = LEDGER[stage.zero_stage]
    gradients = ledger.whole_gradients * each.gradients
    gathered = ledger.whole_weights * each.gather
    if gradients + gathered == 0:
        return
    reduced = buffers * gradients / (gradients + gathered)
    completing = WEIGHT if splits else BACKWARD
    yield Held("gradient bucket", chunk, completing, completing, reduced)
    for kind in (FORWARD, BACKWARD):
        yield Held("gathered layers", chunk, kind, kind, buffers - reduced)

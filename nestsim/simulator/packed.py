"""Work of microbatches whose documents, or pictures, are drawn.

A step that is lowered has the attention of an average sequence in each pass. A drawn
sequence has more or less of it, anything up to that of one document that fills the
sequence: so passes of a microbatch take what lies on the line through the average step
and the step of whole documents, pass by pass. All stages of a replica see the same
sequences; replicas and microbatches see sequences of their own.

With pictures the line goes through the step of sequences that have as many as plans are
made for, and that of sequences with the most: the work of a tower is in proportion to
its pictures. Only the stage that has the tower sees more or fewer.

Left out: ranks of a context-parallel group share a sequence evenly, wherever its
documents end, and what a pass sends stays the same.
"""

from dataclasses import dataclass

import numpy as np

from nestsim.simulator.kernels.jitter import uniforms
from nestsim.simulator.noise import DOCUMENT_DRAW
from nestsim.simulator.work import PipelineWork
from topologies.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedWork:
    """What drawn sequences make of a step."""

    whole: PipelineWork
    """The step where each sequence is one document, or has the most pictures."""

    sequences: FloatArray
    """Sequences, as of `estimators.layers.packing`: 0 for the average one, 1 for a
    single document or the most pictures, shape ``(N,)``."""

    per_microbatch: int
    """Sequences of a microbatch."""

    def of_kind(self, number: int) -> "PackedWork":
        """Return what drawn sequences make of the step of actors of a kind."""
        if number == 0:
            return self
        return PackedWork(
            whole=self.whole.of_kind(number),
            sequences=self.sequences,
            per_microbatch=self.per_microbatch,
        )

    def growth(self, work: PipelineWork, kind: int, virtual: int) -> float:
        """Return what a pass of whole documents takes longer, over what it takes.

        Parameters
        ----------
        work
            The step, of the same kind of actors.
        kind, virtual
            The pass, and its virtual stage.
        """
        average, whole = (
            sum(move.duration for move in step.pass_moves(kind, virtual))
            for step in (work, self.whole)
        )
        return whole / average - 1.0 if average > 0.0 else 0.0

    def drawn(
        self, seed: int, run: int, num_replicas: int, num_microbatches: int
    ) -> FloatArray:
        """Return the attention of each microbatch of a run, shape ``(d, m)``.

        On the scale of `sequences`; that of a microbatch is the mean of its sequences.
        """
        counts = np.full(num_replicas, num_microbatches * self.per_microbatch)
        uniform = uniforms(seed, run, DOCUMENT_DRAW, np.arange(num_replicas), counts)
        drawn = self.sequences[(uniform * self.sequences.size).astype(np.int64)]
        of_microbatch = drawn.reshape(num_replicas, num_microbatches, -1)
        attention: FloatArray = of_microbatch.mean(axis=2)
        return attention

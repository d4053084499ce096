"""Threads of a Chrome trace: who shows where among a stage's rows.

Every replica has a row for compute, one for each direction and chunk in which it sends,
since those messages do not wait for each other, and one for each kind of collective
that it takes part in without other replicas. Collectives of several replicas have no
replica: they have rows of their own, one for each kind, before those of replica 0.
"""

from typing import NamedTuple

import numpy as np

from nestsim.simulator.outcome import TRANSFER_KINDS
from topologies.arrays import IntArray

_DIRECTIONS = {
    TRANSFER_KINDS.index("activation"): "send activations",
    TRANSFER_KINDS.index("gradient"): "send gradients",
}
_COLLECTIVES = tuple(
    kind for kind in range(len(TRANSFER_KINDS)) if kind not in _DIRECTIONS
)


class Threads(NamedTuple):
    """Numbers and names of the threads of one stage."""

    num_chunks: int
    """Chunks ``v`` of each stage."""

    @property
    def per_replica(self) -> int:
        """Numbers that each replica takes."""
        return 1 + len(_DIRECTIONS) * self.num_chunks + len(_COLLECTIVES)

    def compute(self, replica: IntArray) -> IntArray:
        """Return the threads of passes and optimizer steps."""
        return len(_COLLECTIVES) + replica * self.per_replica

    def transfer(self, kind: int, replica: IntArray, chunk: IntArray) -> IntArray:
        """Return the threads of messages of one kind, or of collectives."""
        own = self.compute(replica) + 1
        if kind in _DIRECTIONS:
            first = list(_DIRECTIONS).index(kind) * self.num_chunks
            return own + first + chunk
        column = _COLLECTIVES.index(kind)
        first = len(_DIRECTIONS) * self.num_chunks
        return np.where(replica < 0, column, own + first + column)

    def name(self, thread: int) -> tuple[str, int]:
        """Return what a thread shows, and the replica; -1 for one of several."""
        if thread < len(_COLLECTIVES):
            return f"{TRANSFER_KINDS[_COLLECTIVES[thread]]}, replicas together", -1
        replica, column = divmod(thread - len(_COLLECTIVES), self.per_replica)
        if column == 0:
            return "compute", replica
        direction, chunk = divmod(column - 1, self.num_chunks)
        if direction < len(_DIRECTIONS):
            suffix = f", chunk {chunk}" if self.num_chunks > 1 else ""
            return list(_DIRECTIONS.values())[direction] + suffix, replica
        kind = _COLLECTIVES[column - 1 - len(_DIRECTIONS) * self.num_chunks]
        return TRANSFER_KINDS[kind], replica

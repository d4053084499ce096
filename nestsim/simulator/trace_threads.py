"""Threads of a Chrome trace: who shows where among a stage's rows.

Every replica has a row for compute, and one for each direction and chunk in which it
sends, since those messages do not wait for each other. Collectives have no replica:
they share the last row of replica 0's.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.outcome import TRANSFER_KINDS

IntArray = NDArray[np.int64]

_DIRECTIONS = {
    TRANSFER_KINDS.index("activation"): "send activations",
    TRANSFER_KINDS.index("gradient"): "send gradients",
}


class Threads(NamedTuple):
    """Numbers and names of the threads of one stage."""

    num_chunks: int
    """Chunks ``v`` of each stage."""

    @property
    def per_replica(self) -> int:
        """Numbers that each replica takes."""
        return 2 + len(_DIRECTIONS) * self.num_chunks

    @property
    def collectives(self) -> int:
        """The thread of all collectives."""
        return self.per_replica - 1

    def compute(self, replica: IntArray) -> IntArray:
        """Return the threads of passes and optimizer steps."""
        return replica * self.per_replica

    def transfer(self, kind: int, replica: IntArray, chunk: IntArray) -> IntArray:
        """Return the threads of messages of one kind, or of collectives."""
        if kind not in _DIRECTIONS:
            return np.full(replica.shape, self.collectives)
        first = 1 + list(_DIRECTIONS).index(kind) * self.num_chunks
        return replica * self.per_replica + first + chunk

    def names(self) -> list[str]:
        """Return the names of a replica's threads in order, collectives apart."""
        chunks = [f", chunk {c}" for c in range(self.num_chunks)]
        chunks = chunks if self.num_chunks > 1 else [""]
        return ["compute", *(d + c for d in _DIRECTIONS.values() for c in chunks)]

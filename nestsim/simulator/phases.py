"""Phases of collectives: which devices send to which others in lock-step.

Rings, or any messages at all; of one stage, or of teams of its replicas.
"""

from typing import NamedTuple

import numpy as np

from topologies.arrays import FloatArray, IntArray

Ends = tuple[IntArray, IntArray]


class RingPhase(NamedTuple):
    """One phase of a collective of one stage: rings that turn in lock-step."""

    rings: IntArray
    """Shape ``(R, n)``: device ``rings[r, k]`` sends to ``rings[r, (k + 1) % n]``."""

    bytes_per_member: float
    """What each member sends through its port in the whole phase [byte]."""

    num_steps: int
    """Rounds; each pays the ring's largest route latency once."""

    def ends(self) -> Ends:
        """Return who sends to whom, one message a member."""
        return _around(self.rings)


class EdgePhase(NamedTuple):
    """One phase of a collective of one stage: messages that move in lock-step."""

    sources: IntArray
    """Device that sends, shape ``(M,)``."""

    targets: IntArray
    """Device that receives, shape ``(M,)``."""

    bytes_per_member: float
    """What each message carries in the whole phase [byte]."""

    num_steps: int
    """Rounds; each pays the largest route latency once."""

    def ends(self) -> Ends:
        """Return who sends to whom."""
        return self.sources, self.targets


Phase = RingPhase | EdgePhase


class TeamPhase(NamedTuple):
    """One phase of an in-layer collective: rings of every team of a stage."""

    rings: IntArray
    """Shape ``(R, n)``, as in `RingPhase`; those of a team next to each other."""

    team: IntArray
    """Of each ring, rising from 0, shape ``(R,)``."""

    bytes_per_member: float
    """As in `RingPhase` [byte]."""

    num_steps: int
    """As in `RingPhase`."""

    weights: FloatArray | None = None
    """What each member sends over `bytes_per_member`, shape ``(R, n)``; multiples of
    2**-20. All 1 if None."""

    def ends(self) -> Ends:
        """Return who sends to whom, one message a member."""
        return _around(self.rings)

    def team_of_message(self) -> IntArray:
        """Return the team of each message."""
        return np.repeat(self.team, self.rings.shape[1])


class TeamEdgePhase(NamedTuple):
    """One phase of an in-layer collective: messages of every team of a stage."""

    sources: IntArray
    """As in `EdgePhase`, shape ``(M,)``; those of a team next to each other."""

    targets: IntArray
    """As in `EdgePhase`, shape ``(M,)``."""

    team: IntArray
    """Of each message, rising from 0, shape ``(M,)``."""

    bytes_per_member: float
    """As in `EdgePhase` [byte]."""

    num_steps: int
    """As in `EdgePhase`."""

    weights: None = None
    """Every message carries the same."""

    def ends(self) -> Ends:
        """Return who sends to whom."""
        return self.sources, self.targets

    def team_of_message(self) -> IntArray:
        """Return the team of each message."""
        return self.team


def _around(rings: IntArray) -> Ends:
    following = np.concatenate((rings[:, 1:], rings[:, :1]), axis=1)
    return rings.ravel(), following.ravel()

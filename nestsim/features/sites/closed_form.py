"""How long sites take that train apart and meet now and then: closed forms.

Each of ``n`` sites trains by itself, ``t`` a step. ``P`` fragments of the model are
synchronised in turn, one every ``d = H / P`` steps, so that each is once in ``H``
steps. The fragment's outer gradient is all-reduced over the sites in a ring, ``S``
bytes in

    C = 2 (n - 1) (S / (n W) + L),

``W`` being what an uplink carries and ``L`` the latency from a site to the next. All-
reduces follow each other, as collectives of one communicator do. After ``k`` more
steps the sites wait for it, and an outer optimizer takes ``o``. The time from one
fragment to the next is then, where all are alike,

    o + (d - k) t + max(k t, C)    with k < d,
    max(o + d t, C)                with more,

the largest mean over the cycles of this max-plus recurrence: steps and optimizers of
one spacing; the ring, which is busy with one fragment after another; and, with
``k < d``, from a fragment's way over the ring through what waits for it to the next
one. With ``k >= d`` that last cycle goes through ``floor(k / d) + 1`` spacings with no
more than one ring and one spacing of steps in it, and is never the longest.

References
----------
.. [1] Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language
   Models", 2023 (``P = 1``, ``k = 0``).
.. [2] Douillard et al., "Streaming DiLoCo with overlapping communication", 2025
   (algorithm 2).
.. [3] Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
   workstations", Journal of Parallel and Distributed Computing, 2009 (the ring).
"""

import math
from dataclasses import dataclass

from topologies.errors import short_repr


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterLoop:
    """Inner steps, and what sites exchange between them."""

    num_sites: int
    """Sites ``n``."""

    step_time: float
    """Time of an inner step ``t`` [s]."""

    num_bytes: float
    """All parameters as they are sent, once [byte]."""

    latency: float
    """From a site to the next one ``L`` [s]."""

    sync_every: int = 1
    """Steps between two synchronisations of the same parameters ``H``."""

    fragments: int = 1
    """Parts of the model ``P``, a divisor of `sync_every`."""

    delay: int = 0
    """Steps that go on while a synchronisation is under way ``k``."""

    optimizer_time: float = 0.0
    """Outer optimizer of all parameters [s]."""

    hidden: float = 0.0
    """How long before the end of a step its synchronisation begins, less than a step
    [s]."""

    __repr__ = short_repr

    @property
    def spacing(self) -> int:
        """Steps from one fragment to the next ``d``."""
        return self.sync_every // self.fragments

    @property
    def working_time(self) -> float:
        """Steps and outer optimizer from one fragment to the next [s]."""
        return self.spacing * self.step_time + self.optimizer_time / self.fragments

    @property
    def slack(self) -> float:
        """Time from a synchronisation's begin until somebody waits for it [s]."""
        return self.delay * self.step_time + self.hidden

    @property
    def hops(self) -> int:
        """Messages that follow each other in an all-reduce."""
        return 2 * (self.num_sites - 1)

    @property
    def bytes_sent(self) -> float:
        """What a site sends, and receives, for a fragment [byte]."""
        return self.hops * self.num_bytes / (self.num_sites * self.fragments)

    def all_reduce_time(self, rate: float) -> float:
        """Return the time of a fragment's all-reduce ``C`` [s].

        Parameters
        ----------
        rate
            What a site sends, and receives, at most ``W`` [byte/s].
        """
        return self.bytes_sent / rate + self.hops * self.latency

    def waiting_time(self, rate: float) -> float:
        """Return how long sites wait for each fragment [s]."""
        time = self.all_reduce_time(rate)
        if self.delay < self.spacing:
            return max(0.0, time - self.slack)
        return max(0.0, time - self.working_time)

    def round_time(self, rate: float) -> float:
        """Return the time in which all fragments are synchronised once [s]."""
        return self.fragments * (self.working_time + self.waiting_time(rate))

    def compute_share(self, rate: float) -> float:
        """Return the share of the time in which sites do inner steps."""
        return self.sync_every * self.step_time / self.round_time(rate)

    def step_rate(self, rate: float) -> float:
        """Return inner steps in a second [1/s]."""
        return self.sync_every / self.round_time(rate)

    def least_rate(self, share: float) -> float:
        """Return what an uplink must carry for a share of the time in inner steps.

        Parameters
        ----------
        share
            More than 0 and less than 1.

        Returns
        -------
        float
            [byte/s]; infinite where latency or optimizer take too long for it.
        """
        whole = self.spacing * self.step_time / share
        waits = whole - self.working_time
        if waits < 0.0:
            return math.inf
        is_hidden = self.delay >= self.spacing
        longest = whole if is_hidden else self.slack + waits
        left = longest - self.hops * self.latency
        return self.bytes_sent / left if left > 0.0 else math.inf

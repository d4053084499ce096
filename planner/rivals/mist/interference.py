"""How much work, transfers between devices and with the host slow each other down.

Four channels of one device: compute ``C``, collectives ``G``, transfers from the host
``c2g`` and to the host ``g2c``. While a set of them is busy, each is slowed by a factor
of that set and channel; the set lasts until its first channel is done. Sets are gone
through from the largest to the smallest, and what is left of one channel takes its own
time (Mist, section 4.3: the interference model; its order of sets is that of the public
implementation).
"""

from dataclasses import dataclass

import numpy as np

from topologies.arrays import FloatArray

CHANNEL_SETS = (
    (0, 1, 2, 3),
    (0, 1, 2),
    (0, 1, 3),
    (0, 2, 3),
    (1, 2, 3),
    (0, 1),
    (0, 2),
    (0, 3),
    (1, 2),
    (1, 3),
    (2, 3),
)
"""Channels of each set in the order in which sets are gone through: 0 compute, 1
collectives, 2 from the host, 3 to the host."""

DONE = 1e-12
"""Time below which nothing is left of a channel [s]."""


@dataclass(frozen=True, slots=True)
class Interference:
    """Slowdown of each channel in each set of busy channels."""

    factors: tuple[float, ...]
    """28 factors, those of a set's channels after each other, sets in the order of
    `CHANNEL_SETS`; at least 1."""

    def __post_init__(self) -> None:
        assert len(self.factors) == sum(map(len, CHANNEL_SETS))

    def time(
        self,
        compute: FloatArray | float,
        collectives: FloatArray | float,
        from_host: FloatArray | float,
        to_host: FloatArray | float,
    ) -> FloatArray:
        """Return how long the four take together [s].

        Parameters
        ----------
        compute, collectives, from_host, to_host
            Time of each alone; numbers or arrays that broadcast to one vector [s].
        """
        parts = np.broadcast_arrays(compute, collectives, from_host, to_host)
        left = np.array(parts, dtype=np.float64).reshape(4, -1)
        total = np.zeros(left.shape[1])
        start = 0
        busy = (left > 0.0).T @ (1 << np.arange(4))
        for channels in CHANNEL_SETS:
            factors = np.array(self.factors[start : start + len(channels)])[:, None]
            start += len(channels)
            (where,) = np.nonzero(busy == sum(1 << channel for channel in channels))
            if not where.size:
                continue
            place = np.array(channels)[:, None], where
            slowed = left[place] * factors
            together = slowed.min(axis=0)
            total[where] += together
            rest = left[place] - together / factors
            rest[rest < DONE] = 0.0
            left[place] = rest
            busy[where] = (left[:, where] > 0.0).T @ (1 << np.arange(4))
        return np.asarray(total + left.sum(axis=0))


PCIE_FACTORS = Interference(
    (
        *(18.9356, 1.2639, 50.0, 1.6046),
        *(2.0865, 1.0009, 2.393),
        *(2.4146, 1.0869, 2.6637),
        *(1.9381, 3.2653, 1.0),
        *(1.234, 50.0, 1.6883),
        *(1.1676, 1.0),
        *(1.0152, 1.0005),
        *(1.0179, 1.0022),
        *(1.0, 2.1383),
        *(1.078, 2.438),
        *(2.4327, 1.0974),
    )
)
"""Factors measured on L4 cards, whose collectives go over PCIe: Mist's public
configurations ``tuned_configs/l4-24gb``, ``interference_model_params``."""

NVLINK_FACTORS = Interference(
    (
        *(1.307, 2.6325, 2.4097, 2.5898),
        *(1.2264, 2.8078, 1.466),
        *(1.3202, 2.2295, 1.932),
        *(1.0309, 1.9929, 1.0438),
        *(5.4986, 1.2915, 1.7303),
        *(1.2856, 1.0393),
        *(1.0081, 1.0099),
        *(1.0125, 1.0251),
        *(1.5508, 1.0972),
        *(1.1336, 1.2723),
        *(1.5186, 1.2665),
    )
)
"""Factors measured on A100 cards with NVLink: Mist's public configurations
``tuned_configs/a100-40gb``, ``interference_model_params``."""

"""How far off a prediction may be: the 80 % band that goes with it.

The band of a class of jobs is as wide as the errors of predictions that were held out
when constants were fitted (split conformal prediction [1]_): ``k``-th smallest of ``n``
absolute logarithmic errors, ``k = ceil(0.8 (n + 1))``; those of small classes lean on
wider ones. Classes are what is known before a job runs: whether its cluster is one
that constants were fitted to, its software, whether it stays in a few nodes' reach, and
the generation of its devices. `nestsim.calibration` measures them; ``uncertainty.toml``
holds them.

The memory of a device errs by framework, and more to one side: there the deciles of
what was measured over what was predicted are held. The outer two are the band, and how
many lie below what a device has over what a plan needs is how likely it fits.

What a full device loses to fragments of free memory differs from run to run, too:
``fragments.toml`` has what PyTorch printed when training ran out of memory. How likely
a plan fits counts each of those losses beside each decile, as if they had nothing to do
with each other. These runs failed: of all runs fewer lose as much.

References
----------
.. [1] J. Lei, M. G'Sell, A. Rinaldo, R. Tibshirani, L. Wasserman, "Distribution-Free
   Predictive Inference for Regression", JASA 113, 2018.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import NamedTuple

import tomli

from estimators.constants import Constants
from estimators.software import Software

SHARE = 0.8
"""Part of the jobs of a class whose time is to lie in the band."""

NODE_SIZE = 8
"""Devices at most of a job that is "within a node"."""


ASSUMED_LAYOUT = 2.0
"""Factor on a band's width where a size that decides the time is an assumption: between
micro-batches of 1 and of 4 times differ by 5 to 30 %, about as much as a band is wide.
Not fitted."""


class Band(NamedTuple):
    """Factors on a predicted time, or rate: the ends of its 80 % band."""

    low: float
    """Factor on the prediction at the lower end."""

    high: float
    """Factor on the prediction at the upper end."""


class MemoryNeed(NamedTuple):
    """What a device of a plan needs, how far off that may be, and what there is."""

    estimate: float
    """Predicted size [byte]."""

    low: float
    """Lower end of the 80 % band; the estimate where none is known [byte]."""

    high: float
    """Upper end of the band [byte]."""

    room: float
    """What there is [byte]."""

    fits_in_ten: int
    """Jobs of ten like this one that fit: 0 is fewer than one, 10 more than nine."""


def need_json(need: MemoryNeed | None) -> dict[str, object] | None:
    """Return a need for programs."""
    if need is None:
        return None
    return {
        "share": SHARE,
        "needed_bytes": {
            "estimate": need.estimate,
            "low": need.low,
            "high": need.high,
        },
        "usable_bytes": need.room,
        "fits_in_ten": need.fits_in_ten,
    }


class MemoryBand(NamedTuple):
    """How far off the memory of a device of one framework's jobs may be."""

    deciles: tuple[float, ...]
    """Nine deciles of what was measured over what was predicted, rising."""

    def need(self, estimate: float, room: float) -> MemoryNeed:
        """Hold what is predicted against what there is [byte]."""
        return MemoryNeed(
            estimate,
            self.deciles[0] * estimate,
            self.deciles[-1] * estimate,
            room,
            _tenths(sum(factor * estimate <= room for factor in self.deciles)),
        )

    @property
    def band(self) -> Band:
        """The outer deciles."""
        return Band(self.deciles[0], self.deciles[-1])


def _tenths(below: int) -> int:
    """Return in how many of ten jobs something is true that so many deciles keep."""
    return below + (below == NUM_DECILES)


NUM_DECILES = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What of a job decides how well it is predicted."""

    source: str = ""
    """Source of the measurements that the job's cluster belongs to; empty for a cluster
    that none are known of."""

    software: str
    """Name of the software's preset."""

    accelerator: str
    """Name of the device."""

    num_devices: int
    """Devices that take part."""

    has_experts: bool
    """Whether the model is a mixture of experts."""

    assumes_layout: bool = False
    """Whether a size that decides the time, such as the micro-batch, is an
    assumption."""

    @property
    def scale(self) -> str:
        """Which kind of job it is: ``"node"``, ``"cluster"`` or ``"experts"``."""
        if self.has_experts:
            return "experts"
        return "node" if self.num_devices <= NODE_SIZE else "cluster"

    @property
    def chip(self) -> str:
        """The accelerator's generation: its name without memory and board."""
        return "-".join(self.accelerator.split("-")[: 1 + self._is_tpu])

    @property
    def _is_tpu(self) -> bool:
        return self.accelerator.startswith("tpu-")

    def classes(self) -> tuple[str, ...]:
        """Return the names of its classes, the widest first."""
        framework = f"{self.scale} {self.software}"
        return ("all", self.scale, framework, f"{framework} {self.chip}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """Half widths of the bands of all classes, in the logarithm."""

    measured: Mapping[str, float]
    """Class -> half width, on clusters that constants were fitted to."""

    new: Mapping[str, float]
    """Class -> half width, on others: errors of sources left out as a whole."""

    memory: Mapping[str, tuple[float, ...]]
    """Name of a preset, or ``"all"``, -> deciles of measured over predicted memory of a
    device, in the logarithm."""

    sources: frozenset[str]
    """Sources that constants were fitted to."""

    software: frozenset[str]
    """Names of presets that constants were fitted to."""

    accelerators: frozenset[str]
    """Names of devices that constants were fitted to."""

    def half_width(self, setting: Setting) -> float:
        """Return half the width of a job's band, in the logarithm.

        Wider by `ASSUMED_LAYOUT` where a size of the job is an assumption.
        """
        wider = ASSUMED_LAYOUT if setting.assumes_layout else 1.0
        return wider * self._half_width(setting)

    def _half_width(self, setting: Setting) -> float:
        if setting.source in self.sources:
            return _narrowest(self.measured, setting)
        width = _narrowest(self.new, setting)
        is_known = (
            setting.software in self.software
            and setting.accelerator in self.accelerators
        )
        return width if is_known else max(width, self.new["unknown"])

    def band(self, setting: Setting) -> Band:
        """Return the band of a job's predicted time, as factors on it."""
        factor = math.exp(self.half_width(setting))
        return Band(1.0 / factor, factor)

    def memory_band(self, preset: str) -> MemoryBand:
        """Return the band of the memory of a device of a job, as factors on it."""
        deciles = self.memory.get(preset, self.memory["all"])
        return MemoryBand(tuple(math.exp(decile) for decile in deciles))


def _narrowest(widths: Mapping[str, float], setting: Setting) -> float:
    return next(widths[name] for name in reversed(setting.classes()) if name in widths)


@cache
def load_uncertainty() -> Uncertainty:
    """Read the bands that are shipped."""
    text = (
        files("nestsim.evaluate")
        .joinpath("uncertainty.toml")
        .read_text(encoding="utf-8")
    )
    tables = tomli.loads(text)
    return Uncertainty(
        measured=MappingProxyType(tables["measured"]),
        new=MappingProxyType(tables["new"]),
        memory=MappingProxyType(
            {name: tuple(deciles) for name, deciles in tables["memory"].items()}
        ),
        sources=frozenset(tables["fitted"]["sources"]),
        software=frozenset(tables["fitted"]["software"]),
        accelerators=frozenset(tables["fitted"]["accelerators"]),
    )


@cache
def _fragments() -> Mapping[str, tuple[float, ...]]:
    """Return mode of the allocator -> parts of what it gave out that were lost."""
    text = (
        files("nestsim.evaluate").joinpath("fragments.toml").read_text(encoding="utf-8")
    )
    return {
        mode: tuple(run["unallocated"] / run["allocated"] for run in runs)
        for mode, runs in tomli.loads(text).items()
    }


def room_band(
    preset: str, software: Software, constants: Constants
) -> MemoryBand | None:
    """Return how far off what a device has to have may be, None with ideal software.

    Parameters
    ----------
    preset
        Name of the software's preset.
    software
        Whose allocator it is; where its estimate counts nothing as lost to fragments,
        nothing is.
    constants
        Of the allocator, among others.
    """
    band, grows = memory_band(preset), software.expandable_segments
    lost = constants.allocator(software.name, expandable=grows).full_fragmentation
    if band is None or lost == 0.0:
        return band
    losses = _fragments()["expandable" if grows else "fixed"]
    factors = sorted(
        decile * (1.0 + loss) / (1.0 + lost)
        for decile in band.deciles
        for loss in losses
    )
    spacing = (len(factors) + 1) / (NUM_DECILES + 1)
    ranks = range(1, NUM_DECILES + 1)
    return MemoryBand(tuple(factors[round(rank * spacing) - 1] for rank in ranks))


def memory_band(preset: str) -> MemoryBand | None:
    """Return how far off a device's memory may be, None with ideal software."""
    return None if preset == "ideal" else load_uncertainty().memory_band(preset)


def band(setting: Setting) -> Band | None:
    """Return the 80 % band of a job's predicted time, None with ideal software.

    Ideal software is a bound, and no prediction of a measured time.
    """
    if setting.software == "ideal":
        return None
    return load_uncertainty().band(setting)

"""How far off a prediction may be: the 80 % band that goes with it.

The band of a class of jobs is as wide as the errors of predictions that were held out
when constants were fitted (split conformal prediction [1]_): ``k``-th smallest of ``n``
absolute logarithmic errors, ``k = ceil(0.8 (n + 1))``; those of small classes lean on
wider ones. Classes are what is known before a job runs: whether its cluster is one
that constants were fitted to, its software, whether it stays in a few nodes' reach, and
the generation of its devices.

A job unlike all that were measured, by its chip, its release or its model, has a wider
band: as much wider as errors grew where rows of the like were left out of the fit.
Widths add as independent errors do, by their squares. `nestsim.features.calibration`
measures classes and distances; ``uncertainty.toml`` holds them.

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
from estimators.models.diffusion import DIFFUSION_BLOCKS
from estimators.models.spec import TransformerSpec
from estimators.operators.shape_tables import measured_relative
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
    """Name of the software whose constants hold."""

    release: str = ""
    """Release of the software, or of the container that it comes in; empty if that is
    not known."""

    accelerator: str
    """Name of the device."""

    num_devices: int
    """Devices that take part."""

    has_experts: bool
    """Whether the model is a mixture of experts."""

    traits: frozenset[str] = frozenset()
    """What `traits_of` the model and its software are."""

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
        return chip_of(self.accelerator)

    def classes(self) -> tuple[str, ...]:
        """Return the names of its classes, the widest first."""
        framework = f"{self.scale} {self.software}"
        return ("all", self.scale, framework, f"{framework} {self.chip}")


def chip_of(accelerator: str) -> str:
    """Return an accelerator's generation: its name without memory and board."""
    return "-".join(accelerator.split("-")[: 1 + accelerator.startswith("tpu-")])


_MIXERS = {
    "mamba": "Mamba-2 layers",
    "mamba_attention": "Mamba-2 layers",
    "window": "attention within a window",
    "gated_delta": "gated delta nets",
    "kimi_delta": "Kimi Delta Attention",
    "lightning": "lightning attention",
    "selective_scan": "Mamba-1 layers",
    "short_convolution": "short convolutions",
    "sparse": "attention with an indexer",
    "reusing": "attention with an indexer",
    "window_single": "attention within a window",
    "window_chosen": "attention with an indexer",
    "window_compressed": "attention to summaries",
    "borrowing_attention": "keys of other blocks",
    "borrowing_window": "keys of other blocks",
    **dict.fromkeys(DIFFUSION_BLOCKS, "adaptive norms"),
}
"""Mixer of a block -> what it is called; others are called by their names, but for
plain attention."""


def traits_of(spec: TransformerSpec, software: Software) -> frozenset[str]:
    """Return what of a model and its software has kernels or messages of its kind."""
    mixers = {kind.split("+")[0] for kind in spec.block_pattern}
    mixers -= {"attention", "unturned", "dense", "experts"}
    traits = {_MIXERS.get(mixer, f"{mixer} layers") for mixer in mixers}
    if spec.window_size:
        traits.add(_MIXERS["window"])
    if spec.vision is not None:
        traits.add("vision towers")
    if spec.kv_lora_rank:
        traits.add("latent attention")
    if spec.num_moe_experts:
        dispatcher = software.moe_token_dispatcher_type or "alltoall"
        traits.add(f"experts reached by {dispatcher}")
    return frozenset(traits)


class Distance(NamedTuple):
    """A way in which a job is unlike all that were measured."""

    cause: str
    """Cause of the distance, a key of `Uncertainty.wider`."""

    words: str
    """Cause of the distance in plain words, a clause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What constants were fitted to."""

    sources: frozenset[str]
    """Sources of rows."""

    software: frozenset[str]
    """Names of software."""

    accelerators: frozenset[str]
    """Names of devices."""

    traits: Mapping[str, frozenset[str]]
    """Name of software -> traits of models that it ran, as `traits_of` has them."""

    releases: Mapping[str, tuple[str, ...]]
    """Name of software -> its newest release, and the newest container."""

    def distances(self, setting: Setting) -> tuple[Distance, ...]:
        """Return how a job is unlike all that were measured."""
        causes = []
        chip = setting.chip
        if setting.software not in self.software:
            causes.append(
                Distance("software", f"no row of {setting.software} is known")
            )
        if chip not in {chip_of(name) for name in self.accelerators}:
            words, relative = (
                f"no row of {setting.accelerator} was measured",
                measured_relative(setting.accelerator),
            )
            causes.append(
                Distance("chip", words)
                if chip_of(relative) == chip
                else Distance(
                    "kernels", f"{words}, its kernels are those of {relative}"
                )
            )
        if self._is_newer(setting):
            words = f"release {setting.release} is newer than all that were measured"
            causes.append(Distance("release", words))
        # Kernels and messages of such models are each framework's.
        unseen = setting.traits - self.traits.get(setting.software, frozenset())
        if unseen:
            listed = " and ".join(sorted(unseen))
            words = f"no row of {setting.software} has {listed}"
            causes.append(Distance("model", words))
        return tuple(causes)

    def _is_newer(self, setting: Setting) -> bool:
        """Return whether a job's release is newer than all that were measured."""
        release = release_number(setting.release)
        # Containers are numbered by years: 26.04 is no release after 0.17.
        return any(
            release > known and (release[0] > _YEARS) == (known[0] > _YEARS)
            for known in map(release_number, self.releases.get(setting.software, ()))
        )


_YEARS = 15
"""Numbers beyond it that begin a release are years."""


def release_number(release: str) -> tuple[int, ...]:
    """Return a release as numbers that can be compared; (-1,) for none."""
    return tuple(int(part) for part in release.split(".")) if release else (-1,)


class Reason(NamedTuple):
    """Why a band is wider than those of measured jobs."""

    words: str
    """Reason in plain words, a clause."""

    added: float
    """Relative length by which it moves the band's upper end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """Half widths of the bands of all classes, in the logarithm."""

    measured: Mapping[str, float]
    """Class -> half width, on clusters that constants were fitted to."""

    new: Mapping[str, float]
    """Class -> half width, on others: errors of sources left out as a whole."""

    wider: Mapping[str, float]
    """Cause of a distance -> what it adds to half widths, by the squares."""

    memory: Mapping[str, tuple[float, ...]]
    """Name of a preset, or ``"all"``, -> deciles of measured over predicted memory of a
    device, in the logarithm."""

    fitted: Fitted
    """Rows that constants were fitted to."""

    def half_width(self, setting: Setting) -> float:
        """Return half the width of a job's band, in the logarithm.

        Wider by `ASSUMED_LAYOUT` where a size of the job is an assumption.
        """
        return self._half_width(setting, self.fitted.distances(setting))

    def _half_width(self, setting: Setting, distances: tuple[Distance, ...]) -> float:
        is_measured = setting.source in self.fitted.sources
        width = narrowest(self.measured if is_measured else self.new, setting)
        added = (self.added(distance.cause) for distance in distances)
        wider = ASSUMED_LAYOUT if setting.assumes_layout else 1.0
        return wider * math.hypot(width, *added)

    def added(self, cause: str) -> float:
        """Return what a distance adds to half widths; nothing if none was tried."""
        return self.wider.get(cause, 0.0)

    def reasons(self, setting: Setting) -> tuple[Reason, ...]:
        """Return why a job's band is wider than those of jobs that were measured.

        What a reason adds is what the band would be narrower without it.
        """
        distances = self.fitted.distances(setting)
        high = math.exp(self._half_width(setting, distances))
        reasons = []
        for place, distance in enumerate(distances):
            others = distances[:place] + distances[place + 1 :]
            added = high - math.exp(self._half_width(setting, others))
            if added > 0.0:
                reasons.append(Reason(distance.words, added))
        return tuple(reasons)

    def band(self, setting: Setting) -> Band:
        """Return the band of a job's predicted time, as factors on it."""
        factor = math.exp(self.half_width(setting))
        return Band(1.0 / factor, factor)

    def memory_band(self, preset: str) -> MemoryBand:
        """Return the band of the memory of a device of a job, as factors on it."""
        deciles = self.memory.get(preset, self.memory["all"])
        return MemoryBand(tuple(math.exp(decile) for decile in deciles))


def narrowest(widths: Mapping[str, float], setting: Setting) -> float:
    """Return the half width of the narrowest class of a job that has any."""
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
    fitted = tables["fitted"]
    return Uncertainty(
        measured=MappingProxyType(tables["measured"]),
        new=MappingProxyType(tables["new"]),
        wider=MappingProxyType(tables["wider"]),
        memory=MappingProxyType(
            {name: tuple(deciles) for name, deciles in tables["memory"].items()}
        ),
        fitted=Fitted(
            sources=frozenset(fitted["sources"]),
            software=frozenset(fitted["software"]),
            accelerators=frozenset(fitted["accelerators"]),
            traits=MappingProxyType(
                {name: frozenset(kinds) for name, kinds in tables["traits"].items()}
            ),
            releases=MappingProxyType(
                {name: tuple(newest) for name, newest in tables["releases"].items()}
            ),
        ),
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

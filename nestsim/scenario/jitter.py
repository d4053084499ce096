"""The table [jitter]: what differs from one step to the next."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from nestsim.scenario.base import BuiltFrom, Table
from nestsim.simulator.kernels.jitter import uniforms
from nestsim.simulator.noise import (
    DISTRIBUTIONS,
    PERIODS,
    SLOW_DRAW,
    Delay,
    Jitter,
    Noise,
)
from topologies.arrays import FloatArray
from topologies.errors import InputError, located
from topologies.settings import Count, Factor, Fraction, Latency, NameChoice, Seed

DistributionName = Annotated[str, NameChoice(tuple(DISTRIBUTIONS))]

Period = Annotated[str, NameChoice(PERIODS)]

Variation = Annotated[float, Field(ge=0, le=10)]

USUAL = Jitter(compute=Noise("lognormal", 0.02), per="step")
"""What is taken where a scenario says nothing.

GPUs of one kind and cluster differ by 8 % in the time of the same work (Sinha et al.,
"Not All GPUs Are Created Equal", SC 2022, abstract): four standard deviations of 2 %,
as we read it. The same paper has GPUs 1.5 times as slow as the median, and MegaScale
(Jiang et al., NSDI 2024, section 6) hosts that take 10 % longer: the table's `slow`.
"""

MOST_RUNS = 100_000
"""Runs at most."""


class SlowShare(NamedTuple):
    """Devices that compute more slowly, each by itself with a probability."""

    fraction: float
    """Probability of each device to be slow, from 0 to 1."""

    factor: float
    """What the compute times of a slow device are multiplied by, at least 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JitterSpec:
    """What differs from step to step, and how many steps are looked at."""

    jitter: Jitter = USUAL
    """Factors on compute and delays of messages, with the seed of all draws."""

    slow: tuple[SlowShare, ...] = ()
    """Shares of the fleet that are slow, other devices in each run, with the seed of
    `jitter`. A device is in one of them at most: of shares of more than 1 together, the
    last ones are as large as what the others leave."""

    runs: int = 100
    """Steps that are replayed for each number of replicas."""

    most_replicas: int = 16
    """Multiple of the plan's replicas up to which the loss is computed."""

    def slow_borders(self) -> FloatArray:
        """Return where the shares end in (0, 1): they lie in it one after another."""
        shares = np.cumsum([one.fraction for one in self.slow])
        borders: FloatArray = np.minimum(shares, 1.0)
        return borders

    def slowdowns(self, num_devices: int, run: int) -> FloatArray:
        """Return what compute times are multiplied by in one run, shape ``(N,)``.

        Each device draws one number of its own: so a larger share has the devices of a
        smaller one, and a larger fleet begins with those of a smaller one.

        Parameters
        ----------
        num_devices
            Devices ``N`` of the fleet.
        run
            Number of the run.
        """
        if not self.slow:
            return np.ones(num_devices)
        each = np.ones(num_devices, dtype=np.int64)
        devices = np.arange(num_devices)
        drawn = uniforms(self.jitter.seed, run, SLOW_DRAW, devices, each)
        factors = np.array([*(one.factor for one in self.slow), 1.0])
        return factors[np.searchsorted(self.slow_borders(), drawn, side="right")]


class ComputeNoiseTable(Table):
    """A random factor of mean 1 on the compute times of each device."""

    distribution: DistributionName = Field("lognormal", examples=["gamma"])
    """Distribution of the factor."""

    cv: Variation = Field(0.02, examples=[0.03])
    """Coefficient of variation of the factor: standard deviation over mean. With 0 the
    factor is always 1."""

    per: Period = Field("step", examples=["pass"])
    """How long a factor lasts: each device draws one for every "operator" between two
    collectives, for every "pass" of a microbatch, or for the whole "step"."""

    def build(self) -> Noise:
        """Return the record for the replay."""
        return Noise(self.distribution, self.cv)


class LinkDelayTable(Table):
    """A random extra time of each message."""

    distribution: DistributionName = Field("exponential", examples=["gamma"])
    """Distribution of the extra time."""

    mean: Latency = Field(examples=["5 us"])
    """Mean of the extra time [s]."""

    cv: Variation = Field(1.0, examples=[0.5])
    """Coefficient of variation of the extra time: standard deviation over mean. With 0
    all messages take `mean` longer."""

    def build(self) -> Delay:
        """Return the record for the replay."""
        return Delay(self.distribution, self.mean, self.cv)


class SlowShareTable(Table):
    """A share of the fleet that computes more slowly, other devices in each run."""

    fraction: Fraction = Field(examples=[0.01])
    """Share of all devices that are slow: in each run every device is with this
    probability, whatever the others are. A device is slow by one entry at most."""

    factor: Factor = Field(examples=[1.1])
    """What their compute times are multiplied by."""


class JitterTable(Table):
    """What `nestsim jitter` draws at random in each step that it replays."""

    compute: ComputeNoiseTable | None = Field(
        None, examples=[{"distribution": "lognormal", "cv": 0.03, "per": "pass"}]
    )
    """Random factors on compute times. Left out together with all else that differs, a
    lognormal one of coefficient of variation 0.02 for each device and step, as GPUs of
    one kind differ (8 % between them; Sinha et al., SC 2022)."""

    links: Annotated[Delay, BuiltFrom(LinkDelayTable)] | None = Field(
        None, examples=[{"distribution": "exponential", "mean": "5 us"}]
    )
    """Random extra time of every message between stages and in every phase of a
    collective that is simulated. Left out, none."""

    documents: Annotated[str, NameChoice(("expected", "drawn"))] = "expected"
    """Attention of microbatches whose sequences hold several documents
    (`model.documents`): that of an average sequence in each of them ("expected"), or
    that of documents drawn for each microbatch of each replica ("drawn")."""

    images: Annotated[str, NameChoice(("expected", "drawn"))] = "expected"
    """Pictures of microbatches whose sequences have more or fewer of them
    (`model.images_sigma` or `model.image_counts`): as many as plans are made for
    ("expected"), or drawn for each microbatch of each replica ("drawn")."""

    slow: Annotated[list[SlowShareTable], Field(max_length=100)] = Field(
        [], examples=[[{"fraction": 0.01, "factor": 1.1}]]
    )
    """Shares of the fleet that are slow, other devices in each run: which of them a job
    gets is left to chance. Devices that are always slow stand in [cluster.degraded]."""

    runs: Annotated[int, Field(ge=1, le=MOST_RUNS)] = Field(100, examples=[1000])
    """Steps that are replayed, for each number of replicas."""

    seed: Seed = 0
    """Seed of everything that is drawn."""

    most_replicas: Count = Field(16, examples=[64])
    """Multiple of the plan's replicas up to which the expected loss is computed."""

    def build(self) -> JitterSpec:
        """Return the settings for the job.

        Raises
        ------
        InputError
            If a distribution cannot vary as it is told to.
        """
        compute, per = None, USUAL.per
        if self.compute is not None:
            per = self.compute.per
            with located("compute"):
                compute = self.compute.build()
        drawn = self.documents == "drawn"
        pictures = self.images == "drawn"
        if drawn and pictures:
            raise InputError(
                "draws pictures, and documents are drawn as well",
                where="images",
                got=self.images,
                expected="one of the two to be drawn",
            )
        if not (self.compute or self.links or self.slow or drawn or pictures):
            compute = USUAL.compute
        return JitterSpec(
            jitter=Jitter(
                compute=compute,
                per=per,
                links=self.links,
                documents=drawn,
                images=pictures,
                seed=self.seed,
            ),
            slow=tuple(SlowShare(one.fraction, one.factor) for one in self.slow),
            runs=self.runs,
            most_replicas=self.most_replicas,
        )

"""Pictures of training sequences, and how the tower that sees them is trained.

Sequences have as many pictures each, or differ: by a log-normal distribution around
`images`, or as a CSV file with the columns ``images`` and ``count`` says. Plans are
made for `images`; what microbatches lose by differing is drawn (`jitter.images`).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
from pydantic import Field

from estimators.models.document_lengths import histogram, read_lengths
from estimators.models.limits import Sigma
from estimators.models.spec import TransformerSpec
from estimators.models.vision import VisionTower
from nestsim.scenario.base import Table
from topologies.errors import InputError, located
from topologies.settings import Text

COLUMN = "images"
"""Column of pictures in a file that counts sequences."""

EXPECTED = "CSV with the columns images and count"
"""What the file is."""

NUM_SEQUENCES = 1 << 10
"""Sequences that stand for all of a distribution."""


class PictureSettings(Table):
    """What a model that sees says of pictures."""

    images: int = Field(0, ge=0, le=10_000, examples=[4])
    """Pictures of a sequence, or tiles where a tower takes one size, whose tokens are
    among those of the sequence: the vision tower is then part of the first layer, for
    Qwen2.5-VL, Qwen3-VL, Gemma 3 and Llama 4. Their mean, where sequences differ.
    Without pictures it is left out."""

    images_sigma: Sigma = Field(0.0, examples=[0.8])
    """Standard deviation of the natural logarithm of a sequence's pictures, where they
    are log-normal with `images` as their mean, whole numbers, and no more than a
    sequence has room for. Left out, all sequences have `images`."""

    image_counts: Text | None = Field(None, examples=["pictures.csv"])
    """A CSV file in place of `images` and `images_sigma`, relative to the scenario's
    folder: its columns `images` and `count` say how many sequences have so many
    pictures. Plans are made for their mean, rounded."""

    freeze_vision_model: bool = Field(False, examples=[True])
    """Megatron Bridge's option: the vision tower without its projector is not trained,
    has no backward pass, and keeps nothing for one."""

    freeze_vision_projection: bool = Field(False, examples=[True])
    """Megatron Bridge's option: the projector behind the vision tower is not
    trained."""

    use_hf_vision_model: bool = Field(False, examples=[True])
    """Megatron Bridge's option: the tower is that of transformers, which all ranks of a
    tensor-parallel group do as a whole. Left out, they split it, as Megatron's."""

    def num_pictures(self, folder: Path) -> int:
        """Return the pictures that plans are made for.

        Raises
        ------
        InputError
            If two settings say it, the file is none, or there is not one picture in it.
        """
        if self.image_counts is None:
            if self.images_sigma and not self.images:
                raise InputError(
                    "is of pictures around a mean that is not given",
                    where="images_sigma",
                    got=self.images_sigma,
                    expected="images beside it, or to be left out",
                )
            return self.images
        if self.images or self.images_sigma:
            raise InputError(
                "is a file of what images and images_sigma say, too",
                where="image_counts",
                got=self.image_counts,
                expected="one of the two",
            )
        images, counts = self._counted(folder)
        if not images[-1]:
            raise InputError(
                "has sequences without pictures only",
                where="image_counts",
                got=self.image_counts,
                expected="images that are not 0",
            )
        return max(round(float(np.average(images, weights=counts))), 1)

    def seen(self, spec: TransformerSpec, folder: Path) -> TransformerSpec:
        """Return an architecture with its tower as these settings have it.

        Raises
        ------
        InputError
            If settings are of a tower that is not there, or pictures of a sequence do
            not fit into it.
        """
        tower = spec.vision
        if tower is None:
            for name in type(self).model_fields:
                if name.startswith(("freeze", "use_hf")) and getattr(self, name):
                    raise InputError(
                        "is of a vision tower, which is left out",
                        where=name,
                        got=True,
                        expected="images beside it, or to be left out",
                    )
            return spec
        tower = replace(
            tower,
            tensor_parallel=not self.use_hf_vision_model,
            freeze_model=self.freeze_vision_model,
            freeze_projection=self.freeze_vision_projection,
            image_counts=self._sequences(tower, spec.sequence_length, folder),
        )
        return replace(spec, vision=tower)

    def _sequences(
        self, tower: VisionTower, length: int, folder: Path
    ) -> tuple[int, ...]:
        """Return the pictures of sequences that are as likely each."""
        room = length * tower.images // tower.tokens
        if self.image_counts is not None:
            images, counts = self._counted(folder)
            if images[-1] > room:
                raise InputError(
                    "has more pictures than a sequence has room for",
                    where="image_counts",
                    got=f"{images[-1]:,} pictures",
                    expected=f"at most {room:,} in sequence_length {length:,}",
                )
            return equally_likely(images, counts)
        if not self.images_sigma:
            return ()
        return log_normal(tower.images, self.images_sigma, room)

    def _counted(self, folder: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
        assert self.image_counts is not None
        with located("image_counts", ": "):
            return read_lengths(folder / self.image_counts, COLUMN, 0)


def equally_likely(values: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    """Return some of a sample's values, in order, that stand for all of it.

    The sample itself, if it has at most `NUM_SEQUENCES`; else so many quantiles.
    """
    values, counts = histogram(values, counts)
    ends = np.cumsum(np.array(counts, dtype=np.float64))
    size = int(min(ends[-1], NUM_SEQUENCES))
    places = np.searchsorted(ends, (np.arange(size) + 0.5) * (ends[-1] / size))
    return tuple(values[place] for place in places.tolist())


def log_normal(mean: int, sigma: float, most: int) -> tuple[int, ...]:
    """Return quantiles of a log-normal distribution, whole and in order.

    Parameters
    ----------
    mean, sigma
        Mean of these numbers, as near as they come to it, and the standard deviation of
        the distribution's logarithm.
    most
        More count as so many; at least ``mean``.
    """
    normal = NormalDist()
    places = ((place + 0.5) / NUM_SEQUENCES for place in range(NUM_SEQUENCES))
    factors = [math.exp(sigma * normal.inv_cdf(place)) for place in places]

    def around(median: float) -> tuple[int, ...]:
        return tuple(min(round(median * factor), most) for factor in factors)

    lower, upper = 0.0, (most + 1.0) / factors[0]
    for _ in range(_HALVINGS):
        median = (lower + upper) / 2.0
        if sum(around(median)) < mean * NUM_SEQUENCES:
            lower = median
        else:
            upper = median
    return around(upper)


_HALVINGS = 60

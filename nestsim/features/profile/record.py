"""A profile, and what tells it for machines: the device's entry, passes, JSON."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from estimators.operators.profile import OperatorTiming, Profile
from topologies.accelerators import Accelerator, accelerator_names, load_accelerator

if TYPE_CHECKING:
    from estimators.measuring.operators import LayerCheck


def catalogue_entry(device: str) -> Accelerator | None:
    """Return the catalogue's accelerator that a driver's name means, None if unsure.

    The chip must be a word of the driver's name, and the entry with most of its other
    words there is meant: ``NVIDIA A100-SXM4-80GB`` is ``a100-80gb``.
    Where several fit equally well, or the driver's device is a PCIe card and the entry
    is not, none is chosen: their peaks differ.
    """
    words = set(re.split(r"[^a-z0-9]+", device.lower()))
    fits: dict[str, tuple[int, int]] = {}
    for name in accelerator_names():
        chip, *form = name.split("-")
        if chip in words and not ("sxm" in form and "pcie" in words):
            fits[name] = (len(words.intersection(form)), -len(form))
    best = [name for name, rank in fits.items() if rank == max(fits.values())]
    return load_accelerator(best[0]) if len(best) == 1 else None


class CheckedPass(NamedTuple):
    """One pass of a layer."""

    name: str
    """``"forward"`` or ``"backward"``."""

    predicted: float
    """Time by the profile [s]."""

    measured: OperatorTiming
    """Time that was measured."""

    @property
    def error(self) -> float:
        """Relative, with its sign."""
        return self.predicted / self.measured.seconds - 1


def passes_of(check: "LayerCheck") -> tuple[CheckedPass, CheckedPass]:
    """Return both passes of a layer."""
    return (
        CheckedPass("forward", check.predicted_forward, check.measured_forward),
        CheckedPass("backward", check.predicted_backward, check.measured_backward),
    )


def profile_json(profile: Profile, checks: Sequence["LayerCheck"]) -> dict[str, object]:
    """Return the profile's file, and the check beside it, as JSON values."""
    return {
        "profile": profile.to_json(),
        "check": [
            {
                "layer": check.name,
                "precision": check.precision,
                "num_operators": check.num_operators,
                "num_operators_outside": check.num_outside,
            }
            | {
                name: {
                    "predicted_s": predicted,
                    "measured_s": measured.seconds,
                    "measured_spread_s": measured.spread,
                    "error": predicted / measured.seconds - 1,
                }
                for name, predicted, measured in passes_of(check)
            }
            for check in checks
        ],
    }

"""A profile and its check as text: times, spread, rates and their share of the peak."""

import re
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from estimators.operators.profile import Measurement, Profile
from nestsim.document.terminal import add_row, new_table
from nestsim.document.wording import percent, plural, signed_percent
from topologies.accelerators import Accelerator, accelerator_names, load_accelerator
from topologies.units import format_bandwidth, format_duration, format_rate

if TYPE_CHECKING:
    from estimators.measuring.operators import LayerCheck

DISTURBED = 0.1
"""Median relative spread above which a profile is said to be disturbed. A choice: runs
with the cores to themselves stayed near 0.05, those beside other programs went to 1."""


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


def print_profile(
    profile: Profile, checks: Sequence["LayerCheck"], console: Console
) -> None:
    """Print what was measured on which device, and the check if there was one."""
    console.print(Text(headline(profile), style="bold"), highlight=False)
    accelerator = catalogue_entry(profile.device)
    against = (
        f"the datasheet of {accelerator.name}"
        if accelerator is not None
        else "the highest rate measured in the same number format"
    )
    launch = format_duration(profile.launch_time)
    lines = [
        f"A kernel that does next to nothing takes {launch}.",
        "Rates are those of the forward pass; shares are of " + against + ".",
    ]
    if profile.num_skipped:
        skipped = plural(profile.num_skipped, "shape")
        lines.append(f"{skipped} left out: the time or the memory did not suffice.")
    spread = median_spread(profile)
    if spread > DISTURBED:
        lines.append(
            f"Half of the times spread by more than {percent(spread)}: other programs "
            "ran, or the clock changed. Measure again on a quiet machine."
        )
    for line in lines:
        console.print(Text(line), highlight=False)
    console.print()
    console.print(profile_table(profile, accelerator))
    if checks:
        console.print()
        title = "Whole layers: predicted from the profile, and measured"
        console.print(Text(title, style="bold"), highlight=False)
        console.print(check_table(checks))
        outside = sum(check.num_outside for check in checks)
        total = sum(check.num_operators for check in checks)
        text = (
            f"{outside} of {plural(total, 'operator')} have a size outside the "
            "measured range: there the rate at its edge is kept."
        )
        console.print(Text(text), highlight=False)


def median_spread(profile: Profile) -> float:
    """Return the median, over all times, of the quartiles' distance to the median."""
    return median(
        timing.spread / timing.seconds
        for one in profile.measurements
        for timing in one.timings.values()
    )


def headline(profile: Profile) -> str:
    """Say in one line what was measured where."""
    threads = ""
    if profile.num_threads:
        threads = f", {plural(profile.num_threads, 'thread')}"
    return (
        f"{profile.device}{threads}; {profile.driver}; torch {profile.torch_version}; "
        f"{profile.date}"
    )


def profile_table(profile: Profile, accelerator: Accelerator | None) -> Table:
    """Return one row for each measured shape."""
    share = "Of best" if accelerator is None else "Of peak"
    numbers = ("Forward", "+-", "Backward", "+- ", "Rate", share)
    table = new_table("Operation", "Format", "Shape", *numbers, numbers=numbers)
    peak = _measured_peak(profile) if accelerator is None else _peak(accelerator)
    for measurement in profile.measurements:
        rate = measurement.work / measurement.forward.seconds
        highest = peak(measurement)
        add_row(
            table,
            measurement.operation,
            measurement.precision,
            " x ".join(map(str, measurement.shape)),
            *_time(measurement.forward),
            *_time(measurement.backward),
            (format_rate if measurement.flops else format_bandwidth)(rate),
            percent(rate / highest) if highest else "-",
        )
    return table


def _time(timing: Any) -> tuple[str, str]:
    if timing is None:
        return "-", "-"
    spread = percent(timing.spread / timing.seconds)
    return format_duration(timing.seconds), spread


def _peak(accelerator: Accelerator) -> Callable[[Measurement], float]:
    def peak(measurement: Measurement) -> float:
        if measurement.flops:
            return accelerator.peak_flops.get(measurement.precision, 0.0)
        return accelerator.memory_bandwidth

    return peak


def _measured_peak(profile: Profile) -> Callable[[Measurement], float]:
    highest: dict[tuple[str, bool], float] = {}
    for measurement in profile.measurements:
        key = measurement.precision, measurement.flops > 0
        rate = measurement.work / measurement.forward.seconds
        highest[key] = max(highest.get(key, 0.0), rate)
    return lambda measurement: highest[measurement.precision, measurement.flops > 0]


def check_table(checks: Sequence["LayerCheck"]) -> Table:
    """Return predicted beside measured for each layer and pass."""
    numbers = ("Predicted", "Measured", "+-", "Error")
    table = new_table("Layer", "Format", "Pass", *numbers, numbers=numbers)
    for check in checks:
        for name, predicted, measured in passes(check):
            add_row(
                table,
                check.name,
                check.precision,
                name,
                format_duration(predicted),
                *_time(measured),
                signed_percent(predicted / measured.seconds - 1),
            )
    return table


def passes(check: "LayerCheck") -> tuple[tuple[str, float, Any], ...]:
    """Return name, predicted time and measured timing of both passes."""
    return (
        ("forward", check.predicted_forward, check.measured_forward),
        ("backward", check.predicted_backward, check.measured_backward),
    )


def profile_json(profile: Profile, checks: Sequence["LayerCheck"]) -> dict[str, Any]:
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
                for name, predicted, measured in passes(check)
            }
            for check in checks
        ],
    }

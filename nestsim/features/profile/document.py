"""What measurements of own machines say, to people and to programs.

Operators, links, constants of runs.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from estimators.operators.profile import OperatorTiming, Profile
from nestsim.document.parts import (
    Block,
    Cell,
    DataTable,
    Document,
    Headline,
    Section,
    Sentences,
    cell,
    table_section,
)
from nestsim.document.wording import number, percent, plural, signed_percent
from nestsim.features.profile.constants import (
    FEWEST_LEFT_OUT,
    OwnConstant,
    RunCalibration,
)
from nestsim.features.profile.links import FittedPoint, LinkFit
from topologies.accelerators import Accelerator, accelerator_names, load_accelerator
from topologies.units import (
    format_bandwidth,
    format_duration,
    format_rate,
    format_size,
)

if TYPE_CHECKING:
    from estimators.collectives.transports import Scope
    from estimators.measuring.operators import LayerCheck
    from estimators.operators.profile import Measurement
    from estimators.user_files import UserLink
    from nestsim.features.validation.results import Errors


_CARDS = frozenset({"pcie", "nvl"})
"""Words of cards, whose clocks and links are others than a module's."""


def catalogue_entry(device: str) -> Accelerator | None:
    """Return the catalogue's accelerator that a driver's name means, None if unsure.

    The chip must be a word of the driver's name, and the entry with most of its other
    words there is meant: ``NVIDIA A100-SXM4-80GB`` is ``a100-80gb``.
    Where several fit equally well, or one is a card and the other a module, none is
    chosen: their peaks differ.
    """
    words = set(re.split(r"[^a-z0-9]+", device.lower()))
    fits: dict[str, tuple[int, int]] = {}
    for name in accelerator_names():
        chip, *form = name.split("-")
        card = _CARDS.intersection(form)
        if chip in words and card <= words and not ("sxm" in form and words & _CARDS):
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


DISTURBED = 0.1
"""Median relative spread above which a profile is said to be disturbed. A choice: runs
with the cores to themselves stayed near 0.05, those beside other programs went to 1."""

UNLIKE_LAW = 0.25
"""Half of the points further than that from the law: other programs ran, or the law
does not hold here. A choice."""


def profile_document(profile: "Profile", checks: Sequence["LayerCheck"]) -> Document:
    """Return what was measured on which device, and the check if there was one."""
    accelerator = catalogue_entry(profile.device)
    sections = [table_section("operators", _operators(profile, accelerator))]
    if checks:
        sections.append(_check_section(checks))
    return Document(
        subject=f"{profile.driver}; torch {profile.torch_version}; {profile.date}",
        doing="profile",
        headline=_profile_headline(profile, accelerator),
        sections=tuple(sections),
    )


def _profile_headline(
    profile: "Profile", accelerator: "Accelerator | None"
) -> Headline:
    against = (
        f"the datasheet of {accelerator.name}"
        if accelerator is not None
        else "the highest rate measured in the same number format"
    )
    threads = profile.num_threads
    sentences = [
        f"A kernel that does next to nothing takes "
        f"{format_duration(profile.launch_time)}.",
        f"Rates are those of the forward pass; shares are of {against}.",
    ]
    if profile.num_skipped:
        skipped = plural(profile.num_skipped, "shape")
        sentences.append(f"{skipped} left out: the time or the memory did not suffice.")
    spread = median_spread(profile)
    if spread > DISTURBED:
        sentences.append(
            f"Half of the times spread by more than {percent(spread)}: other programs "
            "ran, or the clock changed. Measure again on a quiet machine."
        )
    return Headline(
        verdict=f"{profile.device}, {plural(threads, 'thread')}"
        if threads
        else profile.device,
        tone="plain",
        sentences=tuple(sentences),
    )


def median_spread(profile: "Profile") -> float:
    """Return the median, over all times, of the quartiles' distance to the median."""
    return median(
        timing.spread / timing.seconds
        for measurement in profile.measurements
        for timing in measurement.timings.values()
    )


def _time(timing: "OperatorTiming | None") -> str | Cell:
    return cell(None if timing is None else timing.seconds, format_duration)


def _spread(timing: "OperatorTiming | None") -> str | Cell:
    share = None if timing is None else timing.spread / timing.seconds
    return cell(share, percent)


def _operators(profile: "Profile", accelerator: "Accelerator | None") -> DataTable:
    """Return one row for each measured shape."""
    highest: dict[tuple[str, bool], float] = {}
    for measurement in profile.measurements:
        key = measurement.precision, measurement.flops > 0
        highest[key] = max(highest.get(key, 0.0), _rate(measurement))

    def share(measurement: "Measurement") -> str | Cell:
        peak = highest[measurement.precision, measurement.flops > 0]
        if accelerator is not None:
            peak = accelerator.memory_bandwidth
            if measurement.flops:
                peak = accelerator.peak_flops.get(measurement.precision, 0.0)
        return cell(_rate(measurement) / peak if peak else None, percent)

    return DataTable.of(
        "Operators",
        profile.measurements,
        {
            "Operation": lambda measurement: measurement.operation,
            "Format": lambda measurement: measurement.precision,
            "Shape": lambda measurement: " x ".join(map(str, measurement.shape)),
            "Forward": lambda measurement: _time(measurement.forward),
            "+-": lambda measurement: _spread(measurement.forward),
            "Backward": lambda measurement: _time(measurement.backward),
            "+- ": lambda measurement: _spread(measurement.backward),
            "Rate": lambda measurement: cell(
                _rate(measurement),
                format_rate if measurement.flops else format_bandwidth,
            ),
            "Of best" if accelerator is None else "Of peak": share,
        },
    )


def _rate(measurement: "Measurement") -> float:
    return measurement.work / measurement.forward.seconds


def _check_section(checks: Sequence["LayerCheck"]) -> Section:
    """Return predicted beside measured for each layer and pass."""
    title = "Whole layers: predicted from the profile, and measured"
    lines = [(check, measured) for check in checks for measured in passes_of(check)]
    columns: dict[str, Callable[[tuple[LayerCheck, CheckedPass]], str | Cell]] = {
        "Layer": lambda line: line[0].name,
        "Format": lambda line: line[0].precision,
        "Pass": lambda line: line[1].name,
        "Predicted": lambda line: cell(line[1].predicted, format_duration),
        "Measured": lambda line: _time(line[1].measured),
        "+-": lambda line: _spread(line[1].measured),
        "Error": lambda line: cell(line[1].error, signed_percent),
    }
    outside = sum(check.num_outside for check in checks)
    total = sum(check.num_operators for check in checks)
    text = (
        f"{outside} of {plural(total, 'operator')} have a size outside the measured "
        "range: there the rate at its edge is kept."
    )
    blocks = (DataTable.of(title, lines, columns), Sentences((text,)))
    return Section("check", title, blocks)


def links_document(fit: LinkFit) -> Document:
    """Return every point beside the fitted law, and the constants."""
    sweep = fit.sweep
    nodes = f" on {sweep.num_nodes} nodes" if sweep.num_nodes > 1 else ""
    sentences = [
        "Sizes are of the full tensor, bus bandwidth is that of nccl-tests; fitted is "
        "the law that a scenario takes."
    ]
    if sweep.num_skipped:
        skipped = plural(sweep.num_skipped, "point")
        sentences.append(f"{skipped} left out: {sweep.skipped_because}.")
    scopes = {"Inside a node": fit.links.node, "Between nodes": fit.links.fabric}
    return Document(
        subject=fit.links.date,
        doing="profile",
        headline=Headline(
            verdict=f"{sweep.device}; {sweep.library}; "
            f"{plural(sweep.num_ranks, 'rank')}{nodes}",
            tone="plain",
            sentences=tuple(sentences),
        ),
        sections=(
            table_section("points", _points(fit)),
            *(
                Section(
                    link.transport.scope,
                    title,
                    (Sentences(tuple(_link_sentences(fit, link))),),
                )
                for title, link in scopes.items()
                if link is not None
            ),
        ),
    )


def _points(fit: LinkFit) -> DataTable:
    def place(fitted: FittedPoint) -> tuple[str, int, int]:
        point = fitted.point
        return point.operation, point.num_ranks, point.num_bytes

    return DataTable.of(
        "Collectives",
        sorted(fit.points, key=place),
        {
            "Collective": lambda fitted: fitted.point.operation.replace("_", "-"),
            "Ranks": lambda fitted: cell(fitted.point.num_ranks, number),
            "Size": lambda fitted: cell(fitted.point.num_bytes, format_size),
            "Time": lambda fitted: _time(fitted.point.timing),
            "+-": lambda fitted: _spread(fitted.point.timing),
            "Bus bandwidth": lambda fitted: cell(
                fitted.point.bus_bandwidth, format_bandwidth
            ),
            "Fitted": lambda fitted: cell(fitted.predicted, format_duration),
            "Error": lambda fitted: cell(fitted.error, signed_percent),
        },
    )


def _unmeasured(fit: LinkFit, scope: "Scope") -> str:
    """Say that single messages were not measured, if so."""
    kinds = {
        fitted.point.operation for fitted in fit.points if fitted.point.scope == scope
    }
    single = kinds.intersection({"all_to_all", "send_recv"})
    return "" if single else ", not measured: a usual value"


def _link_sentences(fit: LinkFit, link: "UserLink") -> Iterator[str]:
    transport = link.transport
    stated = format_bandwidth(link.bandwidth)
    reached = format_bandwidth(transport.efficiency * link.bandwidth)
    yield (
        f"large collectives reach {reached}, {percent(transport.efficiency)} of "
        f"{stated} ({link.bandwidth_is}); single messages "
        f"{percent(transport.send_efficiency)}{_unmeasured(fit, transport.scope)}"
    )
    yield (
        f"launch {format_duration(transport.launch)}, of a message "
        f"{format_duration(transport.send_launch)}; each further rank of a node "
        f"{format_duration(transport.per_rank)}; ramp "
        f"{format_duration(transport.ramp)}"
    )
    if transport.scope == "fabric":
        yield f"each doubling of the nodes {format_duration(transport.per_doubling)}"
    if transport.multicast_efficiency:
        share = percent(transport.multicast_efficiency)
        yield f"all-reduces in the switch reach {share}"
    error = fit.median_error(transport.scope)
    yield f"half of the points lie within {percent(error)} of the law"
    if error > UNLIKE_LAW:
        yield (
            "That is far: other programs ran, or links are not alike. Measure again on "
            "a quiet machine."
        )
    if link.bandwidth_is != "stated":
        yield (
            f"A scenario that names the file states {stated} as bandwidth of such "
            "links; or measure again with the datasheet's bandwidth stated."
        )


NOT_TOLD = "the rows do not tell it"
"""Meaning that is printed of a constant that the rows do not inform of."""

_MEANINGS: Mapping[str, str] = {
    "matmul": "products at 16 and 32 bits, of isolated kernels' rate",
    "matmul_8bit": "products at 8 bits, likewise",
    "flash_attention": "FlashAttention-2 and its like, likewise",
    "fused_attention": "the vendor's fused attention, likewise",
    "layer_gap": "idle time in each layer",
    "iteration_time": "once in each step",
    "iteration_time_many_nodes": "once in each step on several nodes",
    "efficiency": "collectives, of the links' bandwidth",
}
"""Constant -> what it is."""

_TIMES = frozenset({"layer_gap", "iteration_time", "iteration_time_many_nodes"})
"""Constants that are times; the others are shares."""


def calibration_document(calibration: RunCalibration) -> Document:
    """Return what rows say of each constant, and the errors before and after."""
    refused = Counter(row.code for row in calibration.refused)
    first = {row.code: row for row in reversed(calibration.refused)}
    errors = _errors(calibration)
    blocks: tuple[Block, ...] = (errors, Sentences((_advice(calibration),)))
    return Document(
        subject=calibration.name,
        doing="calibrate",
        headline=Headline(
            verdict=f"{plural(calibration.num_rows, 'row')} fitted to, "
            f"{len(calibration.refused):,} refused",
            tone="plain",
            sentences=tuple(
                f"{code} ({count:,}): row {first[code].row_id}: {first[code].reason}"
                for code, count in refused.most_common()
            ),
        ),
        sections=(
            table_section("constants", _constants(calibration)),
            Section("errors", errors.caption, blocks),
        ),
    )


def _constants(calibration: RunCalibration) -> DataTable:
    return DataTable.of(
        "Constants",
        calibration.constants,
        {
            "Constant": lambda fitted: fitted.name,
            "Shipped": lambda fitted: _value(fitted.name, fitted.shipped),
            "Fitted": lambda fitted: _value(fitted.name, fitted.value),
            "+-": lambda fitted: cell(fitted.deviation, percent),
            "What it is": lambda fitted: (
                _MEANINGS[fitted.name.rsplit(".", 1)[1]] if fitted.is_told else NOT_TOLD
            ),
        },
    )


def _value(name: str, value: float) -> str | Cell:
    is_time = name.rsplit(".", 1)[1] in _TIMES
    return cell(value, format_duration if is_time else "{:.3f}".format)


def _errors(calibration: RunCalibration) -> DataTable:
    lines = [("shipped", calibration.before), ("fitted", calibration.after)]
    if calibration.left_out is not None:
        lines.append(("fitted without the row", calibration.left_out))
    columns: dict[str, Callable[[tuple[str, Errors]], str | Cell]] = {
        "Constants": lambda line: line[0],
        "Rows": lambda line: Cell(f"{line[1].rows:,}", line[1].rows),
        "MAPE": lambda line: cell(line[1].mape, percent),
        "Median": lambda line: cell(line[1].median_ape, percent),
        "Worst": lambda line: cell(line[1].max_ape, percent),
        "Bias": lambda line: cell(line[1].bias, signed_percent),
    }
    return DataTable.of("Errors of the rows", lines, columns)


def _advice(calibration: RunCalibration) -> str:
    """Say what to make of it."""
    informed = [constant for constant in calibration.constants if constant.is_told]
    if not informed:
        return (
            "The rows tell no constant: rows of larger layers, or with other kernels, "
            "would."
        )
    words = [
        f"The rows tell {len(informed)} of {len(calibration.constants)} constants."
    ]
    if calibration.left_out is None:
        words.append(
            f"With fewer than {FEWEST_LEFT_OUT} different configurations none is left "
            "out: the error of a new one is not known."
        )
    elif calibration.left_out.mape > calibration.before.mape:
        words.append(
            "Rows that were left out are predicted no better than before: keep the "
            "shipped constants, or measure more."
        )
    far = [constant.name for constant in informed if _is_far(constant)]
    if far:
        words.append(
            f"Far from its shipped value: {', '.join(far)}. Does the file say all that "
            "the runs do?"
        )
    return " ".join(words)


def _is_far(constant: OwnConstant) -> bool:
    """Return whether a constant is more than two prior deviations off."""
    ratio = constant.value / constant.shipped
    wide = 1.0 + 2.0 * constant.prior_deviation
    return not 1.0 / wide < ratio < wide

"""How plans, devices and numbers are written for people, in text and in figures."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from estimators.grouping import PLAIN_GROUPING, Grouping
from nestsim.evaluate.uncertainty import SHARE, MemoryNeed
from nestsim.simulator.system import MOST_SIMPY_EVENTS
from planner.step.plan import Offload, Plan, Stage
from planner.work import Spent
from topologies.units import format_duration, format_money, format_size

if TYPE_CHECKING:
    from nestsim.evaluate.results import Candidate, Throughput
    from nestsim.evaluate.verdict import Gap


HOUR, DAY, YEAR = 3600.0, 86400.0, 365.0 * 86400.0
"""[s]"""

KILOWATT_HOUR = 3.6e6
"""[J]"""


def percent(share: float) -> str:
    """Write a share for people: ``46.1 %``."""
    return f"{100 * share:.1f} %" if math.isfinite(share) else "-"


def mfu_words(throughput: "Throughput") -> str:
    """Write an MFU with its convention, where there are two.

    ``45.2 % (attention counted in full; 43.9 % causal)``.
    """
    mfu, causal = throughput.mfu, throughput.mfu_causal
    if causal == mfu:
        return percent(mfu)
    return f"{percent(mfu)} (attention counted in full; {percent(causal)} causal)"


def signed_percent(share: float) -> str:
    """Write a relative difference for people: ``+1.2 %``."""
    if not math.isfinite(share):
        return "-"
    return f"{100 * share + 0.0:+.1f} %".replace("-0.0 %", "+0.0 %")


def need_sentence(need: MemoryNeed | None) -> str:
    """Say how likely there is as much memory; empty where that is not in doubt."""
    if need is None or need.fits_in_ten == 10:
        return ""
    sizes = f"{format_size(need.low)} to {format_size(need.high)}"
    of_jobs = f"{need.fits_in_ten}" if need.fits_in_ten else "less than 1"
    return (
        f"It needs {format_size(need.estimate)} ({sizes} in {10 * SHARE:g} of 10 jobs) "
        f"of {format_size(need.room)}: fits in {of_jobs} of 10 jobs like this one."
    )


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit of a time axis of this length: its seconds, its name.

    The one that `topologies.units.format_duration` writes the length in.
    """
    for length, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= length:
            return length, name
    return 1e-9, "ns"


def hourly(rate: float, code: str) -> str:
    """Write what something costs each hour for people: ``1,290 USD/h``."""
    return f"{format_money(HOUR * rate, code)}/h"


def signed_duration(seconds: float) -> str:
    """Write a difference in time for people: ``+12.3 ms``."""
    sign = "-" if seconds < 0 else "+"
    return sign + format_duration(abs(seconds))


def without_rounding(seconds: float, whole: float) -> float:
    """Return 0 for a difference that rounding of times like ``whole`` explains."""
    return seconds if abs(seconds) > 1e-9 * abs(whole) else 0.0


def number(value: float) -> str:
    """Write a count or a rate with thousands separated: ``412,345``."""
    if not math.isfinite(value):
        return "-"
    digits = 0 if isinstance(value, int) or abs(value) >= 1000 else 1
    return f"{value:,.{digits}f}"


def amount(tokens: float) -> str:
    """Write many tokens for people: ``196.8 billion``."""
    scale, name = token_unit(tokens)
    return number(tokens) if scale == 1.0 else f"{tokens / scale:,.4g} {name}"


def token_unit(most: float) -> tuple[float, str]:
    """Return the unit that suits so many tokens, and its name."""
    for scale, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if most >= scale:
            return scale, name
    return 1.0, "1"


def long_time(seconds: float) -> str:
    """Write a time that may be days: ``3.1 h``."""
    if math.isinf(seconds):
        return "never"
    for scale, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2.0 * scale:
            count = seconds / scale
            return f"{count:,.0f} {unit}" if count >= 100 else f"{count:.3g} {unit}"
    return format_duration(seconds)


def size_of_limit(used: float, limit: float) -> str:
    """Write how full a memory is, both in the limit's unit: ``71.2 of 80 GiB``."""
    for scale, unit in ((2.0**30, "GiB"), (2.0**20, "MiB")):
        if limit >= scale:
            return f"{used / scale:.4g} of {limit / scale:.4g} {unit}"
    return f"{format_size(used)} of {format_size(limit)}"


def plural(count: int, noun: str) -> str:
    """Write a counted noun: ``1 device``, ``8 devices``, ``2 switches``."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


def engine_sentence(candidate: "Candidate") -> str:
    """Say which engine replayed a plan, and why the other one need not."""
    replay = candidate.replay
    is_confirmed = candidate.verdict.kind == "confirmed"
    verb = "Confirmed" if is_confirmed else "Replayed"
    events = plural(replay.num_events, "event")
    if replay.engine == "simpy":
        return f"{verb} by SimPy: {events}."
    return (
        f"{verb} by the compiled engine: {events}. It does what SimPy's does, event by "
        "event and in the same arithmetic, on times whose sums are exact, so both give "
        f"the same bits; SimPy is asked up to {MOST_SIMPY_EVENTS:,} events."
    )


def others_sentence(candidates: "Sequence[Candidate]") -> str:
    """Say which rows of a table SimPy has not confirmed; empty if it has all."""
    rows = [
        str(row)
        for row, candidate in enumerate(candidates, start=1)
        if candidate.verdict.kind == "confirmed" and candidate.replay.engine != "simpy"
    ]
    if not rows:
        return ""
    return (
        f"Confirmed by the compiled engine: #{', #'.join(rows)}. SimPy is asked up to "
        f"{MOST_SIMPY_EVENTS:,} events, those of all plans together."
    )


def difference(planned: float, simulated: float) -> float:
    """Return ``simulated / planned - 1``; NaN where nothing was planned."""
    return simulated / planned - 1.0 if planned else math.nan


def seeds_in_words(seeds: Sequence[int], most: int = 8) -> str:
    """Name the seeds of a hash, or say how many there are of more than a few.

    Examples
    --------
    >>> seeds_in_words([0, 1, 2])
    'the ECMP seeds 0, 1, 2'
    >>> seeds_in_words(range(200))
    '200 ECMP seeds'
    """
    if len(seeds) > most:
        return plural(len(seeds), "ECMP seed")
    noun = "seed" if len(seeds) == 1 else "seeds"
    return f"the ECMP {noun} {', '.join(map(str, seeds))}"


def device_ranges(devices: Iterable[int], most: int = 3) -> str:
    """Write device numbers as ranges: ``0-7, 32-39, .. 96-103 (4 x 8)``.

    Parameters
    ----------
    devices
        In any order; a number given twice counts once.
    most
        Ranges written out; of more, the first ones and the last are.

    Examples
    --------
    >>> device_ranges([0, 1, 2, 3])
    '0-3'
    >>> device_ranges(range(0, 64, 16))
    '0, 16, .. 48 (4)'
    """
    runs: list[tuple[int, int]] = []
    for device in sorted(set(devices)):
        if runs and device == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], device)
        else:
            runs.append((device, device))
    names = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    if len(runs) <= most:
        return ", ".join(names)
    lengths = {b - a + 1 for a, b in runs}
    length = (
        f" x {lengths.pop()}" if len(lengths) == 1 and runs[0][0] < runs[0][1] else ""
    )
    return f"{', '.join(names[: most - 1])}, .. {names[-1]} ({len(runs)}{length})"


def stage_devices(stage: Stage) -> tuple[int, ...]:
    """Return the device numbers of all replicas of a stage."""
    return tuple(device for row in stage.devices for device in row)


def layer_span(names: Sequence[str], stage: Stage) -> str:
    """Write a stage's layers by name: ``embedding .. block 7``.

    Several chunks are written in short, one after the other:
    ``embedding .. block 3, block 16-19, 32-35``.
    """
    ends = [(names[first], names[last]) for first, last in stage.chunks]
    if len(ends) == 1:
        return _joined(*ends[0])
    spans, before = [], ""
    for first, last in ends:
        kind, number, to = _numbered(first, last)
        span = number if first == last else f"{number}-{to}"
        if not kind:
            spans.append(_joined(first, last))
        else:
            spans.append(span if kind == before else f"{kind} {span}")
        before = kind
    return ", ".join(spans)


def _joined(first: str, last: str) -> str:
    return first if first == last else f"{first} .. {last}"


def _numbered(first: str, last: str) -> tuple[str, str, str]:
    """Split ``block 3`` and ``block 7`` into the word and the two numbers.

    All are empty if the names are not numbers of one word.
    """
    (kind, _, start), (other, _, end) = first.rpartition(" "), last.rpartition(" ")
    if kind and kind == other and start.isdigit() and end.isdigit():
        return kind, start, end
    return "", "", ""


def plan_label(plan: Plan) -> str:
    """Write a plan's degrees and savings in short: ``tp2 pp4 dp8 b1 ZeRO-1``.

    ``vpp2``, if there, stands for two chunks per pipeline stage, ``ep-overlap`` for
    all-to-alls between experts beside another microbatch, ``cp4 a2a`` for context
    parallelism that is no ring, ``etp1`` for experts split by themselves.
    """
    grouping = plan.parallel.grouping
    sizes = plan.parallel.sizes()
    chunks = plan.virtual_pipeline_model_parallel_size
    parts = [f"tp{sizes.tp}", f"pp{sizes.pp}"]
    parts += [f"vpp{chunks}"] if chunks > 1 else []
    parts.append(f"dp{sizes.dp}")
    parts += [f"cp{sizes.cp}"] if sizes.cp > 1 else []
    parts += context_kinds(grouping)
    parts += [f"ep{sizes.ep}"] if sizes.ep > 1 else []
    parts += [f"etp{grouping.etp}"] if grouping.etp else []
    parts += ["ep-overlap"] if plan.overlap_moe_expert_parallel_comm else []
    parts.append(f"b{plan.micro_batch_size}")
    saved = plan.settings_json()
    if saved["recompute"] != "none":
        parts.append(recompute_of_plan(plan))
    if saved["zero_stage"] != 0:
        parts.append(zero_label(saved["zero_stage"]))
    parts += second_copies_of_plan(plan)
    offloads = {offload_label(stage.offload) for stage in plan.stages}
    if offloads != {""}:
        parts.append(offloads.pop() if len(offloads) == 1 else "offload mixed")
    return " ".join(parts)


def context_kinds(grouping: Grouping) -> list[str]:
    """Return the kind of context parallelism as a list, empty for the usual ring."""
    if grouping.cp_comm_type == PLAIN_GROUPING.cp_comm_type:
        return []
    inner = f" of {grouping.a2a}" if grouping.a2a else ""
    return [f"{grouping.cp_comm_type}{inner}"]


def recompute_label(recompute: str, num_layers: int | None = None) -> str:
    """Write a recompute mode: ``recompute full``, ``recompute full of 5 blocks``.

    Parameters
    ----------
    recompute
        Name of the mode.
    num_layers
        Blocks that it is about; None for all.
    """
    if num_layers is None:
        return f"recompute {recompute}"
    return f"recompute {recompute} of {plural(num_layers, 'block')}"


def recompute_of_plan(plan: Plan) -> str:
    """Write what all stages of a plan recompute: ``recompute full of 5 blocks``."""
    mode: str = plan.settings_json()["recompute"]
    counts = {stage.recompute_num_layers for stage in plan.stages}
    if mode == "mixed":
        return recompute_label(mode)
    if len(counts) > 1:
        return f"{recompute_label(mode)} of some blocks"
    if mode == "selective" and plan.recompute_modules:
        return f"{recompute_label(mode)} of {', '.join(plan.recompute_modules)}"
    return recompute_label(mode, counts.pop())


def second_copies_of_plan(plan: Plan) -> list[str]:
    """Write who shares second copies of weights, ``hpZ 8``; no word without them."""
    labels = dict.fromkeys(nearby_label(stage) for stage in plan.stages)
    return [label for label in labels if label]


def nearby_label(stage: Stage) -> str:
    """Write who shares a stage's weights beside all of its ranks; or nothing."""
    if stage.reshard_after_forward is not None:
        return f"resharded over {stage.reshard_after_forward} after forward"
    copies = stage.zero_hpz_partition_size
    return f"hpZ {copies}" if copies > 1 else ""


def offload_label(offload: Offload) -> str:
    """Write what a host keeps: ``offload optimizer, activations 50 %``; or nothing."""
    parts = [
        name if part == 1.0 else f"{name} {100 * part:.0f} %"
        for name, part in offload._asdict().items()
        if part > 0.0
    ]
    return f"offload {', '.join(parts)}" if parts else ""


def saving_label(stage: Stage) -> str:
    """Write how a stage saves memory: ``recompute full, ZeRO-1``; or nothing."""
    parts = []
    if stage.recompute != "none" and stage.recompute_num_layers != 0:
        parts.append(recompute_label(stage.recompute, stage.recompute_num_layers))
    if stage.zero_stage:
        parts.append(zero_label(stage.zero_stage))
    labels = nearby_label(stage), offload_label(stage.offload)
    return ", ".join([*parts, *filter(None, labels)])


def zero_label(zero_stage: object) -> str:
    """Write a ZeRO stage: ``ZeRO-1``, ``ZeRO mixed``, ``no ZeRO``."""
    if zero_stage == 0:
        return "no ZeRO"
    return f"ZeRO-{zero_stage}" if isinstance(zero_stage, int) else f"ZeRO {zero_stage}"


def parallel_sentence(plan: Plan, num_devices: int) -> str:
    """Write the degrees in words, with the devices that they use."""
    sizes = plan.parallel.sizes()
    parts = [f"tensor {sizes.tp}", f"pipeline {sizes.pp}", f"data {sizes.dp}"]
    grouping = plan.parallel.grouping
    if sizes.cp > 1:
        kind = "".join(f" ({words})" for words in context_kinds(grouping))
        parts.append(f"context {sizes.cp}{kind}")
    idle = num_devices - plan.devices_used
    use = f"{number(plan.devices_used)} of {plural(num_devices, 'device')}"
    rest = f", {number(idle)} idle" if idle else ""
    experts = f"; expert {sizes.ep}" if sizes.ep > 1 else ""
    experts += f"; expert tensor {grouping.etp}" if grouping.etp else ""
    return f"{' x '.join(parts)}{experts} ({use}{rest})"


def schedule_label(plan: Plan) -> str:
    """Write the schedule, with the number of chunks if there are several."""
    chunks = plan.virtual_pipeline_model_parallel_size
    return (
        f"{plan.schedule}, {chunks} chunks per stage" if chunks > 1 else plan.schedule
    )


_MEANINGS = {
    "settings": "what the replay simulates that the plan does not know of",
    "contention": "messages that wait for each other on shared links",
    "synchronisation": "what follows the last pass: gradients and parameters",
}
"""Cause of a gap -> what it is."""

_AT = "contention at "
"""Prefix of the causes that are contention at a level."""


def gap_cause(gap: "Gap") -> str:
    """Return the cause that does most for the gap, in its direction; "" if none."""
    sign = 1.0 if gap.total >= 0 else -1.0
    shares = {name: sign * seconds for name, seconds in gap.terms.items()}
    cause = max(shares, key=lambda name: shares[name], default="")
    return cause if cause and shares[cause] > 0 else ""


def gap_sentence(gap: "Gap", planned: float) -> str:
    """Say in one sentence what the gap comes from; "" for one of at most 0.1 %."""
    cause = gap_cause(gap)
    if not cause or abs(gap.total) <= 1e-3 * planned:
        return ""
    if cause.startswith(_AT):
        level = cause.removeprefix(_AT)
        meaning = f"messages that share the links of {level}"
    else:
        meaning = _MEANINGS[cause]
    return f"The largest part is {cause}: {meaning}."


def no_plan_words(spent: Spent, *, covers_space: bool) -> str:
    """Return the headline of a search without a plan.

    That none fits is said only where the whole space was proven not to.
    """
    if spent.is_stopped:
        return "STOPPED before a plan was found"
    return "NO PLAN FITS" if covers_space else "NO PLAN FOUND"


def spent_words(spent: Spent, *, has_plan: bool) -> dict[str, str]:
    """Return what a search has spent, and what a limit means for its answer."""
    rows = {"work": plural(spent.work, "unit")}
    if spent.is_stopped:
        rows["stopped"] = f"by the {spent.stopped_by}" + (
            f"; to go on, raise search.{spent.stopped_by.replace(' ', '_')} or narrow "
            "the lists of [search]"
            if has_plan
            else ""
        )
    if not spent.is_reproducible:
        rows["reproducible"] = f"no: {UNREPEATABLE}"
    return rows


UNREPEATABLE = (
    "with search.time_limit what is found may differ from run to run; "
    "search.work_limit stops alike everywhere"
)
"""What a limit of wall time means."""

VERDICT_WORDS = {
    "confirmed": "CONFIRMED",
    "slower": "NOT CONFIRMED (slower)",
    "doubtful": "NOT CONFIRMED (too little memory by the estimate)",
    "infeasible": "NOT CONFIRMED (infeasible)",
}
"""Verdict -> headline word."""

IDEAL_WORDS = ", IDEAL SOFTWARE"
"""What stands behind a headline's word where the software is nobody's."""


def verdict_words(kind: str, preset: str) -> str:
    """Return a headline's word, with whose software it is where it is nobody's."""
    return VERDICT_WORDS[kind] + (IDEAL_WORDS if preset == "ideal" else "")


def words_of_value(value: object) -> str:
    """Write the value of a setting: ``true``, ``layernorm+moe_act``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "+".join(map(str, value))
    return str(value)

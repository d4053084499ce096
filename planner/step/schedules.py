"""Pipeline schedules: the order in which a stage works on its microbatches.

A schedule is a rule that writes a list of instructions for each stage; nothing else
limits what is in flight; and it says which stage holds which part of the chain. The
planner's recurrence and the simulator read the same. To add a schedule, write the
function of its instructions, and add a row to `SCHEDULES`, with its in-flight count
where that has a closed form, and with where its virtual stages are if they are not
dealt in turn. A closed form of its cycle time, if there is one, goes to
`tests.planner.step.cycle_time`. Letters as in `planner.step.instructions`.

1F1B, also called PipeDream-Flush, has no more in flight than the pipeline is deep ([1]_
section 2.2.1); interleaved 1F1B has stages of several chunks, and a shorter bubble
(2.2.2). GPipe has all forward passes, then all backward passes [2]_.

Zero bubble schedules split the backward pass: ZB-H1 fills the bubbles of 1F1B with
weight gradients, in the memory of its first stage ([3]_ section 2.1); ZB-H2 has no
bubble where all passes take the same, for twice that memory (2.2); ZB-V has none in the
memory of 1F1B (section 6). In a V the chain goes down the stages and comes back, so
that the first stage holds both of its ends ([4]_ section 3).

DualPipe-V. DualPipe feeds microbatches into a pipeline from both ends, for which each
stage holds two copies of its part of the model; folded in the middle it needs one. In
its main phase a forward pass of one microbatch and the whole backward pass of another
are one unit, whose communication hides behind the other's compute: the two are of
different chunks, and a pair here (`Schedule.pairs_passes`). Their compute takes turns,
forward first, on the processors that communication leaves them in all of it (20 of an
H800's 132 are allocated to it, [5]_ section 3.5.1). The last stage pairs its first two
passes, too, which the authors leave apart. A backward pass that is not split is one of
gradients of activations with its weight gradients at once behind it: what it passes on
goes on its way that much earlier. With passes of one unit a bubble of ``p - 1`` is
left, where the authors give ``(p - 1)(F&B + B - 3W)`` = ``2 (p - 1)`` without any
overlap.

Combined 1F1B, of Megatron Core. Once a stage alternates, each forward pass goes on
beside the backward pass that follows it, which is of another microbatch: what either
sends between experts is hidden behind the compute of the other [6]_. For the two to be
independent the last stage, too, runs one forward pass ahead: every stage warms up by
one pass more than it does without. It keeps no more microbatches for that: a pair goes
through its layers in step, the first one of the forward pass beside the last one of the
backward pass, which lets go of it then [9]_. The first passes and the last ones have
nobody beside them.

MaxText's pipelines are one loop over all stages at once, differentiated as a whole.
Each turn of the loop has every stage work on the microbatch that its neighbour worked
on in the turn before; ``m v + p - 1`` turns are a step's forward passes, and
``jax.grad`` of the loop goes through all of them again from the last to the first [7]_.
With several chunks of each stage (``num_pipeline_repeats``) all microbatches go through
the first chunks before any comes round to the second ones: breadth first [8]_. What a
turn saves for its backward pass the loop keeps for all of its turns, those of the ``p -
1`` in which a stage has no microbatch included. The embedding and the head are in front
of the loop and behind it, on all devices; here they are on the first and the last
stage.

References
----------
.. [1] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
   Clusters Using Megatron-LM", SC 2021. Megatron-LM,
   ``megatron/core/pipeline_parallel/schedules.py``, functions
   ``get_pp_rank_microbatches`` and ``get_schedule_table``, groups of ``p``
   microbatches, or of ``--microbatch-group-size-per-virtual-pipeline-stage``; up to
   2023 it ran all forward passes first where ``m = p``. PyTorch,
   ``torch/distributed/pipelining/schedules.py``, ``ScheduleInterleaved1F1B``: ``max(1,
   m div p)`` rounds of one length.
.. [2] Huang et al., "GPipe: Efficient Training of Giant Neural Networks using
   Pipeline Parallelism", NeurIPS 2019, section 2.3.
.. [3] Qi, Wan, Huang, Lin, "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv
   2401.10241). PyTorch, ``schedules.py`` as above, ``ScheduleInterleavedZeroBubble``
   with one stage per rank, and ``ScheduleZBVZeroBubble``.
.. [4] Qi, Wan, Nie, Li, "Pipeline Parallelism with Controllable Memory", NeurIPS
   2024.
.. [5] DeepSeek-AI, github.com/deepseek-ai/DualPipe, ``dualpipe/dualpipev.py``, steps
   1 to 8; "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 3.2.1. PyTorch,
   ``schedules.py`` as above, ``ScheduleDualPipeV``.
.. [6] Megatron-LM, ``megatron/core/pipeline_parallel/combined_1f1b.py``: without a
   pipeline one forward pass, then pairs, then one backward pass; with interleaving the
   warm-up of ``schedules.py``, ``get_pp_rank_microbatches``, "+ 1" where
   ``overlap_moe_expert_parallel_comm``.
.. [7] MaxText, ``src/maxtext/layers/pipeline.py``: ``NNXPipeline.__call__``,
   ``total_iterations``, ``jax.lax.scan`` over a ``jax.checkpoint`` of one turn;
   ``get_microbatch_and_repeat_ids``.
.. [8] Lamy-Poirier, "Breadth-First Pipeline Parallelism", MLSys 2023, section 4;
   PyTorch, ``schedules.py`` as above, ``ScheduleLoopedBFS``.
.. [9] Megatron-LM, ``megatron/core/models/common/model_chunk_schedule_plan.py``,
   ``TransformerModelChunkSchedulePlan.run``: ``release_state`` of each layer; the
   head's backward pass before all layers, its forward pass behind them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from planner.step.instructions import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Instructions,
    Schedule,
    ScheduleSizes,
    warm_up_then_alternate,
)
from planner.step.rounds import GROUP_SIZE, IN_GROUPS_OF, is_usual, round_length
from topologies.arrays import IntArray
from topologies.errors import InputError

_KINDS = "FBW"
"""Letters of the kinds of passes in words, in the order of their numbers."""


def _alternate(sizes: ScheduleSizes, warmup: int) -> Instructions:
    """F_0..F_{w-1}; then F_{w+j}, B_j; then the last w B, all of one chunk."""
    order = np.arange(sizes.m), np.zeros(sizes.m, dtype=np.int64)
    return warm_up_then_alternate(order, order, min(sizes.m, warmup))


def _write_1f1b(stage: int, sizes: ScheduleSizes) -> Instructions:
    """Warm up by w = min(m, p-1-i) ([1]_, section 2.2.1)."""
    return _alternate(sizes, sizes.p - 1 - stage)


def _write_gpipe(_stage: int, sizes: ScheduleSizes) -> Instructions:
    """F_0..F_{m-1}; then B_0..B_{m-1} [2]_."""
    return _alternate(sizes, sizes.m)


def _write_combined(stage: int, sizes: ScheduleSizes) -> Instructions:
    """Warm up by w = min(m, p-i) [6]_."""
    return _alternate(sizes, sizes.p - stage)


def _interleaved_warmup(
    stage: int, sizes: ScheduleSizes, ahead: int, group: int | None
) -> int:
    """Return w = min(m v, 2 (p-1-i) + (v-1) g + ahead) [1]_; g: `round_length`."""
    p, m, v = sizes
    length = group or round_length(p, m)
    return min(m * v, 2 * (p - 1 - stage) + (v - 1) * length + ahead)


def _write_interleaved(
    stage: int, sizes: ScheduleSizes, *, ahead: int, group: int | None
) -> Instructions:
    """As 1F1B, through one chunk after another.

    Microbatches go in groups of ``g`` (`round_length`, if no size is given) through the
    first chunk, the second, and so on: forward pass ``n`` is of microbatch ``(n div g
    v) g + n' mod r`` and chunk ``n' div r``, with ``n' = n mod g v`` and ``r`` the
    size of that group: ``g``, or what is left for the last one; backward pass ``n`` of
    the same microbatch and of the chunk as far from the last one as that is from the
    first [1]_.
    """
    p, m, v = sizes
    length = group or round_length(p, m)
    number, place = np.divmod(np.arange(m * v), length * v)
    size = np.minimum(length, m - number * length)
    chunk, rank = np.divmod(place, size)
    microbatch = number * length + rank
    warmup = _interleaved_warmup(stage, sizes, ahead, group)
    return warm_up_then_alternate(
        (microbatch, chunk), (microbatch, v - 1 - chunk), warmup
    )


def _count_interleaved(stage: int, sizes: ScheduleSizes, *, group: int | None) -> int:
    return min(sizes.m * sizes.v, _interleaved_warmup(stage, sizes, 0, group) + 1)


def _write_scanned(_stage: int, sizes: ScheduleSizes) -> Instructions:
    """Each chunk's forward passes, chunk by chunk; then all of it backwards [7]_."""
    chunk, microbatch = np.divmod(np.arange(sizes.m * sizes.v), sizes.m)
    forward = microbatch, chunk
    backward = microbatch[::-1], chunk[::-1]
    return warm_up_then_alternate(forward, backward, microbatch.size)


def _write_behind(ahead: int, behind: int, num_microbatches: int) -> Instructions:
    """Return F_{w+j}, B_j, W_{j-d} for every ``j``, without what does not exist.

    Parameters
    ----------
    ahead
        ``w``: forward passes before the first backward one, less 1.
    behind
        ``d``: backward passes before the first weight gradients, less 1.
    num_microbatches
        ``m``; step ``j`` goes from ``-w`` to ``m - 1 + d``.
    """
    m = num_microbatches
    order = np.arange(m)
    step = np.concatenate((order - min(m, ahead), order, order + behind))
    kind = np.repeat(np.array([FORWARD, BACKWARD, WEIGHT], dtype=np.int64), m)
    place = np.lexsort((kind, step))
    return Instructions(
        kind[place], np.tile(order, 3)[place], np.zeros(3 * m, dtype=np.int64)
    )


def _write_zb_h1(stage: int, sizes: ScheduleSizes) -> Instructions:
    """F_0..F_{w-1}; then F_{w+j}, B_j, W_{j-i}; then the last W; w = min(m, p-1-i).

    Stage ``i`` does not begin with weight gradients before it is ``i`` backward passes
    ahead, so that all stages keep the same number of activations [3]_.
    """
    return _write_behind(sizes.p - 1 - stage, stage, sizes.m)


def _write_zb_h2(stage: int, sizes: ScheduleSizes) -> Instructions:
    """As ZB-H1 of a pipeline twice as deep: 2(p-i)-1 forward passes first [3]_.

    Stage ``i`` is ``2(p-1-i)`` forward passes ahead of its backward ones, and these are
    ``2 i`` ahead of its weight gradients. With passes of one unit it works without a
    pause from ``i`` to ``3 m + i``.
    """
    return _write_behind(2 * (sizes.p - 1 - stage), 2 * stage, sizes.m)


def _down_and_back(virtual_stage: int, num_stages: int) -> int:
    """Return the stage of a virtual stage: down to the last one, and back [4]_."""
    return min(virtual_stage, 2 * num_stages - 1 - virtual_stage)


def _write_words(
    phases: Iterable[tuple[str, int]], num_microbatches: int
) -> Instructions:
    """Return the passes of words, each repeated so many times, in their order.

    A word such as ``F1 B1 W1`` has kinds of passes and their chunks; each pass is of
    the next microbatch of its kind and chunk. Passes of microbatches that do not exist
    are left out.
    """
    parts = [np.tile(_passes_of(word), (times, 1)) for word, times in phases]
    kind, chunk = np.concatenate(parts).T
    microbatch = np.zeros(kind.size, dtype=np.int64)
    for number in np.unique(kind):
        for half in (0, 1):
            which = (kind == number) & (chunk == half)
            microbatch[which] = np.arange(np.count_nonzero(which))
    exists = microbatch < num_microbatches
    return Instructions(kind[exists], microbatch[exists], chunk[exists])


def _passes_of(word: str) -> IntArray:
    """Return kind and chunk of each pass of a word, shape ``(n, 2)``."""
    passes = [(_KINDS.index(part[0]), int(part[1])) for part in word.split()]
    return np.array(passes, dtype=np.int64)


def _write_zb_v(stage: int, sizes: ScheduleSizes) -> Instructions:
    """Fill the V, then F0 B0 W0 F1 B1 W1 again and again, then empty it [3]_.

    A stage fills until the first gradient comes back from its second chunk. With fewer
    than ``2 p - 1`` microbatches the list is that of so many, without the others.
    """
    p, m, _ = sizes
    # Microbatches that the filling takes, and stages from here to the V's tip.
    filled, below = 2 * p - 1 - stage, p - stage
    whole = max(m, 2 * p - 1)
    return _write_words(
        (
            ("F0", 2 * below - 1),
            ("F1 F0", stage),
            ("F1 B1 W1", below),
            ("F0 B0 W0 F1 B1 W1", whole - filled),
            ("B0 W0 F1 B1 W1", below - 1),
            ("B0 B1", stage),
            ("B0 W0", below),
            ("W1", stage),
            ("W0", stage),
        ),
        m,
    )


def _write_dualpipe_v(stage: int, sizes: ScheduleSizes) -> Instructions:
    """Go through steps 1 to 8 of DualPipe-V, one phase each [5]_.

    Half of the last backward passes leave their weight gradients for the end, first
    come, first served.
    """
    p, m, _ = sizes
    below, half = p - 1 - stage, (stage + 1) // 2
    odd_one = 1 - stage % 2
    # Chunks whose weight gradients are left, in the order of their backward passes.
    left = ["0"] * odd_one + ["1", "0"] * half + ["0"] * below
    return _write_words(
        (
            ("F0", 2 * below),
            ("F0 F1", stage + 1),
            ("B1 W1 F1", below),
            ("F0 B1 W1 F1 B0 W0", m - 2 * p + stage + 1),
            ("B1 W1 F1 B0 W0", below),
            ("B1 W1 B0 W0", half),
            ("B1 W1 B0", odd_one),
            ("B1 B0", half),
            *((f"W{chunk} B0", 1) for chunk in left[:below]),
            *((f"W{chunk}", 1) for chunk in left[below:]),
        ),
        m,
    )


_PLAIN = Schedule(
    name="1f1b",
    write=_write_1f1b,
    count=lambda stage, sizes: min(sizes.p - stage, sizes.m),
)
_GPIPE = Schedule(
    name="gpipe",
    forward_first=True,
    write=_write_gpipe,
    count=lambda _, sizes: sizes.m,
)


def _interleaved(*, pairs: bool, group: int | None = None) -> Schedule:
    """Return interleaved 1F1B, combined or not, maybe in groups of a size."""
    name = "combined-interleaved-1f1b" if pairs else "interleaved-1f1b"
    return Schedule(
        name=name if group is None else f"{name}{IN_GROUPS_OF}{group}",
        interleaves=True,
        pairs_passes=pairs,
        pairs_layers=pairs,
        group=group,
        write=partial(_write_interleaved, ahead=int(pairs), group=group),
        count=partial(_count_interleaved, group=group),
    )


_INTERLEAVED = _interleaved(pairs=False)
_COMBINED = replace(
    _PLAIN,
    name="combined-1f1b",
    pairs_passes=True,
    pairs_layers=True,
    write=_write_combined,
)
_COMBINED_INTERLEAVED = _interleaved(pairs=True)
_ZB_V = Schedule(
    name="zb-v",
    interleaves=True,
    splits_backward=True,
    num_chunks=2,
    deals_rounds=False,
    write=_write_zb_v,
    stage_of=_down_and_back,
)


_GROUPED = {_INTERLEAVED.name: False, _COMBINED_INTERLEAVED.name: True}
"""Schedules that take groups of a size -> whether they pair passes."""

_IN_GROUPS = re.compile(f"(.+){IN_GROUPS_OF}([1-9][0-9]{{0,8}})")


@lru_cache(maxsize=1024)
def _in_groups(name: str) -> Schedule:
    """Return a schedule whose name says the size of its groups.

    Raises
    ------
    KeyError
        If there is none.
    """
    match = _IN_GROUPS.fullmatch(str(name))
    if match is None or match[1] not in _GROUPED:
        raise KeyError(name)
    return _interleaved(pairs=_GROUPED[match[1]], group=int(match[2]))


class _Schedules(Mapping[str, Schedule]):
    """Schedules by their names: those that are listed, and those in groups of a size.

    The latter are found by their names (`grouped_name`), and are not listed.
    """

    def __init__(self, listed: Mapping[str, Schedule]) -> None:
        self._listed = dict(listed)

    def __getitem__(self, name: str) -> Schedule:
        """Return the schedule of that name."""
        return self._listed.get(name) or _in_groups(name)

    def __iter__(self) -> Iterator[str]:
        """Go through the names that are listed."""
        return iter(self._listed)

    def __len__(self) -> int:
        """Return how many are listed."""
        return len(self._listed)


SCHEDULES: Mapping[str, Schedule] = _Schedules(
    {
        schedule.name: schedule
        for schedule in (
            _PLAIN,
            _GPIPE,
            _INTERLEAVED,
            Schedule(
                name="zb-h1",
                splits_backward=True,
                write=_write_zb_h1,
                count=lambda _, sizes: min(sizes.p, sizes.m),
            ),
            Schedule(
                name="zb-h2",
                splits_backward=True,
                runs_ahead=True,
                write=_write_zb_h2,
                count=lambda _, sizes: min(2 * sizes.p - 1, sizes.m),
            ),
            _ZB_V,
            replace(
                _ZB_V,
                name="dualpipe-v",
                pairs_passes=True,
                pairs_chunks=True,
                reserves_processors=True,
                least_rounds=2,
                write=_write_dualpipe_v,
            ),
            _COMBINED,
            _COMBINED_INTERLEAVED,
            replace(_GPIPE, name="scanned", keeps_bubbles=True, write=_write_scanned),
            Schedule(
                name="circular",
                interleaves=True,
                forward_first=True,
                keeps_bubbles=True,
                write=_write_scanned,
                count=lambda _, sizes: sizes.m * sizes.v,
            ),
        )
    }
)
"""Name -> schedule."""


def grouped_name(name: str, group: int | None) -> str:
    """Return the name of a schedule in groups of so many microbatches.

    Raises
    ------
    InputError
        If the schedule has no groups, or if they are empty.
    """
    if group is None:
        return name
    if name not in _GROUPED or group < 1:
        raise InputError(
            "is of interleaved 1F1B alone",
            where=GROUP_SIZE,
            got=f'{group} with "{name}"',
            expected='a number of microbatches with "interleaved-1f1b", nothing '
            "otherwise",
        )
    return f"{name}{IN_GROUPS_OF}{group}"


def paired_name(name: str) -> str:
    """Return the combined schedule of 1F1B, in the same groups."""
    plain, v = SCHEDULES[name], 2 if SCHEDULES[name].interleaves else 1
    return grouped_name(schedule_name(v, pairs=True), plain.group)


def deals_as_usual(name: str, num_stages: int, num_microbatches: int) -> bool:
    """Tell whether groups of the size that a name says are those of its family."""
    return is_usual(SCHEDULES[name].group, num_stages, num_microbatches)


def schedule_name(v: int, *, pairs: bool = False) -> str:
    """Return the 1F1B schedule of plans with ``v`` chunks of each stage.

    Parameters
    ----------
    v
        Chunks of each stage.
    pairs
        Whether passes of two microbatches go on beside each other.
    """
    plain = _PLAIN if v == 1 else _INTERLEAVED
    combined = _COMBINED if v == 1 else _COMBINED_INTERLEAVED
    return (combined if pairs else plain).name


def find_schedule(name: str) -> Schedule:
    """Return the schedule of that name.

    Raises
    ------
    InputError
        If there is none.
    """
    if name not in SCHEDULES:
        expected = ", ".join(f'"{known}"' for known in SCHEDULES)
        raise InputError("no such schedule", got=name, expected=expected)
    return SCHEDULES[name]

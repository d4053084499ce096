"""The configurations that a framework can launch on a cluster.

Replicas times micro-batch size divide the batch, and all devices have work unless idle
ones are asked for. Layouts are those of `planner.search.replayed.layouts`.

Letters as in `planner.search.space`, with ``p`` stages, ``v`` chunks of each, ``C = p
v`` virtual stages (``c p + i`` is chunk ``c`` of stage ``i``), ``B`` blocks and ``m``
microbatches.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees
from estimators.training import Sizes
from planner.frameworks.rules import LaunchRules
from planner.search.launchable_sizes import (
    LaunchFacts,
    LaunchSizes,
    deals_out,
    named_sizes,
    shape_breaches,
    size_breaches,
)
from planner.search.replayed.layouts import block_counts, layouts, spared_ends
from planner.search.replayed.recomputed import module_sets
from planner.search.replayed.unequal import unequal_counts
from planner.search.space import Configuration, SearchSpec, degrees_of, divisors
from planner.step.execution import Workload
from planner.step.plan import COUNTED_MODES, Offload
from planner.step.recompute import sending_again
from planner.step.rounds import round_length
from planner.step.schedules import (
    SCHEDULES,
    deals_as_usual,
    grouped_name,
    paired_name,
    schedule_name,
)
from planner.step.virtual import block_span
from topologies.arrays import IntArray

PREDICTION = "mtp"
"""How names of layers of multi-token prediction begin, behind the last block."""


class ConfigurationFamily(NamedTuple):
    """Configurations with the same layer tables."""

    degrees: Degrees
    """Sizes that layer tables depend on."""
    pp: IntArray
    """Numbers of stages."""
    v: IntArray
    """Chunks of each stage, in step with `pp`."""
    dp: IntArray
    """Numbers of replicas, in step with `pp`."""
    pairs: IntArray
    """1 where all-to-alls between experts go on beside another microbatch, in step with
    `pp`."""

    def configuration(self, index: int) -> Configuration:
        """Return one of its configurations."""
        tp, cp, ep, b, _, grouping, _ = self.degrees
        pp, v, dp, pairs = (int(column[index]) for column in self[1:])
        return Configuration(tp, cp, ep, b, v, pp, dp, grouping, bool(pairs))

    @property
    def expert_data_sizes(self) -> IntArray:
        """Ranks of a stage that hold the same experts, `expert_data_size` of each."""
        tp, cp, ep, *_ = self.degrees
        return np.asarray(tp * cp * self.dp // (ep * self.degrees.etp))

    def __contains__(self, wanted: object) -> bool:
        """Tell whether a configuration is one of these."""
        if not isinstance(wanted, Configuration) or not len(self.pp):
            return False
        sizes = np.array([wanted.pp, wanted.v, wanted.dp, wanted.pairs])
        return bool(
            wanted._replace(pp=0, v=0, dp=0, pairs=False)
            == self.configuration(0)._replace(pp=0, v=0, dp=0, pairs=False)
            and (np.column_stack(self[1:]) == sizes).all(axis=1).any()
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class LaunchableSpace:
    """What a framework can launch of a job; keeps what it was asked for."""

    workload: Workload
    """Model and batch."""

    spec: SearchSpec
    """Space that the scenario allows."""

    rules: LaunchRules
    """Rules of the framework that launches plans."""

    num_devices: int
    """Devices of the cluster."""

    _rows: dict[tuple[int, ...], IntArray | None] = field(default_factory=dict)
    """What of degrees stages and replicas depend on -> stages, chunks, replicas and
    pairing, one row each."""

    _schedules: dict[tuple[int, int, int, bool], tuple[str, ...]] = field(
        default_factory=dict
    )
    """Stages, chunks, microbatches and pairing -> names of schedules."""

    _chunks: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    """Stages and microbatches -> numbers of chunks."""

    _layouts: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = field(
        default_factory=dict
    )
    """Stages and chunks -> blocks of each virtual stage, for each layout."""

    _cuts: dict[tuple[int, int], IntArray] = field(default_factory=dict)
    """Stages and chunks -> first layer of each virtual stage, for each layout."""

    def families(
        self, among: Collection[Degrees] | None = None
    ) -> tuple[tuple[ConfigurationFamily, ...], Counter[str]]:
        """Return the configurations, and how many sizes were left out, and why.

        Those that leave no device idle, if there are any and idle ones are not asked
        for. Of some degrees, if ``among`` says so.
        """
        dropped: Counter[str] = Counter()
        facts = LaunchFacts.of(self.workload, self.num_devices)
        every = list(degrees_of(self.workload, self.spec, self.num_devices, self.rules))
        wanted = every if among is None else [some for some in every if some in among]
        allowed = [some for some in wanted if self._is_allowed(some, facts, dropped)]
        # Most sizes leave devices idle: those are listed only where they are searched.
        idles = self.spec.idle_devices or not any(
            self._family(some, facts, idle=False)
            for some in every
            if self._is_allowed(some, facts, Counter())
        )
        families = (self._family(degrees, facts, idle=idles) for degrees in allowed)
        return tuple(family for family in families if family is not None), dropped

    def layouts(self, p: int, v: int) -> tuple[tuple[int, ...], ...]:
        """Return the blocks of each virtual stage, for each way to share them out."""
        if (p, v) not in self._layouts:
            self._layouts[p, v] = block_counts(
                self.workload.chain[1],
                p,
                v,
                self.rules.splits,
                empty_ends=self.rules.empty_ends,
                trailing=self._trailing,
            )
        return self._layouts[p, v]

    def cuts(self, p: int, v: int) -> IntArray:
        """Return the first layer of each virtual stage, for each layout."""
        if (p, v) not in self._cuts:
            self._cuts[p, v] = layouts(self.layouts(p, v), *self.ends)
        return self._cuts[p, v]

    @cached_property
    def ends(self) -> tuple[int, int]:
        """Layers in front of the first block, and behind the last one."""
        names = self.workload.graph.names
        first, last = block_span(
            np.array([float(name.startswith("block")) for name in names])
        )
        return first, len(names) - last

    def unequal_layouts(
        self, paces: tuple[float, ...], schedule: str, v: int
    ) -> tuple[tuple[int, ...], ...]:
        """Return the blocks of each virtual stage where slower stages hold fewer.

        Parameters
        ----------
        paces
            Time of a block on each stage, as for `unequal_counts`.
        schedule, v
            Where chunks are, and how many each stage has.
        """
        rules, p, trailing = self.rules, len(paces), self._trailing
        virtual = SCHEDULES[schedule].virtual_stages(p, v)
        ends = tuple(
            (first, last)
            for first, last in spared_ends(p * v, trailing=trailing)
            if v == 1 or max(first, last - trailing) <= 1
        )
        return unequal_counts(
            self.workload.chain[1],
            tuple(virtual.stage.tolist()),
            paces,
            rules.splits,
            ends,
            empty_ends=rules.empty_ends,
        )

    @cached_property
    def _trailing(self) -> int:
        """Layers behind the last block that cost about as much as one."""
        names = self.workload.graph.names
        return sum(name.startswith(PREDICTION) for name in names)

    def zero_stages(
        self, pp: int, sizes: Degrees | Configuration | Sizes | None = None
    ) -> list[int]:
        """Return the ZeRO stages that plans of some stages may have, rising.

        Of some other sizes, or where all others are 1.
        """
        can = self.rules.zero_stages_of(
            {"pp": pp} if sizes is None else named_sizes(sizes, pp),
            has_experts=self._has_experts,
        )
        return sorted({*self.spec.zero_stages} & {*can})

    @property
    def _has_experts(self) -> bool:
        return self.workload.graph.spec.num_moe_experts > 0

    @property
    def hybrid_sharding(self) -> tuple[int, ...]:
        """ZeRO stages whose shards a part of the replicas may hold."""
        return self.rules.hybrid_sharding_of(has_experts=self._has_experts)

    def sharding_options(
        self, configuration: Configuration, sizes: Sequence[int]
    ) -> list[int]:
        """Return the numbers of the sharding groups that the framework has.

        The first of some sizes is that of the whole group.
        """
        names = named_sizes(configuration, configuration.pp)
        return [
            option
            for option, size in enumerate(sizes)
            if option == 0 or self.rules.shards_over(int(size), names)
        ]

    def recompute_modes(self, v: int) -> list[str]:
        """Return the recompute modes that plans of some chunks may have."""
        return [
            mode
            for mode in self.spec.recompute
            if mode in self.rules.recompute and (v == 1 or mode != "stage")
        ]

    def schedules(
        self, p: int, v: int, m: int, *, pairs: bool = False
    ) -> tuple[str, ...]:
        """Return the schedules that plans of some sizes may have.

        One stage has no pipeline: its order is 1F1B's. Those of 1F1B with passes beside
        each other if ``pairs``.
        """
        key = p, v, m, pairs
        if key not in self._schedules:
            self._schedules[key] = self._allowed_schedules(p, v, m, pairs=pairs)
        return self._schedules[key]

    def _allowed_schedules(
        self, p: int, v: int, m: int, *, pairs: bool
    ) -> tuple[str, ...]:
        batches = self.workload.training.batch_sizes
        if p == 1:
            names: tuple[str, ...] = ("1f1b",) if v == 1 else ()
        else:
            names = tuple(
                name
                for name in (*self.tried_schedules, *self.grouped_schedules)
                if not deals_as_usual(name, p, m)
                and all(
                    SCHEDULES[name].allows(p, m * size // batches[-1], v)
                    and not deals_out(self.rules, name, p, m * size // batches[-1], v)
                    for size in batches
                )
            )
        if not pairs:
            return names
        usual = schedule_name(v)
        return tuple(
            paired_name(name) for name in names if SCHEDULES[name].family == usual
        )

    @cached_property
    def grouped_schedules(self) -> tuple[str, ...]:
        """Names of interleaved 1F1B in groups of the sizes that are asked for."""
        usual = schedule_name(2)
        if usual not in self.tried_schedules or not self.rules.microbatch_groups:
            return ()
        sizes = self.spec.microbatch_group_sizes_per_vp_stage or ()
        return tuple(grouped_name(usual, size) for size in sizes)

    @cached_property
    def tried_schedules(self) -> tuple[str, ...]:
        """Names of the schedules that are asked for and that the framework has.

        Its own where it has no 1F1B.
        """
        rules = self.rules
        if rules.usual_schedule(1) is not None:
            return rules.schedules
        return tuple(name for name in self.spec.schedules if name in rules.schedules)

    @cached_property
    def pairs_chunks(self) -> bool:
        """Whether a schedule pairs passes of its own accord."""
        return any(SCHEDULES[name].pairs_chunks for name in self.tried_schedules)

    def repeats(self, pp: int, v: int, *, pairs: bool = False) -> list[tuple[str, int]]:
        """Return recompute modes, and how blocks are counted (`MemoryChoice.counting`).

        Some are where all may keep everything, and the framework counts them. Not those
        that send tokens again, if passes are paired.
        """
        modes = self.recompute_modes(v)
        if pairs:
            sending = sending_again(self.workload.software)
            modes = [mode for mode in modes if mode not in sending]
        whole = [(mode, 0) for mode in modes]
        if "none" not in modes:
            return whole
        can = self.rules.counted_modes(pp), self.rules.recompute_every
        return whole + [
            (mode, counting)
            for mode in modes
            for counting, known in enumerate(can, 1)
            if mode in COUNTED_MODES and mode in known
        ]

    def pairings(self, ep: int, pp: int, v: int, m: int) -> list[bool]:
        """Return whether all-to-alls of experts may go on beside another microbatch."""
        asked = self.spec.overlap_moe_expert_parallel_comm
        predictions = self.workload.graph.spec.mtp_num_layers
        can = (
            self.rules.overlap_expert_parallel
            and ep > 1
            and (pp == 1 or v > 1)
            and self.rules.overlaps_predictions(predictions, pp)
            and self.schedules(pp, v, m, pairs=True)
            and bool(self.savings(schedule_name(v, pairs=True), pp, v, ep=ep))
        )
        if not can:
            return [False]
        return [False, True] if asked is None else [asked]

    def savings(
        self, schedule: str, pp: int, v: int, *, ep: int
    ) -> list[tuple[str, int]]:
        """Return the `repeats` that go with a schedule.

        A stage that is redone as a whole is not searched where weight gradients are
        passes of their own, and a part of the blocks not beside another microbatch.
        """
        found = SCHEDULES[schedule]
        is_combined = found.pairs_passes and not found.pairs_chunks
        pairs = is_combined or (found.pairs_passes and ep > 1)
        return [
            (mode, counted)
            for mode, counted in self.repeats(pp, v, pairs=pairs)
            if not (found.splits_backward and mode == "stage")
            and not (is_combined and counted)
        ]

    @cached_property
    def module_sets(self) -> tuple[tuple[str, ...], ...]:
        """What selective recompute is tried with beside what the software has."""
        return module_sets(self.workload, self.spec, self.rules)

    def modules(self, mode: str, *, pairs: bool) -> list[tuple[str, ...]]:
        """Return what a recompute mode of all blocks may run again.

        Nothing by name is what the software has. Not what sends tokens again, if passes
        are paired.
        """
        if mode != "selective":
            return [()]
        sets = [
            some
            for some in self.module_sets
            if not (pairs and mode in sending_again(self.workload.software, some))
        ]
        return [(), *sets]

    def offloads(self, pp: int) -> list[Offload]:
        """Return what hosts may keep of plans of some stages."""
        can = self.rules.offload_of(pp)
        return [
            offload
            for offload in self.spec.offload
            if self.rules.keeps_together(offload)
            and self.rules.keeps_blocks(offload, self.workload.chain[1])
            and all(
                part == 0.0 or name in can for name, part in offload._asdict().items()
            )
        ]

    def _is_allowed(
        self, degrees: Degrees, facts: LaunchFacts, dropped: Counter[str]
    ) -> bool:
        if divisibility_problem(self.workload.graph.spec, degrees) is not None:
            dropped["not divisible"] += 1
            return False
        if next(size_breaches(_sizes(degrees), self.rules, facts), None):
            dropped["not in the framework"] += 1
            return False
        zeros = self.zero_stages(1, degrees) or self.zero_stages(2, degrees)
        if not (zeros and self.recompute_modes(1)):
            dropped["without a ZeRO stage or recompute mode that it has"] += 1
            return False
        return True

    def _family(
        self, degrees: Degrees, facts: LaunchFacts, *, idle: bool
    ) -> ConfigurationFamily | None:
        """Return the configurations of some degrees, or None if there are none.

        Those that leave devices idle only if ``idle`` says so.
        """
        tp, cp, ep = degrees[:3]
        unit = degrees.grouping.replica_unit(degrees[:3])
        fills = ep if self.rules.experts_fill_data else 0
        splits = degrees.sequence_parallel
        size = degrees.micro_batch_size
        key = tp * cp, size, unit, ep > 1, tp > 1, cp > 1, splits, fills, idle
        if key not in self._rows:
            rows = [
                (pp, v, dp, pairs)
                for pp, dp in self._shapes(degrees, unit, idle=idle)
                if not any(shape_breaches(_sizes(degrees, pp, dp), self.rules, facts))
                for m in (self._rounds(degrees, dp),)
                for v in self._chunks_of(pp, m)
                for pairs in self.pairings(degrees.ep, pp, v, m)
            ]
            columns = np.array(rows, dtype=np.int64).T
            self._rows[key] = np.ascontiguousarray(columns) if rows else None
        found = self._rows[key]
        return None if found is None else ConfigurationFamily(degrees, *found)

    def _shapes(
        self, degrees: Degrees, unit: int, *, idle: bool
    ) -> Iterator[tuple[int, int]]:
        """Yield numbers of stages, and of replicas, multiples of ``unit``."""
        spec, batch = self.spec, math.gcd(*self.workload.training.batch_sizes)
        groups, rest = divmod(self.num_devices, degrees.tp * degrees.cp)
        if rest and not idle:
            return
        replicas = [
            dp
            for dp in divisors(batch // degrees.micro_batch_size)
            if batch % (dp * degrees.micro_batch_size) == 0
            and dp % unit == 0
            and (spec.data_parallel_sizes is None or dp in spec.data_parallel_sizes)
        ]
        stages = spec.pipeline_model_parallel_sizes
        most = max(self.workload.chain[1], 1) if self.rules.pipeline else 1
        for pp in range(1, min(groups, most) + 1):
            fitting = [dp for dp in replicas if dp * pp <= groups]
            if not idle:
                fitting = [dp for dp in fitting if dp * pp == groups]
            asked = stages is None or pp in stages
            if fitting and asked and self._has_choices(degrees, pp):
                yield from ((pp, dp) for dp in fitting)

    def _has_choices(self, degrees: Degrees, pp: int) -> bool:
        """Tell whether plans of some stages have anything to do about memory."""
        return bool(self.zero_stages(pp, degrees) and self.offloads(pp))

    @cached_property
    def _takes_any_number(self) -> bool:
        """Whether a schedule of several chunks takes microbatches in any number."""
        some = [SCHEDULES[name] for name in self.tried_schedules]
        return any(one.interleaves and not one.deals_rounds for one in some)

    def _rounds(self, degrees: Degrees, dp: int) -> int:
        """Return the microbatches of each replica."""
        batch = self.workload.training.global_batch_size
        return batch // (dp * degrees.micro_batch_size)

    def _chunks_of(self, pp: int, m: int) -> tuple[int, ...]:
        """Return numbers of chunks of plans of some stages and microbatches."""
        if (pp, m) not in self._chunks:
            self._chunks[pp, m] = tuple(self._allowed_chunks(pp, m))
        return self._chunks[pp, m]

    def _allowed_chunks(self, pp: int, m: int) -> Iterator[int]:
        deals = m % round_length(pp, m) == 0 or any(
            SCHEDULES[name].allows(pp, m, 2) for name in self.grouped_schedules
        )
        sizes = self.spec.virtual_pipeline_model_parallel_sizes
        most = self.workload.chain[1] // pp + 1
        for v in range(1, min(most, max(sizes or (most,))) + 1):
            if v > 1 and (pp == 1 or not (deals or self._takes_any_number)):
                return
            allowed = (sizes is None or v in sizes) and self.schedules(pp, v, m)
            if allowed and self.recompute_modes(v) and self.layouts(pp, v):
                yield v


def _sizes(degrees: Degrees, pp: int = 1, dp: int = 1) -> LaunchSizes:
    tp, cp, ep, _, splits, grouping, _ = degrees
    return LaunchSizes(tp, cp, ep, grouping, splits, pp, dp)

"""``phaze``: a dynamic program that takes the network for one bandwidth.

Phaze chooses widths, stages, their uneven split and replicas; its objective is the
slowest stage times the ticks of the pipeline, plus an all-reduce of the first stage's
gradients::

    (ceil(M / d) + p - 1) max_s load_s + 2 (d - 1) / d G w_F / BW

with ``M`` microbatches in all, ``d`` replicas, ``p`` stages, ``w_F`` the parameters of
the first stage and ``G`` the bytes of a gradient on the wire. Memory by its own rule:
weights, gradients, optimizer states and all activations of the stage, and for each
later stage what one more microbatch keeps. Devices are numbered pipeline by pipeline.

Differences from the published program, which reads times from tables of its own: times
and bytes are those of this project's layer tables, every collective a ring at the one
bandwidth; the widths, micro-batch sizes and recompute modes that a scenario allows are
all tried, and so are its context-parallel sizes, which the published one does not have;
the best by its own price is taken. Of its plans by that price the first one that truly
fits is proposed, as the framework launches it (`planner.rivals.launched`).

References
----------
.. [1] Wang et al., "Phaze", ICML 2024: objective and dynamic program.
.. [2] Tarnawski et al., "Piper", NeurIPS 2021: the program that it follows.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from planner.cost.choices import RECOMPUTE_MODES, MemoryChoice, choice_columns
from planner.kernels import rivals as kernel
from planner.kernels import tables
from planner.rivals.launched import MOST_TRIED, Launcher
from planner.rivals.mcmc_state import ChainPrices, PlacedChain, SpaceIndex
from planner.rivals.protocol import NO_SIZES, Planner, PlannerOutcome, PlanRequest
from planner.search.candidates import CandidateSet
from planner.search.placements import extents_of
from planner.search.space import Configuration, SearchSpec
from planner.step.execution import Workload
from planner.step.ledger import KERNEL_LEDGER
from planner.step.plan import Plan
from planner.work import (
    BELIEVED,
    PLAN,
    PRICED_DEVICES,
    SPLIT,
    SPLIT_STEPS,
    LimitReachedError,
    Progress,
    Work,
    stopped_sentence,
)
from topologies import Network
from topologies.arrays import FloatArray, IntArray

FIRST_OPENING = 256
"""Plans priced before the best of them are looked at in truth, so that there is
something to show; four times as many before the next attempt."""

MOST_KEPT = 2**12
"""Most plans that are kept until the best of them are taken."""


class Believed(NamedTuple):
    """One plan of the dynamic program."""

    price: float
    """Time of a step by Phaze's own model [s]."""

    configuration: Configuration
    """Sizes of the plan."""

    recompute: tuple[str, str]
    """Recompute mode of the last stage, and of the others."""

    bounds: tuple[int, ...]
    """First layer of each stage, and their number."""


class _Table(NamedTuple):
    """What the dynamic program came to."""

    best: list[Believed]
    """Plans by their own price, best first."""

    number: int
    """Number of plans that were priced."""

    opening: tuple[float, Plan] | None
    """Price and plan of one that fits in truth, None if none was looked for early on
    [s]."""


class Phaze(Planner):
    """Splits the chain unevenly, and knows nothing of levels."""

    name = "phaze"
    sees = (
        "One number: the bandwidth of level 0, which it takes for that of every link. "
        "Context parallelism, which the published program does not have, is priced so, "
        "too."
    )

    def answer(self, request: PlanRequest) -> PlannerOutcome:
        """Return the best plan of the program that fits."""
        work = request.work
        program = PhazeProgram.of(*request.problem, work, request.progress)
        request.report("phaze: search")
        table = program.table()
        chosen, why_not = program.first_fitting(table.best)
        if chosen is None and work.stopped_by:
            chosen = table.opening
        if not table.number:
            why_not = program.why_not()
        if work.stopped_by:
            why_not = stopped_sentence(work.total(), f"{table.number:,} plans")
        outcome = program.launcher.outcome(
            work, chosen, why_not, evaluations=table.number
        )
        # Plans are written out on an account of their own.
        written = program.candidates.work.spent
        spent = replace(outcome.spent, work=outcome.spent.work + written)
        return replace(outcome, spent=spent)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PhazeProgram:
    """The dynamic program on one problem."""

    candidates: CandidateSet
    """Configurations of the space, with their placements and bounds."""
    work: Work
    """Work that the table is counted on."""
    index: SpaceIndex
    """Configurations of the space, by their sizes."""
    inverse: float
    """Inverse bandwidth of every link, as Phaze has it [s/byte]."""

    prices: ChainPrices
    """Prices on the true network: for writing plans out, not for choosing them."""
    launcher: Launcher
    """What holds plans to memory and to the framework."""

    @classmethod
    def of(
        cls,
        network: Network,
        workload: Workload,
        spec: SearchSpec,
        work: Work | None = None,
        progress: Progress | None = None,
    ) -> "PhazeProgram":
        """Read what the program may see of a problem."""
        # What is written out is bounded by itself, whatever is left.
        launcher = Launcher.of(network, workload, spec)
        candidates = launcher.candidates(progress=progress)
        bandwidth = network.levels[0].bandwidth
        return cls(
            candidates=candidates,
            work=Work() if work is None else work,
            index=SpaceIndex(candidates.inner),
            inverse=1.0 / bandwidth if bandwidth > 0.0 else 0.0,
            prices=ChainPrices(candidates=candidates),
            launcher=launcher,
        )

    def table(self) -> "_Table":
        """Return the best plans by its own price.

        At most `MOST_TRIED`, of all of them, or of those that the work sufficed for;
        it may end the program once one of its plans is known to fit in truth.
        """
        best: list[Believed] = []
        number, next_opening = 0, FIRST_OPENING
        opening: tuple[float, Plan] | None = None
        try:
            for plan in self.plans():
                number += 1
                best.append(plan)
                if len(best) >= MOST_KEPT:
                    best = heapq.nsmallest(MOST_TRIED, best)
                if number == next_opening and opening is None:
                    next_opening *= 4
                    best = heapq.nsmallest(MOST_TRIED, best)
                    opening, _ = self.first_fitting(best)
                    if opening is not None:
                        self.work.note_plan()
                self.work.spend(BELIEVED)
        except LimitReachedError:
            pass
        return _Table(heapq.nsmallest(MOST_TRIED, best), number, opening)

    def first_fitting(
        self, believed: list[Believed]
    ) -> tuple[tuple[float, Plan] | None, str]:
        """Return the first plan that truly fits and its price, or why none does."""
        return self.launcher.first_launched(self._proposals(believed))

    def _proposals(self, believed: list[Believed]) -> Iterator[tuple[float, Plan]]:
        for candidate in believed:
            devices = self.candidates.network.num_devices
            self.work.count(PLAN + devices // PRICED_DEVICES)
            yield candidate.price, self.plan(candidate)

    def plans(self) -> Iterator[Believed]:
        """Yield the best split of all sizes of tables, modes, ``p`` and ``d``."""
        sizes = self.index.sizes
        if 1 not in sizes["v"]:
            return
        names = ("tp", "cp", "ep", "b")
        for tp, cp, ep, b in product(*(sizes[name] for name in names)):
            for recompute in self._recompute_modes():
                yield from self._plans_of(tp, cp, ep, b, recompute)

    def _recompute_modes(self) -> list[tuple[str, str]]:
        """Return modes of the last stage, which needs none, and of the others."""
        allowed = self.candidates.spec.recompute
        modes = [mode for mode in RECOMPUTE_MODES if mode in allowed]
        return [("none" if "none" in modes else mode, mode) for mode in modes]

    def _plans_of(
        self, tp: int, cp: int, ep: int, b: int, recompute: tuple[str, str]
    ) -> Iterator[Believed]:
        stages = self.index.stages(tp, cp, ep, b)
        if not stages:
            return
        workload = self.candidates.workload
        whole = Configuration(tp, cp, ep, b, 1, stages[-1], ep)
        whole = self.index.regrouped(whole)
        table = self.candidates.splitter.interleaved_chain(whole).table
        class_of = table.classes.class_of
        length = len(class_of)
        self.work.count(SPLIT + stages[-1] * length * length // SPLIT_STEPS)
        bottleneck, following, leading = kernel.phaze_tables(
            class_of, *self.inputs(whole, recompute), stages[-1]
        )
        parameters = table.sums.parameters + table.sums.expert_parameters
        held = np.zeros(len(class_of))
        held[1:] = parameters[class_of[0, 1:]]
        microbatches = -(-workload.training.global_batch_size // b)
        for pp in stages:
            # By the first layer after the first stage.
            slowest = np.maximum(leading[pp], bottleneck[pp - 1])
            if not np.isfinite(slowest).any():
                continue
            for dp in self.index.replicas(whole._replace(pp=pp)):
                ticks = -(-microbatches // dp) + pp - 1
                inverse = 2 * (dp - 1) / dp * self.inverse
                sync = held * workload.parameter_bytes.reduce * inverse
                prices = ticks * slowest + sync
                first = int(prices.argmin())
                yield Believed(
                    float(prices[first]),
                    whole._replace(pp=pp, dp=dp),
                    recompute,
                    _bounds(following, pp, first),
                )

    def inputs(
        self, configuration: Configuration, recompute: tuple[str, str]
    ) -> tuple[FloatArray, FloatArray, IntArray, float]:
        """Return what the kernel reads beside the classes of intervals."""
        splitter = self.candidates.splitter
        parameter_bytes = self.candidates.workload.parameter_bytes
        interleaved = splitter.interleaved_chain(configuration)
        sums = interleaved.table.sums
        choices = choice_columns(
            tuple(MemoryChoice(mode, 0, 0) for mode in ("none", *recompute))
        )
        time, _ = tables.time_and_step_end(
            sums,
            interleaved.table.traffic,
            choices,
            np.ones(1),
            self._rates(configuration)[None],
            splitter.constants(configuration, splitter.memory),
            KERNEL_LEDGER,
        )
        parameters = sums.parameters + sums.expert_parameters
        static = (
            parameter_bytes.weights
            + parameter_bytes.gradients
            + parameter_bytes.optimizer
        ) * parameters
        room = splitter.memory - static - sums.saved[tables.NONE]
        most = np.zeros((2, parameters.size), dtype=np.int64)
        for row, mode in enumerate(choices.recompute[1:].tolist()):
            stash = np.maximum(sums.saved[mode], 1e-12)
            # More stages than any chain has layers are as good as infinitely many.
            later = np.clip(np.floor(room / stash), -1, len(parameters))
            most[row] = np.where(room < 0, 0, 1 + later)
        again = time[0, 1:] - time[0, 0]
        transfer = interleaved.boundary_bytes * self.inverse
        return np.tile(time[0, 0], (2, 1)), again, most, transfer

    def _rates(self, configuration: Configuration) -> FloatArray:
        """Return the rates of rings at the one bandwidth, without latency."""
        tp, cp, ep, *_ = configuration
        rates = np.zeros(tables.NUM_FIXED_RATES + 4)
        rates[tables.TENSOR_REDUCE + 1] = 2 * (tp - 1) / tp
        rates[tables.TENSOR_PASS + 1] = (tp - 1) / tp
        rates[tables.CONTEXT + 1] = float(cp > 1)
        rates[tables.EXPERT + 1] = (ep - 1) / ep
        return np.asarray(rates * self.inverse)

    def plan(self, believed: Believed) -> Plan:
        """Write one of its plans out, devices pipeline by pipeline."""
        chain = self._chain(believed.configuration)
        last, others = believed.recompute
        pp = believed.configuration.pp
        zero = self.launcher.zero_stages(pp, believed.configuration)[0]
        modes = [others] * (pp - 1) + [last]
        return self.prices.plan(
            believed.configuration,
            chain,
            np.array(believed.bounds),
            tuple(MemoryChoice(mode, zero, 0) for mode in modes),
        )

    def _chain(self, configuration: Configuration) -> PlacedChain:
        """Return the placement with each pipeline on consecutive devices."""
        tp, cp, ep, dp, pp = extents_of(configuration)
        widths = [tp, cp, ep, pp, dp]
        tp_step, cp_step, ep_step, pp_step, dp_step = np.cumprod([1, *widths])[:5]
        steps = np.array([tp_step, cp_step, ep_step, dp_step, pp_step])
        for number, placement in enumerate(self.candidates.placements(configuration)):
            strides = np.array([stride for _, stride, _ in placement.steps])
            sizes = np.array([inner for inner, _, _ in placement.steps])
            extents = np.array(placement.extents)
            alike = (strides == steps) | (extents == 1)
            if alike.all() and (sizes == extents).all():
                return self.prices.chain(configuration, number)
        message = "whole dimensions may be nested in any order"
        raise AssertionError(message)

    def why_not(self) -> str:
        """Say what left the program without a plan."""
        sizes = self.index.sizes
        if not sizes["v"]:
            return NO_SIZES
        if 1 not in sizes["v"]:
            return "Schedule: it knows 1F1B without virtual stages only."
        return (
            "Memory: by its own account (weights, gradients, optimizer states and all "
            "activations of a stage, and a stash for each later stage) no split fits "
            f"at any tensor-parallel size of {list(sizes['tp'])}."
        )


def _bounds(following: IntArray, pp: int, first: int) -> tuple[int, ...]:
    """Read the split back, from the first stage's end."""
    bounds = [0, first]
    for s in range(pp - 1, 0, -1):
        bounds.append(int(following[s, bounds[-1]]))
    return tuple(bounds)

"""What needs no rules of thumb: our searches, the given plan, and trying everything.

``nest`` is our search, ``fixed`` the plan of the scenario, and ``exhaustive``
tries every configuration, placement, split and choice of a small space.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from planner.kernels import rivals as kernel
from planner.plans.build import build_plan, with_algorithms
from planner.plans.checks import check_plan
from planner.rivals.launched import Launcher
from planner.rivals.mcmc_state import ChainPrices, PlacedChain
from planner.rivals.protocol import (
    PlannerOutcome,
    PlannerSettings,
    believed_time,
    fits,
    priced_best_first,
    too_little_memory,
)
from planner.search.best_first import search
from planner.search.candidates import CONFIGURATIONS_PER_REPORT, CandidateSet
from planner.search.replayed.search import Replays, search_by_replay
from planner.search.space import Configuration, SearchSpec
from planner.search.thriftiest import space_infeasibility
from planner.step.execution import Workload
from planner.step.plan import Plan
from planner.work import (
    EVERY_SPLIT,
    PLACEMENTS,
    PLAN,
    LimitReachedError,
    Progress,
    Spent,
    Work,
    stopped_sentence,
)
from topologies import InputError, Network
from topologies.arrays import IntArray


@dataclass(frozen=True, slots=True)
class Nest:
    """Best-first search: for the fastest replay, or for the least planned time.

    The first where the space asks for it and something replays plans.
    """

    name: str = "nest"
    """Name of the planner."""

    sees: str = "Every link and route, through the price of each placement."
    """What the planner sees of the network, in one sentence."""

    def find(
        self,
        network: Network,
        workload: Workload,
        spec: SearchSpec,
        settings: PlannerSettings,
        *,
        progress: Progress | None = None,
    ) -> PlannerOutcome:
        """Return the k best plans of the space with a lower bound."""
        work = settings.allowance(spec)
        if spec.objective == "replayed" and settings.replays is not None:
            replays = settings.replays
            return self._find_by_replay(
                network, workload, spec, replays, work, progress
            )
        found = search(network, workload, spec, work=work, progress=progress)
        return PlannerOutcome(
            planner=self.name,
            plans=found.plans,
            belief=believed_time(found.plans),
            sees=self.sees,
            spent=found.spent,
            search_time=work.elapsed,
            evaluations=found.statistics.get("configurations", 0),
            statistics=found.statistics,
            lower_bound=found.lower_bound,
            covers_space=found.covers_space,
            why_not=found.infeasibility,
        )

    def _find_by_replay(
        self,
        network: Network,
        workload: Workload,
        spec: SearchSpec,
        replays: Replays,
        work: Work,
        progress: Progress | None,
    ) -> PlannerOutcome:
        found = search_by_replay(
            network, workload, spec, replays, work=work, progress=progress
        )
        return PlannerOutcome(
            planner=self.name,
            plans=tuple(plan.priced for plan in found.plans),
            belief=found.plans[0].time if found.plans else float("nan"),
            sees=self.sees,
            spent=found.spent,
            search_time=work.elapsed,
            evaluations=found.statistics.get("configurations", 0),
            statistics=found.statistics,
            lower_bound=found.lower_bound,
            proposed_time=found.proposed_time,
            launchable_time=found.launchable_time,
            replayed_times=tuple(plan.time for plan in found.plans),
            covers_space=not found.spent.is_stopped,
            why_not=found.infeasibility,
        )


@dataclass(frozen=True, slots=True)
class Fixed:
    """Searches nothing: a plan that is given, inside the space or not."""

    name: str = "fixed"
    """Name of the planner."""

    sees: str = "Nothing: the plan is given."
    """What the planner sees of the network, in one sentence."""

    def find(
        self,
        network: Network,
        workload: Workload,
        spec: SearchSpec,
        settings: PlannerSettings,
        *,
        progress: Progress | None = None,  # noqa: ARG002  the protocol's
    ) -> PlannerOutcome:
        """Return the plan, if it fits in memory.

        Raises
        ------
        InputError
            If none is given, or it does not fit the model, the batch or the cluster,
            with the setting in ``where``.
        """
        work = settings.allowance(spec)
        work.count(PLAN)
        plan = _plan(network, workload, settings)
        is_small = fits(workload, spec, plan, network.host)
        why_not = ""
        if not is_small:
            short = too_little_memory(network, workload, spec, plan)
            why_not = f"Memory: the plan does not fit: {short}"
        return PlannerOutcome(
            planner=self.name,
            plans=priced_best_first(network, workload, [plan] if is_small else []),
            belief=math.nan,
            sees=self.sees,
            spent=work.total(),
            search_time=work.elapsed,
            evaluations=1,
            covers_space=True,
            why_not=why_not,
        )


def _plan(network: Network, workload: Workload, settings: PlannerSettings) -> Plan:
    given = settings.fixed
    if given is None:
        raise InputError(
            "there is no plan to take",
            where="plan",
            expected="a table [plan] in the scenario",
        )
    if isinstance(given, Plan):
        check_plan(workload, given, network.num_devices)
        return with_algorithms(network, workload, given)
    try:
        return build_plan(network, workload, given)
    except InputError as error:
        raise error.at("plan") from None


MOST_SPLITS = 3_000_000
"""Most splits that the planner tries, of all placements of all configurations: about a
minute."""


class _BestSplit(NamedTuple):
    value: float
    """Closed-form time of the split's plan [s]."""
    configuration: Configuration
    """Sizes of the plan."""
    plan: Plan
    """Plan of the split."""


@dataclass(frozen=True, slots=True)
class Exhaustive:
    """Tries everything; refuses spaces for which that takes too long."""

    name: str = "exhaustive"
    """Name of the planner."""

    sees: str = "Every link and route, through the price of each placement."
    """What the planner sees of the network, in one sentence."""

    def find(
        self,
        network: Network,
        workload: Workload,
        spec: SearchSpec,
        settings: PlannerSettings,
        *,
        progress: Progress | None = None,
    ) -> PlannerOutcome:
        """Return the k best plans of the space.

        Raises
        ------
        InputError
            If there are more than `MOST_SPLITS` splits to try.
        """
        work = settings.allowance(spec)
        launcher = Launcher.of(network, workload, spec)
        candidates = CandidateSet.enumerate(
            network,
            workload,
            spec,
            work=work,
            kept=launcher.launchable_sizes,
            progress=progress,
        )
        _check_size(candidates, progress)
        prices = ChainPrices(candidates=candidates)
        found: list[_BestSplit] = []
        evaluations, looked = 0, 0
        for index in range(len(candidates)):
            if progress is not None:
                progress(
                    f"exhaustive: {index} of {len(candidates)} configurations",
                    index / len(candidates),
                )
            configuration = candidates[index]
            placed = range(len(candidates.placements(configuration)))
            num_splits = len(placed) * _num_splits(candidates, configuration)
            evaluations += num_splits
            try:
                work.spend(num_splits * EVERY_SPLIT)
                best = _best_of(prices, configuration, placed)
            except LimitReachedError:
                break
            looked += 1
            if best is not None:
                work.note_plan()
                found = sorted([*found, best], key=lambda f: f[:2])[: spec.keep_best]
        written = (launcher.launched(best.plan) for best in found)
        kept = [plan for plan in written if plan is not None]
        plans = priced_best_first(network, workload, kept)
        return PlannerOutcome(
            planner=self.name,
            plans=plans,
            belief=believed_time(plans),
            sees=self.sees,
            spent=work.total(),
            search_time=work.elapsed,
            evaluations=evaluations,
            covers_space=not work.stopped_by and not spec.keeps_rules,
            refused=tuple(launcher.refused),
            why_not="" if plans else _why_not(candidates, looked, work.total()),
        )


def _why_not(candidates: CandidateSet, looked: int, spent: Spent) -> str:
    if spent.is_stopped:
        what = f"{looked:,} of {len(candidates):,} configurations"
        return stopped_sentence(spent, what)
    return space_infeasibility(candidates)


def _check_size(candidates: CandidateSet, progress: Progress | None) -> None:
    total = 0
    for index in range(len(candidates)):
        if progress is not None and index % CONFIGURATIONS_PER_REPORT == 0:
            progress("exhaustive: count the splits", total / MOST_SPLITS)
        candidates.work.count(PLACEMENTS)
        configuration = candidates[index]
        placed = len(candidates.placements(configuration))
        total += placed * _num_splits(candidates, configuration)
        if total > MOST_SPLITS:
            raise InputError(
                "the space is too large to try everything",
                where="planner",
                got="exhaustive",
                expected=f"at most {MOST_SPLITS:,} splits of all placements; the first "
                f"{index + 1:,} of {len(candidates):,} configurations have more",
                hint='narrow the lists of [search], or take "nest", which proves the '
                "same optimum",
            )


def _num_splits(candidates: CandidateSet, configuration: Configuration) -> int:
    table = candidates.splitter.interleaved_chain(configuration).table
    num_layers = len(table.classes.class_of) - 1
    return math.comb(num_layers - 1, configuration.pp - 1)


def _best_of(
    prices: ChainPrices, configuration: Configuration, placed: range
) -> _BestSplit | None:
    """Return a configuration's best plan; ties go to the first placement."""
    best, chosen = math.inf, None
    for number in placed:
        chain = prices.chain(configuration, number)
        value, bounds, picked = _best_split(chain)
        if value < best:
            best, chosen = value, (chain, bounds, picked)
    if chosen is None:
        return None
    chain, bounds, picked = chosen
    choices = tuple(chain.choices[choice] for choice in picked)
    return _BestSplit(
        best, configuration, prices.plan(configuration, chain, bounds, choices)
    )


def _best_split(chain: PlacedChain) -> tuple[float, IntArray, IntArray]:
    value, bounds, picked = kernel.best_split(chain.priced)
    return value + chain.constant, bounds, picked

"""What needs no rules of thumb: our searches, the given plan, and trying everything.

``nest`` is our search, ``fixed`` the plan of the scenario, and ``exhaustive``
tries every configuration, placement, split and choice of a small space.
"""

import math
from dataclasses import replace
from typing import NamedTuple

from planner.cost.objective import PricedPlan
from planner.kernels import rivals as kernel
from planner.plans.build import build_plan, with_algorithms
from planner.plans.checks import check_plan
from planner.rivals.launched import Launcher
from planner.rivals.mcmc_state import ChainPrices, PlacedChain
from planner.rivals.protocol import (
    Planner,
    PlannerOutcome,
    PlannerSettings,
    PlanRequest,
    believed_time,
    fits,
    priced_best_first,
    too_little_memory,
)
from planner.search.best_first import SearchResult, search
from planner.search.candidates import CONFIGURATIONS_PER_REPORT, CandidateSet
from planner.search.replayed.beyond import search_by_replay
from planner.search.replayed.search import ReplayedSearch
from planner.search.space import Configuration
from planner.search.thriftiest import space_infeasibility
from planner.step.execution import Workload
from planner.step.plan import Plan
from planner.work import (
    EVERY_SPLIT,
    PLACEMENTS,
    PLAN,
    LimitReachedError,
    Spent,
    stopped_sentence,
)
from topologies import InputError, Network
from topologies.arrays import IntArray


class Nest(Planner):
    """Best-first search: for the fastest replay, or for the least planned time.

    The first where the space asks for it and something replays plans.
    """

    name = "nest"
    sees = "Every link and route, through the price of each placement."

    def answer(self, request: PlanRequest) -> PlannerOutcome:
        """Return the k best plans of the space with a lower bound."""
        replays = request.settings.replays
        if request.spec.objective != "replayed" or replays is None:
            planned = search(
                *request.problem, work=request.work, progress=request.progress
            )
            return _outcome(planned, planned.plans)
        replayed = search_by_replay(
            *request.problem, replays, work=request.work, progress=request.progress
        )
        times = tuple(plan.time for plan in replayed.plans)
        simplest = replayed.simplest
        return replace(
            _outcome(replayed, tuple(plan.priced for plan in replayed.plans)),
            belief=times[0] if times else math.nan,
            proposed_time=replayed.proposed_time,
            launchable_time=replayed.launchable_time,
            replayed_times=times,
            simplest=None if simplest is None else simplest.priced,
        )


def _outcome(
    result: SearchResult | ReplayedSearch, plans: tuple[PricedPlan, ...]
) -> PlannerOutcome:
    """Return what either search has found."""
    return PlannerOutcome(
        plans=plans,
        belief=believed_time(plans),
        spent=result.spent,
        evaluations=result.statistics.get("configurations", 0),
        statistics=result.statistics,
        lower_bound=result.lower_bound,
        covers_space=not result.spent.is_stopped,
        why_not=result.infeasibility,
    )


class Fixed(Planner):
    """Searches nothing: a plan that is given, inside the space or not."""

    name = "fixed"
    sees = "Nothing: the plan is given."

    def answer(self, request: PlanRequest) -> PlannerOutcome:
        """Return the plan, if it fits in memory.

        Raises
        ------
        InputError
            If none is given, or it does not fit the model, the batch or the cluster,
            with the setting in ``where``.
        """
        network, workload, spec = request.problem
        request.work.count(PLAN)
        plan = _plan(network, workload, request.settings)
        is_small = fits(workload, spec, plan, network.host)
        why_not = ""
        if not is_small:
            short = too_little_memory(network, workload, spec, plan)
            why_not = f"Memory: the plan does not fit: {short}"
        return PlannerOutcome(
            plans=priced_best_first(network, workload, [plan] if is_small else []),
            spent=request.work.total(),
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


class Exhaustive(Planner):
    """Tries everything; refuses spaces for which that takes too long."""

    name = "exhaustive"
    sees = "Every link and route, through the price of each placement."

    def answer(self, request: PlanRequest) -> PlannerOutcome:
        """Return the k best plans of the space.

        Raises
        ------
        InputError
            If there are more than `MOST_SPLITS` splits to try.
        """
        spec, work = request.spec, request.work
        launcher = Launcher.of(*request.problem)
        candidates = launcher.candidates(work, request.progress)
        _check_size(candidates, request)
        prices = ChainPrices(candidates=candidates)
        splits: list[_BestSplit] = []
        evaluations, looked = 0, 0
        for index in range(len(candidates)):
            request.report(
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
                splits = sorted([*splits, best], key=lambda f: f[:2])[: spec.keep_best]
        written = (launcher.launched(best.plan) for best in splits)
        kept = [plan for plan in written if plan is not None]
        plans = priced_best_first(request.network, request.workload, kept)
        return PlannerOutcome(
            plans=plans,
            belief=believed_time(plans),
            spent=work.total(),
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


def _check_size(candidates: CandidateSet, request: PlanRequest) -> None:
    total = 0
    for index in range(len(candidates)):
        if index % CONFIGURATIONS_PER_REPORT == 0:
            request.report("exhaustive: count the splits", total / MOST_SPLITS)
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

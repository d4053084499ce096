"""``nest``: this project's own searches, behind the protocol."""

from dataclasses import dataclass

from planner.baselines.proposals import believed_time
from planner.baselines.protocol import PlannerOutcome, PlannerSettings
from planner.progress import Progress
from planner.replayed.beyond import search_beyond
from planner.replayed.search import Replays, search_replayed
from planner.search import search
from planner.search_spec import SearchSpec
from planner.work import Work
from planner.workload import Workload
from topologies import Network


@dataclass(frozen=True, slots=True)
class Nest:
    """Best-first search: for the fastest replay, or for the least planned time.

    The first where the space asks for it and something replays plans.
    """

    name: str = "nest"

    sees: str = "Every link and route, through the price of each placement."

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
            return self._replayed(network, workload, spec, replays, work, progress)
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
            why_not=found.shortfall,
        )

    def _replayed(
        self,
        network: Network,
        workload: Workload,
        spec: SearchSpec,
        replays: Replays,
        work: Work,
        progress: Progress | None,
    ) -> PlannerOutcome:
        find = search_replayed if spec.launchable else search_beyond
        found = find(network, workload, spec, replays, work=work, progress=progress)
        return PlannerOutcome(
            planner=self.name,
            plans=tuple(one.priced for one in found.plans),
            belief=found.plans[0].time if found.plans else float("nan"),
            sees=self.sees,
            spent=found.spent,
            search_time=work.elapsed,
            evaluations=found.statistics.get("configurations", 0),
            statistics=found.statistics,
            lower_bound=found.lower_bound,
            replayed_times=tuple(one.time for one in found.plans),
            covers_space=not found.spent.is_stopped,
            why_not=found.shortfall,
        )

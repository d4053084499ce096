"""``nest``: this project's own search, behind the protocol."""

from dataclasses import dataclass

from planner.baselines.proposals import believed_time
from planner.baselines.protocol import PlannerOutcome, PlannerSettings
from planner.progress import Progress
from planner.search import search
from planner.search_spec import SearchSpec
from planner.workload import Workload
from topologies import Network


@dataclass(frozen=True, slots=True)
class Nest:
    """Best-first search over configurations with an exact split of each."""

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
        found = search(network, workload, spec, work=work, progress=progress)
        return PlannerOutcome(
            planner=self.name,
            plans=found.plans,
            belief=believed_time(found.plans),
            sees=self.sees,
            spent=found.spent,
            search_time=work.elapsed,
            evaluations=found.statistics.get("configurations", 0),
            lower_bound=found.lower_bound,
            covers_space=found.covers_space,
            why_not=found.shortfall,
        )

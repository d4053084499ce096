"""The table [search]: what the planner may try."""

from dataclasses import asdict, dataclass, field, fields
from typing import Annotated

from annotated_types import Ge, Gt, Le

from planner.cost.choices import goes_with
from planner.frameworks.framework import FRAMEWORKS
from planner.frameworks.rules import LaunchRules
from planner.plans.spec import PlanSpec
from planner.rivals.protocol import STARTS, PlannerSettings
from planner.search.space import OBJECTIVES, SearchSpec
from planner.step.plan import NO_OFFLOAD, Offload
from planner.step.schedules import SCHEDULES
from topologies.errors import InputError
from topologies.settings import Distinct, Examples, NameChoice, Spec

MOST_CHUNKS = 512
MAX_BUDGET = 10_000_000
MAX_SEED = 2**32 - 1
_OURS, _OTHERS = ("nest", "manual", "mcmc"), ("phaze", "alpa", "mist", "exhaustive")
PLANNER_NAMES = (*_OURS, *_OTHERS, "fixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class McmcSpec(Spec):
    """How the planner "mcmc" walks."""

    budget: Annotated[int, Ge(1), Le(MAX_BUDGET), Examples(4000)] = 4000
    """Steps of each random walk."""

    seeds: Annotated[
        Distinct[Annotated[int, Ge(0), Le(MAX_SEED)]], Examples([0, 1, 2])
    ] = tuple(range(10))
    """Seeds of the random walks, one for each; the best plan of all walks counts."""

    init: Annotated[str, NameChoice(STARTS)] = "manual"
    """Where walks start: at the plan of the planner "manual", at a random one, or at
    data parallelism alone. At random where that does not fit."""

    alpha: Annotated[float, Gt(0), Le(1e6), Examples(20.0)] = 20.0
    """Sharpness of the choice: a plan that is slower by the fraction x is accepted with
    probability exp(-alpha x)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTable(SearchSpec):
    """What the planner may try. A list that is left out is searched in full."""

    planner: Annotated[str, NameChoice(PLANNER_NAMES)] = "nest"
    """The algorithm that plans. "nest" searches the whole space and proves how good its
    plan is; "manual" takes what people write down for Megatron-LM; "mcmc" walks at
    random; "phaze" is a dynamic program that takes the network for one bandwidth;
    "alpa" shards operator by operator in an integer program, on a mesh of two levels;
    "mist" is Mist's tuner, which chooses recompute and offloading stage by stage;
    "exhaustive" tries everything, for small cases; "fixed" takes the table [plan]."""

    mcmc: Annotated[
        McmcSpec, Examples({"budget": 1000, "seeds": [0, 1, 2]}, default={})
    ] = field(default_factory=McmcSpec)
    """How the planner "mcmc" walks; others do not read it."""

    offload_fractions: Annotated[
        Distinct[Annotated[float, Gt(0), Le(1)]], Examples([0.5, 1.0])
    ] = (1.0,)
    """How much of what `offload` names the host may keep."""

    def build(
        self, memory_reserve: float, rules: LaunchRules = FRAMEWORKS["ideal"].rules
    ) -> SearchSpec:
        """Return the settings for the planner.

        Parameters
        ----------
        memory_reserve
            Device memory that plans leave free [byte].
        rules
            What the software can launch.

        Raises
        ------
        InputError
            If groups are listed that the objective does not choose.
        """
        self._check_groups()
        settings = {
            field.name: getattr(self, field.name) for field in fields(SearchSpec)
        }
        settings |= {
            "virtual_pipeline_model_parallel_sizes": self._virtual_sizes(),
            "offload": self._offloads(),
            "rules": rules,
            "memory_reserve": memory_reserve,
        }
        return SearchSpec(**settings)

    def _check_groups(self) -> None:
        for name in (
            "expert_tensor_parallel_sizes",
            "cp_comm_types",
            "microbatch_group_sizes_per_vp_stage",
        ):
            given = getattr(self, name)
            if given is not None and self.objective != OBJECTIVES[0]:
                raise InputError(
                    "is chosen by the search for the fastest replay alone",
                    where=name,
                    got=list(given),
                    expected=f'nothing, or objective = "{OBJECTIVES[0]}"',
                )

    def settings(self, plan: PlanSpec | None) -> PlannerSettings:
        """Return what planners are told beside the space.

        Parameters
        ----------
        plan
            The scenario's table [plan], if there is one.
        """
        if self.planner == "fixed" and plan is None:
            raise InputError(
                "needs a plan",
                where="planner",
                got="fixed",
                expected="a table [plan] in the scenario",
            )
        return PlannerSettings(**asdict(self.mcmc), fixed=plan)

    def _offloads(self) -> tuple[Offload, ...]:
        """Return what hosts may keep, nothing first.

        Raises
        ------
        InputError
            If no recompute mode goes with any of it.
        """
        found = {
            Offload(*(share * part for share in kept))
            for kept in self.offload
            if kept != NO_OFFLOAD
            for part in self.offload_fractions
        }
        nothing = [NO_OFFLOAD] if NO_OFFLOAD in self.offload else []
        offloads = (*nothing, *sorted(found))
        if not any(
            goes_with(m, offload) for m in self.recompute for offload in offloads
        ):
            raise InputError(
                "does not go with the recompute modes",
                where="offload",
                got=[_offload_name(kept) for kept in self.offload],
                expected='"none" or "optimizer" beside recompute = ["stage"], which '
                "brings everything back from a stage's input",
            )
        return offloads

    def _virtual_sizes(self) -> tuple[int, ...] | None:
        """Return the numbers of chunks that the schedules allow."""
        given = self.virtual_pipeline_model_parallel_sizes
        chosen = [SCHEDULES[name] for name in self.schedules]
        if self.objective == "planned" and any(
            one.splits_backward or one.forward_first for one in chosen
        ):
            raise InputError(
                "are searched by replays only",
                where="schedules",
                got=list(self.schedules),
                expected='"1f1b" and "interleaved-1f1b" beside objective = "planned"',
            )
        plain = any(not one.interleaves for one in chosen)
        numbers = [one.num_chunks for one in chosen if one.interleaves]
        if plain and None in numbers:
            return given
        allowed = {1} if plain else set()
        allowed |= {number for number in numbers if number is not None}
        if None in numbers:
            allowed |= {*range(2, MOST_CHUNKS + 1)}
        sizes = tuple(size for size in given or sorted(allowed) if size in allowed)
        if not sizes:
            raise InputError(
                "no size goes with the schedules",
                where="virtual_pipeline_model_parallel_sizes",
                got=None if given is None else list(given),
                expected='[1] with "1f1b", "gpipe", "zb-h1" and "zb-h2", [2] with '
                '"zb-v" and "dualpipe-v", sizes above 1 with "interleaved-1f1b"',
            )
        return sizes


def _offload_name(kept: Offload) -> str:
    """Return what files call it."""
    parts = [name for name, share in kept._asdict().items() if share]
    return "+".join(parts) or "none"

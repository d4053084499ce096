"""The table [search]: what the planner may try."""

from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from nestsim.scenario.base import Table
from planner.cost.choices import goes_with
from planner.frameworks.framework import FRAMEWORKS
from planner.frameworks.rules import LaunchRules
from planner.plans.spec import CpCommType, PlanSpec, Recompute, ZeroStage
from planner.rivals.protocol import PlannerSettings
from planner.search.space import OBJECTIVES, SearchSpec
from planner.step.plan import NO_OFFLOAD, Offload
from planner.step.schedules import SCHEDULES
from planner.work import DEFAULT_WORK
from topologies.errors import InputError
from topologies.settings import Count, Distinct, Duration, NameChoice

MOST_CHUNKS = 512
MAX_BUDGET = 10_000_000
MAX_SEED = 2**32 - 1
MAX_WORK = 10**15
SEARCHED = ("1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe-v")


def _searched(schedule: object) -> object:
    known = isinstance(schedule, str) and schedule in SCHEDULES
    if known and schedule not in SEARCHED:
        raise InputError(
            "this schedule is not searched",
            got=schedule,
            expected=" or ".join(f'"{name}"' for name in SEARCHED),
            hint="nestsim simulate replays it: plan.schedule",
        )
    return schedule


Schedule = Annotated[
    Literal["1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe-v"],
    BeforeValidator(_searched),
]


OffloadFraction = Annotated[float, Field(gt=0, le=1)]


def _offloaded(name: object) -> object:
    """Refuse what names nothing that a host can keep."""
    parts = name.split("+") if isinstance(name, str) else [""]
    known = set(parts) <= set(Offload._fields) and len(set(parts)) == len(parts)
    if name != "none" and not known:
        raise InputError(
            "is nothing that a host can keep",
            got=name,
            expected='"none", or some of '
            + ", ".join(f'"{part}"' for part in Offload._fields)
            + ' with "+" between them',
        )
    return name


OffloadName = Annotated[
    str, BeforeValidator(_offloaded), Field(examples=["optimizer+activations"])
]


class McmcTable(Table):
    """How the planner "mcmc" walks."""

    budget: int = Field(4000, ge=1, le=MAX_BUDGET, examples=[4000])
    """Steps of each random walk."""

    seeds: Distinct[Annotated[int, Field(ge=0, le=MAX_SEED)]] = Field(
        tuple(range(10)), examples=[[0, 1, 2]]
    )
    """Seeds of the random walks, one for each; the best plan of all walks counts."""

    init: Literal["manual", "random", "dp"] = "manual"
    """Where walks start: at the plan of the planner "manual", at a random one, or at
    data parallelism alone. At random where that does not fit."""

    alpha: float = Field(20.0, gt=0, le=1e6, examples=[20.0])
    """Sharpness of the choice: a plan that is slower by the fraction x is accepted with
    probability exp(-alpha x)."""


class SearchTable(Table):
    """What the planner may try. A list that is left out is searched in full."""

    planner: Literal[
        "nest", "manual", "mcmc", "phaze", "alpa", "mist", "exhaustive", "fixed"
    ] = "nest"
    """The algorithm that plans. "nest" searches the whole space and proves how good its
    plan is; "manual" takes what people write down for Megatron-LM; "mcmc" walks at
    random; "phaze" is a dynamic program that takes the network for one bandwidth;
    "alpa" shards operator by operator in an integer program, on a mesh of two levels;
    "mist" is Mist's tuner, which chooses recompute and offloading stage by stage;
    "exhaustive" tries everything, for small cases; "fixed" takes the table [plan]."""

    mcmc: McmcTable = Field(
        McmcTable.model_validate({}),
        json_schema_extra={"default": {}},
        examples=[{"budget": 1000, "seeds": [0, 1, 2]}],
    )
    """How the planner "mcmc" walks; others do not read it."""

    micro_batch_sizes: Distinct[Count] | None = Field(None, examples=[[1, 2, 4]])
    """Sequences of a microbatch that may be tried."""

    tensor_model_parallel_sizes: Distinct[Count] | None = Field(
        None, examples=[[1, 2, 4, 8]]
    )
    """Numbers of devices that may share each layer's matrices."""

    pipeline_model_parallel_sizes: Distinct[Count] | None = Field(
        None, examples=[[1, 2, 4]]
    )
    """Numbers of pipeline stages that may be tried."""

    data_parallel_sizes: Distinct[Count] | None = Field(None, examples=[[8, 16]])
    """Numbers of replicas of the pipeline that may be tried."""

    context_parallel_sizes: Distinct[Count] | None = Field(None, examples=[[1, 2]])
    """Numbers of devices that may share each sequence; more than 1 needs flash
    attention."""

    expert_model_parallel_sizes: Distinct[Count] | None = Field(None, examples=[[1, 8]])
    """Numbers of devices that may share the experts of each mixture-of-experts
    layer."""

    expert_tensor_parallel_sizes: Distinct[Count] | None = Field(
        None, examples=[[1, 8]]
    )
    """Numbers of devices that may share each expert's matrices. Left out, one, and as
    many as share those of other layers, where `software.preset` has both. For the
    objective "replayed"."""

    cp_comm_types: Distinct[CpCommType] | None = Field(None, examples=[["p2p", "a2a"]])
    """How devices that share a sequence may share attention, names of
    `plan.cp_comm_type`. Left out, "p2p" and "a2a", as far as `software.preset` has
    them. For the objective "replayed"."""

    virtual_pipeline_model_parallel_sizes: Distinct[Count] | None = Field(
        None, examples=[[1, 2, 4]]
    )
    """Numbers of chunks that a stage may have; more than 1 is interleaved 1F1B."""

    sequence_parallel: bool | None = Field(None, examples=[True])
    """Whether Megatron's sequence parallelism is on. Left out, it is wherever the
    tensor-parallel size exceeds 1."""

    overlap_moe_expert_parallel_comm: bool | None = Field(None, examples=[False])
    """Whether all-to-alls between experts go on beside the passes of another
    microbatch, in plans that can have them there: with chunks or without a pipeline,
    and without full recompute. Left out, both are tried where the framework has it.
    Only the search for the fastest replay tries it."""

    recompute: Distinct[Recompute] = Field(
        ("none", "selective", "full"), examples=[["none", "full"]]
    )
    """What a stage may recompute in the backward pass: nothing, the attention core, or
    each block from its input. No framework has "stage", everything from the stage's
    input: it is tried where it is listed."""

    zero_stages: Distinct[ZeroStage] | None = Field(None, examples=[[0, 1]])
    """ZeRO stages that a stage may use. Left out, those that `software.preset` has; all
    of 0 to 3 with "ideal"."""

    offload: Distinct[OffloadName] = Field(
        ("none",), examples=[["none", "optimizer", "activations"]]
    )
    """What the host of a device may keep for it: "none", "weights", "gradients",
    "optimizer" states, saved "activations", or several of them with a plus between
    them, such as "optimizer+activations". Each is tried with each of
    `offload_fractions`."""

    offload_fractions: Distinct[OffloadFraction] = Field((1.0,), examples=[[0.5, 1.0]])
    """How much of what `offload` names the host may keep."""

    schedules: Distinct[Schedule] = Field(
        ("1f1b", "interleaved-1f1b"), examples=[["1f1b"]]
    )
    """Orders of the microbatches' forward and backward passes that may be tried, where
    the framework of `software.preset` has them; MaxText's own stand for 1F1B. Those
    that split the backward pass, "zb-h1", "zb-h2", "zb-v" and "dualpipe-v", are tried
    where they are listed."""

    launchable: bool = Field(True, examples=[False])
    """Whether the search keeps to plans that the framework of `software.preset` can
    launch. If not, it explores beyond, and reports say which rules a plan breaks."""

    idle_devices: bool = Field(False, examples=[True])
    """Whether launchable plans may leave devices of the cluster without work."""

    objective: Annotated[str, NameChoice(OBJECTIVES)] = OBJECTIVES[0]
    """What the search minimises: the time of a step in the replay ("replayed"), among
    plans whose stages are all treated alike, as frameworks have it; or a closed form of
    the step ("planned"), among all splits with recompute and ZeRO chosen stage by
    stage."""

    proven_gap: float = Field(0.01, ge=0, lt=1, examples=[0.01])
    """How much faster another plan may be, relative, when a search for the fastest
    replay ends."""

    proposals: int = Field(4, ge=0, le=1000, examples=[4])
    """Plans of the dynamic program for the planned time that a search for the fastest
    replay begins with; 0 for none. The answer is the same, or faster with them."""

    keep_best: int = Field(5, ge=1, le=1000, examples=[5])
    """Distinct plans to keep and replay, best first."""

    work_limit: int = Field(
        DEFAULT_WORK, ge=1, le=MAX_WORK, examples=[DEFAULT_WORK, 10 * DEFAULT_WORK]
    )
    """Units of work, of about a microsecond each, after which the search returns the
    best that it has found; it goes on until it has found a plan. Counts do not depend
    on the machine: the same scenario gives the same result everywhere."""

    time_limit: Duration | None = Field(None, examples=["60 s"])
    """Time after which the search returns the best that it has found, counted from its
    first plan on [s]. Results may then differ from run to run. Left out, there is no
    such limit."""

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
        shared = {field.name for field in fields(SearchSpec)} & {
            *type(self).model_fields
        }
        settings: dict[str, Any] = {name: getattr(self, name) for name in shared}
        settings |= {
            "virtual_pipeline_model_parallel_sizes": self._virtual_sizes(),
            "zero_stages": self.zero_stages or rules.usual_zero_stages,
            "offload": self._offloads(),
        }
        return SearchSpec(**settings, rules=rules, memory_reserve=memory_reserve)

    def _check_groups(self) -> None:
        for name in ("expert_tensor_parallel_sizes", "cp_comm_types"):
            given = getattr(self, name)
            if given is not None and self.objective != OBJECTIVES[0]:
                raise InputError(
                    "is chosen by the search for the fastest replay alone",
                    where=name,
                    got=given,
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
        return PlannerSettings(
            seeds=self.mcmc.seeds,
            budget=self.mcmc.budget,
            init=self.mcmc.init,
            alpha=self.mcmc.alpha,
            fixed=plan,
        )

    def _offloads(self) -> tuple[Offload, ...]:
        """Return what hosts may keep, nothing first.

        Raises
        ------
        InputError
            If no recompute mode goes with any of it.
        """
        found = {
            Offload(**dict.fromkeys(name.split("+"), part))
            for name in self.offload
            if name != "none"
            for part in self.offload_fractions
        }
        nothing = [NO_OFFLOAD] if "none" in self.offload else []
        offloads = (*nothing, *sorted(found))
        if not any(goes_with(m, one) for m in self.recompute for one in offloads):
            raise InputError(
                "does not go with the recompute modes",
                where="offload",
                got=list(self.offload),
                expected='"none" or "optimizer" beside recompute = ["stage"], which '
                "brings everything back from a stage's input",
            )
        return offloads

    def _virtual_sizes(self) -> tuple[int, ...] | None:
        """Return the numbers of chunks that the schedules allow."""
        given = self.virtual_pipeline_model_parallel_sizes
        chosen = [SCHEDULES[name] for name in self.schedules]
        if self.objective == "planned" and any(one.splits_backward for one in chosen):
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
                got=given,
                expected='[1] with "1f1b", "zb-h1" and "zb-h2", [2] with "zb-v" and '
                '"dualpipe-v", sizes above 1 with "interleaved-1f1b"',
            )
        return sizes

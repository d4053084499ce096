"""Predict what a row measured, on the path of `nestsim simulate`.

A case is priced, lowered and replayed as a plan of a scenario is. Models that were
traced, layer tables, networks and whole predictions are kept, by content: rows of a
sweep share most of them.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from estimators.collectives.transports import find_transport, library_network
from estimators.constants import Constants, load_constants
from estimators.layers.adapters import with_adapters
from estimators.models.changed import (
    with_num_layers,
    with_one_of_each,
)
from estimators.tracing.graph import LayerGraph
from estimators.tracing.trace import trace_model
from estimators.user_files import LINK_EFFICIENCIES
from nestsim.evaluate.evaluator import Evaluator
from nestsim.features.validation.case import Case
from nestsim.features.validation.columns import refusing
from nestsim.features.validation.stages import SizedStage, uneven_step_time
from planner.cost.objective import PricedPlan
from planner.cost.pricing import price_plan
from planner.plans.build import build_plan
from planner.step.execution import Workload
from planner.step.memory import block_stage_memory
from planner.step.recompute import sending_again
from topologies.builders import build_network
from topologies.errors import InputError
from topologies.network import Network
from topologies.specs import FatTreeSpec

if TYPE_CHECKING:
    from estimators.models.spec import TransformerSpec
    from estimators.training import ParameterBytes


class PredictedMemory(NamedTuple):
    """Memory of one device of a stage [byte]."""

    peak: float
    """Replayed."""

    weights: float
    """Memory of the weights [byte]."""

    gradients: float
    """Memory of the gradients [byte]."""

    optimizer: float
    """Memory of the optimizer's states [byte]."""

    activations: float
    """All microbatches in flight."""

    copies: float
    """Gradients that the optimizer cast."""


class Prediction(NamedTuple):
    """What the simulator says of a case."""

    iteration_time: float
    """Replayed [s]."""

    planned_time: float
    """Iteration time by the planner's timeline [s]."""

    memory: tuple[PredictedMemory, ...]
    """Memory of a device of each stage; empty where it was not asked for."""

    memory_share: float = math.nan
    """Peak of the fullest device's tensors over what it has for them: above 1, a
    scenario's plan is infeasible (`verdict.judge`). NaN where memory was not
    asked for."""


CLEARLY = 1.3
"""Memory over what there is from which on a run is taken to have recomputed all of its
layers: that costs a third of the time, and what frameworks of their own free is not
known."""

_MORE_RECOMPUTE = {"none": ("selective", "full"), "selective": ("full",), "full": ()}
"""Recompute mode -> those that keep less, by what they repeat."""


class Predictor:
    """Predicts cases, and keeps what several of them need."""

    def __init__(self, constants: Constants | None = None) -> None:
        self.constants = load_constants() if constants is None else constants
        self._graphs: dict[TransformerSpec, LayerGraph] = {}
        self._workloads: dict[object, Workload] = {}
        self._networks: dict[object, Network] = {}
        self._done: dict[object, Prediction] = {}

    def with_constants(self, constants: Constants) -> "Predictor":
        """Return one with other constants that shares traced models and networks."""
        other = Predictor(constants)
        other._graphs = self._graphs
        other._networks = self._networks
        return other

    def graph(self, case: Case) -> LayerGraph:
        """Return the traced model of a case, with its adapters."""
        # No layer depends on the depth.
        spec = with_one_of_each(case.model)
        if case.model not in self._graphs:
            if spec not in self._graphs:
                self._graphs[spec] = trace_model(spec)
            graph = self._graphs[spec]
            ends = graph.names[1 + spec.num_layers :]
            names = [graph.names[0], *spec.block_kinds, *ends]
            layers = dict(zip(names, graph.layers, strict=True))
            self._graphs[case.model] = LayerGraph.chain(case.model, layers)
        return with_adapters(self._graphs[case.model], case.training)

    def predict(self, case: Case, *, memory: bool = False) -> Prediction:
        """Return what the simulator says of a case.

        Parameters
        ----------
        case
            Model, cluster, plan.
        memory
            Whether memory is asked for, which takes longer.

        Raises
        ------
        RowRefusedError
            If the planner or the simulator cannot express the plan.
        """
        key = (*case.content, memory)
        if key not in self._done:
            with refusing("no-such-plan"):
                self._done[key] = self._predict(case, memory=memory)
        return self._done[key]

    def settled(self, case: Case) -> Case:
        """Return a case with the recompute that an expert would have chosen.

        Where the row leaves it open, the least that fits in memory, all of the layers
        only if it is exceeded clearly; as it was read if nothing fits.
        """
        if not case.leaves_recompute_open or case.stages:
            return case
        share = self._share(case)
        if share <= 1.0:
            return case
        assert isinstance(case.plan.recompute, str), "rows have one mode for all stages"
        for mode in _MORE_RECOMPUTE[case.plan.recompute]:
            pairs = case.plan.overlap_moe_expert_parallel_comm
            if pairs and mode in sending_again(case.software):
                continue
            other = case.with_recompute(mode)
            if mode == "full" and share <= CLEARLY:
                continue
            if self._share(other) <= 1.0:
                return other
        return case

    def _share(self, case: Case) -> float:
        """Return the planner's bound of memory over what there is for it."""
        network, workload = self._network(case), self.workload(case)
        with refusing("no-such-plan"):
            priced = _priced(network, workload, case)
        peak = max(stage.peak_memory for stage in priced.stages)
        return memory_share(workload, peak)

    def planned_time(self, case: Case) -> float:
        """Return the time of a step by the planner's timeline, without a replay [s].

        A fraction of the work of `predict`; only what contends for links differs.
        """
        if case.stages:
            return self.predict(case).planned_time
        network, workload = self._network(case), self.workload(case)
        return _priced(network, workload, case).iteration_time

    def _uneven(self, case: Case, *, memory: bool) -> Prediction:
        """Return the time of stages that no plan expresses, by the timeline alone."""

        def deepened(num_layers: int) -> Workload:
            model = with_num_layers(case.model, num_layers)
            return self.workload(replace(case, model=model))

        def built(network: FatTreeSpec) -> Network:
            return self._network(replace(case, network=network))

        time = uneven_step_time(deepened, built, case.network, case.stages)
        workload = self.workload(case)
        held = [_held(workload, sized) for sized in case.stages] if memory else []
        share = math.nan
        if memory:
            share = memory_share(workload, max(stage.peak for stage in held))
        return Prediction(
            iteration_time=time,
            planned_time=time,
            memory=tuple(held),
            memory_share=share,
        )

    def _predict(self, case: Case, *, memory: bool) -> Prediction:
        if case.stages:
            return self._uneven(case, memory=memory)
        network, workload = self._network(case), self.workload(case)
        priced = _priced(network, workload, case)
        evaluator = Evaluator(network=network, workload=workload)
        done = evaluator.replay(evaluator.lower(priced), memory=memory)
        peaks = tuple(timeline.peak for timeline in done.memory)
        return Prediction(
            iteration_time=done.iteration_time,
            planned_time=priced.iteration_time,
            memory=_stage_memory(workload, priced, peaks) if memory else (),
            memory_share=memory_share(workload, max(peaks)) if memory else math.nan,
        )

    def _network(self, case: Case) -> Network:
        reached = self.constants.values
        spec = case.network.with_efficiencies(
            reached.get(LINK_EFFICIENCIES["node"]),
            reached.get(LINK_EFFICIENCIES["fabric"]),
        )
        software = case.software
        key = spec, case.accelerator.name, software.library, software.name, case.host
        if key not in self._networks:
            name = case.accelerator.constants_name
            node, fabric = (find_transport(name, inside_node=x) for x in (True, False))
            network = library_network(build_network(spec), node, fabric, software)
            self._networks[key] = network.with_host(case.host)
        return self._networks[key]

    def workload(self, case: Case) -> Workload:
        """Return what is trained on which device, made once."""
        key = (
            case.model,
            case.training,
            case.accelerator.name,
            case.software,
            case.execution,
        )
        if key not in self._workloads:
            self._workloads[key] = Workload(
                graph=self.graph(case),
                training=case.training,
                accelerator=case.accelerator,
                software=case.software,
                execution=case.execution,
                constants=self.constants,
            )
        return self._workloads[key]


def _priced(network: Network, workload: Workload, case: Case) -> PricedPlan:
    """Price the plan of a case, or the best of its alternatives.

    That is the one with the shortest planned time of those that fit the device's
    memory; where none does, of those with the smallest micro-batch.
    """
    first = price_plan(network, workload, build_plan(network, workload, case.plan))
    plans = [first, *_others(network, workload, case)]
    usable = workload.tensor_memory()
    fitting = [
        priced
        for priced in plans
        if max(stage.peak_memory for stage in priced.stages) <= usable
    ]
    least = min(priced.plan.micro_batch_size for priced in plans)
    smallest = [p for p in plans if p.plan.micro_batch_size == least]
    return min(fitting or smallest, key=lambda priced: priced.iteration_time)


def _others(network: Network, workload: Workload, case: Case) -> Iterator[PricedPlan]:
    """Price the alternatives that the planner can express."""
    for spec in case.alternatives:
        try:
            plan = build_plan(network, workload, spec)
        except InputError:
            # Its schedule may ask for more microbatches than there are then.
            continue
        yield price_plan(network, workload, plan)


def _held(workload: Workload, sized: SizedStage) -> PredictedMemory:
    """Return the memory of a stage that no plan expresses."""
    table, parameter_bytes = workload.table(sized.degrees), workload.parameter_bytes
    held = block_stage_memory(parameter_bytes, table, sized.blocks)
    return _one_stage(parameter_bytes, held, sum(held.values()))


def memory_share(workload: Workload, peak: float) -> float:
    """Return a peak of tensors over what a device has for them."""
    usable = workload.tensor_memory()
    return peak / usable if usable > 0.0 else math.inf


def _stage_memory(
    workload: Workload, priced: PricedPlan, peaks: tuple[float, ...]
) -> tuple[PredictedMemory, ...]:
    parameter_bytes = workload.parameter_bytes
    return tuple(
        _one_stage(parameter_bytes, stage.memory, peak)
        for stage, peak in zip(priced.stages, peaks, strict=True)
    )


def _one_stage(
    parameter_bytes: "ParameterBytes", held: Mapping[str, float], peak: float
) -> PredictedMemory:
    """Return the memory of a stage by what holds it [byte]."""
    return PredictedMemory(
        peak=peak,
        weights=held["weights"],
        gradients=held["gradients"],
        optimizer=held["optimizer"],
        activations=held["activations"],
        copies=held["optimizer"] * parameter_bytes.copies / parameter_bytes.optimizer,
    )

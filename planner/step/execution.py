"""The work of a job, and how its framework executes it: everything but its split.

Devices may differ (`planner.step.fleet`): what depends on the device takes the kinds
of the devices that do it together, and waits for the slowest of them. Without kinds it
is that of a healthy device of the workload's accelerator.

What a framework hides behind compute, and at what price, are facts about the job, like
its software: the search, the prices and the replay read the same ones. What the
replay's engine may leave out or skip is not here (`nestsim.simulator.replay`).

References
----------
.. [1] PyTorch, ``torch/distributed/pipelining/stage.py``: gradients are reduced in the
   last backward pass of each chunk; Grattafiori et al., "The Llama 3 Herd of Models",
   2024, section 3.3: gradients and optimizer states are sharded, weights are not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from estimators.chain import KnownCosts, build_layer_table
from estimators.constants import Constants, load_constants
from estimators.dispatch import Sharing, contention, exchanged_load
from estimators.layers.adapters import (
    adapted_bytes,
    adapted_items,
    adapted_parts,
    with_adapters,
)
from estimators.layers.routing import ExpertLoad, expert_load
from estimators.layers.saved_activations import block_matrices
from estimators.layers.sharding import layer_work
from estimators.layers.work import Degrees, LayerTable
from estimators.operators.profile import Profile
from estimators.platform import Allocator, Platform, message_time, optimizer_step_bytes
from estimators.software import IDEAL, Software
from estimators.tracing.graph import LayerGraph, TracedOperator
from estimators.training import ParameterBytes, ParameterItem, TrainingSpec
from estimators.user_files import UserLinks
from planner.step.fleet import (
    DeviceKind,
    Fleet,
    KindSets,
    kind_sets,
    least_table,
    lockstep_table,
    stretched_table,
)
from topologies.accelerators import Accelerator
from topologies.arrays import FloatArray, IntArray
from topologies.settings import Examples, Factor, Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution(Spec):
    """Which transfers are hidden behind compute, and what slows compute down.

    What files leave out is as the preset of `software` has it.
    """

    overlap_grad_reduce: Annotated[bool, Examples(True, default=None)] = False
    """Megatron's option: gradients are reduced bucket by bucket behind the last
    backward pass, instead of after it. What ZeRO-2 and 3 reduce in every microbatch
    goes on behind the next layer. Left out, the preset's; "ideal" does not."""

    overlap_param_gather: Annotated[bool, Examples(True, default=None)] = False
    """Megatron's option: parameters are gathered bucket by bucket behind the next
    forward pass, instead of after the optimizer step. What ZeRO-3 gathers of a layer
    goes on behind the layer before it. Left out, the preset's; "ideal" does not."""

    frees_gradients: Annotated[bool, Examples(True, default=None)] = False
    """Whether with ZeRO-1 and chunks the whole gradients of a chunk are there only from
    its first backward pass to their reduction, as FSDP under a pipeline has it
    (Llama 3); matters where a step has no more microbatches than stages. A search
    counts all of them, as without it. Left out, the preset's; none does."""

    overlap_p2p_comm: Annotated[bool, Examples(False, default=None)] = True
    """Megatron's option: transfers between stages do not stop the stages' work. Off,
    both sides of a transfer wait for it; with interleaving the sender does. Left out,
    the preset's; all presets do."""

    tp_comm_overlap: Annotated[bool, Examples(True, default=None)] = False
    """Megatron's option: tensor-parallel collectives run behind the products next to
    them, where all ranks of a group are in one node: its user buffers are memory that
    they share. Both together take as long as the longer one. Left out, the preset's:
    "nemo" and "maxtext" do, all others do not."""

    communication_slowdown: Annotated[Factor, Examples(1.1, default=None)] = 1.0
    """Factor on the duration of compute while one of the framework's overlaps has the
    same device communicate beside it; not beside transfers between stages. Left out,
    the preset's; 1 with all of them: communication never slows compute down, which is
    too good where both want the same memory or the same processors of a device."""

    expert_communication_slowdown: Annotated[
        Factor | None, Examples(1.1, default=None)
    ] = None
    """Factor on the duration of compute while all-to-alls between experts go on beside
    it, where a plan has overlap_moe_expert_parallel_comm. Left out, by the
    multiprocessors that send: 16 of a GPU with NCCL, 20 with DeepEP, 32 with HybridEP
    on NVLink of a rack, or moe_flex_dispatcher_num_sms. These take 1.3 times as long
    beside compute."""

    delay_wgrad_compute: Annotated[bool, Examples(True, default=None)] = False
    """Megatron's option: where a plan has overlap_moe_expert_parallel_comm, weight
    gradients wait to be beside all-to-alls that the forward pass is too short for. Left
    out, the preset's; none does."""

    moe_shared_expert_overlap: Annotated[bool, Examples(True, default=None)] = False
    """Megatron's option: shared experts work beside the all-to-alls between the others.
    Not with overlap_moe_expert_parallel_comm, nor with "allgather". Left out, the
    preset's; none does."""

    cpu_adam: Annotated[bool, Examples(False, default=None)] = True
    """Whether the host updates the parameters whose optimizer states it keeps, as
    DeepSpeed and Megatron do, or the states come to the device for its update, as Mist
    has it. Left out, the preset's; all presets let the host do it."""

    expert_skew: Annotated[Factor, Examples(1.5, default=None)] = 1.0
    """Tokens that the busiest expert-parallel rank receives, over the mean, where that
    is known and need not follow from `model.moe_routing`: it sets the pace of the
    all-to-all and of the experts' compute, and holds most activations. Left out, the
    preset's; 1 with all of them."""


def _dispatched(operators: Sequence[TracedOperator]) -> list[int]:
    products = [
        place
        for place, operator in enumerate(operators)
        if operator.sharding.startswith("expert")
    ]
    return [*range(products[0], products[-1] + 1)] if products else []


def _shared(operators: Sequence[TracedOperator]) -> list[int]:
    return [
        place
        for place, operator in enumerate(operators)
        if "shared_experts" in operator.name.split(".")
    ]


DISPATCHED, SHARED = "dispatched", "shared"
LAYER_PARTS: Mapping[str, Callable[[Sequence[TracedOperator]], list[int]]] = (
    MappingProxyType({DISPATCHED: _dispatched, SHARED: _shared})
)
"""Part of a layer -> its places among the layer's operators: all that routed experts
do between dispatch and combine, experts of all tokens."""

NOTHING_HIDDEN = Execution()
"""An execution that waits for everything that is sent, but for transfers between
stages."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """What is trained, how, and on which kind of device; keeps the tables it made."""

    graph: LayerGraph
    """Model as it was traced."""

    training: TrainingSpec
    """Batch, precision and optimizer."""

    accelerator: Accelerator
    """Device that the model is trained on; with a fleet the one that networks and
    figures refer to."""

    fleet: Fleet | None = None
    """Kinds of the devices; None if all are this accelerator, and healthy."""

    software: Software = IDEAL
    """Framework that drives the device."""

    execution: Execution = NOTHING_HIDDEN
    """What the framework hides behind compute."""

    constants: Constants = field(default_factory=load_constants)
    """Constants of what device and framework reach."""

    links: UserLinks | None = None
    """Measured constants of links, if any."""

    profile: Profile | None = None
    """Operator times that were measured, if any."""

    _tables: dict[Degrees, LayerTable] = field(default_factory=dict, init=False)
    _kind_tables: dict[tuple[int, Degrees], LayerTable] = field(
        default_factory=dict, init=False
    )
    """Tables of accelerators beside the workload's, healthy, by number of kind."""
    _group_tables: dict[tuple[tuple[int, ...], Degrees], LayerTable] = field(
        default_factory=dict, init=False
    )
    _costs: dict[int | None, KnownCosts] = field(default_factory=dict, init=False)
    """What tables have in common, by number of kind; None for the workload's own."""
    _fastest: dict[Degrees, LayerTable] = field(default_factory=dict, init=False)
    _part_times: dict[tuple[int | None, Degrees, str], FloatArray] = field(
        default_factory=dict, init=False
    )
    _platforms: dict[int, Platform] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Let the model know how busy the busiest rank is, where that is said."""
        spec, skew = self.graph.spec, self.execution.expert_skew
        if spec.num_moe_experts and spec.moe_expert_skew != skew:
            graph = replace(self.graph, spec=replace(spec, moe_expert_skew=skew))
            object.__setattr__(self, "graph", graph)

    def table(self, degrees: Degrees, kinds: tuple[int, ...] = ()) -> LayerTable:
        """Return the layer table under the given degrees, made once.

        Parameters
        ----------
        degrees
            How layers are split.
        kinds
            Kinds of the devices that work in lockstep; none for the healthy
            accelerator of the workload.
        """
        if not kinds:
            return self._table(None, degrees)
        if (kinds, degrees) not in self._group_tables:
            tables = [self._kind_table(kind, degrees) for kind in kinds]
            self._group_tables[kinds, degrees] = lockstep_table(tables)
        return self._group_tables[kinds, degrees]

    def fastest_table(self, degrees: Degrees) -> LayerTable:
        """Return a table in which no pass takes longer than on any device."""
        if self.fleet is None:
            return self.table(degrees)
        if degrees not in self._fastest:
            every = range(len(self.fleet.kinds))
            tables = [self._kind_table(kind, degrees) for kind in every]
            self._fastest[degrees] = least_table(tables)
        return self._fastest[degrees]

    def on(self, fleet: Fleet | None) -> "Workload":
        """Return the same work on other devices; what is known of it is kept."""
        if fleet is self.fleet:
            return self
        other = replace(self, fleet=fleet)
        # Healthy tables are the same on any fleet, made before or after.
        object.__setattr__(other, "_tables", self._tables)
        return other

    def slowed(self, factors: FloatArray) -> "Workload":
        """Return the same work on devices that are slower, as `Fleet.slowed` is."""
        fleet = self.fleet
        if fleet is None:
            healthy = np.zeros(factors.size, dtype=np.int64)
            fleet = Fleet((DeviceKind(self.accelerator),), healthy)
        return self.on(fleet.slowed(factors))

    def kind_sets(self, groups: IntArray) -> KindSets:
        """Return which kinds set the pace of each group of devices.

        Parameters
        ----------
        groups
            Device numbers, members of a group along the last axis.
        """
        return kind_sets(self.fleet, groups)

    def _kind_table(self, kind: int, degrees: Degrees) -> LayerTable:
        """Return the table of devices of one kind."""
        return stretched_table(self._table(kind, degrees), self._factor(kind))

    def _table(self, kind: int | None, degrees: Degrees) -> LayerTable:
        """Return the table of a healthy device of a kind, None for the workload's."""
        if kind is None or self._is_own(kind):
            if degrees not in self._tables:
                self._tables[degrees] = self._built_table(None, degrees)
            return self._tables[degrees]
        if (kind, degrees) not in self._kind_tables:
            made = self._built_table(kind, degrees)
            # What collectives reach of links is that of the workload's accelerator:
            # members of a group send the same.
            sent = self._table(None, degrees)
            self._kind_tables[kind, degrees] = replace(
                made, traffic=sent.traffic, boundary_bytes=sent.boundary_bytes
            )
        return self._kind_tables[kind, degrees]

    def _built_table(self, kind: int | None, degrees: Degrees) -> LayerTable:
        return build_layer_table(
            self.graph,
            degrees=degrees,
            training=self.training,
            platform=self.platform if kind is None else self._platform(kind),
            known=self._costs.setdefault(kind, KnownCosts()),
        )

    def _is_own(self, kind: int) -> bool:
        """Return whether a kind's devices are of the workload's accelerator."""
        assert self.fleet is not None
        return self.fleet.kinds[kind].accelerator == self.accelerator

    def _factor(self, kind: int) -> float:
        assert self.fleet is not None
        return self.fleet.kinds[kind].factor

    def _platform(self, kind: int) -> Platform:
        """Return what the healthy devices of a kind are."""
        assert self.fleet is not None
        if self._is_own(kind):
            return self.platform
        assert self.profile is None, "a profile is of one accelerator"
        if kind not in self._platforms:
            self._platforms[kind] = replace(
                self.platform, accelerator=self.fleet.kinds[kind].accelerator
            )
        return self._platforms[kind]

    def expert_load(self, degrees: Degrees) -> ExpertLoad:
        """Return what experts compute on the busiest rank, and on average."""
        return expert_load(self.graph.spec, degrees)

    def exchange_skew(self, degrees: Degrees) -> float:
        """Return what all-to-alls bring the busiest rank of experts, over the mean."""
        return exchanged_load(self.graph.spec, degrees, self.software).skew

    def part_times(
        self, part: str, degrees: Degrees, kinds: tuple[int, ...] = ()
    ) -> FloatArray:
        """Return a part of each layer's compute, a key of `LAYER_PARTS`.

        Forward, backward, and the part of the latter that weight gradients are, shape
        ``(3, L)`` [s]. From the traced operators; 0 for a graph without.
        """
        if not kinds:
            return self._own_part_times(None, degrees, part)
        times = [
            self._factor(kind) * self._own_part_times(kind, degrees, part)
            for kind in kinds
        ]
        return np.asarray(np.max(times, axis=0))

    def _own_part_times(
        self, kind: int | None, degrees: Degrees, part: str
    ) -> FloatArray:
        """Return those of a healthy device of a kind, None for the workload's."""
        number = None if kind is None or self._is_own(kind) else kind
        key = number, degrees, part
        if key not in self._part_times:
            platform = self.platform if number is None else self._platform(number)
            self._part_times[key] = self._read_part_times(degrees, platform, part)
        return self._part_times[key]

    def _read_part_times(
        self, degrees: Degrees, platform: Platform, part: str
    ) -> FloatArray:
        graph, training = self.graph, self.training
        if not graph.layers:
            return np.zeros((3, len(graph.names)))
        model = platform.operator_times(training, graph.spec)
        totals = []
        for kind, layer in enumerate(graph.layers):
            work = layer_work(graph, kind, degrees, training.element_bytes)
            places = LAYER_PARTS[part](layer.operators)
            times = [model.operator_time(work.operators[place]) for place in places]
            totals.append(np.sum(times, axis=0) if times else np.zeros(3))
        all_kinds = platform.slowest * np.array(totals)
        return np.ascontiguousarray(all_kinds[np.array(graph.kinds)].T)

    @cached_property
    def parameter_bytes(self) -> ParameterBytes:
        """Weights, gradients and optimizer states per parameter [byte].

        Those of a model's parameters on average, where its matrices are kept otherwise
        than its embeddings, or where adapters are trained: right for the model as a
        whole, not stage by stage.
        """
        if self.training.adapter != "none":
            return adapted_bytes(self.training, adapted_parts(self.graph))
        if not self.training.tells_matrices_apart:
            return self.training.parameter_bytes
        share = block_matrices(self.graph).share
        return self.training.mean_parameter_bytes(share)

    @property
    def parameter_items(self) -> tuple[ParameterItem, ...]:
        """What a device keeps for each parameter, one by one.

        Of a matrix of a block where these are told apart, on average where adapters are
        trained.
        """
        if self.training.adapter != "none":
            return adapted_items(self.training, adapted_parts(self.graph))
        return self.training.parameter_items

    def trained_as(self, training: TrainingSpec) -> "Workload":
        """Return the job with other settings of what is trained."""
        return replace(
            self, training=training, graph=with_adapters(self.graph, training)
        )

    @property
    def overlaps_shared_experts(self) -> bool:
        """Whether experts of all tokens work beside all-to-alls, if no pass does."""
        sends = self.software.moe_token_dispatcher_type != "allgather"
        return self.execution.moe_shared_expert_overlap and sends

    @cached_property
    def beside_experts(self) -> Sharing:
        """How compute and all-to-alls between experts slow each other down."""
        known = self.execution.expert_communication_slowdown
        return contention(self.accelerator, self.software, known)

    def orthogonalisation_time(self, kinds: tuple[int, ...] = ()) -> float:
        """Return the time of Muon's products for each parameter, 0 without [s]."""
        if self.training.optimizer != "muon":
            return 0.0
        flops = block_matrices(self.graph).orthogonalisation_flops
        precision = self.training.precision
        if not kinds:
            return flops / self.platform.product_rate(precision)
        return max(
            flops / self._platform(kind).product_rate(precision) * self._factor(kind)
            for kind in kinds
        )

    def step_time(self, kinds: tuple[int, ...] = ()) -> float:
        """Return the time in which devices update a parameter [s]."""
        moved = optimizer_step_bytes(self.parameter_bytes) / self.memory_rate(kinds)
        return moved + self.orthogonalisation_time(kinds)

    @cached_property
    def platform(self) -> Platform:
        """What the model runs on."""
        return Platform(
            accelerator=self.accelerator,
            software=self.software,
            constants=self.constants,
            links=self.links,
            profile=self.profile,
        )

    @cached_property
    def allocator(self) -> Allocator:
        """What memory holds beside tensors."""
        return Allocator(
            constants=self.constants.allocator(
                self.software.name, expandable=self.software.expandable_segments
            )
        )

    def tensor_memory(self, reserve: float = 0.0, kinds: tuple[int, ...] = ()) -> float:
        """Return what a device has for tensors, with some of it kept free [byte].

        The least of the kinds; with none, that of the workload's accelerator.
        """
        capacity = self.accelerator.memory_bytes
        if kinds:
            assert self.fleet is not None
            every = self.fleet.kinds
            capacity = min(every[kind].accelerator.memory_bytes for kind in kinds)
        return self.allocator.usable(capacity - reserve)

    def smallest_of(self, devices: ArrayLike | None = None) -> Accelerator:
        """Return the accelerator with the least memory among some devices, or all."""
        if self.fleet is None:
            return self.accelerator
        if devices is None:
            devices = np.arange(self.fleet.num_devices)
        every = [self.fleet.kinds[kind] for kind in self.fleet.kinds_of(devices)]
        accelerators = [kind.accelerator for kind in every]
        return min(accelerators, key=lambda accelerator: accelerator.memory_bytes)

    def memory_on(
        self, devices: ArrayLike | None = None, reserve: float = 0.0
    ) -> float:
        """Return what each of some devices, or of all, has for tensors [byte]."""
        capacity = self.smallest_of(devices).memory_bytes
        return self.allocator.usable(capacity - reserve)

    @cached_property
    def mean_peak_flops(self) -> float:
        """Mean peak rate of the devices, in the job's precision [FLOP/s]."""
        precision = self.training.precision
        if self.fleet is None or len(self.fleet.accelerators) == 1:
            return self.accelerator.peak_flops[precision]
        peaks = [kind.accelerator.peak_flops[precision] for kind in self.fleet.kinds]
        return float(np.mean(np.array(peaks)[self.fleet.of_device]))

    def memory_rate(self, kinds: tuple[int, ...] = ()) -> float:
        """Return the rate of streaming kernels such as the optimizer step [byte/s]."""
        if not kinds:
            return self.platform.memory_rate
        return min(
            self._platform(kind).memory_rate / self._factor(kind) for kind in kinds
        )

    @cached_property
    def iteration_time(self) -> float:
        """What each step takes once, whatever the plan [s]."""
        constants = self.platform.software_constants
        if self.software.many_nodes:
            return constants.iteration_time_many_nodes
        return constants.iteration_time

    def messages_time(self, num_stages: int) -> float:
        """Return what the host takes for the messages of a pass through a chunk [s].

        One comes and one goes, forward as well as backward. Passes at the ends of the
        chain count as others: they read and write what others receive and send.
        """
        return 2.0 * message_time(self.platform) if num_stages > 1 else 0.0

    @cached_property
    def shard_time(self) -> float:
        """What each step takes once for each rank that shares ZeRO-1's shards [s]."""
        return self.platform.software_constants.shard_time

    @cached_property
    def chain(self) -> tuple[int, int]:
        """Layers of the chain, and those of them that are blocks."""
        names = self.graph.names
        return len(names), sum(name.startswith("block") for name in names)

    def num_microbatches(self, micro_batch_size: int, data_parallel_size: int) -> int:
        """Return ``ceil(global batch / (b dp))``; a last one may be padded."""
        per_round = micro_batch_size * data_parallel_size
        return -(-self.training.global_batch_size // per_round)

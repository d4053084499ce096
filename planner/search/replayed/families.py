"""The configurations of a space in the order of their first bounds, as late as can be.

The first bounds of a family (`planner.search.replayed.floors`) need its layer table.
Most families are far too slow to be looked at. So each has a floor that costs a small
part of a table. Some stage has the work of the mean stage, and pipelines without chunks
fill and empty; of a microbatch's work ``W`` there count the operators' own times, the
least gap of each block, and what layers send under rates that no placement can beat,
hidden where the framework hides it::

    T >= W m / p                        with chunks
    T >= W / (1 - (1 - 1 / m)^p)        without

The first bounds are made of the same terms and of others that are not negative.
A family is opened when its floor is the least bound left, so that configurations come
in the order that they would come in if all were bounded before.

What does not depend on how experts are spread is worked out once for all families that
differ in that alone.
"""

import heapq
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from estimators.chain import exchanged_parts
from estimators.layers.sharding import operator_works
from estimators.layers.shares import (
    Shares,
    device_shares,
    group_copies,
    operator_collectives,
)
from estimators.layers.work import Degrees, summed_collectives
from estimators.platform import least_gap
from planner.cost.choices import RATE_COLUMNS
from planner.kernels import tables
from planner.search.bounds import Relaxation
from planner.search.replayed.bounds import ReplayBounds
from planner.search.replayed.floors import mean_stage_shares, relaxed_rates
from planner.search.replayed.space import ConfigurationFamily
from planner.search.space import Configuration
from topologies.arrays import FloatArray, IntArray

_ROUNDING = 1.0 - 1e-9
"""Sums of the floors and of the bounds are added up in other orders."""


class _PartTimes(NamedTuple):
    """Least times of a microbatch's passes through each distinct layer, of a part."""

    compute: FloatArray
    """Operators, shape ``(K,)`` [s]."""
    sent: FloatArray
    """Collectives, rows `_TENSOR`, `_EXCHANGED` and `_OTHER`, shape ``(3, K)`` [s]."""


_TENSOR, _EXCHANGED, _OTHER = range(3)
_ROWS = {"tensor": _TENSOR, "expert": _EXCHANGED}
"""Group -> row of its collectives, `_OTHER` for those that are not here."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FamilyFloors:
    """What no plan of a family can beat, without its layer table."""

    bounds: ReplayBounds
    """Of the job."""
    relaxation: Relaxation
    """Bounds of the network's rates."""
    tensor_rates: dict[int, FloatArray]
    """Tensor-parallel size -> least rates of its collectives."""
    pairs: bool
    """Whether passes may go on beside each other in any configuration."""
    fills: bool
    """Whether no schedule puts weight gradients off: so pipelines fill and empty."""
    _apart: dict[Degrees, _PartTimes] = field(default_factory=dict)
    """Degrees without what experts alone depend on -> times of all but experts."""
    _of_experts: dict[tuple[float, ...], FloatArray] = field(default_factory=dict)
    """What experts' operators have shares of -> their times, shape ``(K,)`` [s]."""
    _rates: dict[object, FloatArray] = field(default_factory=dict)

    def floor(self, family: ConfigurationFamily) -> float:
        """Return a bound of the first bounds of a family [s]; 0 says nothing."""
        if not self._are_sums:
            return 0.0
        degrees, workload = family.degrees, self.bounds.workload
        same = degrees.dense._replace(recompute_modules=())
        if same not in self._apart:
            self._apart[same] = self._part(same, of_experts=False)
        apart, experts = self._apart[same], self._part(degrees, of_experts=True)
        compute = self._gaps + apart.compute + experts.compute
        tensor, exchanged, other = apart.sent + experts.sent
        execution = workload.execution
        if execution.tp_comm_overlap and degrees.tp <= self.bounds.widest_overlap:
            layers = np.maximum(compute, tensor) + other
        else:
            layers = compute + tensor + other
        pairs = self.pairs or family.pairs.any()
        if pairs or workload.overlaps_shared_experts:
            layers = np.maximum(layers, exchanged)
        else:
            layers += exchanged
        share = float(mean_stage_shares(workload, family, fills=self.fills).min())
        return share * float(self._counts @ layers) * _ROUNDING

    @cached_property
    def _are_sums(self) -> bool:
        """Whether a layer takes no less than its operators one by one, all alike."""
        workload = self.bounds.workload
        return (
            workload.fleet is None
            and bool(workload.graph.layers)
            and not workload.accelerator.vector_engine
            and workload.software.cuda_graphs != "layers"
        )

    @cached_property
    def _counts(self) -> FloatArray:
        """How often the chain has each distinct layer."""
        graph = self.bounds.workload.graph
        return np.bincount(graph.kinds, minlength=len(graph.layers)).astype(np.float64)

    @cached_property
    def _gaps(self) -> FloatArray:
        """What software adds to each distinct layer at least [s]."""
        graph, platform = self.bounds.workload.graph, self.bounds.workload.platform
        is_block = np.zeros(len(graph.layers))
        for name, kind in zip(graph.names, graph.kinds, strict=True):
            is_block[kind] = name.startswith("block")
        return platform.slowest * least_gap(platform) * is_block

    @cached_property
    def _places(self) -> list[dict[bool, list[int]]]:
        """Places of the operators of each distinct layer, by whether experts do them.

        That is whether they depend on how experts are spread.
        """
        return [
            {
                part: [
                    place
                    for place, operator in enumerate(layer.operators)
                    if layer.is_of_experts(operator) == part
                ]
                for part in (False, True)
            }
            for layer in self.bounds.workload.graph.layers
        ]

    def _part(self, degrees: Degrees, *, of_experts: bool) -> _PartTimes:
        """Return the times of the operators of experts, or of all others.

        Without weight gradients where these may wait.
        """
        workload = self.bounds.workload
        graph, platform, training = workload.graph, workload.platform, workload.training
        shares = device_shares(graph.spec, degrees)
        copies = group_copies(graph.spec, degrees)
        parts = exchanged_parts(graph.spec, degrees, training, platform)
        rates = self._row(degrees)
        element = training.element_bytes
        compute = self._compute(degrees, shares, of_experts=of_experts)
        sent = np.zeros((3, len(graph.layers)))
        for kind, layer in enumerate(graph.layers):
            places = self._places[kind][of_experts]
            if not places:
                continue
            some = [layer.operators[place] for place in places]
            sent_by = operator_collectives(
                layer, shares, degrees, element, copies, some
            )
            for item in summed_collectives((works, False) for works in sent_by):
                column = RATE_COLUMNS[item.group, item.operation]
                count = item.forward_count + item.backward_count
                num_bytes = item.forward_bytes + item.backward_bytes
                if item.operation == "all_to_all":
                    num_bytes *= parts[item.group]
                time = count * rates[column] + num_bytes * rates[column + 1]
                sent[_ROWS.get(item.group, _OTHER), kind] += time
        return _PartTimes(platform.slowest * compute, sent)

    def _compute(
        self, degrees: Degrees, shares: Shares, *, of_experts: bool
    ) -> FloatArray:
        """Return the operators' own times of a part, shape ``(K,)`` [s].

        Those of experts are the same wherever their shares are.
        """
        if not of_experts:
            return self._operators(degrees, of_experts=False)
        layouts, shardings = self._expert_layouts
        key = (
            *(part.of(1) for part in map(shares.tensors.__getitem__, layouts)),
            *(part.of(1) for name in shardings for part in shares.products[name]),
            shares.parameters["expert"].of(1),
        )
        if key not in self._of_experts:
            self._of_experts[key] = self._operators(degrees, of_experts=True)
        return self._of_experts[key]

    @cached_property
    def _expert_layouts(self) -> tuple[list[str], list[str]]:
        """Layouts of tensors, and shardings of products, of experts' operators."""
        layouts, shardings = set[str](), set[str]()
        for places, layer in zip(
            self._places, self.bounds.workload.graph.layers, strict=True
        ):
            for operator in (layer.operators[place] for place in places[True]):
                assert operator.operation != "attention", "experts have no attention"
                shardings.add(operator.sharding)
                touched = (*operator.inputs, *operator.outputs, *operator.saved)
                layouts.update(layer.tensors[number].layout for number in touched)
        return sorted(layouts), sorted(shardings)

    def _operators(self, degrees: Degrees, *, of_experts: bool) -> FloatArray:
        workload = self.bounds.workload
        graph, training = workload.graph, workload.training
        model = workload.platform.operator_times(training, graph.spec)
        waits = float(workload.execution.delay_wgrad_compute)
        compute = np.zeros(len(graph.layers))
        for kind, places in enumerate(self._places):
            works = operator_works(
                graph, kind, degrees, training.element_bytes, places[of_experts]
            )
            for time in map(model.operator_time, works):
                passes = time.forward + time.backward
                compute[kind] += passes - waits * time.weight_gradient
        return compute

    def _row(self, degrees: Degrees) -> FloatArray:
        """Return the least rates of what layers send; replicas have no say in them."""
        tp, cp, ep = degrees[:3]
        key = tp, cp, ep, degrees.grouping
        if key not in self._rates:
            sizes = Configuration(tp, cp, ep, 1, 1, 1, ep, degrees.grouping)
            relaxed = relaxed_rates(self.relaxation, self.tensor_rates[tp], sizes)
            rows = [rates.rows[0, : tables.DENSE_REDUCE] for rates in relaxed]
            self._rates[key] = np.min(rows, axis=0)
        return self._rates[key]


class ConfigurationQueue:
    """Configurations by their first bounds, of families that are opened when due."""

    def __init__(
        self,
        floors: FloatArray,
        starts: IntArray,
        first_bounds: Callable[[int], FloatArray],
    ) -> None:
        """Begin with closed families.

        Parameters
        ----------
        floors
            A bound of each family's first bounds, infinite ones apart [s].
        starts
            Number of the first configuration of each family.
        first_bounds
            Returns the first bounds of a family, infinite for what fits nowhere [s].
        """
        self._starts, self._first_bounds = starts, first_bounds
        self._closed = [(floor, n) for n, floor in enumerate(floors.tolist())]
        heapq.heapify(self._closed)
        self._heads: list[tuple[float, int, int]] = []
        """Bound and number of the next configuration of each open family, and which
        family that is."""
        self._rest: dict[int, list[tuple[float, int]]] = {}
        """What comes behind it, the last first."""

    @property
    def bound(self) -> float:
        """The least first bound, infinite if no configuration is left [s]."""
        heads, closed = self._heads, self._closed
        while closed and not (heads and heads[0][0] < closed[0][0]):
            self._open(heapq.heappop(closed)[1])
        return heads[0][0] if heads else np.inf

    @property
    def number(self) -> int:
        """Number of the configuration with the least bound, the first of equals."""
        assert np.isfinite(self.bound), "there is a configuration"
        return self._heads[0][1]

    def drop(self) -> None:
        """Go on to the next configuration."""
        assert np.isfinite(self.bound), "there is a configuration"
        self._push(heapq.heappop(self._heads)[2])

    def ahead(self) -> Iterator[tuple[float, int]]:
        """Yield bound [s] and number of what is left, in order; all of it stays."""
        ahead = copy(self)
        vars(ahead).update(
            _closed=[*self._closed],
            _heads=[*self._heads],
            _rest={family: [*rest] for family, rest in self._rest.items()},
        )
        while np.isfinite(bound := ahead.bound):
            yield bound, ahead.number
            ahead.drop()

    def _open(self, family: int) -> None:
        bounds = self._first_bounds(family)
        order = np.argsort(bounds, kind="stable")[::-1]
        order = order[np.isfinite(bounds[order])]
        numbers = order + self._starts[family]
        self._rest[family] = list(
            zip(bounds[order].tolist(), numbers.tolist(), strict=True)
        )
        self._push(family)

    def _push(self, family: int) -> None:
        if self._rest[family]:
            heapq.heappush(self._heads, (*self._rest[family].pop(), family))

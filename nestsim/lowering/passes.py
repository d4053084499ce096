"""The passes of one stage, layer by layer.

The table of a layer counts its collectives, and says nothing of their places in it: its
compute is divided evenly between them, kinds taking turns, and each follows its part.
With recompute the forward collectives that are repeated come before those of the
backward pass. Where the schedule splits the backward pass, all collectives belong to
the gradients of activations, and what ZeRO reduces follows the weights' gradients.

Overlap, if asked for: a tensor-parallel collective goes on beside the part of the
compute that comes with it, so that both take as long as the longer one; the weights of
ZeRO-3's next layer are gathered while a layer works, and the gradients of ZeRO-2 and 3
reduced while the next one does. Compute beside communication is then longer by the
interference factor for as long as the communication takes alone, by its price. Passes
beside each other hide all-to-alls between experts in two windows of a layer, outside of
its experts and of them; experts of all tokens hide those of their own pass. Compute and
all-to-alls then slow each other down (`planner.step.exposure`): the one as more work,
the other as more bytes.

The busiest expert-parallel rank sets the pace, and all others wait for it: layers take
what it takes.

Passes are written down in a small language: an operation is work of some seconds, or
the number of one of the stage's collectives, to send it or to wait for it.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from estimators.layers.work import LayerTable
from nestsim.lowering.traffic import (
    LayerMessages,
    Message,
    StageTraffic,
    layer_messages,
)
from nestsim.simulator.system import NONE
from nestsim.simulator.work import Move, Moves
from planner.cost.passes import (
    parameters_of,
    part_windows,
    sent_in_pass,
    stage_transfers,
)
from planner.cost.rates import PlacementRates, can_overlap
from planner.step import recompute
from planner.step.execution import DISPATCHED, SHARED, Workload
from planner.step.exposure import paired_compute, sending_delay, slowed
from planner.step.instructions import BACKWARD, FORWARD, PAIRED, USUAL_KIND, WEIGHT
from planner.step.ledger import GRADIENTS, NEARBY, WEIGHTS, Sent, wire_bytes
from planner.step.offload import TO_DEVICE, TO_HOST, PassTraffic, is_beside_passes
from planner.step.plan import Plan
from planner.step.schedules import SCHEDULES
from topologies.arrays import FloatArray


@dataclass(slots=True)
class Pass:
    """One pass of a chunk, operation by operation."""

    operations: list[tuple[str, float, int]] = field(default_factory=list)
    """Operations in order: ``("work", seconds, NONE)``, ``("send", 0, number)`` or
    ``("wait", 0, number)``; a number is waited for before it is sent again."""

    worked: float = 0.0
    """Work of the pass so far [s]."""

    segments: int = 0
    """Pieces of work so far: of each layer, and between its collectives."""

    layers: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Layer -> work of the pass before it begins, and when it has ended [s]."""

    def work(self, duration: float) -> None:
        """Compute."""
        if duration > 0.0:
            self.operations.append(("work", duration, NONE))
            self.worked += duration
            self.segments += 1

    def through(self, layers: Sequence[int]) -> "Pass":
        """Return the same pass through other layers."""
        times = dict(zip(layers, self.layers.values(), strict=True))
        return Pass(self.operations, self.worked, self.segments, times)

    def window(self) -> tuple[int, float]:
        """Return how many operations, and how much work, the pass has so far."""
        return len(self.operations), self.worked

    def send(self, number: int) -> None:
        """Start a collective."""
        self.operations.append(("send", 0.0, number))

    def wait(self, number: int) -> None:
        """Wait for the end of a collective."""
        self.operations.append(("wait", 0.0, number))

    def exchange(self, numbers: Sequence[int]) -> None:
        """Do collectives one after another."""
        for number in numbers:
            self.send(number)
            self.wait(number)

    def send_all(self, numbers: Sequence[int]) -> None:
        """Start several collectives."""
        for number in numbers:
            self.send(number)

    def wait_all(self, numbers: Sequence[int]) -> None:
        """Wait for several collectives."""
        for number in numbers:
            self.wait(number)

    def moves(self) -> Moves:
        """Return the pass as moves: wait, work and send in this order join."""
        moves: list[Move] = []
        current = Move(NONE, 0.0, NONE)
        nothing = current
        for name, duration, number in self.operations:
            fits = current == nothing if name == "wait" else current.post == NONE
            if not fits:
                moves.append(current)
                current = nothing
            if name == "work":
                current = current._replace(duration=current.duration + duration)
            elif name == "send":
                current = current._replace(post=number)
            else:
                current = current._replace(wait=number)
        return (*moves, current) if current != nothing or not moves else tuple(moves)

    def time(self, prices: Sequence[float]) -> float:
        """Return how long the pass takes if every collective takes its price [s].

        Those of one number follow one another; all others are under way together.
        """
        now = 0.0
        ends = dict[int, float]()
        for name, duration, number in self.operations:
            if name == "work":
                now += duration
            elif name == "send":
                ends[number] = max(now, ends.get(number, now)) + prices[number]
            else:
                now = max(now, ends.get(number, now))
        return now


class StagePasses:
    """Writes the passes of all chunks of a stage.

    Parameters
    ----------
    workload
        What is trained, and what is hidden behind compute.
    plan
        How it is split.
    traffic
        The stage's collectives, to which those of the passes are added.
    rates
        The planner's prices; needed only with an interference factor.
    kinds
        Kinds of the devices that the stage works on, as of `Workload.table`.
    """

    def __init__(
        self,
        workload: Workload,
        plan: Plan,
        traffic: StageTraffic,
        rates: PlacementRates | None,
        kinds: tuple[int, ...] = (),
    ) -> None:
        self.workload, self.plan, self.traffic = workload, plan, traffic
        self.stage = plan.stages[traffic.index]
        self.table = workload.table(traffic.degrees, kinds)
        self.joins_ends = plan.joins_ends
        self.rates = rates
        self.has_experts = any(
            self.table.expert_parameters[first : last + 1].any()
            for first, last in self.stage.chunks
        )
        schedule = SCHEDULES[plan.schedule]
        self.reserves = schedule.reserves_processors
        self.splits = schedule.splits_backward
        self.kinds = schedule.pass_kinds(first=plan.has_second_copies)
        execution = workload.execution
        nearby = can_overlap(traffic.network, traffic.members.tensor())
        self.hides_tensor = execution.tp_comm_overlap and bool(nearby.all())
        self.gathers_ahead = execution.overlap_param_gather
        self.reduces_behind = execution.overlap_grad_reduce
        self.lead = workload.messages_time(len(plan.stages))
        self.factor = execution.communication_slowdown
        self.times = _Compute(
            self.table.forward_time,
            self.table.backward_time,
            self.table.weight_gradient_time,
            recompute.repeated_time(self.table, self.stage),
        )
        self.hosts = _host_traffic(workload, self.table, plan, traffic.index)
        self.messages = layer_messages(self.table, self.stage, traffic)
        self._others: dict[int, LayerMessages] = {}
        self._exchanges: dict[tuple[int, int, int], Message | None] = {}
        self.windows = self._windows(kinds)
        self.delays: dict[tuple[int, int, bool], float] = {}
        self.shares_delays = False
        self.shared: Mapping[int, FloatArray] = {}
        if workload.overlaps_shared_experts and not self.windows:
            shared = part_windows(workload, plan, SHARED, kinds)
            self.shared = {FORWARD: shared[0], BACKWARD: shared[1]}

    def write(self) -> tuple[dict[int, Pass], ...]:
        """Return the passes of each chunk by kind; those of alike layers share work."""
        rows = self._rows()
        known: dict[tuple[Hashable, ...], dict[int, Pass]] = {}
        by_chunk = []
        for first, last in self.stage.chunks:
            layers = range(first, last + 1)
            alike = tuple(rows[layer] for layer in layers)
            if alike in known:
                passes = {
                    kind: written.through(self._order(kind, layers))
                    for kind, written in known[alike].items()
                }
            else:
                passes = known[alike] = {
                    kind: self._write(kind, self._order(kind, layers))
                    for kind in self.kinds
                }
            by_chunk.append(passes)
        return tuple(by_chunk)

    def _order(self, kind: int, layers: range) -> list[int]:
        """Return the layers of a chunk in the order of a pass."""
        upwards = USUAL_KIND.get(kind, kind) == FORWARD
        return [*(layers if upwards else reversed(layers))]

    def _rows(self) -> dict[int, Hashable]:
        """Return all that passes read of each layer: alike layers have the same.

        None are alike where kinds of devices share delays, which go by layers.
        """
        if self.shares_delays:
            return {layer: layer for layer in self.messages}
        columns = [*self.times, *parameters_of(self.table, self.plan)]
        columns += [row for rows in self.windows.values() for row in rows]
        columns += self.shared.values()
        for sent in self.hosts.values():
            columns += [sent.to_device, sent.to_host]
        table = np.stack(columns, axis=1)
        # Layers that send alike share their messages.
        return {
            layer: (table[layer].tobytes(), id(messages))
            for layer, messages in self.messages.items()
        }

    def share_delays(self) -> None:
        """Have the stage send as slowly as the passes of any of its devices let it."""
        if not (self.windows or self.shared):
            return
        self.shares_delays = True
        self.write()
        delays = self.traffic.delays
        for where, delay in self.delays.items():
            delays[where] = max(delay, delays.get(where, 0.0))
        self.traffic.numbers.clear()

    def parameters(self, layer: int) -> tuple[float, float]:
        """Return the dense and the expert parameters of a layer, tied ones once."""
        expert = float(self.table.expert_parameters[layer])
        dense = float(self.table.parameters[layer]) - expert
        if self.joins_ends and layer == self.table.num_layers - 1:
            dense -= self.table.tied_parameters
        return dense, expert

    def _write(self, written_kind: int, layers: list[int]) -> Pass:
        kind = USUAL_KIND.get(written_kind, written_kind)
        written = self._begun(kind)
        is_paired = written_kind in PAIRED
        sent = sent_in_pass(self.stage, written_kind, splits=self.splits)
        weights = [entry for entry in sent if entry.tensor == WEIGHTS]
        gradients = [entry for entry in sent if entry.tensor == GRADIENTS]
        gathers = [self._numbers(weights, layer) for layer in layers]
        reduces = [self._numbers(gradients, layer) for layer in layers]
        again = kind == BACKWARD and self.stage.recompute == "stage"
        ahead = self.gathers_ahead and not again
        if again:
            self._redo(written, layers, gathers)
            gathers = [[] for _ in layers]
        if ahead:
            written.send_all(gathers[0])
        before: list[int] = []
        for layer, gathered, following, reduced in zip(
            layers, gathers, [*gathers[1:], []], reduces, strict=True
        ):
            if ahead:
                written.wait_all(gathered)
                written.send_all(following)
            else:
                written.exchange(gathered)
            begin = written.worked
            exchanged = self._exchanged(kind, layer)
            written.send_all(exchanged)
            self._layer(written, kind, layer, again=again, is_paired=is_paired)
            written.wait_all(exchanged)
            beside = [*(following if ahead else []), *before]
            written.work(self._stretch(written.worked - begin, beside))
            written.layers[layer] = begin, written.worked
            written.wait_all(before)
            if self.reduces_behind:
                written.send_all(reduced)
                before = reduced
            else:
                written.exchange(reduced)
        written.wait_all(before)
        return written

    def _begun(self, kind: int) -> Pass:
        """Return a pass of which nothing but its messages is written."""
        written = Pass()
        if kind != WEIGHT:
            written.work(self.lead)
        return written

    def _redo(self, written: Pass, layers: list[int], gathers: list[list[int]]) -> None:
        """Compute everything again, with all weights, before the first gradient."""
        for numbers in gathers:
            written.exchange(numbers)
        for layer in reversed(layers):
            self._work(
                written, self.times.repeated[layer], self.messages[layer].repeated
            )

    def _windows(self, kinds: tuple[int, ...]) -> Mapping[int, FloatArray]:
        """Return what paired passes compute in each window, shape ``(2, L)`` [s].

        Empty for a schedule without pairs.
        """
        if PAIRED.isdisjoint(self.kinds):
            return {}
        assert self.rates is not None
        experts = part_windows(self.workload, self.plan, DISPATCHED, kinds)
        beside = np.zeros(self.table.num_layers)
        for layer in self.messages:
            half = self._between(FORWARD, layer, parts=2)
            beside[layer] = self.traffic.time(half, self.rates) if half else 0.0
        times = self.times
        weight, backward = times.weight_gradient, times.backward
        compute = (
            times.forward,
            backward - weight if self.splits else backward,
            weight,
        )
        delays = self.workload.execution.delay_wgrad_compute and not self.splits
        pair = paired_compute(
            np.stack(compute),
            experts,
            beside,
            self.workload.beside_experts,
            delays=delays,
        )
        return {FORWARD: pair.forward, BACKWARD: pair.backward}

    def _without_experts(self, messages: LayerMessages) -> LayerMessages:
        """Return `LayerMessages.without_experts`, once for layers that send alike."""
        known = self._others.get(id(messages))
        if known is None:
            known = self._others[id(messages)] = messages.without_experts()
        return known

    def _between(self, kind: int, layer: int, *, parts: int) -> Message | None:
        """Return a part of what a layer sends between experts, as one exchange."""
        # Layers that send alike share their messages.
        key = kind, id(self.messages[layer]), parts
        if key not in self._exchanges:
            self._exchanges[key] = self._exchange(self.messages[layer], kind, parts)
        return self._exchanges[key]

    def _exchange(
        self, messages: LayerMessages, kind: int, parts: int
    ) -> Message | None:
        """Return what `_between` does of the messages of a layer."""
        sent = messages.forward if kind == FORWARD else messages.backward
        between = [message for message in sent if message.kind == "expert"]
        if not between:
            return None
        num_bytes = sum(message.num_bytes for message in between)
        hops, left = divmod(sum(message.num_hops for message in between), parts)
        part = between[0]._replace(num_bytes=num_bytes / parts, num_hops=hops)
        if not left:
            return part
        assert self.rates is not None
        hop = self.traffic.time(part._replace(num_bytes=0.0, num_hops=1), self.rates)
        return self.traffic.delayed(part, left * hop / parts, self.rates)

    def _layer(
        self, written: Pass, kind: int, layer: int, *, again: bool, is_paired: bool
    ) -> None:
        """Write one layer's part of a pass."""
        sent = self.messages[layer]
        if kind == WEIGHT:
            written.work(float(self.times.weight_gradient[layer]))
            return
        if is_paired or self.shared:
            sent = self._without_experts(sent)
        messages = sent.forward if kind == FORWARD else sent.backward
        window = written.window()
        if kind == BACKWARD and not again:
            self._work(written, self.times.repeated[layer], sent.repeated)
        if is_paired:
            outside, inside = self.windows[kind][:, layer].tolist()
            self._work(written, outside, messages)
            half = self._between(kind, layer, parts=2)
            self._send_beside(written, window, half, (kind, layer, False))
            window = written.window()
            written.work(inside)
            self._send_beside(written, window, half, (kind, layer, True))
            return
        duration = self.times.forward[layer]
        if kind == BACKWARD:
            duration = self.times.backward[layer]
            if self.splits:
                duration -= self.times.weight_gradient[layer]
        if self.shared:
            shared = min(float(self.shared[kind][layer]), float(duration))
            self._work(written, duration - shared, messages)
            window = written.window()
            written.work(shared)
            every = self._between(kind, layer, parts=1)
            self._send_beside(written, window, every, (kind, layer, False))
        else:
            self._work(written, duration, messages)

    def _send_beside(
        self,
        written: Pass,
        window: tuple[int, float],
        message: Message | None,
        where: tuple[int, int, bool],
    ) -> None:
        """Send something beside all that a pass has done since its window began."""
        if message is None:
            return
        assert self.rates is not None
        (place, begin), contention = window, self.workload.beside_experts
        worked, beside = written.worked - begin, self.traffic.time(message, self.rates)
        self.delays[where] = float(sending_delay(worked, beside, contention))
        delay = self.traffic.delays.get(where, self.delays[where])
        number = self.traffic.number(self.traffic.delayed(message, delay, self.rates))
        written.operations.insert(place, ("send", 0.0, number))
        more = float(slowed(worked, contention.sending * beside, contention.compute))
        if self.reserves:
            more = worked * (contention.compute - 1.0)
        written.work(more)
        written.wait(number)

    def _work(self, written: Pass, duration: float, messages: list[Message]) -> None:
        """Divide compute evenly between messages."""
        part = float(duration) / max(1, len(messages))
        if not messages:
            written.work(part)
        for message in messages:
            number = self.traffic.number(message)
            if self.hides_tensor and message.kind == "tensor":
                written.send(number)
                written.work(part + self._stretch(part, [number]))
                written.wait(number)
            else:
                written.work(part)
                written.exchange([number])

    def _stretch(self, duration: float, beside: list[int]) -> float:
        """Return how much longer compute takes beside some collectives [s]."""
        if self.factor == 1.0 or not beside:
            return 0.0
        assert self.rates is not None
        longest = sum(self.traffic.price(number, self.rates) for number in beside)
        return float(slowed(duration, longest, self.factor))

    def _exchanged(self, kind: int, layer: int) -> list[int]:
        """Return the numbers of what goes to or from the host beside a layer."""
        traffic = self.hosts.get(kind)
        if traffic is None:
            return []
        sizes = (
            (TO_DEVICE, float(traffic.to_device[layer])),
            (TO_HOST, float(traffic.to_host[layer])),
        )
        return [
            self.traffic.number(Message(direction, direction, size))
            for direction, size in sizes
            if size > 0.0
        ]

    def _numbers(self, sent: list[Sent], layer: int) -> list[int]:
        """Return the numbers of what is sent of a layer's parameters."""
        widths = self.workload.parameter_bytes
        numbers = []
        for entry in sent:
            kind = _KINDS[entry.tensor]
            for experts, count in enumerate(self.parameters(layer)):
                exists = self.has_experts or not experts
                if exists and self.traffic.is_shared(experts=bool(experts)):
                    size = wire_bytes(entry, widths) * count
                    message = Message(
                        kind,
                        entry.operation,
                        size,
                        experts=bool(experts),
                        nearby=entry.group == NEARBY and not experts,
                    )
                    numbers.append(self.traffic.number(message))
        return numbers


_KINDS = {WEIGHTS: "layer gather", GRADIENTS: "layer reduce"}
"""What is sent layer by layer -> the kind of its messages."""


class _Compute(NamedTuple):
    """Compute of each layer."""

    forward: FloatArray
    """Compute in the forward pass of each layer, shape ``(L,)`` [s]."""

    backward: FloatArray
    """Compute in the backward pass of each layer, shape ``(L,)`` [s]."""

    weight_gradient: FloatArray
    """Part of `backward` for the weights' gradients, shape ``(L,)`` [s]."""

    repeated: FloatArray
    """Compute that recompute adds to the backward pass of each layer, shape ``(L,)``
    [s]."""


def _host_traffic(
    workload: Workload, table: LayerTable, plan: Plan, index: int
) -> dict[int, PassTraffic]:
    """Return what layers exchange with the host by kind of pass, if anything."""
    if not is_beside_passes(plan.stages[index]):
        return {}
    sent = stage_transfers(workload, table, plan, index)
    return {FORWARD: sent.forward, BACKWARD: sent.backward}

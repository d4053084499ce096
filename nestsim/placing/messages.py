"""What each layer of a stage sends in its passes, in order."""

from itertools import chain, zip_longest
from typing import NamedTuple

import numpy as np

from estimators.layers.table import InLayerTraffic, LayerTable
from nestsim.placing.traffic import Message, StageTraffic
from planner.cost.classes import recompute_shares
from planner.step.plan import Stage


class LayerMessages(NamedTuple):
    """What one layer sends; kinds take turns."""

    forward: list[Message]
    backward: list[Message]
    repeated: list[Message]
    """When its forward pass is computed again."""


def layer_messages(
    table: LayerTable, stage: Stage, traffic: StageTraffic
) -> dict[int, LayerMessages]:
    """Return what every layer of a stage sends, ZeRO apart."""
    found = {}
    items = [item for item in table.traffic if traffic.is_sent(item.group)]
    shares = [
        np.zeros(table.num_layers)
        if stage.recompute == "none"
        else recompute_shares(item, table)[stage.recompute]
        for item in items
    ]
    # Most layers of a model are alike.
    known: dict[tuple[tuple[float, ...], ...], LayerMessages] = {}
    for layer in (n for first, last in stage.chunks for n in range(first, last + 1)):
        amounts = tuple(
            (
                float(one.forward_count[layer]),
                float(one.forward_bytes[layer]),
                float(one.backward_count[layer]),
                float(one.backward_bytes[layer]),
                float(share[layer]),
            )
            for one, share in zip(items, shares, strict=True)
        )
        if amounts not in known:
            known[amounts] = _messages(traffic, items, amounts)
        found[layer] = known[amounts]
    return found


def _messages(
    traffic: StageTraffic,
    items: list[InLayerTraffic],
    amounts: tuple[tuple[float, ...], ...],
) -> LayerMessages:
    """Return what a layer sends, from counts and bytes of each item in either pass."""
    forward, backward, repeated = [], [], []
    for item, (count, size, count_back, size_back, share) in zip(
        items, amounts, strict=True
    ):
        sent = _alike(traffic, item.group, item.operation, count, size)
        forward.append(sent)
        backward.append(
            _alike(traffic, item.group, item.operation, count_back, size_back)
        )
        repeated.append(sent if share else [])
    return LayerMessages(*map(_in_turns, (forward, backward, repeated)))


def _alike(
    traffic: StageTraffic, group: str, operation: str, count: float, num_bytes: float
) -> list[Message]:
    """Return collectives of one kind in one layer, of one size each."""
    number = round(count)
    if group == "context":
        hops = Message(group, operation, float(num_bytes), number)
        return [hops] if number or num_bytes else []
    if not number:
        # Sizes without a count, as in tables made up for tests, cost no latency.
        return [Message(group, operation, float(num_bytes), 0)] if num_bytes else []
    one = Message(group, operation, float(num_bytes) / number)
    back = one._replace(operation="combine")
    skewed = group == "expert" and traffic.skew > 1.0
    return [back if skewed and place % 2 else one for place in range(number)]


def _in_turns(groups: list[list[Message]]) -> list[Message]:
    turns = chain.from_iterable(zip_longest(*groups))
    return [one for one in turns if one is not None]

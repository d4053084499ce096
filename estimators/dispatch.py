"""How tokens travel to experts and back: what a dispatcher sends, and how fast.

A device has ``b`` bytes of tokens, each of which goes to ``k`` experts on ``R`` ranks
of ``N`` nodes. What an all-to-all sends is counted in copies of ``b`` [1]_:

* ``alltoall``: one for each expert, ``k``, by NCCL's sends;
* ``allgather``: one for each rank, ``R``; between nodes one for each node, ``N``, which
  NVLink hands on;
* ``flex`` (DeepEP [2]_, HybridEP): one for each rank that has an expert for the token,
  ``R (1 - (1 - 1 / R)^k)`` on average; between nodes one for each such node.

An all-to-all lasts as long as its busiest rank receives, or sends back
(`estimators.layers.routing`). By ``alltoall`` that is what its experts compute; by
``flex`` a token comes once, with the chance ``1 - (1 - q)^k`` for a rank, or a node,
that gets the part ``q`` of all copies; by ``allgather`` all get the same.

Kernels of ``flex`` copy inside a node with some of the device's multiprocessors, which
is slower than NCCL's sends where the link has more bandwidth than these few can move.
Whatever sends leaves fewer of them to compute beside it, and is slower beside compute
(`contention`).

References
----------
.. [1] Megatron-LM, ``megatron/core/transformer/moe/token_dispatcher.py``.
.. [2] DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, sections 2.1.2 and 3.2.2.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, NamedTuple

import tomli

from estimators.layers.routing import EVEN, ExpertLoad, expert_load
from estimators.layers.work import Degrees
from estimators.models.spec import TransformerSpec
from estimators.software import Software
from topologies.accelerators import Accelerator
from topologies.errors import InputError

DISPATCHERS = ("alltoall", "allgather", "flex")
"""Dispatchers of tokens, as Megatron Core names them."""


def copies_sent(
    spec: TransformerSpec, ranks: int, span: int, software: Software
) -> float:
    """Return how often a token is sent.

    Parameters
    ----------
    spec
        The model.
    ranks
        Ranks that share its experts.
    span
        Devices that they are spread over, side by side.
    software
        Its dispatcher, and how many devices a node has.
    """
    kind = software.moe_token_dispatcher_type or DISPATCHERS[0]
    if kind == "alltoall":
        return spec.moe_copies
    inside = within_node(span, software)
    places = float(ranks) if inside else span / software.ranks_per_node
    return places if kind == "allgather" else _different(spec, places)


def exchanged_load(
    spec: TransformerSpec, degrees: Degrees, software: Software
) -> ExpertLoad:
    """Return what an all-to-all between experts sends over that of an even choice.

    For the busiest rank, and on average. Where ``flex`` hands on inside of nodes, both
    are those of nodes, if nodes hold as many experts each.

    Parameters
    ----------
    spec, degrees
        The model, and into how many parts it is split.
    software
        Its dispatcher, and how many devices a node has.
    """
    kind = software.moe_token_dispatcher_type or DISPATCHERS[0]
    if degrees.ep == 1 or kind == "allgather":
        return EVEN
    if kind == "alltoall":
        return expert_load(spec, degrees)
    span = degrees.grouping.expert_span(degrees[:3])
    places = degrees.ep
    if not within_node(span, software):
        nodes, rest = divmod(span, software.ranks_per_node)
        if not rest and spec.num_moe_experts % nodes == 0:
            places = nodes
    load = expert_load(spec, degrees, places)
    if load == EVEN or places == 1:
        return load
    copies = spec.moe_router_topk
    even, mean, busiest = (
        1.0 - (1.0 - min(part / places, 1.0)) ** copies
        for part in (1.0, load.mean, load.busiest)
    )
    return ExpertLoad(mean / even, busiest / even)


def within_node(span: int, software: Software) -> bool:
    """Return whether so many devices side by side are in one node, or none is known."""
    return software.ranks_per_node == 0 or span <= software.ranks_per_node


def kernel_efficiency(accelerator: str, span: int) -> float | None:
    """Return the part of a node's links that kernels of ``flex`` reach.

    None where none was measured: they send as NCCL does. ``span`` as in `copies_sent`.
    """
    return next(
        (
            float(kernel["efficiency"])
            for kernel in _tables()["kernel"]
            if span <= kernel["most_ranks"]
            and any(accelerator.startswith(name) for name in kernel["accelerators"])
        ),
        None,
    )


class Sharing(NamedTuple):
    """How compute and an all-to-all between experts beside it slow each other down."""

    compute: float
    """Factor on the duration of compute while something is sent beside it."""

    sending: float
    """Factor on the duration of what is sent while compute goes on beside it."""


ALONE = Sharing(1.0, 1.0)
"""Neither takes longer beside the other."""


def contention(
    accelerator: Accelerator, software: Software, compute: float | None
) -> Sharing:
    """Return how compute and all-to-alls between experts slow each other down.

    A device computes with the multiprocessors that do not send. Devices whose senders
    are unknown, and links without a library, are not slowed down.

    Parameters
    ----------
    accelerator, software
        Whose multiprocessors send, and for which dispatcher.
    compute
        Factor on compute, if it is known.

    Raises
    ------
    InputError
        If no multiprocessor is left to compute.
    """
    taken, beside = _senders(accelerator.constants_name, software)
    units = accelerator.num_compute_units
    if taken >= units:
        raise InputError(
            "sending leaves no multiprocessor to compute",
            where="software.moe_flex_dispatcher_num_sms",
            got=taken,
            expected=f"fewer than the {units} of {accelerator.name}",
        )
    if compute is None:
        compute = units / (units - taken)
    return Sharing(compute, beside)


def _senders(accelerator: str, software: Software) -> tuple[int, float]:
    """Return how many multiprocessors send, and how compute slows sending down."""
    kind = software.moe_token_dispatcher_type or DISPATCHERS[0]
    if not software.library:
        return 0, 1.0
    for sender in _tables()["sender"]:
        if kind in sender["dispatchers"] and any(
            accelerator.startswith(name) for name in sender["accelerators"]
        ):
            taken = software.moe_flex_dispatcher_num_sms if kind == "flex" else 0
            return taken or sender["multiprocessors"], sender["slowed"]
    return 0, 1.0


@cache
def _tables() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    text = files("estimators").joinpath("dispatch.toml").read_text("utf-8")
    return MappingProxyType(tomli.loads(text))


def _different(spec: TransformerSpec, places: float) -> float:
    """Return how many places have an expert for a token, on average.

    Where its experts are of ``M`` out of ``G`` groups, which are spread over the places
    as experts are, a place has them only if some of its groups are chosen
    (`_missing_share`): with a group on each, at most ``M`` are different [2]_.
    """
    copies, groups = spec.moe_copies, spec.moe_router_num_groups
    if not groups:
        return float(places * (1.0 - (1.0 - 1.0 / places) ** copies))
    missing = _missing_share(places, copies, groups, spec.moe_router_group_topk)
    return float(places * (1.0 - missing))


def _missing_share(places: float, copies: float, groups: int, chosen: int) -> float:
    """Return how likely none of a token's experts is in one of the places.

    It holds ``g = G / P`` groups, or ``g`` of one; ``j`` of its groups are among
    the ``M`` chosen, and each expert is of any of these alike. With less than a group,
    its group is chosen or is not. What lies between whole numbers of groups is between
    their results.
    """
    held = groups / places
    if held <= 1.0:
        taken = chosen / groups
        return float(1.0 - taken + taken * (1.0 - held / chosen) ** copies)
    low = math.floor(held)
    lower, upper = (
        sum(
            math.comb(whole, j)
            * math.comb(groups - whole, chosen - j)
            * (1.0 - j / chosen) ** copies
            for j in range(min(whole, chosen) + 1)
        )
        / math.comb(groups, chosen)
        for whole in (low, min(low + 1, groups))
    )
    return float(lower + (held - low) * (upper - lower))

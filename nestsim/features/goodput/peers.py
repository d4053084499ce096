"""Checkpoints in the memory of peers: which failures they outlive.

Each of ``N`` nodes keeps its part of a checkpoint and those of its group, as Gemini's
group placement does: ``m`` nodes of a group hold the same parts. Failures take no part
as long as a node of each group is left. Groups are nodes ``n, n + J, .. n + (m - 1) J``
within blocks of ``m J`` nodes, as Megatron's ``--replication-jump`` has it: with the
nodes of a rack as ``J``, no rack holds a whole group.

Of all ways to lose ``k`` nodes, those that leave a node in each group are

    sum over i of (-1)^i C(N/m, i) C(N - i m, k - i m),

by inclusion and exclusion of the groups that are lost. Gemini's corollary 1 is the sum
up to ``i = 1``: a lower bound, and exact below ``k = 2 m``.

References
----------
.. [1] Wang et al., "GEMINI: Fast Failure Recovery in Distributed Training with
   In-Memory Checkpoints", SOSP 2023, corollary 1.
"""

from fractions import Fraction
from math import comb

import numpy as np

from topologies.arrays import IntArray

MOST_LOST = 64
"""Nodes lost at random before the job trains again that are told apart."""


def kept_share(num_nodes: int, group: int, lost: int) -> Fraction:
    """Return the chance that nodes which fail at random leave one in each group.

    Parameters
    ----------
    num_nodes
        Nodes ``N``, whole groups.
    group
        Nodes ``m`` of a group.
    lost
        Nodes ``k`` that fail together.
    """
    assert num_nodes % group == 0
    ways = sum(
        (-1) ** whole
        * comb(num_nodes // group, whole)
        * comb(num_nodes - whole * group, lost - whole * group)
        for whole in range(lost // group + 1)
    )
    return Fraction(ways, comb(num_nodes, lost))


def kept_one_by_one(num_nodes: int, group: int) -> tuple[float, ...]:
    """Return the chance that memory has all parts with one node less, if it had so far.

    For the first, second, .. node that is lost, behind a 1 for none; the last number
    holds for all others.
    """
    chances = [1.0]
    before = Fraction(1)
    for lost in range(1, min(num_nodes, MOST_LOST) + 1):
        after = kept_share(num_nodes, group, lost)
        chances.append(float(after / before))
        before = after
        if not before:
            break
    return tuple(chances)


def groups_of(num_nodes: int, group: int, jump: int) -> IntArray:
    """Return the number of each node's group, shape ``(N,)``."""
    nodes = np.arange(num_nodes)
    return np.asarray(nodes // (group * jump) * jump + nodes % jump)


def domain_loss(num_nodes: int, group: int, jump: int, domain: int) -> float:
    """Return the share of domains that hold a whole group.

    Parameters
    ----------
    num_nodes, group
        As for `kept_share`.
    jump
        Nodes ``J`` from one of a group to the next.
    domain
        Nodes of a domain, which are one behind the other; the last one may have less.
    """
    groups = groups_of(num_nodes, group, jump)
    inside = np.arange(num_nodes) // domain
    num_domains = int(inside[-1]) + 1
    # Nodes of each group in each domain that has any.
    places, counts = np.unique(groups * num_domains + inside, return_counts=True)
    whole = np.unique(places[counts == group] % num_domains)
    return len(whole) / num_domains

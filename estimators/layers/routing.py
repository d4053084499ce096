"""How many tokens the busiest rank of an expert group gets: one figure for all.

A group of ``R`` ranks shares ``E`` experts, ``E / R`` neighbours each. Each of its
ranks routes ``n`` tokens to ``k`` experts each, so that an expert gets ``R n k / E``
copies on average, and a rank ``n k``. A layer waits for the rank that gets most; loads
are counted over ``n k``. Compute, what is sent and what is kept follow from them.

* ``balanced``: every expert gets as many as any other. Nothing is random.
* ``random``: each token chooses any ``k`` experts alike, so that a rank's copies
  are a sum of ``T = R n`` independent numbers (hypergeometric), and normal for all that
  matters; groups of experts are not looked at. Sums of all ranks are ``T k``, hence
  correlated by ``-1 / (R - 1)``, and with the expected largest ``m_R`` of ``R``
  independent standard normal numbers::

      busiest = 1 + m_R sqrt(R (E - k) / (T k (E - 1)))

* ``power-law``: tokens of an expert are drawn from a bounded power law of some
  exponent ``a``, density ``x^-a`` on [1, 0.8 T] ([0.01, 2] if there are no more copies
  than experts), and divided by their sum [1]_. The figure is the mean over `NUM_DRAWS`
  draws, always the same ones. Near 1 few experts are busy; far above 1 nearly all get
  as little as each other, and the load is even again.
* ``log-normal``: logarithms of experts' loads are normal with a standard deviation
  ``s``. Of the shapes that were tried on counts of DeepSeek-V3's ranks it came nearest
  [4]_. Their Gini coefficient is ``erf(s / 2)`` [5]_. They are drawn as often as those
  of a power law.
* ``measured``: the copies of each expert as they were counted, in one layer or in all.
  Tables have one layer for all blocks of a kind: where layers were counted, it has the
  mean of their busiest ranks, so that the sum over all blocks is that of the layers,
  and keeps what the busiest layer's keeps. What a stage takes is off by no more than
  its layers are from the mean (`ExpertLoad.layers`). Of what is not linear in a rank's
  load, as what is sent of tokens that travel once (``flex``), it has that of the mean.

Ranks hold experts in the order of their numbers, or placed by known loads
(``moe_expert_placement``): the heaviest expert first, on the rank that holds least and
has room, as DeepSeek's EPLB packs experts without copies [3]_. The rule is no optimum:
where neighbours leave the busiest rank less, they stay together.

No expert gets a token twice: what a share above ``1 / k`` would be of all copies goes
to the others.

Capacity [2]_. Of the tokens of one rank an expert takes ``C = ceil(c n k / E)`` at
most, with the capacity factor ``c``, and others are dropped; padded, it computes ``C``
whatever came. Which tokens are dropped changes nothing here. Under ``random`` the
copies that an expert gets of one rank are binomial, and exact; the spread of a rank's
sum shrinks as that of a single one.

References
----------
.. [1] AIConfigurator (github.com/ai-dynamo/aiconfigurator), ``collector/helper.py``:
   ``sample_power_law``, ``_generate_power_law_distribution``; its tables of layers of
   experts were measured with 1.01 and 1.2.
.. [2] Megatron-LM, ``core/transformer/moe/moe_utils.py``: ``get_capacity``,
   ``apply_router_token_dropping``; ``moe_expert_capacity_factor`` and
   ``moe_pad_expert_input_to_capacity`` of ``core/transformer/transformer_config.py``.
.. [3] DeepSeek-AI, EPLB (github.com/deepseek-ai/EPLB), d52c72d5: ``balanced_packing``.
.. [4] DeepEP (github.com/deepseek-ai/DeepEP), pull request 393: least squared error of
   several distributions, layers of DeepSeek-V3 on MMLU Pro.
.. [5] ``2 N(s / sqrt 2) - 1`` with the normal distribution function ``N``: giniVarCI
   0.0.1-3 (CRAN), ``glnorm``, after Kleiber and Kotz, "Statistical Size Distributions
   in Economics and Actuarial Sciences", 2003.
"""

import math
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from estimators.layers.work import Degrees
from estimators.models.layer_loads import LayerLoads
from estimators.models.spec import TransformerSpec
from topologies.arrays import FloatArray

NUM_DRAWS = 1024
"""Draws that a power law's figures are the mean of."""

_ROUNDS = 8
"""How often what experts cannot take is handed on to the others."""


class ExpertLoad(NamedTuple):
    """Copies of tokens that experts of a rank compute, over those of an even choice."""

    mean: float
    """Mean of all ranks: 1, less what is dropped, or with what is padded."""

    busiest: float
    """Rank that has most, in the mean over layers."""

    layers: tuple[float, float] | None = None
    """That rank of the layer where it has least, and of that where it has most; None
    where layers are all alike."""

    @property
    def kept(self) -> float:
        """What the busiest rank of any layer keeps."""
        return self.busiest if self.layers is None else self.layers[1]

    @property
    def skew(self) -> float:
        """Busiest rank over the mean."""
        return self.busiest / self.mean


EVEN = ExpertLoad(1.0, 1.0)
"""Load where nothing is uneven, dropped or padded."""


class _Choice(NamedTuple):
    """What of a model says where tokens go."""

    routing: str
    """Distribution, of `TransformerSpec.moe_routing`."""
    experts: int
    """Number of experts."""
    copies: int
    """Experts of each token."""
    shape: float
    """Exponent of a power law, or deviation of a log-normal."""
    loads: tuple[float, ...]
    """Counted copies of each expert."""
    layers: LayerLoads | None
    """Those of each layer, in place of these."""
    packed: int
    """Ranks that experts are placed on by load; 0 if they come in their order."""


class _Limit(NamedTuple):
    """What one expert takes of one rank's tokens, over the mean."""

    most: float
    """Most copies, infinite without a capacity."""
    padded: bool
    """Whether it computes as many whatever came."""


def expert_load(spec: TransformerSpec, degrees: Degrees, ranks: int = 0) -> ExpertLoad:
    """Return what experts have to do on the busiest rank, and on average.

    Parameters
    ----------
    spec
        The model, which says where tokens go.
    degrees
        Into how many parts tokens and experts are split.
    ranks
        Places that share the experts; 0 for the ranks of an expert group. With nodes in
        place of ranks, what the busiest node gets.
    """
    experts = spec.num_moe_experts
    ranks = ranks or degrees.ep
    if spec.moe_expert_skew > 1.0 and experts:
        return ExpertLoad(1.0, min(spec.moe_expert_skew, float(ranks)))
    capacity = spec.moe_expert_capacity_factor
    if not experts or (spec.moe_routing == "balanced" and not capacity):
        return EVEN
    copies = spec.moe_router_topk
    choice = _Choice(
        spec.moe_routing,
        experts,
        copies,
        spec.moe_routing_exponent or spec.moe_routing_sigma,
        spec.moe_expert_loads,
        spec.moe_layer_loads,
        degrees.ep if spec.moe_expert_placement == "balanced" else 0,
    )
    parts = degrees.cp * (degrees.tp if degrees.sequence_parallel else 1)
    tokens = degrees.micro_batch_size * spec.sequence_length / parts
    even = tokens * copies / experts
    most = math.ceil(capacity * even) / even if capacity else math.inf
    limit = _Limit(most, spec.moe_pad_expert_input_to_capacity)
    # Ranks that split experts bring together what each of them has routed.
    split = degrees.cp * (degrees.tp // degrees.etp)
    group = degrees.ep * degrees.micro_batch_size * spec.sequence_length / split
    return _load(choice, limit, ranks, tokens, group)


def busiest_load(spec: TransformerSpec, degrees: Degrees, *, kept: bool) -> float:
    """Return what the busiest rank computes, or what it keeps, over an even share."""
    load = expert_load(spec, degrees)
    return load.kept if kept else load.busiest


@lru_cache(maxsize=4096)
def _load(
    choice: _Choice, limit: _Limit, ranks: int, tokens: float, group: float
) -> ExpertLoad:
    """Return the load of ``ranks`` that share experts.

    Parameters
    ----------
    choice, limit
        Where tokens go, and what an expert takes of them.
    ranks
        Places that share the experts.
    tokens
        Tokens that one rank routes.
    group
        Tokens that all ranks of a group route.
    """
    if limit.padded:
        return ExpertLoad(limit.most, limit.most)
    if choice.routing == "balanced":
        taken = min(1.0, limit.most)
        return ExpertLoad(taken, taken)
    if choice.routing == "random":
        return _random(choice, limit, ranks, tokens, group)
    # Nothing else depends on how many tokens there are.
    group = group if choice.routing == "power-law" else 0.0
    return _known(choice, limit.most, ranks, group)


@lru_cache(maxsize=4096)
def _known(choice: _Choice, most: float, ranks: int, group: float) -> ExpertLoad:
    """Return the load where loads of experts are drawn or counted."""
    if choice.routing == "measured":
        weights = np.array(choice.layers.tokens if choice.layers else [choice.loads])
    elif choice.routing == "log-normal":
        weights = np.exp(choice.shape * _normal_draws(choice.experts))
    else:
        weights = _power_law(choice, group)
    every = np.minimum(choice.experts * _shares(weights, choice.copies), most)
    if 1 < choice.packed < choice.experts:
        every = packed_loads(every, choice.packed)
    held = every.reshape(len(every), ranks, -1).mean(axis=2)
    busiest = held.max(axis=1)
    differ = choice.layers and busiest.min() < busiest.max()
    layers = (float(busiest.min()), float(busiest.max())) if differ else None
    return ExpertLoad(float(held.mean(axis=1).mean()), float(busiest.mean()), layers)


def packed_loads(loads: FloatArray, ranks: int) -> FloatArray:
    """Return the loads of experts in the order in which ranks hold them.

    Of each draw whichever has the less busy busiest rank: the greedy rule, or the order
    as it is, which ties go to.

    Parameters
    ----------
    loads
        Loads of experts, shape ``(draws, E)``.
    ranks
        Ranks that hold as many experts each.
    """
    draws, experts = loads.shape
    room = experts // ranks
    heaviest = np.sort(loads, axis=1)[:, ::-1]
    by_place = np.ascontiguousarray(heaviest.T)
    # The heaviest come to empty ranks, one each.
    held = heaviest[:, :ranks].copy()
    count = np.ones(draws * ranks, dtype=np.int64)
    packed = np.empty((draws, ranks, room))
    packed[:, :, 0] = held
    flat_held, flat_packed = held.reshape(-1), packed.reshape(-1)
    first = ranks * np.arange(draws)
    for load in by_place[ranks:]:
        rank = held.argmin(axis=1) + first
        number = count[rank]
        flat_packed[rank * room + number] = load
        count[rank] = number + 1
        # Ranks that have no room are never the least busy.
        flat_held[rank] += np.where(number + 1 < room, load, np.inf)
    linear = loads.reshape(packed.shape)
    better = packed.sum(axis=2).max(axis=1) < linear.sum(axis=2).max(axis=1)
    chosen = np.where(better[:, None, None], packed, linear)
    return np.asarray(chosen.reshape(loads.shape))


def _power_law(choice: _Choice, group: float) -> FloatArray:
    """Return drawn loads of experts, shape ``(draws, E)``."""
    low, high = 1.0, 0.8 * group
    if group * choice.copies <= choice.experts:
        low, high = 0.01, 2.0
    uniform = _draws(choice.experts)
    power = 1.0 - choice.shape
    if abs(power) < _LOGARITHMIC:
        return np.asarray(low * (high / low) ** uniform)
    # The inverse of the distribution function.
    between = (high**power - low**power) * uniform + low**power
    return np.asarray(between ** (1.0 / power))


_LOGARITHMIC = 1e-9
"""How near to 1 an exponent's density is taken as 1 / x."""

_GOLDEN = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


@lru_cache(maxsize=16)
def _draws(experts: int) -> FloatArray:
    """Return numbers in (0, 1), the same always, shape ``(draws, E)``.

    SplitMix64 of the numbers' places (Steele, Lea and Flood, "Fast Splittable
    Pseudorandom Number Generators", OOPSLA 2014, figure 17). Each column has one in
    each of as many intervals of equal size.
    """
    state = np.arange(1, NUM_DRAWS * experts + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    for shift, factor in _MIX:
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    state ^= state >> np.uint64(31)
    drawn = state.reshape(NUM_DRAWS, experts)
    rank = np.argsort(np.argsort(drawn, axis=0, kind="stable"), axis=0, kind="stable")
    uniform = (rank + 0.5) / NUM_DRAWS
    uniform.flags.writeable = False
    return np.asarray(uniform, dtype=np.float64)


@lru_cache(maxsize=16)
def _normal_draws(experts: int) -> FloatArray:
    """Return standard normal numbers, the same always, shape ``(draws, E)``."""
    inverse = NormalDist().inv_cdf
    places = np.array([inverse((rank + 0.5) / NUM_DRAWS) for rank in range(NUM_DRAWS)])
    return np.asarray(places[(_draws(experts) * NUM_DRAWS).astype(np.int64)])


def _shares(weights: FloatArray, copies: int) -> FloatArray:
    """Return the part of all copies that each expert gets, ``1 / k`` at most.

    Parameters
    ----------
    weights
        Loads of experts, not all 0, shape ``(draws, E)``.
    copies
        Experts ``k`` of each token.
    """
    shares = weights / weights.sum(axis=1, keepdims=True)
    most = 1.0 / copies
    for _ in range(_ROUNDS):
        full = shares >= most
        if not (shares > most).any():
            break
        rest = np.where(full, 0.0, shares)
        left = 1.0 - most * full.sum(axis=1, keepdims=True)
        total = rest.sum(axis=1, keepdims=True)
        grown = rest * np.divide(left, total, out=np.zeros_like(left), where=total > 0)
        shares = np.where(full, most, grown)
    return np.asarray(np.minimum(shares, most))


def _random(
    choice: _Choice, limit: _Limit, ranks: int, tokens: float, group: float
) -> ExpertLoad:
    """Return the load where each token chooses any experts alike."""
    experts, copies = choice.experts, choice.copies
    mean, narrower = 1.0, 1.0
    if limit.most < math.inf:
        mean, narrower = _kept(round(tokens), copies / experts, limit.most)
    if ranks == 1 or experts == 1:
        return ExpertLoad(mean, mean)
    spread = math.sqrt(ranks * (experts - copies) / (group * copies * (experts - 1)))
    most = min(limit.most, experts / copies, float(ranks))
    return ExpertLoad(
        mean, min(mean + largest_normal(ranks) * narrower * spread, max(most, mean))
    )


def _kept(tokens: int, chance: float, most: float) -> tuple[float, float]:
    """Return the mean of copies that an expert takes, and how much less they vary.

    Over the mean and the standard deviation of the binomial number that come.
    """
    came = tokens * chance
    spread = math.sqrt(came * (1.0 - chance))
    if spread == 0.0:
        return min(1.0, most), 1.0
    # More than twelve deviations from the mean nothing happens.
    low = max(0, math.floor(came - 12 * spread))
    high = min(tokens, math.ceil(came + 12 * spread) + 12)
    numbers = np.arange(low, high + 1)
    log_odds = math.log(chance) - math.log1p(-chance)
    falls = np.cumsum(np.log((tokens - numbers[:-1]) / (numbers[:-1] + 1)) + log_odds)
    logs = np.concatenate(([0.0], falls))
    likely = np.exp(logs - logs.max())
    likely /= likely.sum()
    taken = np.minimum(numbers, round(most * came))
    mean = float(likely @ taken)
    deviation = math.sqrt(max(float(likely @ (taken - mean) ** 2), 0.0))
    return mean / came, deviation / spread


@lru_cache(maxsize=256)
def largest_normal(count: int) -> float:
    """Return the mean of the largest of independent standard normal numbers.

    The integral of ``1 - F^n - (1 - F)^n`` over positive numbers, with the distribution
    function ``F``.
    """
    places = np.linspace(0.0, 9.0, 1801)
    below = np.array([0.5 * math.erfc(-place / math.sqrt(2.0)) for place in places])
    values = 1.0 - below**count - (1.0 - below) ** count
    return float(np.sum((values[1:] + values[:-1]) / 2.0) * (places[1] - places[0]))

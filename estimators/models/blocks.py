"""The blocks of a model: what mixes tokens, and what looks at each by itself.

A kind of block is the name of its mixer and that of its feed-forward layer, joined by
``"+"``; either may be missing (`TransformerSpec.block_pattern`).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import nn

from estimators.models.attention import build_attention, build_window_attention
from estimators.models.decoder import TransformerBlock
from estimators.models.experts import MoELayer
from estimators.models.layers import MLP
from estimators.models.spec import TransformerSpec
from topologies.errors import InputError

MIXERS: Mapping[str, Callable[[TransformerSpec], nn.Module]] = MappingProxyType(
    {"attention": build_attention, "window": build_window_attention}
)
"""Name of a mixer -> its builder."""

FEED_FORWARDS: Mapping[str, Callable[[TransformerSpec], nn.Module]] = MappingProxyType(
    {"dense": MLP, "experts": MoELayer}
)
"""Name of a feed-forward layer -> its builder."""


def build_block(spec: TransformerSpec, kind: str) -> nn.Module:
    """Return a block of some kind.

    Raises
    ------
    InputError
        If there is no such kind.
    """
    parts = kind.split("+")
    mixers = [MIXERS[part](spec) for part in parts[:1] if part in MIXERS]
    layers = [FEED_FORWARDS[part](spec) for part in parts[-1:] if part in FEED_FORWARDS]
    if not len(mixers) + len(layers) == len(parts) > 0:
        raise InputError(
            "no such kind of block",
            where="block_pattern",
            got=kind,
            expected=f"{_names(MIXERS)}, {_names(FEED_FORWARDS)}, or one of either "
            'joined by "+"',
        )
    return TransformerBlock(
        spec, mixers[0] if mixers else None, layers[0] if layers else None
    )


def _names(table: Mapping[str, object]) -> str:
    return ", ".join(f'"{name}"' for name in table)

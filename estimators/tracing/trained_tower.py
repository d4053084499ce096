"""A traced vision tower as a job trains it: parts of it frozen, whole on every rank.

Frozen parts. Freezing the tower leaves its projector to be trained, freezing both
leaves the language model, as Megatron Bridge's ``freeze_vision_model`` and
``freeze_vision_projection`` have it [1]_. Nothing that is trained stands before the
tower: no gradient goes through what is frozen of it, there is no backward pass, and
nothing is kept for one. A frozen projector behind a tower that is trained passes
gradients on: its products have those of their inputs alone, and keep nothing for
others.

Whole on every rank. A tower of transformers' own modules knows of no tensor-parallel
group (Megatron Bridge's ``use_hf_vision_model`` [1]_): all ranks of a group work on all
patches, hold all weights, and exchange nothing.

References
----------
.. [1] Megatron Bridge, ``models/qwen_vl``: ``freeze`` of the models, by ``patch_embed``
   and ``blocks``, and by ``merger``; ``use_hf_vision_model`` of their providers.
"""

from collections.abc import Callable
from dataclasses import replace

from estimators.models.vision import VisionTower
from estimators.tracing.graph import TracedLayer, TracedOperator

REPLICATED = "replicated"
"""How an operator is split that all ranks do, on rows that all of them have."""

_TOWER = "vision_tower."
_FRONT = tuple(
    _TOWER + part
    for part in ("patches", "positions", "norm_before", "blocks", "norm_behind")
)


def with_trained_tower(layer: TracedLayer, tower: VisionTower) -> TracedLayer:
    """Return the first layer of a chain with its tower as a job trains it.

    Parameters
    ----------
    layer
        As it was traced: all is trained, and a tensor-parallel group splits the tower.
    tower
        The tower that is part of it.
    """
    if not tower.tensor_parallel:
        layer = _whole(layer)
    if tower.freeze_model:
        layer = _frozen(layer, _is_front, _without_backward)
    if tower.freeze_projection:
        behind = _without_backward if tower.freeze_model else _passing_on
        layer = _frozen(layer, _is_projection, behind)
    return layer


def _is_front(name: str) -> bool:
    return name.startswith(_FRONT)


def _is_projection(name: str) -> bool:
    return name.startswith(_TOWER) and not _is_front(name)


def _without_backward(operator: TracedOperator) -> TracedOperator:
    return operator._replace(frozen=True, forward_only=True, saved=())


def _passing_on(operator: TracedOperator) -> TracedOperator:
    if operator.operation != "linear":
        return operator
    return operator._replace(frozen=True, saved=())


def _frozen(
    layer: TracedLayer,
    holds: Callable[[str], bool],
    freeze: Callable[[TracedOperator], TracedOperator],
) -> TracedLayer:
    """Return a layer with those parameters frozen, and those operators changed."""
    return replace(
        layer,
        parameters=tuple(
            parameter._replace(frozen=True) if holds(parameter.name) else parameter
            for parameter in layer.parameters
        ),
        operators=tuple(
            freeze(operator) if holds(operator.name) else operator
            for operator in layer.operators
        ),
    )


def _whole(layer: TracedLayer) -> TracedLayer:
    """Return a layer whose tower every rank has to itself."""
    inside = [op for op in layer.operators if op.name.startswith(_TOWER)]
    touched = {n for op in inside for n in (*op.inputs, *op.outputs, *op.saved)}
    return replace(
        layer,
        tensors=tuple(
            tensor._replace(layout="whole") if number in touched else tensor
            for number, tensor in enumerate(layer.tensors)
        ),
        parameters=tuple(
            parameter._replace(layout="whole")
            if parameter.name.startswith(_TOWER)
            else parameter
            for parameter in layer.parameters
        ),
        operators=tuple(
            operator._replace(sharding=REPLICATED) if operator in inside else operator
            for operator in layer.operators
        ),
    )

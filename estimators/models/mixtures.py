"""Which blocks of a model have experts, and what experts and their router can be."""

from collections.abc import Callable
from typing import Any

from estimators.models.limits import MAX_LAYERS
from topologies.errors import InputError


def expert_pattern(
    num_layers: int,
    has_experts: Callable[[int], bool],
    mixer: Callable[[int], str] = lambda _: "attention",
) -> tuple[str, ...]:
    """Return the kind of each block; empty where all are attention and experts.

    Parameters
    ----------
    num_layers
        Blocks; kinds of more than a specification may have are left out.
    has_experts
        Whether the block of a number has experts, rather than one feed-forward layer.
    mixer
        What it mixes tokens with.
    """
    pattern = tuple(
        f"{mixer(index)}+{'experts' if has_experts(index) else 'dense'}"
        for index in range(min(num_layers, MAX_LAYERS))
    )
    return () if set(pattern) == {"attention+experts"} else pattern


def dense_at_first(num_layers: int, num_dense: int) -> tuple[str, ...]:
    """Return a pattern whose first blocks have no experts."""
    return expert_pattern(num_layers, lambda index: index >= num_dense)


def every_nth(num_layers: int, n: int) -> tuple[str, ...]:
    """Return a pattern of experts in the last of each ``n`` blocks."""
    return expert_pattern(num_layers, lambda index: (index + 1) % n == 0)


def check_experts(spec: Any) -> None:
    """Refuse experts that do not fit the model, each other or their router.

    Raises
    ------
    InputError
        With the field that does not fit.
    """
    _check_routed(spec)
    _check_router(spec)
    _check_depths(spec)


def _check_routed(spec: Any) -> None:
    experts, family = spec.num_moe_experts, spec.family
    if (family == "mixtral" and not experts) or (family == "bert" and experts):
        raise InputError(
            "a mixtral has experts, a bert has none",
            where="num_moe_experts",
            got=experts,
            expected='1, 2, ... if family = "mixtral", 0 if family = "bert"',
        )
    if spec.moe_shared_expert_intermediate_size and not spec.num_moe_experts:
        raise InputError(
            "shared experts stand beside routed ones",
            where="moe_shared_expert_intermediate_size",
            got=spec.moe_shared_expert_intermediate_size,
            expected="0, or num_moe_experts beside it",
        )
    top = spec.moe_router_topk
    if top > experts or (experts > 0 and top == 0):
        raise InputError(
            "does not fit the number of experts",
            where="moe_router_topk",
            got=top,
            expected=f"1 to num_moe_experts = {experts}" if experts else "0",
        )
    if experts and not spec.gated_linear_unit:
        raise InputError(
            "experts are gated",
            where="gated_linear_unit",
            got=spec.gated_linear_unit,
            expected="gated_linear_unit = true where there are experts",
        )


def _check_router(spec: Any) -> None:
    """Refuse settings of experts that do not fit them, or each other."""
    if spec.moe_shared_expert_gate and not spec.moe_shared_expert_intermediate_size:
        raise InputError(
            "a gate of shared experts needs shared experts",
            where="moe_shared_expert_gate",
            got=True,
            expected="false, or moe_shared_expert_intermediate_size beside it",
        )
    groups, chosen = spec.moe_router_num_groups, spec.moe_router_group_topk
    if not groups and not chosen:
        return
    experts = spec.num_moe_experts
    if not groups or experts == 0 or experts % groups:
        raise InputError(
            "does not split the experts into groups of equal size",
            where="moe_router_num_groups",
            got=groups,
            expected=f"a divisor of num_moe_experts = {experts}",
        )
    if not 1 <= chosen <= groups or chosen * (experts // groups) < spec.moe_router_topk:
        raise InputError(
            "is no number of groups that hold as many experts as a token goes to",
            where="moe_router_group_topk",
            got=chosen,
            expected=f"1 to moe_router_num_groups = {groups}, with moe_router_topk = "
            f"{spec.moe_router_topk} experts or more",
        )


def _check_depths(spec: Any) -> None:
    """Refuse multi-token prediction where there is no next token."""
    others = {"bert", "t5", "vit"}
    if spec.mtp_num_layers and (spec.family in others or not spec.causal):
        raise InputError(
            "belongs to decoders, which predict the next token",
            where="mtp_num_layers",
            got=spec.mtp_num_layers,
            expected=f"0 without causal = true, and in {', '.join(sorted(others))}",
        )

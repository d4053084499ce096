"""What goes together in experts, latent attention, Llama 4, Mamba-2, T5 and ViTs.

The checks of `estimators.models.spec` that one architecture alone has.
"""

from collections.abc import Mapping
from typing import Any

from estimators.models.limits import (
    IMAGE_SIZES,
    LATENT_WIDTHS,
    MAMBA_SIZES,
    MAX_ELEMENTS,
)
from topologies.errors import InputError


def check_special(spec: Any, pattern: tuple[str, ...]) -> None:
    """Refuse what an architecture cannot have, and sizes of others in it.

    Parameters
    ----------
    spec
        The `TransformerSpec`, its defaults resolved.
    pattern
        The blocks of an encoder and decoder of this depth; empty if there is none.

    Raises
    ------
    InputError
        With the field's name, what it has and what is expected.
    """
    _check_chunks(spec)
    _check_mamba(spec)
    _check_images(spec)
    _check_decoder(spec, pattern)


def check_latent(spec: Any) -> None:
    """Refuse what latent attention does not have, and its widths without it.

    Raises
    ------
    InputError
        With the field that does not fit.
    """
    if not spec.kv_lora_rank:
        given = [name for name in LATENT_WIDTHS if getattr(spec, name)]
        if given:
            raise InputError(
                "belongs to multi-head latent attention",
                where=given[0],
                got=getattr(spec, given[0]),
                expected="0, or kv_lora_rank beside it",
            )
        return
    needed = {
        "position_embedding_type": "rope",
        "attention_implementation": "flash",
        "num_query_groups": spec.num_attention_heads,
        "add_bias_linear": False,
        "add_qkv_bias": False,
    }
    for name, value in needed.items():
        if getattr(spec, name) != value:
            raise InputError(
                "does not go with kv_lora_rank",
                where=name,
                got=getattr(spec, name),
                expected=f"{value} with multi-head latent attention",
            )
    if spec.qk_pos_emb_head_dim < 1 or spec.qk_pos_emb_head_dim % 2:
        raise InputError(
            "rotary embeddings turn pairs of channels",
            where="qk_pos_emb_head_dim",
            got=spec.qk_pos_emb_head_dim,
            expected="an even number, e.g. 64",
        )


def _check_chunks(spec: Any) -> None:
    """Refuse chunks that no block has, or that do not fill a sequence."""
    chunk, length = spec.attention_chunk_size, spec.sequence_length
    kinds = spec.block_kinds.values()
    if any(kind.startswith("chunked") for kind in kinds) != (chunk > 0):
        raise InputError(
            "chunks and blocks with them go together",
            where="attention_chunk_size",
            got=chunk,
            expected="1, 2, ... if a block of block_pattern is chunked, else 0",
        )
    if chunk and length > chunk and length % chunk:
        raise InputError(
            "is no whole number of chunks",
            where="sequence_length",
            got=length,
            expected=f"a multiple of attention_chunk_size = {chunk}",
        )
    if chunk and not (spec.attention_implementation == "flash" and spec.causal):
        raise InputError(
            "needs a fused kernel that looks back",
            where="attention_chunk_size",
            got=chunk,
            expected='0, or attention_implementation = "flash" and causal = true',
        )


def _check_mamba(spec: Any) -> None:
    if not spec.has_mamba:
        _refuse_sizes(spec, tuple(MAMBA_SIZES), 'a block of kind "mamba" beside it')
        return
    if spec.family in {"bert", "t5", "vit"}:
        raise InputError(
            "has no Mamba-2 layers",
            where="family",
            got=spec.family,
            expected='"mamba"',
        )
    heads, groups = spec.mamba_num_heads, spec.mamba_num_groups
    if heads < 1 or heads % groups:
        raise InputError(
            "does not divide mamba_num_heads",
            where="mamba_num_groups",
            got=groups,
            expected=f"a divisor of mamba_num_heads = {heads}",
        )
    width, state = spec.mamba_width, spec.mamba_state_dim
    _check_elements(
        spec,
        {
            "mamba_num_heads x mamba_head_dim x hidden_size": 2
            * width
            * spec.hidden_size,
            "mamba_num_heads x mamba_head_dim x mamba_state_dim": width * state,
            "mamba_num_groups x mamba_state_dim x hidden_size": 2
            * groups
            * state
            * spec.hidden_size,
            "sequence_length x mamba_num_heads x mamba_head_dim": spec.sequence_length
            * (2 * width + width * state // spec.mamba_chunk_size),
            "sequence_length x mamba_chunk_size x mamba_num_groups": groups
            * spec.sequence_length
            * max(spec.mamba_chunk_size, state),
        },
    )


def _check_images(spec: Any) -> None:
    if spec.family != "vit":
        _refuse_sizes(spec, IMAGE_SIZES, 'family = "vit" beside it')
        return
    image, patch = spec.image_size, spec.patch_size
    if not patch or image < patch or image % patch:
        raise InputError(
            "patches do not fill an image",
            where="patch_size",
            got=patch,
            expected=f"a divisor of image_size = {image}",
        )
    tokens = (image // patch) ** 2 + 1
    if spec.sequence_length != tokens:
        raise InputError(
            "follows from the image",
            where="sequence_length",
            got=spec.sequence_length,
            expected=f"(image_size / patch_size)^2 + 1 = {tokens}",
        )
    _need(
        spec,
        causal=False,
        position_embedding_type="learned",
        max_position_embeddings=tokens,
        tie_word_embeddings=False,
        block_pattern=(),
    )


def _check_decoder(spec: Any, pattern: tuple[str, ...]) -> None:
    relative = spec.position_embedding_type == "relative"
    if not spec.has_decoder:
        _refuse_sizes(spec, ("decoder_sequence_length",), 'family = "t5" beside it')
        if relative:
            raise InputError(
                "belongs to an encoder and a decoder",
                where="position_embedding_type",
                got=spec.position_embedding_type,
                expected='"learned", "rope" or "none", or family = "t5" beside it',
            )
        return
    _need(
        spec,
        block_pattern=pattern,
        position_embedding_type="relative",
        causal=True,
        num_query_groups=spec.num_attention_heads,
        add_bias_linear=False,
        add_qkv_bias=False,
        kv_lora_rank=0,
    )
    longest = max(spec.sequence_length, spec.decoder_sequence_length)
    heads = spec.num_attention_heads
    _check_elements(
        spec,
        {
            "num_attention_heads x sequence_length^2": heads * longest**2,
            "decoder_sequence_length x vocab_size": spec.decoder_sequence_length
            * spec.vocab_size,
            "decoder_sequence_length x ffn_hidden_size": 2
            * spec.decoder_sequence_length
            * spec.ffn_hidden_size,
        },
    )


def _refuse_sizes(spec: Any, names: tuple[str, ...], beside: str) -> None:
    """Refuse the first size that belongs to another architecture."""
    for name in names:
        if getattr(spec, name):
            raise InputError(
                "belongs to another architecture",
                where=name,
                got=getattr(spec, name),
                expected=f"0, or {beside}",
            )


def _need(spec: Any, **values: object) -> None:
    for name, value in values.items():
        if getattr(spec, name) != value:
            raise InputError(
                f"does not go with family {spec.family}",
                where=name,
                got=getattr(spec, name),
                expected=str(value),
            )


def _check_elements(spec: Any, made: Mapping[str, int]) -> None:
    """Refuse sizes that together make a tensor that nobody can count."""
    sizes, most = max(made.items(), key=lambda item: item[1])
    if most > MAX_ELEMENTS:
        name = sizes.partition(" ")[0]
        raise InputError(
            f"makes a tensor of {float(most):.2g} elements, by {sizes}",
            where=name,
            got=getattr(spec, name),
            expected=f"sizes whose product is at most {float(MAX_ELEMENTS):.2g}",
        )


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

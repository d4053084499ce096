"""Mixtures of experts: a feed-forward layer that is a router and several experts.

Experts that all tokens share stand beside the routed ones as one feed-forward layer.

Each token goes to its ``topk`` best experts. Experts are spread over the
expert-parallel group and split over the tensor-parallel group; tokens travel to them
and back (Megatron-LM's all-to-all dispatcher).

References
----------
.. [1] Jiang et al., "Mixtral of Experts", 2024.
"""

import torch
from torch import Tensor, nn

from estimators.models.layers import MLP
from estimators.models.spec import TransformerSpec


class GroupedLinear(nn.Module):
    """One linear layer for each expert, on rows that are sorted by expert."""

    def __init__(self, num_experts: int, in_features: int, out_features: int) -> None:
        super().__init__()
        weight = torch.empty(num_experts, out_features, in_features)
        self.weight = nn.Parameter(nn.init.normal_(weight, std=0.02))

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Return one result per row; `counts` says how many rows each expert has."""
        if rows.is_meta:  # counts have no values: the shape is all there is to know
            return rows.new_empty(rows.shape[0], self.weight.shape[1])
        parts = torch.split(rows, counts.tolist())
        results = [part @ w.t() for part, w in zip(parts, self.weight, strict=True)]
        return torch.cat(results)


class ExpertColumnLinear(GroupedLinear):
    """Experts' first layer: output features are split over the tensor group."""


class ExpertRowLinear(GroupedLinear):
    """Experts' second layer: input features are split over the tensor group."""


class TopK(nn.Module):
    """Choose experts: softmax over all, best ones, weights that add up to one."""

    def __init__(self, topk: int) -> None:
        super().__init__()
        self.topk = topk

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights and expert numbers: (tokens, topk)."""
        weights, experts = logits.softmax(-1).topk(self.topk, -1)
        return weights / weights.sum(-1, keepdim=True), experts


class TokenDispatch(nn.Module):
    """Copy each token to its experts, sorted by expert."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.num_experts = num_experts

    def forward(self, tokens: Tensor, experts: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows (tokens x topk, hidden) and how many of them each expert has."""
        order = experts.flatten().argsort(stable=True)
        numbers = torch.arange(self.num_experts, device=experts.device)
        counts = (experts.flatten()[:, None] == numbers).sum(0)
        return tokens[order // experts.shape[-1]], counts


class TokenCombine(nn.Module):
    """Bring the experts' results back and add them up, weighted."""

    def forward(self, rows: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        """Return one result per token."""
        back = experts.flatten().argsort(stable=True).argsort()
        chosen = rows[back].view(*experts.shape, -1)
        return (chosen * weights[..., None]).sum(-2)


class MoELayer(nn.Module):
    """Router, dispatch, SwiGLU experts, combine; beside them those of all tokens."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        experts, width = spec.num_moe_experts, spec.moe_ffn_hidden_size
        self.router = nn.Linear(spec.hidden_size, experts, bias=False)
        self.topk = TopK(spec.moe_router_topk)
        self.dispatch = TokenDispatch(experts)
        self.linear_fc1 = ExpertColumnLinear(experts, spec.hidden_size, 2 * width)
        self.activation = nn.SiLU()
        self.linear_fc2 = ExpertRowLinear(experts, width, spec.hidden_size)
        self.combine = TokenCombine()
        shared = spec.moe_shared_expert_intermediate_size
        self.shared_experts = MLP(spec, shared) if shared else None

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        tokens = hidden.flatten(0, 1)
        weights, experts = self.topk(self.router(tokens))
        rows, counts = self.dispatch(tokens, experts)
        gate, up = self.linear_fc1(rows, counts).chunk(2, -1)
        rows = self.linear_fc2(self.activation(gate) * up, counts)
        output: Tensor = self.combine(rows, weights, experts).view_as(hidden)
        if self.shared_experts is not None:
            output = output + self.shared_experts(hidden)
        return output

"""Feed-forward layers of experts: a router, several experts, and those of all tokens.

Each token goes to its ``topk`` best experts [1]_. Experts are spread over the
expert-parallel group and split over the tensor-parallel group; tokens travel to them
and back (Megatron-LM's all-to-all dispatcher). Experts that all tokens share [2]_ stand
beside the routed ones as one feed-forward layer, whose result Qwen's models weigh by a
gate [3]_. With ``add_bias_linear`` experts and router have biases [4]_; the clamps of
GPT-OSS's SwiGLU are part of its kernel.

Routers differ in what scores are made of, in whether weights add up to one, and in
which experts may be chosen together: for one token those of a few groups only [5]_, so
that few devices or nodes hear of it.

References
----------
.. [1] Jiang et al., "Mixtral of Experts", 2024.
.. [2] Dai et al., "DeepSeekMoE", 2024, section 3.
.. [3] Qwen Team, "Qwen1.5-MoE", 2024; ``Qwen2MoeSparseMoeBlock`` of transformers.
.. [4] OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", 2025; ``GptOssExperts`` of
   transformers.
.. [5] DeepSeek-AI, "DeepSeek-V2", 2024, section 2.2.2, and "DeepSeek-V3 Technical
   Report", 2024, section 2.1.2, which has sigmoids and biases, too.
"""

import torch
from torch import Tensor, nn

from estimators.models.layers import MLP
from estimators.models.spec import TransformerSpec


class GroupedLinear(nn.Module):
    """One linear layer for each expert, on rows that are sorted by expert."""

    bias: Tensor | None

    def __init__(
        self, num_experts: int, in_features: int, out_features: int, *, bias: bool
    ) -> None:
        super().__init__()
        weight = torch.empty(num_experts, out_features, in_features)
        self.weight = nn.Parameter(nn.init.normal_(weight, std=0.02))
        biases = nn.Parameter(torch.zeros(num_experts, out_features)) if bias else None
        self.register_parameter("bias", biases)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Return one result per row; `counts` says how many rows each expert has."""
        if rows.is_meta:  # counts have no values: the shape is all there is to know
            return rows.new_empty(rows.shape[0], self.weight.shape[1])
        parts = torch.split(rows, counts.tolist())
        results = [part @ w.t() for part, w in zip(parts, self.weight, strict=True)]
        if self.bias is not None:
            biased = zip(results, self.bias, strict=True)
            results = [result + bias for result, bias in biased]
        return torch.cat(results)


class ExpertColumnLinear(GroupedLinear):
    """Experts' first layer: output features are split over the tensor group."""


class ExpertRowLinear(GroupedLinear):
    """Experts' second layer: input features are split over the tensor group."""


class TopK(nn.Module):
    """Choose experts by their scores, and weigh them.

    Scores are a softmax over all experts, or each expert's own sigmoid. Weights are
    those of the chosen ones, made to add up to one unless the softmax comes before the
    choice. The bias of an expert changes which are chosen and not their weight: it is
    set from their load, no gradient reaches it, and it is no parameter.

    Parameters
    ----------
    topk
        Experts of one token.
    sigmoid
        Whether scores are sigmoids.
    pre_softmax
        Whether weights stay what they are among all experts.
    groups
        Groups of experts, and how many of them a token may use; zeros for no groups.
    num_biased
        Experts, if they have biases; else 0.
    """

    expert_bias: Tensor | None

    def __init__(
        self,
        topk: int,
        *,
        sigmoid: bool = False,
        pre_softmax: bool = False,
        groups: tuple[int, int] = (0, 0),
        num_biased: int = 0,
    ) -> None:
        super().__init__()
        self.topk, self.sigmoid, self.groups = topk, sigmoid, groups
        self.normalized = not (pre_softmax or (sigmoid and topk == 1))
        bias = torch.zeros(num_biased) if num_biased else None
        self.register_buffer("expert_bias", bias)

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights and expert numbers: (tokens, topk)."""
        scores = logits.sigmoid() if self.sigmoid else logits.softmax(-1)
        wanted = scores if self.expert_bias is None else scores + self.expert_bias
        experts = self._within_groups(wanted).topk(self.topk, -1).indices
        weights = scores.gather(-1, experts)
        if self.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights, experts

    def _within_groups(self, wanted: Tensor) -> Tensor:
        """Leave the experts of the best groups only.

        A group is as good as its best ``topk / chosen`` experts together.
        """
        groups, chosen = self.groups
        if not groups:
            return wanted
        by_group = wanted.view(*wanted.shape[:-1], groups, -1)
        best = by_group.topk(max(self.topk // chosen, 1), -1).values.sum(-1)
        kept = torch.zeros_like(best).scatter(-1, best.topk(chosen, -1).indices, 1.0)
        left_out = (kept == 0.0)[..., None].expand_as(by_group).flatten(-2)
        return wanted.masked_fill(left_out, float("-inf"))


def build_router(spec: TransformerSpec) -> TopK:
    """Return the choice of experts that the architecture asks for."""
    return TopK(
        spec.moe_router_topk,
        sigmoid=spec.moe_router_score_function == "sigmoid",
        pre_softmax=spec.moe_router_pre_softmax,
        groups=(spec.moe_router_num_groups, spec.moe_router_group_topk),
        num_biased=spec.num_moe_experts if spec.moe_router_enable_expert_bias else 0,
    )


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


class SharedExperts(nn.Module):
    """The experts of all tokens as one feed-forward layer, weighed by a gate."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.mlp = MLP(spec, spec.moe_shared_expert_intermediate_size)
        self.gate = nn.Linear(spec.hidden_size, 1, bias=False)
        self.gate_activation = nn.Sigmoid()

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        output: Tensor = self.mlp(hidden) * self.gate_activation(self.gate(hidden))
        return output


class MoELayer(nn.Module):
    """Router, dispatch, SwiGLU experts, combine; beside them those of all tokens."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        experts, width = spec.num_moe_experts, spec.moe_ffn_hidden_size
        hidden, bias = spec.hidden_size, spec.add_bias_linear
        self.router = nn.Linear(hidden, experts, bias=bias)
        self.topk = build_router(spec)
        self.dispatch = TokenDispatch(experts)
        self.linear_fc1 = ExpertColumnLinear(experts, hidden, 2 * width, bias=bias)
        self.activation = nn.SiLU()
        self.linear_fc2 = ExpertRowLinear(experts, width, hidden, bias=bias)
        self.combine = TokenCombine()
        self.shared_experts = _shared_experts(spec)

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


def _shared_experts(spec: TransformerSpec) -> nn.Module | None:
    width = spec.moe_shared_expert_intermediate_size
    if not width:
        return None
    return SharedExperts(spec) if spec.moe_shared_expert_gate else MLP(spec, width)

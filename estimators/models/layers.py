"""The parts that models are made of, as torch modules: linears, experts, Mamba-2.

Every module computes what its plain counterpart computes on one device. What a class
adds is how Megatron-LM splits it over a tensor-parallel group: a linear layer is
*column parallel* (its output features are split), *row parallel* (its input features
are), or neither. The tracer reads the classes; the numbers per device follow in
`estimators.layers.sharding`. Hidden states have the shape (batch, sequence, hidden).

Feed-forward layers of experts: a router, several experts, and those of all tokens.

Each token goes to its ``topk`` best experts [2]_. Experts are spread over the
expert-parallel group and split over the tensor-parallel group; tokens travel to them
and back (Megatron-LM's all-to-all dispatcher). Experts that all tokens share [3]_ stand
beside the routed ones as one feed-forward layer, whose result Qwen's models weigh by a
gate [4]_. With ``add_bias_linear`` experts and router have biases [5]_; the clamps of
GPT-OSS's SwiGLU are part of its kernel.

Routers differ in what scores are made of, in whether weights add up to one, and in
which experts may be chosen together: for one token those of a few groups only [6]_, so
that few devices or nodes hear of it.

Mamba-2: a mixer that keeps a state of fixed size in place of keys and values.

One product makes gates ``z``, values ``x``, input and output maps ``B`` and ``C`` of
the state, and steps ``dt``; a short depthwise convolution runs over x, B and C; the
scan turns them into ``y``, in chunks [7]_; a norm over each group and one product
follow. Heads, and the groups that share B and C, are split over a tensor-parallel
group, as in Megatron Core's ``MambaMixer``; a scan is not split along the sequence.

References
----------
.. [1] Shoeybi et al., "Megatron-LM", 2019, section 3.
.. [2] Jiang et al., "Mixtral of Experts", 2024.
.. [3] Dai et al., "DeepSeekMoE", 2024, section 3.
.. [4] Qwen Team, "Qwen1.5-MoE", 2024; ``Qwen2MoeSparseMoeBlock`` of transformers.
.. [5] OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", 2025; ``GptOssExperts`` of
   transformers.
.. [6] DeepSeek-AI, "DeepSeek-V2", 2024, section 2.2.2, and "DeepSeek-V3 Technical
   Report", 2024, section 2.1.2, which has sigmoids and biases, too.
.. [7] Dao and Gu, "Transformers are SSMs", 2024, section 6 and listing 1.
.. [8] Huang and Schlag, "Deriving Activation Functions Using Integration", 2024,
   arXiv:2411.13010; ``XIELUActivation`` of transformers.
.. [9] Meituan LongCat Team, "LongCat-Flash Technical Report", 2025, section 2.1;
   ``LongcatFlashExperts`` of transformers.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from estimators.models.limits import CONVOLUTION_WIDTH
from estimators.models.spec import TransformerSpec
from estimators.models.vocabulary import F, Tensor, nn, torch


class ColumnParallelLinear(nn.Linear):
    """A linear layer whose output features are split."""


class RowParallelLinear(nn.Linear):
    """A linear layer whose input features are split; partial results are summed."""


class VocabParallelLinear(nn.Linear):
    """The output layer: column parallel, over the padded vocabulary."""


class VocabParallelEmbedding(nn.Embedding):
    """A word embedding whose rows are split; partial results are summed."""


class PositionEmbedding(nn.Embedding):
    """Learned vectors, added to the hidden states of each position."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        return hidden + self.weight[: hidden.shape[1]]


class RMSNorm(nn.Module):
    """Root mean square norm (Zhang and Sennrich, 2019), with weights or without."""

    weight: Tensor | None

    def __init__(self, width: int, eps: float = 1e-5, *, affine: bool = True) -> None:
        super().__init__()
        weight = nn.Parameter(torch.ones(width)) if affine else None
        self.register_parameter("weight", weight)
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states at unit root mean square, scaled."""
        scale = torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.eps)
        return hidden * scale if self.weight is None else hidden * scale * self.weight


class Alone(nn.Module):
    """A module or function by itself, as what is measured."""

    def __init__(self, part: Callable[..., Tensor | tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.part = part

    def forward(self, *given: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return what it makes of some tensors."""
        return self.part(*given)


def build_norm(spec: TransformerSpec, width: int = 0) -> nn.Module:
    """Return the norm that the architecture asks for, by default of hidden states."""
    width = width or spec.hidden_size
    affine = spec.layernorm_affine
    if spec.normalization == "rmsnorm":
        return RMSNorm(width, affine=affine)
    return nn.LayerNorm(width, elementwise_affine=affine, bias=spec.layernorm_bias)


class SquaredReLU(nn.Module):
    """The square of a ReLU (So et al., "Primer", 2021, section 4.1)."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        return F.relu(hidden).square()


class XIELU(nn.Module):
    """An ELU times a ramp, both halves of slopes that it learns [8]_."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p = nn.Parameter(torch.full((1,), 0.8))
        self.alpha_n = nn.Parameter(torch.full((1,), 0.8))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        rising = F.softplus(self.alpha_p) * hidden.square() + 0.5 * hidden
        bent = torch.expm1(torch.clamp(hidden, max=-1e-6)) - hidden
        falling = (0.5 + F.softplus(self.alpha_n)) * bent + 0.5 * hidden
        return torch.where(hidden > 0, rising, falling)


class SoftCap(nn.Module):
    """Bend values below a bound: ``c tanh(x / c)`` (Gemma 2, 2024, section 2)."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound

    def forward(self, values: Tensor) -> Tensor:
        """Return values of the same shape."""
        return self.bound * torch.tanh(values / self.bound)


class Scale(nn.Module):
    """Multiply by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        return hidden * self.factor


ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {
        "gelu": nn.GELU,
        "silu": nn.SiLU,
        "relu": nn.ReLU,
        "squared_relu": SquaredReLU,
        "xielu": XIELU,
    }
)
"""`TransformerSpec.nonlinearity` -> its module."""


class MLP(nn.Module):
    """Feed-forward layer; gated ones have both halves in one product.

    Its inner width is the architecture's if none is given.
    """

    def __init__(self, spec: TransformerSpec, width: int = 0) -> None:
        super().__init__()
        self.gated = spec.gated_linear_unit
        width, bias = width or spec.ffn_hidden_size, spec.has_mlp_bias
        self.linear_fc1 = ColumnParallelLinear(
            spec.hidden_size, width * (2 if self.gated else 1), bias=bias
        )
        self.activation = ACTIVATIONS[spec.nonlinearity]()
        self.linear_fc2 = RowParallelLinear(width, spec.hidden_size, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        hidden = self.linear_fc1(hidden)
        if self.gated:
            gate, up = hidden.chunk(2, -1)
            hidden = self.activation(gate) * up
        else:
            hidden = self.activation(hidden)
        output: Tensor = self.linear_fc2(hidden)
        return output


class Concatenation(nn.Module):
    """Put tensors side by side along one axis."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return both as one tensor."""
        return torch.cat((first, second), self.axis)


class CrossEntropy(nn.Module):
    """Loss in fp32 over a vocabulary that may be split (Megatron-LM's)."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss."""
        return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


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
        num_biased=spec.moe_router_enable_expert_bias
        * (spec.num_moe_experts + spec.moe_num_zero_experts),
    )


class TokenDispatch(nn.Module):
    """Copy each token to its experts, sorted by expert; to those without work not.

    Of those it is sent to as many as there are among all, on average.
    """

    def __init__(self, num_experts: int, num_zero: int = 0) -> None:
        super().__init__()
        self.num_experts, self.num_zero = num_experts, num_zero

    def forward(self, tokens: Tensor, experts: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows (tokens x topk, hidden) and how many of them each expert has."""
        order = experts.flatten().argsort(stable=True)
        numbers = torch.arange(self.num_experts, device=experts.device)
        counts = (experts.flatten()[:, None] == numbers).sum(0)
        if self.num_zero:  # their numbers come last
            every = self.num_experts + self.num_zero
            mean = experts.numel() * self.num_experts // every
            order = order[: mean if order.is_meta else int(counts.sum())]
        return tokens[order // experts.shape[-1]], counts


class TokenCombine(nn.Module):
    """Bring the experts' results back and add them up, weighted."""

    def forward(self, rows: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        """Return one result per token."""
        back = experts.flatten().argsort(stable=True).argsort()
        stayed = experts.numel() - rows.shape[0]
        rows = torch.cat((rows, rows.new_zeros(stayed, rows.shape[1])))
        chosen = rows[back].view(*experts.shape, -1)
        return (chosen * weights[..., None]).sum(-2)


class IdentityExperts(nn.Module):
    """Experts that return a token as it came [9]_, added up, weighted."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.num_experts = num_experts

    def forward(self, tokens: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        """Return one result per token."""
        stay = weights * (experts >= self.num_experts)
        return tokens * stay.sum(-1, keepdim=True)


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
    """Router, dispatch, experts, combine; beside them those of all tokens.

    Experts are gated by SiLU, or not gated, as the architecture's feed-forward layers.
    """

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        experts, width = spec.num_moe_experts, spec.moe_ffn_hidden_size
        hidden, bias = spec.hidden_size, spec.add_bias_linear
        num_zero = spec.moe_num_zero_experts
        self.router = nn.Linear(hidden, experts + num_zero, bias=bias)
        self.topk = build_router(spec)
        self.dispatch = TokenDispatch(experts, num_zero)
        self.gated = spec.gated_linear_unit
        inner = 2 * width if self.gated else width
        self.linear_fc1 = ExpertColumnLinear(experts, hidden, inner, bias=bias)
        self.activation = nn.SiLU() if self.gated else ACTIVATIONS[spec.nonlinearity]()
        self.linear_fc2 = ExpertRowLinear(experts, width, hidden, bias=bias)
        self.combine = TokenCombine()
        self.identity = IdentityExperts(experts) if num_zero else None
        self.shared_experts = _shared_experts(spec)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        tokens = hidden.flatten(0, 1)
        weights, experts = self.topk(self.router(tokens))
        rows, counts = self.dispatch(tokens, experts)
        inner = self.linear_fc1(rows, counts)
        if self.gated:
            gate, up = inner.chunk(2, -1)
            inner = self.activation(gate) * up
        else:
            inner = self.activation(inner)
        rows = self.linear_fc2(inner, counts)
        combined = self.combine(rows, weights, experts)
        if self.identity is not None:
            combined = combined + self.identity(tokens, weights, experts)
        output: Tensor = combined.view_as(hidden)
        if self.shared_experts is not None:
            output = output + self.shared_experts(hidden)
        return output


def _shared_experts(spec: TransformerSpec) -> nn.Module | None:
    width = spec.moe_shared_expert_intermediate_size
    if not width:
        return None
    return SharedExperts(spec) if spec.moe_shared_expert_gate else MLP(spec, width)


class GroupedRMSNorm(nn.Module):
    """Root mean square norm over each of several groups of channels."""

    def __init__(self, width: int, num_groups: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.num_groups, self.eps = num_groups, eps

    def forward(self, hidden: Tensor) -> Tensor:
        """Return each group at unit root mean square, scaled."""
        groups = hidden.view(*hidden.shape[:-1], self.num_groups, -1)
        scale = torch.rsqrt(groups.square().mean(-1, keepdim=True) + self.eps)
        output: Tensor = (groups * scale).flatten(-2) * self.weight
        return output


class ChunkedScan(nn.Module):
    """Convolution, scan and gate: one fused function of Mamba's kernels [7]_."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.num_heads, self.head_dim = spec.mamba_num_heads, spec.mamba_head_dim
        self.num_groups, self.state_dim = spec.mamba_num_groups, spec.mamba_state_dim
        self.chunk_size = spec.mamba_chunk_size
        convolved = spec.mamba_width + 2 * self.num_groups * self.state_dim
        self.widths = [spec.mamba_width, convolved, self.num_heads]
        self.conv1d_weight = nn.Parameter(torch.empty(convolved, 1, CONVOLUTION_WIDTH))
        nn.init.uniform_(self.conv1d_weight, -0.5, 0.5)
        self.conv1d_bias = nn.Parameter(torch.zeros(convolved))
        self.dt_bias = nn.Parameter(torch.zeros(self.num_heads))
        self.A_log = nn.Parameter(torch.zeros(self.num_heads))
        self.D = nn.Parameter(torch.ones(self.num_heads))

    def forward(self, projected: Tensor) -> Tensor:
        """Return gated results (batch, sequence, heads x head)."""
        if projected.is_meta:  # shapes are all there is to know
            return projected.new_empty(*projected.shape[:2], self.widths[0])
        gate, convolved, step = torch.split(projected, self.widths, -1)
        length, reach = projected.shape[1], CONVOLUTION_WIDTH - 1
        convolved = F.conv1d(
            convolved.transpose(1, 2),
            self.conv1d_weight,
            self.conv1d_bias,
            padding=reach,
            groups=self.widths[1],
        )[..., :length]
        convolved = F.silu(convolved.transpose(1, 2))
        maps = self.num_groups * self.state_dim
        values, inward, outward = torch.split(
            convolved, [self.widths[0], maps, maps], -1
        )
        values = values.reshape(*values.shape[:2], self.num_heads, self.head_dim)
        result = self._scan(
            values, F.softplus(step + self.dt_bias), self._maps(inward, outward)
        )
        result = result + values * self.D[:, None]
        output: Tensor = result.flatten(-2) * F.silu(gate)
        return output

    def _maps(self, *flat: Tensor) -> list[Tensor]:
        """Return a map for each head: (batch, sequence, heads, state)."""
        shared = self.num_heads // self.num_groups
        shape = (*flat[0].shape[:2], self.num_groups, self.state_dim)
        return [part.reshape(shape).repeat_interleave(shared, 2) for part in flat]

    def _scan(self, values: Tensor, step: Tensor, maps: list[Tensor]) -> Tensor:
        """Return what the state gives out: (batch, sequence, heads, head).

        Within a chunk a product of masked scores, between chunks by the state.
        """
        inward, outward = maps
        state = values.new_zeros(
            values.shape[0], self.num_heads, self.head_dim, self.state_dim
        )
        results = []
        for x, dt, b, c in zip(
            *(
                torch.split(part, self.chunk_size, 1)
                for part in (values, step, inward, outward)
            ),
            strict=True,
        ):
            decay = (-dt * self.A_log.exp()).cumsum(1)
            scores = torch.einsum("bqhn,bkhn->bhqk", c, b)
            past = (decay[:, :, None] - decay[:, None]).permute(0, 3, 1, 2)
            scores = scores * past.exp().tril()
            moved = x * dt[..., None]
            results.append(
                torch.einsum("bhqk,bkhp->bqhp", scores, moved)
                + torch.einsum("bqhn,bhpn->bqhp", c * decay.exp()[..., None], state)
            )
            left = (decay[:, -1:] - decay).exp()[..., None]
            state = state * decay[:, -1].exp()[..., None, None]
            state = state + torch.einsum("bkhp,bkhn->bhpn", moved, b * left)
        return torch.cat(results, 1)


class MambaMixer(nn.Module):
    """Projection, chunked scan, norm, projection back."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.scan = ChunkedScan(spec)
        self.in_proj = ColumnParallelLinear(
            spec.hidden_size, sum(self.scan.widths), bias=False
        )
        self.norm = (
            GroupedRMSNorm(spec.mamba_width, spec.mamba_num_groups)
            if spec.mamba_rms_norm
            else nn.Identity()
        )
        self.out_proj = RowParallelLinear(
            spec.mamba_width, spec.hidden_size, bias=False
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        output: Tensor = self.out_proj(self.norm(self.scan(self.in_proj(hidden))))
        return output

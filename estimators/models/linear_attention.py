"""Linear attention as torch modules: delta nets, and lightning attention.

A head keeps a state of ``K x V`` numbers in place of all keys and values. Each token
lets it decay, writes to it, and reads it.

The gated delta net [1]_ of Qwen3-Next and Qwen3.5: one product makes queries, keys,
values, a gate of what is read, and two numbers for each head of values, the strength
of what is written and the decay. A short depthwise convolution runs over queries, keys
and values; queries and keys become unit vectors, and are repeated where several heads
of values share them; the delta rule writes what is new in a value; a norm of each head
and the gate follow. Heads are split over a tensor-parallel group. Ranks of a
context-parallel group exchange tokens for heads before the convolution and back behind
the norm, as Megatron Core's ``GatedDeltaNet`` does: a rank then works on whole
sequences, and no state is handed from rank to rank.

Kimi Delta Attention [2]_ has a decay of each channel of a key, which two narrow
products make, as two others do the gate.

Lightning attention [3]_ of MiniMax-01 has a fixed decay of each head, no convolution,
and a norm of all heads together.

References
----------
.. [1] Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024; Megatron Core,
   ``core/ssm/gated_delta_net``; ``Qwen3NextGatedDeltaNet`` of transformers.
.. [2] Kimi Team, "Kimi Linear", 2025, section 3; ``KimiLinearDeltaAttention`` of
   transformers.
.. [3] MiniMax, "MiniMax-01", 2025, section 2.2; ``MiniMaxLightningAttention`` of
   transformers.
"""

from estimators.models.layers import (
    ColumnParallelLinear,
    GroupedRMSNorm,
    RowParallelLinear,
)
from estimators.models.limits import CONVOLUTION_WIDTH
from estimators.models.spec import TransformerSpec
from estimators.models.vocabulary import F, Tensor, nn, torch


def recurrence(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor | None
) -> Tensor:
    """Return what a state gives out, token by token: (batch, tokens, heads, value).

    Parameters
    ----------
    query, key, value
        Of each head, shape (batch, tokens, heads, width).
    decay
        Factor of the state before a token writes, for each channel of a key, or of
        width 1 for all.
    beta
        How much of what is new in a value is written, (batch, tokens, heads); None to
        write all of the value.
    """
    state = value.new_zeros(*key.shape[:1], *key.shape[2:], value.shape[-1])
    results = []
    for token in range(query.shape[1]):
        q, k, v = query[:, token], key[:, token], value[:, token]
        state = state * decay[:, token][..., None]
        if beta is not None:
            known = torch.einsum("bhk,bhkv->bhv", k, state)
            v = (v - known) * beta[:, token][..., None]
        state = state + k[..., None] * v[..., None, :]
        results.append(torch.einsum("bhk,bhkv->bhv", q, state))
    return torch.stack(results, 1)


class DeltaRule(nn.Module):
    """Convolution, unit vectors, decays and the delta rule.

    Parameters
    ----------
    spec
        The architecture.
    by_channel
        Whether each channel of a key has a decay, and not each head.
    """

    def __init__(self, spec: TransformerSpec, *, by_channel: bool = False) -> None:
        super().__init__()
        self.by_channel = by_channel
        self.num_keys = spec.linear_num_key_heads
        self.num_values = spec.linear_num_value_heads
        self.key, self.value = spec.linear_key_head_dim, spec.linear_value_head_dim
        keys, values = self.num_keys * self.key, self.num_values * self.value
        self.widths = [keys, keys, values]
        convolved = sum(self.widths)
        self.conv1d_weight = nn.Parameter(torch.empty(convolved, 1, CONVOLUTION_WIDTH))
        nn.init.uniform_(self.conv1d_weight, -0.5, 0.5)
        self.A_log = nn.Parameter(torch.zeros(self.num_values))
        steps = self.num_values * (self.key if by_channel else 1)
        self.dt_bias = nn.Parameter(torch.ones(steps))

    def forward(self, mixed: Tensor, beta: Tensor, decay: Tensor) -> Tensor:
        """Return what the heads read (batch, sequence, heads x value).

        Parameters
        ----------
        mixed
            Queries, keys and values side by side.
        beta, decay
            What strengths and decays are made of, for each head, or channel.
        """
        length = mixed.shape[1]
        if mixed.is_meta:  # shapes are all there is to know
            return mixed.new_empty(mixed.shape[0], length, self.widths[2])
        mixed = F.conv1d(
            mixed.transpose(1, 2),
            self.conv1d_weight,
            padding=CONVOLUTION_WIDTH - 1,
            groups=sum(self.widths),
        )[..., :length]
        query, key, value = (
            _heads(part, width)
            for part, width in zip(
                torch.split(F.silu(mixed.transpose(1, 2)), self.widths, -1),
                (self.key, self.key, self.value),
                strict=True,
            )
        )
        shared = self.num_values // self.num_keys
        query, key = (
            _unit(heads).repeat_interleave(shared, 2) for heads in (query, key)
        )
        steps = F.softplus(decay + self.dt_bias)
        steps = _heads(steps, steps.shape[-1] // self.num_values)
        factor = (-self.A_log.exp()[:, None] * steps).exp()
        result = recurrence(query * self.key**-0.5, key, value, factor, beta.sigmoid())
        return result.flatten(-2)


def _heads(flat: Tensor, width: int) -> Tensor:
    """Return heads of some width: (batch, sequence, heads, width)."""
    return flat.reshape(*flat.shape[:2], -1, width)


def _unit(heads: Tensor) -> Tensor:
    """Return vectors of unit length, as kernels of delta nets make them."""
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + 1e-6)


class GatedHeadNorm(nn.Module):
    """Root mean square norm of each head, times a gate."""

    def __init__(self, width: int, *, sigmoid: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.sigmoid = sigmoid

    def forward(self, heads: Tensor, gate: Tensor) -> Tensor:
        """Return normalised and gated heads (batch, sequence, heads x width)."""
        parts = _heads(heads, self.weight.numel())
        scale = torch.rsqrt(parts.square().mean(-1, keepdim=True) + 1e-6)
        weighed: Tensor = (parts * scale * self.weight).flatten(-2)
        opened: Tensor = gate.sigmoid() if self.sigmoid else F.silu(gate)
        return weighed * opened


class GatedDeltaNet(nn.Module):
    """Projection, delta rule, gated norm, projection back."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.delta = DeltaRule(spec)
        heads, values = self.delta.num_values, self.delta.widths[2]
        self.widths = [sum(self.delta.widths), values, heads, heads]
        self.in_proj = ColumnParallelLinear(
            spec.hidden_size, sum(self.widths), bias=False
        )
        self.out_norm = GatedHeadNorm(spec.linear_value_head_dim)
        self.out_proj = RowParallelLinear(values, spec.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        mixed, gate, beta, decay = self.in_proj(hidden).split(self.widths, -1)
        context = self.delta(mixed, beta, decay)
        output: Tensor = self.out_proj(self.out_norm(context, gate))
        return output


class KimiDeltaAttention(nn.Module):
    """A delta net whose decays of channels and gates two narrow products make each."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        hidden, narrow = spec.hidden_size, spec.linear_key_head_dim
        self.delta = DeltaRule(spec, by_channel=True)
        keys, values = self.delta.widths[1:]
        self.widths = [sum(self.delta.widths), self.delta.num_values]
        self.in_proj = ColumnParallelLinear(hidden, sum(self.widths), bias=False)
        self.decay_down = nn.Linear(hidden, narrow, bias=False)
        self.decay_up = ColumnParallelLinear(narrow, keys, bias=False)
        self.gate_down = nn.Linear(hidden, narrow, bias=False)
        self.gate_up = ColumnParallelLinear(narrow, values, bias=False)
        self.out_norm = GatedHeadNorm(spec.linear_value_head_dim, sigmoid=True)
        self.out_proj = RowParallelLinear(values, hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        mixed, beta = self.in_proj(hidden).split(self.widths, -1)
        decay = self.decay_up(self.decay_down(hidden))
        context = self.delta(mixed, beta, decay)
        gate = self.gate_up(self.gate_down(hidden))
        output: Tensor = self.out_proj(self.out_norm(context, gate))
        return output


class DecayingSum(nn.Module):
    """A state that decays by a constant of each head, and takes all of each value."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.num_heads, self.width = spec.num_attention_heads, spec.kv_channels

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return what the heads read (batch, sequence, heads x width)."""
        if query.is_meta:
            return torch.empty_like(query)
        query, key, value = (_heads(part, self.width) for part in (query, key, value))
        numbers = torch.arange(1, self.num_heads + 1, device=query.device)
        slopes = 2.0 ** (-8.0 * numbers / self.num_heads)
        factor = (-slopes[:, None]).exp().expand(*query.shape[:2], -1, 1)
        return recurrence(query, key, value, factor, None).flatten(-2)


class LightningAttention(nn.Module):
    """Projection, nonlinearity, decaying sum, norm, gate, projection back."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        width = spec.query_width
        self.widths = [3 * width, width]
        self.in_proj = ColumnParallelLinear(spec.hidden_size, 4 * width, bias=False)
        self.activation = nn.SiLU()
        self.decaying_sum = DecayingSum(spec)
        self.norm = GroupedRMSNorm(width, 1)
        self.gate_activation = nn.Sigmoid()
        self.out_proj = RowParallelLinear(width, spec.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        mixed, gate = self.in_proj(hidden).split(self.widths, -1)
        query, key, value = self.activation(mixed).chunk(3, -1)
        context = self.norm(self.decaying_sum(query, key, value))
        output: Tensor = self.out_proj(context * self.gate_activation(gate))
        return output

"""Mixers with a state as torch modules: linear attention, short convolutions, Mamba-1.

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

Mixers around a short convolution: LFM2's gated one, and Mamba-1's selective scan.

LFM2's mixer [4]_ is a depthwise convolution over a few tokens between two gates: one
product makes both gates and the values.

Mamba-1 [5]_ keeps a state of a few numbers for each channel. One product makes values
and a gate; a convolution follows; a second product makes of the values a narrow vector,
of which a third makes the step of each channel, and what all channels share: how the
state is written and read. Jamba [6]_ normalises these three, Falcon Mamba does so
without weights. Channels are split over a tensor-parallel group, which adds up the
narrow vectors: a second all-reduce of a layer, as Dao and Gu [7]_ say of Mamba-1.

Neither is split along the sequence: no framework hands the last tokens of a rank, or
the state, to the next rank.

References
----------
.. [1] Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024; Megatron Core,
   ``core/ssm/gated_delta_net``; ``Qwen3NextGatedDeltaNet`` of transformers.
.. [2] Kimi Team, "Kimi Linear", 2025, section 3; ``KimiLinearDeltaAttention`` of
   transformers.
.. [3] MiniMax, "MiniMax-01", 2025, section 2.2; ``MiniMaxLightningAttention`` of
   transformers.
.. [4] Liquid AI, "LFM2 Technical Report", 2025; ``Lfm2ShortConv`` of transformers.
.. [5] Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces",
   2023, section 3; ``MambaMixer`` of transformers.
.. [6] AI21, "Jamba: A Hybrid Transformer-Mamba Language Model", 2024;
   ``JambaMambaMixer`` and ``FalconMambaMixer`` of transformers.
.. [7] Dao and Gu, "Transformers are SSMs", 2024, section 8.1.
"""

from estimators.models.layers import (
    ColumnParallelLinear,
    GroupedRMSNorm,
    RMSNorm,
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


class CausalConvolution(nn.Module):
    """A convolution of each channel by itself, over a token and those before it."""

    bias: Tensor | None

    def __init__(self, channels: int, width: int, *, bias: bool) -> None:
        super().__init__()
        weight = torch.empty(channels, 1, width)
        self.weight = nn.Parameter(nn.init.uniform_(weight, -0.5, 0.5))
        biases = nn.Parameter(torch.zeros(channels)) if bias else None
        self.register_parameter("bias", biases)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        if hidden.is_meta:
            return torch.empty_like(hidden)
        channels, _, width = self.weight.shape
        flat = hidden.transpose(1, 2)
        result = F.conv1d(
            flat, self.weight, self.bias, padding=width - 1, groups=channels
        )
        return result[..., : hidden.shape[1]].transpose(1, 2)


class ShortConvolution(nn.Module):
    """Projection, gate, convolution, gate, projection back."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        hidden = spec.hidden_size
        self.in_proj = ColumnParallelLinear(hidden, 3 * hidden, bias=False)
        self.conv = CausalConvolution(hidden, spec.short_convolution_width, bias=False)
        self.out_proj = RowParallelLinear(hidden, hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        before, behind, values = self.in_proj(hidden).chunk(3, -1)
        output: Tensor = self.out_proj(behind * self.conv(before * values))
        return output


class SelectiveScan(nn.Module):
    """A state of each channel, and a gate: the fused function of Mamba's kernels."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        width, state = spec.selective_width, spec.selective_state_dim
        self.A_log = nn.Parameter(torch.zeros(width, state))
        self.D = nn.Parameter(torch.ones(width))

    def forward(
        self,
        values: Tensor,
        step: Tensor,
        inward: Tensor,
        outward: Tensor,
        gate: Tensor,
    ) -> Tensor:
        """Return gated results (batch, sequence, width).

        Parameters
        ----------
        values, gate
            Of each channel.
        step
            What steps are made of, of each channel.
        inward, outward
            How the state of all channels is written and read (batch, sequence, state).
        """
        if values.is_meta:
            return torch.empty_like(values)
        step = F.softplus(step)
        decay = (-self.A_log.exp() * step[..., None]).exp()
        added = (step * values)[..., None] * inward[:, :, None]
        state, results = torch.zeros_like(decay[:, 0]), []
        for token in range(values.shape[1]):
            state = state * decay[:, token] + added[:, token]
            results.append((state * outward[:, token, None]).sum(-1))
        return (torch.stack(results, 1) + values * self.D) * F.silu(gate)


class SelectiveMixer(nn.Module):
    """Projection, convolution, steps and maps, selective scan, projection back."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        hidden, width = spec.hidden_size, spec.selective_width
        rank, state = spec.selective_step_rank, spec.selective_state_dim
        self.in_proj = ColumnParallelLinear(hidden, 2 * width, bias=False)
        self.conv1d = CausalConvolution(width, CONVOLUTION_WIDTH, bias=True)
        self.activation = nn.SiLU()
        self.widths = [rank, state, state]
        self.x_proj = RowParallelLinear(width, sum(self.widths), bias=False)
        self.norms = nn.ModuleList(
            nn.Identity()
            if spec.selective_norm == "none"
            else RMSNorm(part, affine=spec.selective_norm == "weighted")
            for part in self.widths
        )
        self.dt_proj = ColumnParallelLinear(rank, width)
        self.scan = SelectiveScan(spec)
        self.out_proj = RowParallelLinear(width, hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        values, gate = self.in_proj(hidden).chunk(2, -1)
        values = self.activation(self.conv1d(values))
        narrow, inward, outward = self.x_proj(values).split(self.widths, -1)
        step_norm, in_norm, out_norm = self.norms
        step = self.dt_proj(step_norm(narrow))
        maps = in_norm(inward), out_norm(outward)
        output: Tensor = self.out_proj(self.scan(values, step, *maps, gate))
        return output

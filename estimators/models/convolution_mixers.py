"""Mixers around a short convolution: LFM2's gated one, and Mamba-1's selective scan.

LFM2's mixer [1]_ is a depthwise convolution over a few tokens between two gates: one
product makes both gates and the values.

Mamba-1 [2]_ keeps a state of a few numbers for each channel. One product makes values
and a gate; a convolution follows; a second product makes of the values a narrow vector,
of which a third makes the step of each channel, and what all channels share: how the
state is written and read. Jamba [3]_ normalises these three, Falcon Mamba does so
without weights. Channels are split over a tensor-parallel group, which adds up the
narrow vectors: a second all-reduce of a layer, as Dao and Gu [4]_ say of Mamba-1.

Neither is split along the sequence: no framework hands the last tokens of a rank, or
the state, to the next rank.

References
----------
.. [1] Liquid AI, "LFM2 Technical Report", 2025; ``Lfm2ShortConv`` of transformers.
.. [2] Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces",
   2023, section 3; ``MambaMixer`` of transformers.
.. [3] AI21, "Jamba: A Hybrid Transformer-Mamba Language Model", 2024;
   ``JambaMambaMixer`` and ``FalconMambaMixer`` of transformers.
.. [4] Dao and Gu, "Transformers are SSMs", 2024, section 8.1.
"""

from estimators.models.layers import (
    ColumnParallelLinear,
    RMSNorm,
    RowParallelLinear,
)
from estimators.models.limits import CONVOLUTION_WIDTH
from estimators.models.spec import TransformerSpec
from estimators.models.vocabulary import F, Tensor, nn, torch


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

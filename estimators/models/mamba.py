"""Mamba-2: a mixer that keeps a state of fixed size in place of keys and values.

One product makes gates ``z``, values ``x``, input and output maps ``B`` and ``C`` of
the state, and steps ``dt``; a short depthwise convolution runs over x, B and C; the
scan turns them into ``y``, in chunks [1]_; a norm over each group and one product
follow. Heads, and the groups that share B and C, are split over a tensor-parallel
group, as in Megatron Core's ``MambaMixer``; a scan is not split along the sequence.

References
----------
.. [1] Dao and Gu, "Transformers are SSMs", 2024, section 6 and listing 1.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # its customary name

from estimators.models.layers import ColumnParallelLinear, RowParallelLinear
from estimators.models.limits import CONVOLUTION_WIDTH
from estimators.models.spec import TransformerSpec


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
    """Convolution, scan and gate: one fused function of Mamba's kernels [1]_."""

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
        self.norm = GroupedRMSNorm(spec.mamba_width, spec.mamba_num_groups)
        self.out_proj = RowParallelLinear(
            spec.mamba_width, spec.hidden_size, bias=False
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        output: Tensor = self.out_proj(self.norm(self.scan(self.in_proj(hidden))))
        return output

"""Predict whole transformer layers from a profile, and measure them too.

The prediction goes the way of every plan: the layer is traced, its operators on one
device are looked up one by one, and their times are added. What this leaves out shows
as the error: what operators do to each other in the cache and in the launch queue.
"""

from dataclasses import dataclass, replace

import torch

from estimators.layer_work import Degrees
from estimators.measuring.devices import precisions_of
from estimators.measuring.operators import DTYPES, QUICK
from estimators.measuring.stopwatch import Effort, WallStopwatch, time_call
from estimators.models.families import FAMILIES
from estimators.models.spec import TransformerSpec
from estimators.profile import Profile, Timing
from estimators.profiled_times import ProfiledTimes
from estimators.sharding import layer_work
from estimators.tracing import trace_model

_GPT = TransformerSpec(
    family="gpt",
    num_layers=1,
    hidden_size=384,
    num_attention_heads=6,
    vocab_size=1024,
    sequence_length=192,
    hidden_dropout=0.1,
)
_LLAMA = TransformerSpec(
    family="llama",
    num_layers=1,
    hidden_size=320,
    num_attention_heads=5,
    vocab_size=1024,
    sequence_length=160,
    ffn_hidden_size=896,
    gated_linear_unit=True,
    normalization="rmsnorm",
    position_embedding_type="rope",
    add_bias_linear=False,
    tie_word_embeddings=False,
)
_SCALE_ON_CUDA = 10
"""Widths are that many times those for a CPU: 3840 and 3200, as in models of 7B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCheck:
    """One layer, predicted and measured."""

    name: str
    """What kind of layer and which sizes."""

    precision: str
    """Of weights and activations."""

    measured_forward: Timing
    measured_backward: Timing

    predicted_forward: float
    """From the profile [s]."""

    predicted_backward: float
    """From the profile [s]."""

    num_operators: int
    """In the layer."""

    num_outside: int
    """Those of them with a size outside the range that was measured."""


def checked_layers(device: torch.device) -> dict[str, tuple[TransformerSpec, int]]:
    """Return the layers that are checked on a device, each with its micro batch."""
    scale = 1 if device.type == "cpu" else _SCALE_ON_CUDA
    gpt, llama = (_scaled(one, scale) for one in (_GPT, _LLAMA))
    plain = replace(gpt, attention_implementation="plain")
    return {
        "GPT, flash attention": (gpt, 2),
        "GPT, plain attention": (plain, 2),
        "Llama, flash attention": (llama, 3),
    }


def _scaled(spec: TransformerSpec, scale: int) -> TransformerSpec:
    return replace(
        spec,
        hidden_size=spec.hidden_size * scale,
        num_attention_heads=spec.num_attention_heads * scale // (2 if scale > 1 else 1),
        kv_channels=0,
        num_query_groups=0,
        sequence_length=spec.sequence_length * scale,
        max_position_embeddings=0,
        ffn_hidden_size=spec.ffn_hidden_size * scale,
    )


def check_layers(
    profile: Profile, device: torch.device, *, quick: bool = False
) -> list[LayerCheck]:
    """Predict and measure a few layers in the first of the device's number formats.

    Raises
    ------
    InputError
        If the profile lacks what the layers need.
    """
    effort = QUICK if quick else Effort(seconds=2.0)
    precision = precisions_of(device)[0]
    return [
        check_layer(profile, device, name, precision, effort)
        for name in checked_layers(device)
    ]


def check_layer(
    profile: Profile, device: torch.device, name: str, precision: str, effort: Effort
) -> LayerCheck:
    """Predict and measure one of `checked_layers`."""
    spec, batch = checked_layers(device)[name]
    graph = trace_model(spec)
    element_bytes = DTYPES[precision].itemsize
    degrees = Degrees(micro_batch_size=batch)
    kind = graph.kinds[graph.names.index("block 0")]
    operators = layer_work(graph, kind, degrees, element_bytes).operators
    model = ProfiledTimes.of(profile, precision, spec)
    times = [model.operator_time(one) for one in operators]
    forward, backward = _measured(spec, batch, device, precision, effort)
    tokens = batch * spec.sequence_length
    return LayerCheck(
        name=f"{name}, {tokens} tokens x {spec.hidden_size}",
        precision=precision,
        measured_forward=forward,
        measured_backward=backward,
        predicted_forward=sum(time.forward for time in times),
        predicted_backward=sum(time.backward for time in times),
        num_operators=len(operators),
        num_outside=sum(model.is_outside(one) for one in operators),
    )


def _measured(
    spec: TransformerSpec,
    batch: int,
    device: torch.device,
    precision: str,
    effort: Effort,
) -> tuple[Timing, Timing]:
    """Return the time of a layer's forward and of its backward pass."""
    dtype = DTYPES[precision]
    with torch.device(device):
        block = FAMILIES[spec.family].block(spec).to(dtype)
    shape = (batch, spec.sequence_length, spec.hidden_size)
    hidden = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    stopwatch = WallStopwatch(device)
    forward = time_call(lambda: block(hidden), stopwatch, effort)
    output = block(hidden)
    given = torch.ones_like(output)
    leaves = (hidden, *block.parameters())
    backward = time_call(
        lambda: torch.autograd.grad(output, leaves, given, retain_graph=True),
        stopwatch,
        effort,
    )
    return forward, backward

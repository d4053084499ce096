"""Options of Megatron-LM that make a difference which is not modelled, by name.

Facts: ``megatron/training/arguments.py`` of NVIDIA/Megatron-LM at ``000c4ac`` and at
``core_v0.19.0``.
"""

from collections.abc import Mapping
from types import MappingProxyType

_BUCKETS = "Buckets of gradients are as large as by default."
_COLLECTIVES = "Collectives run as in the preset."
_HOST = "The optimizer of the host is that of the preset."
_FUSED = "Kernels are fused as in the preset."
_NARROW = "Products are as --fp8-format has them."
_OVERLAPPED = "All tensor-parallel collectives are overlapped."

ASSUMED: Mapping[str, str] = MappingProxyType(
    {
        "fp32-residual-connection": "Residuals are in the weights' precision.",
        "distribute-saved-activations": "Saved activations are on every rank.",
        "moe-expert-capacity-factor": "No token is dropped.",
        "moe-pad-expert-input-to-capacity": "Experts have no padding.",
        "moe-layer-recompute": "Layers of experts are not recomputed.",
        "moe-extended-tp": "Experts are split as the other layers are.",
        "qk-l2-norm": "Queries and keys are not made unit vectors.",
        "no-rope-freq": "All blocks have rotary positions.",
        "apply-residual-connection-post-layernorm": "Residuals pass by the norms.",
        "defer-embedding-wgrad-compute": "Gradients of the head come with the others.",
        "wgrad-deferral-limit": "Gradients of the head come with the others.",
        "ddp-reduce-scatter-with-fp32-accumulation": "Gradients travel as they are "
        "accumulated.",
        "overlap-param-gather-with-optimizer-step": "Parameters are gathered behind "
        "the next forward pass.",
        "overlap-p2p-communication-warmup-flush": "Transfers between stages never "
        "stop them.",
        "use-ring-exchange-p2p": "Transfers between stages never stop them.",
        "pipeline-model-parallel-comm-backend": "Stages send over NCCL.",
        "use-sharp": "Switches add nothing up.",
        "sharp-enabled-group": "Switches add nothing up.",
        "disable-tp-comm-overlap-ag": _OVERLAPPED,
        "disable-tp-comm-overlap-rs": _OVERLAPPED,
        "tp-comm-overlap-rs-dgrad": _OVERLAPPED,
        "disable-tp-comm-bulk-dgrad": _OVERLAPPED,
        "disable-tp-comm-bulk-wgrad": _OVERLAPPED,
        "disable-tp-comm-split-ag": _OVERLAPPED,
        "disable-tp-comm-split-rs": _OVERLAPPED,
        "enable-full-sharding-in-hsdp": "Copies of the shards are whole.",
        "mrope-section": "Positions are rotary.",
        "enable-cuda-graph": "Kernels are launched one by one.",
        "external-cuda-graph": "Kernels are launched one by one.",
        "use-kitchen": _NARROW,
        "moe-use-legacy-grouped-gemm": "Experts' products are grouped.",
        "sft": "Sequences are full.",
        "checkpoint-in-cpu": "Activations stay on the device.",
        "memory-centric-tiled-linear": "Linear layers are not tiled.",
        "delay-wgrad-compute": "Gradients of weights come with those of inputs.",
        "microbatch-group-size-per-virtual-pipeline-stage": "A chunk takes as many "
        "microbatches in turn as there are stages, or a few more where those come out "
        "even.",
        "moe-shared-expert-overlap": "Experts of all tokens run beside no transfer.",
        "moe-permute-fusion": "Tokens are put in order by kernels of the preset.",
        "no-scatter-gather-tensors-in-pipeline": "Stages send as the preset does.",
        "overlap-cpu-optimizer-d2h-h2d": "The host's part overlaps as in the preset.",
        "img-w": "Images are square.",
        "num-channels": "Images have three channels.",
        "relative-attention-max-distance": "Relative positions are T5's.",
        "relative-attention-num-buckets": "Relative positions are T5's.",
        "vision-pretraining": "The vision model learns to classify.",
        "vision-pretraining-type": "The vision model learns to classify.",
        "vision-backbone-type": "The vision model is a ViT.",
        "partition-activations": "Saved activations are on every rank.",
        "cross-entropy-loss-fusion": "The loss is as the preset has it.",
        "first-last-layers-bf16": "All blocks have products in the narrow format.",
        "ddp-bucket-size": _BUCKETS,
        "ddp-num-buckets": _BUCKETS,
        "no-bias-dropout-fusion": _FUSED,
        "no-bias-gelu-fusion": _FUSED,
        "no-bias-swiglu-fusion": _FUSED,
        "no-masked-softmax-fusion": _FUSED,
        "no-rope-fusion": _FUSED,
        "use-nccl-ub": "Collectives copy what they send.",
        "attention-softmax-in-fp32": _FUSED,
        "deterministic-mode": _FUSED,
        "disable-bf16-reduced-precision-matmul": _FUSED,
        "fp16-lm-cross-entropy": _FUSED,
        "no-gradient-accumulation-fusion": _FUSED,
        "no-persist-layer-norm": _FUSED,
        "no-gradient-reduce-div-fusion": _FUSED,
        "onnx-safe": _FUSED,
        "openai-gelu": _FUSED,
        "use-te-activation-func": _FUSED,
        "use-fused-weighted-squared-relu": _FUSED,
        "moe-router-fusion": _FUSED,
        "cross-entropy-fusion-impl": _FUSED,
        "synchronize-each-layer": "The host waits for nothing in a layer.",
        "disable-mamba-mem-eff-path": "Mamba keeps what the preset keeps.",
        "no-fp8-wgrad": _NARROW,
        "fp4-quantizer-factory": _NARROW,
        "fp8-quantizer-factory": _NARROW,
        "num-layers-at-start-in-bf16": "All blocks have products in the narrow format.",
        "num-layers-at-end-in-bf16": "All blocks have products in the narrow format.",
        "moe-router-padding-for-fp8": "Experts have no padding.",
        "moe-router-padding-for-quantization": "Experts have no padding.",
        "use-torch-optimizer-for-cpu-offload": _HOST,
        "no-pin-cpu-grads": _HOST,
        "no-pin-cpu-params": _HOST,
        "muon-num-ns-steps": "Muon takes its usual steps on each rank.",
        "muon-tp-mode": "Muon takes its usual steps on each rank.",
        "ddp-pad-buckets-for-high-nccl-busbw": _BUCKETS,
        "no-align-grad-reduce": _BUCKETS,
        "no-align-param-gather": _BUCKETS,
        "no-contiguous-buffers-in-local-ddp": _BUCKETS,
        "suggested-communication-unit-size": _BUCKETS,
        "reuse-grad-buf-for-mxfp8-param-ag": _BUCKETS,
        "fsdp-double-buffer": "Megatron FSDP has the buffers of the preset.",
        "fsdp-manual-registration": "Megatron FSDP has the buffers of the preset.",
        "high-priority-stream-groups": _COLLECTIVES,
        "nccl-communicator-config-path": _COLLECTIVES,
        "moe-deepep-num-sms": _COLLECTIVES,
        "moe-hybridep-num-sms": _COLLECTIVES,
        "distributed-backend": _COLLECTIVES,
        "disable-symmetric-registration": _COLLECTIVES,
        "tp-comm-overlap-cfg": _OVERLAPPED,
        "no-async-tensor-model-parallel-allreduce": _COLLECTIVES,
        "reset-attention-mask": "Attention is over whole sequences.",
        "reset-position-ids": "Attention is over whole sequences.",
        "no-clone-scatter-output-in-embedding": "The embedding keeps no copy.",
        "empty-unused-memory-level": "The allocator keeps its memory.",
        "no-tp-comm-overlap-ag": _OVERLAPPED,
        "no-tp-comm-overlap-rs": _OVERLAPPED,
        "no-tp-comm-bulk-dgrad": _OVERLAPPED,
        "no-tp-comm-bulk-wgrad": _OVERLAPPED,
        "no-tp-comm-split-ag": _OVERLAPPED,
        "no-tp-comm-split-rs": _OVERLAPPED,
        "disable-jit-fuser": _FUSED,
        "use-transformer-engine-op-fuser": _FUSED,
        "fused-residual-rmsnorm": _FUSED,
        "mla-down-proj-fusion": _FUSED,
        "flash-attention-version": _FUSED,
        "fine-grained-activation-offloading": "Activations stay on the device.",
        "offload-modules": "Activations stay on the device.",
        "min-offloaded-tensor-size": "Activations stay on the device.",
        "activation-offload-fraction": "Activations stay on the device.",
        "high-priority-a2a-comm-stream": _COLLECTIVES,
        "moe-flex-dispatcher-num-sms": _COLLECTIVES,
        "overlap-dispatch-backward-with-experts-wgrad": _COLLECTIVES,
        "ep-overlap-early-attn-memory-release": _COLLECTIVES,
        "te-precision-config-file": _NARROW,
        "kitchen-config-file": _NARROW,
        "kitchen-recipe-number": _NARROW,
        "ddp-param-name-patterns-for-fp32-local-accumulation": _BUCKETS,
    }
)
"""Options that make some difference that is not modelled -> what is taken instead."""

USUAL: Mapping[str, str] = MappingProxyType(
    {
        "cross-entropy-fusion-impl": "native",
        "distributed-backend": "nccl",
        "muon-num-ns-steps": "5",
        "muon-tp-mode": "blockwise",
        "empty-unused-memory-level": "0",
        "num-channels": "3",
    }
)
"""Those of them with a value that makes none -> that value."""

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "yaml-cfg": "the options themselves, as they are in another file",
        "use-checkpoint-args": "the options of the model, as they are in a checkpoint",
        "use-mp-args-from-checkpoint-args": "the parallel sizes themselves",
        "heterogeneous-layers-config-path": "a model whose blocks are of a few kinds",
        "heterogeneous-layers-config-encoded-json": "a model whose blocks are of a few "
        "kinds",
        "retro-project-dir": "a model without retrieval",
        "retro-add-retriever": "a model without retrieval",
        "perform-rl-step": "pre-training",
        "experimental-attention-variant": "attention without it",
        "moe-latent-size": "experts of the hidden width",
        "ict-head-size": "BERT itself",
        "num-layers-per-pipeline-stage": "--pipeline-model-parallel-layout",
        "hybrid-context-parallel": "sequences of one length",
    }
)
"""Options that change what is trained in a way that is not modelled -> what is
expected."""

"""Options of Megatron-LM that make no difference to a plan, by name.

Facts: names of ``megatron/training/arguments.py`` of NVIDIA/Megatron-LM at ``000c4ac``
(Core 0.15 and 0.16), and of its older versions and of Megatron-DeepSpeed
(``bigscience-workshop/Megatron-DeepSpeed``, ``megatron/arguments.py``) where scripts
still name them. Options that do make one are in `options`.
"""

import re

_SILENT = """
abort-on-unmet-fused-kernel-constraints activation-func-clamp-value adam-beta1
adam-beta2 adam-eps adlr-autoresume adlr-autoresume-interval allow-ambiguous-pad-tokens
app-tag-run-name app-tag-run-version apply-layernorm-1p apply-query-key-layer-scaling
apply-wd-to-qk-layernorm async-save auto-detect-ckpt-format bert-embedder-type bert-load
block-data-path calc-ft-timeouts calculate-per-token-loss check-for-large-grads
check-for-spiky-loss check-weight-hash-across-dp-replicas-interval
ckpt-assume-constant-structure ckpt-convert-format ckpt-convert-save
ckpt-convert-update-legacy-dist-opt-format ckpt-format ckpt-fully-parallel-load
ckpt-fully-parallel-save ckpt-step classes-fraction clip-grad config-logger-dir
contigious-checkpointing data-args-path data-cache-path data-impl
data-parallel-random-init data-path data-per-class-fraction dataloader-type
ddp-average-in-collective decoupled-lr decoupled-min-lr decrease-batch-size-if-needed
deepspeed_config disable-gloo-process-groups disable-msc disable-straggler-on-startup
dist-ckpt-format dist-ckpt-optim-fully-reshardable dist-ckpt-save-pre-mcore-014
dist-ckpt-strictness distrib-optim-fully-reshardable-mem-efficient
distributed-timeout-minutes distributed-timeout-seconds-after-init
dump-param-to-param-group-map embedding-init-method-std embedding-path
enable-experimental enable-ft-package end-weight-decay eod-mask-loss
error-injection-rate error-injection-type eval-interval eval-iters evidence-data-path
exit-duration-in-mins exit-interval exit-on-missing-checkpoint exit-signal
exit-signal-handler exit-signal-handler-for-dataloader exit-signal-handler-for-training
finetune fp8-amax-compute-algo fp8-amax-history-len fp8-interval fp8-margin
full-validation glu-linear-offset head-lr-mult hysteresis ict-load init-method-std
init-method-xavier-uniform init-model-with-meta-device initial-loss-scale
is-hybrid-model iter-per-epoch iterations-to-skip kill-switch-path lazy-mpu-init
legacy-tokenizer load load-main-params-from-ckpt local-rank local_rank
log-batch-size-to-tensorboard log-energy log-interval log-max-attention-logit
log-memory-to-tensorboard log-num-zeros-in-grad log-optimizer-states-to-tensorboard
log-params-norm log-progress log-straggler log-throughput log-timers-to-tensorboard
log-validation-ppl-to-tensorboard log-world-size-to-tensorboard logging-level loss-scale
loss-scale-window lr lr-decay-iters lr-decay-samples lr-decay-style lr-warmup-fraction
lr-warmup-init lr-warmup-iters lr-warmup-samples lr-wsd-decay-iters lr-wsd-decay-samples
lr-wsd-decay-style make-vocab-size-divisible-by manual-gc manual-gc-interval mask-prob
memory-snapshot-path merge-file mid-level-dataset-surplus min-loss-scale min-lr
mmap-warmup mock-data moe-apply-probs-on-input moe-aux-loss-coeff moe-input-jitter-eps
moe-per-layer-logging moe-router-bias-update-rate moe-router-dtype
moe-router-force-load-balancing moe-router-load-balancing-type
moe-router-topk-scaling-factor moe-token-drop-policy moe-upcycling-granularity
moe-use-upcycling moe-z-loss-coeff mscale mscale-all-dim mtp-loss-scaling-factor
multiple-validation-sets muon-extra-scale-factor muon-fp32-matmul-prec muon-momentum
muon-no-split-qkv muon-scale-mode muon-use-nesterov no-barrier-with-level-1-timing
no-check-for-nan-in-loss-and-grad no-ckpt-fully-parallel-save
no-create-attention-mask-in-dataloader no-data-sharding no-initialization no-load-optim
no-load-rng no-log-loss-scale-to-tensorboard no-manual-gc-eval no-mmap-bin-files
no-one-logger no-save-optim no-save-rng no-strict-fsdp-dtensor-load
no-use-tokenizer-model-from-checkpoint-args non-persistent-ckpt-type
non-persistent-global-ckpt-dir non-persistent-local-ckpt-algo
non-persistent-local-ckpt-dir non-persistent-save-interval norm-epsilon
num-dataset-builder-threads num-workers nvtx-ranges object-storage-cache-path
one-logger-async one-logger-project one-logger-run-name override-lr-scheduler
override-opt-param-scheduler override-opt_param-scheduler per-split-data-args-path
persistent-save-interval pretrained-checkpoint profile profile-ranks profile-step-end
profile-step-start query-in-block-prob record-memory-history record-shapes replication
replication-factor replication-jump rerun-mode result-rejected-tracker-filename
rope-scaling-factor rope-type rotary-base rotary-interleaved rotary-scaling-factor
rotary-seq-len-interpolation-factor run-workload-inspector-server sample-rate save
save-interval save-retain-interval seed sft-tokenizer-prompt-format sgd-momentum
short-seq-prob skip-train split start-weight-decay straggler-ctrlr-port
straggler-minmax-count te-rng-tracker tensorboard-dir tensorboard-log-interval
tensorboard-queue-size test-data-path test-weighted-split-paths-path
tiktoken-num-special-tokens tiktoken-pattern tiktoken-special-tokens timing-log-level
timing-log-option titles-data-path tokenizer-metadata tokenizer-name-or-path
tp-comm-bootstrap-backend train-data-path train-iters train-samples train-sync-interval
train-tokens train-weighted-split-paths train-weighted-split-paths-path
trust-remote-code use-bnb-optimizer use-checkpoint-lr-scheduler
use-checkpoint-opt-param-scheduler use-checkpoint-opt_param-scheduler
use-cpu-initialization use-dist-ckpt use-mcore-models use-one-sent-docs
use-persistent-ckpt-worker use-precision-aware-optimizer use-pytorch-profiler
use-rope-scaling valid-data-path valid-num-workers valid-weighted-split-paths
valid-weighted-split-paths-path validation-set-names verify-integrity vocab-extra-ids
vocab-file wandb-entity wandb-exp-name wandb-project wandb-save-dir warmup wd-incr-steps
weight-decay weight-decay-incr-style wsd-decay-steps
"""

SILENT = frozenset(_SILENT.split())
"""Options without effect on the plan, without their dashes."""

_RETIRED = """
abort-on-unmet-fused-kernel-constraints checkpoint-in-cpu contigious-checkpointing
data-impl deepspeed_config kill-switch-path local_rank log-batch-size-to-tensorboard
log-optimizer-states-to-tensorboard memory-centric-tiled-linear mmap-warmup
no-contiguous-buffers-in-local-ddp override-lr-scheduler partition-activations
synchronize-each-layer test-weighted-split-paths-path tokenizer-name-or-path
train-tokens train-weighted-split-paths train-weighted-split-paths-path
use-bnb-optimizer use-checkpoint-lr-scheduler use-kitchen valid-num-workers
valid-weighted-split-paths valid-weighted-split-paths-path
"""

RETIRED = frozenset(_RETIRED.split())
"""Those that Megatron-LM at ``core_v0.16.1`` does not take."""

_HARMLESS = re.compile(
    r"(^|[-_])(log|logs|logging|wandb|tensorboard|save|load|data|dataset|tokenizer|"
    r"profile|profiler|eval|valid|seed|lr|ckpt|checkpoint|dir|path|file|name|"
    r"interval|port|addr|timeout|debug)([-_]|$)"
)
"""Words in names of options that users' own versions add and that no plan depends
on."""


def is_silent(name: str) -> bool:
    """Whether an option makes no difference to the plan.

    Parameters
    ----------
    name
        Without its dashes.
    """
    return name in SILENT


def is_harmless(name: str) -> bool:
    """Whether an option that is not known at all is, by its name, about files or logs.

    Parameters
    ----------
    name
        Without its dashes.
    """
    return _HARMLESS.search(name) is not None

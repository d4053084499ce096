#!/usr/bin/env bash
# Facts: yanring/Megatron-MoE-ModelZoo, examples/qwen3/run_33b.sh (30631ea, full
# recompute) and model_configs/benchmarking/Qwen3-30B-A3B.yaml (1707096)
function train() {
    local ep=$1 mbs=$2 nnodes=$3
    shift 3
    torchrun --nproc-per-node 8 --nnodes $nnodes pretrain_gpt.py \
        --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 \
        --expert-model-parallel-size $ep --context-parallel-size 1 \
        --expert-tensor-parallel-size 1 --use-distributed-optimizer \
        --overlap-grad-reduce --overlap-param-gather --sequence-parallel \
        --use-flash-attn --disable-bias-linear \
        --micro-batch-size $mbs --global-batch-size ${GBS:-1024} \
        --tokenizer-type HuggingFaceTokenizer --tokenizer-model Qwen/Qwen3-30B-A3B \
        --untie-embeddings-and-output-weights --position-embedding-type rope \
        --rotary-percent 1.0 --rotary-base 1000000 --normalization RMSNorm --swiglu \
        --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 \
        --num-attention-heads 32 --group-query-attention --num-query-groups 4 \
        --kv-channels 128 --qk-layernorm --seq-length 4096 \
        --max-position-embeddings 40960 --make-vocab-size-divisible-by 1187 \
        --attention-dropout 0.0 --hidden-dropout 0.0 \
        --num-experts 128 --moe-ffn-hidden-size 768 --moe-router-topk 8 \
        --moe-router-load-balancing-type aux_loss --moe-grouped-gemm \
        --moe-token-dispatcher-type alltoall --moe-permute-fusion \
        --moe-router-dtype fp32 --finetune --bf16 \
        --moe-router-force-load-balancing $*
}
train 8 4 4 --recompute-granularity full --recompute-method uniform \
    --recompute-num-layers 1

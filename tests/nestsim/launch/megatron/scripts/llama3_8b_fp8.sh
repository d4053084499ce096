#!/bin/bash
# Facts: NVIDIA/Megatron-LM, examples/llama/train_llama3_8b_h100_fp8.sh (157006d)
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
CHECKPOINTS=${1:-"checkpoints/llama3_8b_fp8"}
TOKENIZER=${3:-"MOCK"}
mkdir -p "$(dirname "$CHECKPOINTS")"
TP_SIZE=1; CP_SIZE=1
DTYPE="fp8"
SEQ_LENGTH=8192

SHAPE=(
    --use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --kv-channels 128 --seq-length $SEQ_LENGTH --max-position-embeddings $SEQ_LENGTH
    --position-embedding-type rope --rotary-base 1000000 --rotary-percent 1.0
    --attention-dropout 0.0 --hidden-dropout 0.0 --swiglu --attention-backend fused
    --apply-layernorm-1p --untie-embeddings-and-output-weights --disable-bias-linear
)
STEPS=(--micro-batch-size 1 --global-batch-size 128 --bf16 --grad-reduce-in-bf16
    --decoupled-lr 5.0e-4 --cross-entropy-loss-fusion --manual-gc)
NUMBERS=()
if [[ "$DTYPE" == "fp8" ]]; then
    NUMBERS+=("--fp8-format hybrid" "--fp8-amax-history-len 1024" "--fp8-param-gather")
fi
PARALLEL=(
    --tensor-model-parallel-size $TP_SIZE
    --context-parallel-size $CP_SIZE
    # --pipeline-model-parallel-size 4
    --sequence-parallel
)
SHARDS=(--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather)
STEPS+=("${SHARDS[@]}")
if [[ "$TOKENIZER" == "MOCK" ]] || [[ -z "$TOKENIZER" ]]; then
    DATA=("--mock-data" "--tokenizer-type NullTokenizer" "--vocab-size 128256")
else
    DATA=("--data-path $4" "--vocab-size 1")
fi
if [ ! -f "pretrain_gpt.py" ]; then
    echo "run this in the root of Megatron-LM"
    exit 1
fi
torchrun --nproc_per_node 8 --nnodes 1 --node_rank ${NODE_RANK:-0} \
    "pretrain_gpt.py" ${SHAPE[@]} ${STEPS[@]} ${NUMBERS[@]} ${PARALLEL[@]} ${DATA[@]}

set +x

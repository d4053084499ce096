#!/bin/bash
# Facts: NVIDIA/Megatron-LM, examples/mixtral/train_mixtral_8x7b_distributed.sh, as its
# README gives the sizes of the full model
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"8"}
RANK_OF_NODE=${RANK:-"0"}

MODEL=(
    --use-mcore-models --disable-bias-linear
    --seq-length 4096 --max-position-embeddings 32768
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --init-method-std 0.01 --attention-dropout 0.0 --hidden-dropout 0.0
    --normalization RMSNorm --position-embedding-type rope --swiglu
    --untie-embeddings-and-output-weights
    --no-masked-softmax-fusion --no-position-embedding
)
EXPERTS=(
    --num-experts 8
    --moe-router-topk 2
    --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2
    --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall
    --overlap-param-gather --overlap-grad-reduce
)
PARALLEL=(
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4
    --num-layers-per-virtual-pipeline-stage 8
    --expert-model-parallel-size 8
    --use-distributed-optimizer --sequence-parallel
)
LOGGING=(--log-interval 1 --eval-iters 10)
if [ -n "${WANDB_API_KEY}" ]; then
    LOGGING+=(--wandb-project ${WANDB_PROJECT:-"Mixtral"})
fi

torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $RANK_OF_NODE \
    pretrain_gpt.py ${MODEL[@]} ${EXPERTS[@]} ${PARALLEL[@]} ${LOGGING[@]} \
    --tokenizer-type Llama2Tokenizer --tokenizer-model tokenizer.model \
    --data-path $3 --split 99990,8,2 \
    --micro-batch-size 1 --global-batch-size 256 --bf16 --lr 1e-4 --train-iters 500000

#!/bin/bash
# Facts: NVIDIA/Megatron-LM, examples/gpt3/train_gpt3_175b_distributed.sh (157006d)
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NUM_NODES=1 # one node as published; 16 or more in earnest
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
LOGS=$2 VOCAB=$3 MERGES=$4

LAUNCHER=(--nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES
    --master_addr localhost --master_port 6000)

SHAPE=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048 --max-position-embeddings 2048
    --attention-backend auto # flash, fused, unfused, local
)
SPLIT=(--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16)
STEPS=(
    --micro-batch-size 1 --global-batch-size 1536
    --rampup-batch-size 16 16 5859375
    --train-iters 500000 --fp16
    --lr 6.0e-5 --min-lr 6.0e-6 --lr-decay-style cosine --init-method-std 0.006
)
FILES=(--data-path $5 --vocab-file $VOCAB --merge-file $MERGES --save $1 --load $1)

torchrun ${LAUNCHER[@]} pretrain_gpt.py \
    ${SHAPE[@]} ${STEPS[@]} \
    ${SPLIT[@]} \
    ${FILES[@]} --tensorboard-dir $LOGS

#!/bin/bash
# Facts: NVIDIA/Megatron-LM, examples/bert/train_bert_340m_distributed.sh (157006d)
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-16}
SHAPE="--num-layers 24 --hidden-size 1024 --num-attention-heads 16"
SHAPE="$SHAPE --seq-length 512 --max-position-embeddings 512 --attention-backend auto"
STEPS=(--micro-batch-size 4 --global-batch-size 32 --train-iters 1000000 --fp16)
STEPS+=(--weight-decay 1e-2 --clip-grad 1.0 --lr 0.0001 --lr-warmup-fraction .01)
torchrun --nproc_per_node=$GPUS_PER_NODE --nnodes=$NUM_NODES \
    --master_addr localhost --master_port 6000 pretrain_bert.py \
    $SHAPE ${STEPS[@]} \
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 \
    --data-path $4 --vocab-file $3 --split 949,50,1 --save $1 --load $1

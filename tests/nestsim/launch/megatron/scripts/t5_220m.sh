#!/bin/bash
# Facts: NVIDIA/Megatron-LM, examples/t5/train_t5_220m_distributed.sh (157006d)
DISTRIBUTED="
    --nproc_per_node 8 \
    --nnodes 1 \
    --node_rank 0 \
"
T5="
    --encoder-num-layers 12 --decoder-num-layers 12 \
    --hidden-size 768 --num-attention-heads 12 --kv-channels 64 \
    --ffn-hidden-size 3072 \
    --encoder-seq-length 512 --decoder-seq-length 128 --max-position-embeddings 512 \
    --micro-batch-size 64 --global-batch-size 512 \
    --lr 0.0001 --bf16 --vocab-extra-ids 100 --init-method-std 0.015 \
    --transformer-impl transformer_engine \
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 \
    --attention-backend auto \
"
torchrun $DISTRIBUTED pretrain_t5.py $T5 \
    --data-path $4 --vocab-file $3 --tokenizer-type BertWordPieceCase \
    --distributed-backend nccl --save $1 --load $1 \


#!/bin/bash
# Facts: NVIDIA/Megatron-LM, examples/sc21: run_table_1.sh (79a3bb6), CONFIG.sh and
# SRUN.sh, in one file; four of its ten sizes
MODEL_SIZE=${MODEL_SIZE:-530B}

if [ ${MODEL_SIZE} == "39B" ]; then
    TP=8; PP=2; MBS=4; GBS=1536; NLS=48; HS=8192; NAH=64; DDP=local; NNODES=64
    MEGATRON_EXTRA_PARAMS="--recompute-method uniform "
elif [ ${MODEL_SIZE} == "145B" ]; then
    TP=8; PP=8; MBS=2; GBS=2304; NLS=80; HS=12288; NAH=96; DDP=local; NNODES=192
    MEGATRON_EXTRA_PARAMS="--recompute-method uniform --num-layers-per-virtual-pipeline-stage 5 "
elif [ ${MODEL_SIZE} == "530B" ]; then
    TP=8; PP=35; MBS=1; GBS=2520; NLS=105; HS=20480; NAH=128; DDP=local; NNODES=315
    MEGATRON_EXTRA_PARAMS="--recompute-method uniform --num-layers-per-virtual-pipeline-stage 1 "
elif [ ${MODEL_SIZE} == "1T" ]; then
    TP=8; PP=64; MBS=1; GBS=3072; NLS=128; HS=25600; NAH=160; DDP=local; NNODES=384
    MEGATRON_EXTRA_PARAMS="--recompute-method uniform "
else
    echo "Invalid configuration"
    exit 1
fi

export MEGATRON_PARAMS=" ${MEGATRON_EXTRA_PARAMS} \
	--tensor-model-parallel-size ${TP} \
	--pipeline-model-parallel-size ${PP} \
	--micro-batch-size ${MBS} \
	--global-batch-size ${GBS} \
	--num-layers ${NLS} --hidden-size ${HS} --num-attention-heads ${NAH} \
	--DDP-impl ${DDP} \
	--data-path ${MEGATRON_DATA} --vocab-file ${BPE_VOCAB_FILE} \
	--seq-length 2048 --max-position-embeddings 2048 \
	--train-iters 500 --lr 0.0001 --fp16 --loss-scale 8192 "

DATETIME=`date +'date_%y-%m-%d_time_%H-%M-%S'`
CMD="python -u ${MEGATRON_CODE_DIR}/pretrain_gpt.py ${MEGATRON_PARAMS}"
srun -l --nodes=${NNODES} --ntasks-per-node=8 \
     --output=logs/%x_%j_$DATETIME.log sh -c "${CMD}"

#!/bin/bash
# Facts: NVIDIA/Megatron-LM, docs/discussions/megatron-fsdp-user-guide/example-scripts/
# sbatch_mfsdp_deepseek_v3.sh (157006d); --nodes and tasks are the reader's there
USE_MEGATRON_FSDP=${USE_MEGATRON_FSDP:-1}
SHARDING_STRATEGY=${SHARDING_STRATEGY:-"optim_grads_params"}
PROFILE=${PROFILE:-0}
TP=${TP:-1} EP=${EP:-8} MBS=${MBS:-4} GBS=${GBS:-2048}
PRETRAIN_ARGS=(
    --tensor-model-parallel-size ${TP} --expert-model-parallel-size ${EP}
    --expert-tensor-parallel-size 1 --context-parallel-size 1
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    --sequence-parallel --use-flash-attn --disable-bias-linear
    --micro-batch-size ${MBS} --global-batch-size ${GBS}
    --recompute-granularity selective
    --recompute-modules mlp moe mla_up_proj layernorm
    --seq-length 4096 --max-position-embeddings 4096
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model deepseek-ai/DeepSeek-V3
    --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432
    --num-attention-heads 128 --kv-channels 128 --position-embedding-type rope
    --normalization RMSNorm --swiglu --untie-embeddings-and-output-weights
    --multi-latent-attention --attention-dropout 0.0 --hidden-dropout 0.0
    --qk-layernorm --num-experts 256 --moe-layer-freq [0]*3+[1]*58
    --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048
    --moe-router-topk 8 --moe-token-dispatcher-type flex
    --moe-flex-dispatcher-backend hybridep --moe-router-pre-softmax
    --moe-grouped-gemm --moe-router-group-topk 4 --moe-router-num-groups 8
    --moe-router-score-function sigmoid --moe-router-enable-expert-bias
    --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64
    --v-head-dim 128 --mtp-num-layers 1 --bf16
)
if [ "${USE_MEGATRON_FSDP}" = 1 ]; then
    unset CUDA_DEVICE_MAX_CONNECTIONS
    PRETRAIN_ARGS=(
        "${PRETRAIN_ARGS[@]}"
        --use-megatron-fsdp
        --data-parallel-sharding-strategy ${SHARDING_STRATEGY}
        --ckpt-format fsdp_dtensor --grad-reduce-in-bf16 --fsdp-double-buffer
    )
fi
if [ "${PROFILE}" = 1 ]; then
    PROFILE_CMD="nsys profile -o out"
else
    PROFILE_CMD=""
fi
TRAINING_CMD="
cd ${MEGATRON_PATH};
git rev-parse HEAD;
${PROFILE_CMD} python ${MEGATRON_PATH}/pretrain_gpt.py ${PRETRAIN_ARGS[@]}"
mkdir -p logs || {
    echo "no folder"
    exit 1
}
set +e
sbatch <<EOF2
#!/bin/bash
#SBATCH --nodes=your_own_num_nodes
srun \\
    --mpi=pmix -l \\
    bash -x -c "${TRAINING_CMD}" 2>&1 | tee logs/\${SLURM_JOB_ID}.log

EOF2
set -e

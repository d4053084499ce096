#!/bin/bash
# Facts: yanring/Megatron-MoE-ModelZoo, best_practice/DeepSeekV3/run.sh (c1ad0b5: 1024
# H100) and model_configs/benchmarking/DeepSeek-V3.yaml (31942f0)
export A2A_OVERLAP=1 PP=8 VPP=4 TP=2 EP=64 CP=1 NNODES=128 GBS=8192 PR=fp8
MBS=1 SEQ_LEN=4096
ARGS=(
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP}
    --expert-model-parallel-size ${EP} --context-parallel-size ${CP}
    --expert-tensor-parallel-size 1
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    --use-mcore-models --sequence-parallel --use-flash-attn --disable-bias-linear
    --micro-batch-size ${MBS} --global-batch-size ${GBS}
    --transformer-impl transformer_engine
    --seq-length ${SEQ_LEN} --max-position-embeddings 4096
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model unsloth/DeepSeek-V3
    --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432
    --num-attention-heads 128 --kv-channels 128
    --position-embedding-type rope --rotary-base 10000
    --make-vocab-size-divisible-by 3232 --normalization RMSNorm --norm-epsilon 1e-6
    --swiglu --untie-embeddings-and-output-weights --multi-latent-attention
    --attention-dropout 0.0 --hidden-dropout 0.0 --qk-layernorm
    --num-experts 256 --moe-layer-freq [0]*3+[1]*58 --moe-ffn-hidden-size 2048
    --moe-shared-expert-intermediate-size 2048
    --moe-router-load-balancing-type seq_aux_loss --moe-router-topk 8
    --moe-grouped-gemm --moe-router-group-topk 4 --moe-router-num-groups 8
    --moe-router-topk-scaling-factor 2.5 --moe-router-score-function sigmoid
    --moe-router-enable-expert-bias --moe-router-dtype fp32 --moe-permute-fusion
    --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128
    --qk-pos-emb-head-dim 64 --v-head-dim 128 --rotary-scaling-factor 40
    --bf16 --enable-experimental
)
if [[ ${PR} == "fp8" ]]; then
    ARGS+=(--fp8-recipe blockwise --fp8-format e4m3)
fi
if [[ ${A2A_OVERLAP} == 1 ]]; then
    ARGS+=(--overlap-moe-expert-parallel-comm --delay-wgrad-compute)
    export CUDA_DEVICE_MAX_CONNECTIONS=32
fi
EXTRA="--recompute-granularity selective --recompute-modules mla_up_proj mlp \
 --mtp-num-layers 1 --mtp-loss-scaling-factor 0.1"
sbatch <<EOS
#!/bin/bash
#SBATCH --nodes=${NNODES}
#SBATCH --ntasks-per-node=8
srun -l bash -c "python ${MEGATRON_PATH}/pretrain_gpt.py ${ARGS[@]} $EXTRA --pipeline-model-parallel-layout 'Et|(tt|)*30mL'"
EOS

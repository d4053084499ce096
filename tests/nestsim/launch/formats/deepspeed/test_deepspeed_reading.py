"""Launches that people published, and files of any other kind.

Facts of the launches are typed from: bigscience-workshop/bigscience,
``train/tr11-176B-ml/tr11-176B-ml.slurm``; microsoft/Megatron-DeepSpeed,
``examples_deepspeed/pretrain_llama2_distributed.sh``; DeepSpeedExamples,
``applications/DeepSpeed-Chat/training/step1_supervised_finetuning/training_scripts/
llama2/run_llama2_7b.sh``; huggingface/transformers,
``tests/deepspeed/ds_config_zero3.json``.
"""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nestsim.launch.formats.deepspeed.reading import is_deepspeed, read_deepspeed
from nestsim.launch.job import LaunchJob
from nestsim.launch.read import LaunchSource, imported_scenario
from nestsim.launch.readers import find_reader
from tests import failures
from topologies import InputError

BLOOM = r"""#!/bin/bash
#SBATCH --job-name=tr11-176B-ml
#SBATCH --nodes=48
#SBATCH --gres=gpu:8                 # number of gpus
set -x -e
MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
GPUS_PER_NODE=8
NNODES=$SLURM_NNODES
TP_SIZE=4
PP_SIZE=12
MICRO_BATCH_SIZE=2  # was 1 before
GLOBAL_BATCH_SIZE=2048
NLAYERS=70
OPTIMIZER_ARGS=" \
    --optimizer adam --adam-beta1 0.9 --lr 6e-5 --min-lr 6e-6 \
    --lr-decay-style cosine --lr-decay-samples 200_000_000 --clip-grad 1.0 \
    "
GPT_ARGS=" \
    --pp-partition-method 'type:transformer|embedding' \
    --num-layers $NLAYERS \
    --hidden-size 14336 \
    --num-attention-heads 112 \
    --seq-length 2048 \
    --max-position-embeddings 2048 \
    --micro-batch-size $MICRO_BATCH_SIZE \
    --rampup-batch-size 192 16 9_765_625 \
    --global-batch-size $GLOBAL_BATCH_SIZE \
    --train-samples 220_000_000 \
    --tokenizer-type PretrainedFromHF \
    --tokenizer-name-or-path bigscience/tokenizer \
    --init-method-std 0.0048 \
    --embed-layernorm \
    --bf16 \
    --position-embedding-type alibi \
    --checkpoint-activations \
    --abort-on-unmet-fused-kernel-constraints \
    --kill-switch-path $KILL_SWITCH_PATH \
    --pad-vocab-size-to 250880 \
    $OPTIMIZER_ARGS \
    "
ZERO_STAGE=0 # bf16 shards by itself
config_json="./ds_config.$SLURM_JOB_ID.json"
cat <<EOT > $config_json
{
  "train_micro_batch_size_per_gpu": $MICRO_BATCH_SIZE,
  "train_batch_size": $GLOBAL_BATCH_SIZE,
  "gradient_clipping": 1.0,
  "zero_optimization": {
    "stage": $ZERO_STAGE
  },
  "bf16": {
    "enabled": true
  },
  "steps_per_print": 2000
}
EOT
DEEPSPEED_ARGS=" \
    --deepspeed \
    --deepspeed_config ${config_json} \
    --zero-stage ${ZERO_STAGE} \
    --deepspeed-activation-checkpointing \
    "
export LAUNCHER="python -u -m torch.distributed.run \
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes $NNODES \
    --rdzv_endpoint $MASTER_ADDR:6000 \
    --tee 3 \
    "
export CMD=" \
    `pwd`/pretrain_gpt.py \
    --tensor-model-parallel-size $TP_SIZE \
    --pipeline-model-parallel-size $PP_SIZE \
    $GPT_ARGS \
    --save $CHECKPOINT_PATH \
    --num-workers 2 \
    --distributed-backend nccl \
     $DEEPSPEED_ARGS \
    "
echo $CMD
clear; srun --wait=60 bash -c "$LAUNCHER --node_rank \$SLURM_PROCID $CMD" 2>&1 | tee log
"""

LLAMA = r"""#!/bin/bash
set -ex
DS_CONFIG=./tmp/deepspeed.json
TP=2
PP=2
ZERO_STAGE=0
activation_checkpoint="false"
LOG_TO_WANDB=0
if [ $LOG_TO_WANDB -eq 1 ]
then
WANDB_ARGS="\
       --wandb-project pretrain-llama2"
fi
cat <<EOT > $DS_CONFIG
{
  "train_batch_size" : 32,
  "train_micro_batch_size_per_gpu": 4,
  "steps_per_print": 1,
  "zero_optimization": {
    "stage": $ZERO_STAGE
  },
  "bf16": {
    "enabled": true
  }
}
EOT
ds_args=""
ds_args=" --deepspeed ${ds_args}"
ds_args=" --deepspeed_config=$DS_CONFIG ${ds_args}"
ds_args=" --zero-stage=$ZERO_STAGE ${ds_args}"
if [ "${activation_checkpoint}" = "true" ]; then
  ds_args="--recompute-granularity full --recompute-method uniform ${ds_args}"
fi
DISTRIBUTED_ARGS="--nproc_per_node 8 --nnodes 1 --node_rank 0 --master_port 6000"
torchrun $DISTRIBUTED_ARGS \
       pretrain_gpt.py \
       --tensor-model-parallel-size $TP \
       --pipeline-model-parallel-size $PP \
       --num-layers 24 \
       --hidden-size 2048 \
       --ffn-hidden-size 5504 \
       --num-attention-heads 16 \
       --micro-batch-size 4 \
       --global-batch-size 32 \
       --seq-length 2048 \
       --max-position-embeddings 2048 \
       --data-path 1 ./tmp/data \
       --tokenizer-type GPTSentencePieceTokenizer \
       --split 949,50,1 \
       --lr 3e-4 \
       --optimizer adam \
       --bf16 \
       --no-query-key-layer-scaling \
       --attention-dropout 0 \
       --hidden-dropout 0 \
       --use-rotary-position-embeddings \
       --untie-embeddings-and-output-weights \
       --swiglu \
       --normalization rmsnorm \
       --disable-bias-linear \
       --num-key-value-heads 4 \
       $WANDB_ARGS \
       $ds_args
"""

CHAT = r"""#!/bin/bash
OUTPUT=$1
ZERO_STAGE=$2
if [ "$OUTPUT" == "" ]; then
    OUTPUT=./output_step1_llama2_7b
fi
if [ "$ZERO_STAGE" == "" ]; then
    ZERO_STAGE=3
fi
mkdir -p $OUTPUT
deepspeed main.py \
   --data_path Dahoas/rm-static Dahoas/full-hh-rlhf \
   --data_split 2,4,4 \
   --model_name_or_path meta-llama/Llama-2-7b-hf \
   --per_device_train_batch_size 4 \
   --per_device_eval_batch_size 4 \
   --max_seq_len 512 \
   --weight_decay 0. \
   --gradient_accumulation_steps 1 \
   --gradient_checkpointing \
   --zero_stage $ZERO_STAGE \
   --deepspeed \
   --output_dir $OUTPUT \
   &> $OUTPUT/training.log
"""

ZERO3 = {
    "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16},
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True},
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 1e9,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": True,
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 2000,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": False,
}


def source(text, name="launch.sh", **given) -> LaunchSource:
    """Return a launch in a folder with nothing beside it."""
    return LaunchSource(path=Path("/nonexistent") / name, text=text, **given)


def settled(read, path="read.toml"):
    """Return the job of what was read, on the cluster that is assumed for it."""
    found = imported_scenario(read, Path(path), origin="a launch")
    return LaunchJob.of(found.scenario)


def test_bloom_is_read_as_a_person_reads_it():
    read = read_deepspeed(source(BLOOM))
    assert (read.num_devices, read.devices_per_node) == (384, 8)
    assert read.tables["plan"] == {
        "micro_batch_size": 2,
        "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 12,
        "context_parallel_size": 1,
        "expert_model_parallel_size": 1,
        "data_parallel_size": 8,
        "zero_stage": 1,
        "recompute": "full",
        "pipeline_model_parallel_layout": [5, *[6] * 10, 5],
    }
    assert any("stage 0" in one for one in read.assumptions)
    model = read.tables["model"]
    assert model["embedding_layernorm"]
    assert model["position_embedding_type"] == "alibi"
    assert (model["vocab_size"], model["num_layers"]) == (250880, 70)
    assert read.tables["training"] == {
        "global_batch_size": 2048,
        "optimizer": "adam",
        "precision": "bf16",
    }
    assert settled(read).plan.num_microbatches == 128


def test_llama_of_megatron_deepspeed_is_read_as_a_person_reads_it():
    read = read_deepspeed(source(LLAMA))
    plan = read.tables["plan"]
    assert (plan["micro_batch_size"], plan["data_parallel_size"]) == (4, 2)
    assert (plan["recompute"], plan["zero_stage"]) == ("none", 1)
    model = read.tables["model"]
    assert (model["family"], model["num_query_groups"]) == ("llama", 4)
    assert (model["vocab_size"], model["tie_word_embeddings"]) == (32000, False)
    assert "--lr" in read.options.without_effect
    assert settled(read).plan.num_microbatches == 4


def test_deepspeed_chat_is_read_with_a_model_beside_it():
    with pytest.raises(InputError, match="what the model is"):
        read_deepspeed(source(CHAT, num_devices=8))
    read = read_deepspeed(source(CHAT, num_devices=8, model="llama2-7b"))
    plan = read.tables["plan"]
    assert (plan["micro_batch_size"], plan["zero_stage"]) == (4, 3)
    assert plan["recompute"] == "full"
    assert read.tables["model"] == {"name": "llama2-7b", "sequence_length": 512}
    assert read.tables["training"]["global_batch_size"] == 32
    assert any("bf16" in one for one in read.assumptions)
    job = settled(read)
    assert job.plan.stages[0].zero_stage == 3


def test_what_the_trainer_decides_is_assumed_aloud():
    text = json.dumps(ZERO3)
    read = read_deepspeed(
        source(text, "ds_config_zero3.json", num_devices=16, model="llama2-7b")
    )
    assert read.tables["plan"]["micro_batch_size"] == 8
    assert read.tables["training"]["global_batch_size"] == 128
    assert read.tables["plan"]["offload_weights"] == 1.0
    assert read.tables["software"]["overlap_param_gather"]
    said = " ".join(read.assumptions)
    for word in ("per_device_train_batch_size", "accumulated", "bf16", "recomputed"):
        assert word in said
    assert "zero_optimization.reduce_bucket_size" in read.options.without_effect
    settled(read)


def test_sizes_that_a_json_lacks_come_from_variables():
    config = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 8,
        "zero_optimization": {"stage": 1},
        "bf16": {"enabled": True},
    }
    read = read_deepspeed(
        source(
            json.dumps(config),
            "ds.json",
            model="llama2-7b",
            variables={
                "tensor_model_parallel_size": "4",
                "pipeline_model_parallel_size": "2",
            },
        )
    )
    assert read.num_devices == 32
    assert read.tables["plan"]["data_parallel_size"] == 4


def test_mics_shards_among_a_group():
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3, "mics_shard_size": 8},
        "bf16": {"enabled": True},
    }
    text = json.dumps(config)
    read = read_deepspeed(source(text, num_devices=32, model="llama2-7b"))
    assert read.tables["plan"]["sharding_group_size"] == 8


@failures.over(
    ("stage", "size", "num_devices", "expected"),
    [
        (3, 8, 32, 8),
        (3, 16, 8, 8),  # groups are no larger than the world
        *((3, 1, 32, None), (3, 0, 32, None)),
        (2, 8, 32, None),  # without sharded weights there is nothing to copy
    ],
)
def test_neighbours_share_a_second_copy(stage, size, num_devices, expected):
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage, "zero_hpz_partition_size": size},
        "bf16": {"enabled": True},
    }
    text = json.dumps(config)
    read = read_deepspeed(source(text, num_devices=num_devices, model="llama2-7b"))
    assert read.tables["plan"].get("zero_hpz_partition_size") == expected
    assert "hpz" not in " ".join(read.assumptions)


@failures.over(
    ("change", "said"),
    [
        ({"train_batch_size": 7}, "train_batch_size"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage"),
        ({"zero_optimization": {"stge": 1}}, 'did you mean "stage"?'),
        ({"train_batch_sise": 8}, 'did you mean "train_batch_size"?'),
        ({"bf16": {"enabled": 1}}, "bf16.enabled"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "beside another"),
        ({"optimizer": {"type": "Lion"}}, "optimizer.type"),
        ({"sparse_attention": {"mode": "fixed"}}, "sparse attention"),
        ({"zero_optimization": {"offload_param": {"device": "disk"}}}, "device"),
        ({"pipeline": {"stages": 2}, "zero_optimization": {"stage": 2}}, "pipeline"),
    ],
)
def test_what_is_wrong_is_named(change, said):
    config = {"train_micro_batch_size_per_gpu": 1, **change}
    with pytest.raises(InputError) as caught:
        read_deepspeed(
            source(json.dumps(config), "ds.json", num_devices=8, model="llama2-7b")
        )
    assert said in str(caught.value)


@failures.over(
    ("line", "said"),
    [
        ("--num-layers twelve", "--num-layers"),
        ("--hidden-size $H", "--set H=VALUE"),
        ("--recompute-granularty full", "--recompute-granularity"),
        ("--use-tutel", "Tutel"),
        ("--expert-interval 0 --num-experts 8", "--expert-interval"),
        ("--pp-partition-method parameters", "--pp-partition-method"),
    ],
)
def test_options_that_are_wrong_are_named(line, said):
    words = "--num-layers 8 --hidden-size 64 --num-attention-heads 8 --seq-length 64"
    text = (
        "deepspeed --num_gpus 8 pretrain_gpt.py --deepspeed --micro-batch-size 1 "
        f"--pipeline-model-parallel-size 2 {words} {line}\n"
    )
    with pytest.raises(InputError) as caught:
        read_deepspeed(source(text))
    assert said in str(caught.value)


HOSTS = "cat > hosts <<EOF\none slots=4\ntwo slots=4\nEOF\n"
STARTED = (
    "train.py --num-layers 8 --hidden-size 64 --num-attention-heads 8 --seq-length 64 "
    "--micro-batch-size 1 --deepspeed\n"
)


@failures.over(
    ("script", "devices", "node"),
    [
        (f"pip install deepspeed --upgrade\ndeepspeed --num_gpus 4 {STARTED}", 4, 4),
        (f"{HOSTS}deepspeed --hostfile=hosts {STARTED}", 8, 4),
        (f"{HOSTS}deepspeed --hostfile hosts --num_nodes 1 {STARTED}", 4, 4),
        (f"deepspeed --hostfile hosts --num_gpus 4 {STARTED}", None, 4),
        (f'pdsh -w a,b "deepspeed --num_nodes 2 --num_gpus 8 {STARTED}"', 16, 8),
        (f"#SBATCH -N 2\nGPUS_PER_NODE=4\nsrun python {STARTED}", 8, 4),
    ],
)
def test_devices_are_those_that_are_started(script, devices, node):
    if devices is None:
        with pytest.raises(InputError, match="devices"):
            read_deepspeed(source(script))
    else:
        read = read_deepspeed(source(script))
        assert (read.num_devices, read.devices_per_node) == (devices, node)


def test_a_variable_of_a_json_that_nothing_sets_is_named():
    script = (
        'cat > ds.json <<EOF\n{"train_micro_batch_size_per_gpu": $MICRO, '
        '"x": "$PATH_OF_X"}\nEOF\n'
        f"deepspeed --num_gpus 4 {STARTED.strip()} --deepspeed_config ds.json"
    )
    with pytest.raises(InputError, match="--set MICRO=VALUE"):
        read_deepspeed(source(script.replace(', "x": "$PATH_OF_X"', "")))


@failures.over(
    ("text", "known"),
    [
        (BLOOM, True),
        (LLAMA, True),
        (CHAT, True),
        (json.dumps(ZERO3), True),
        ('{"model_type": "llama"}', False),
        ("torchrun pretrain_gpt.py --num-layers 8\n", False),
        ("# deepspeed --x\npip install deepspeed --upgrade\n", False),
        ("", False),
    ],
)
def test_launches_of_deepspeed_are_known(text, known):
    assert is_deepspeed(source(text)) == known
    if known:
        assert find_reader(source(text)).read is read_deepspeed


WORDS = st.sampled_from(
    [
        *("deepspeed", "--deepspeed", "train.py", "--num-layers", "--hidden-size"),
        *("8", "64", "0", "-1", "1e9", "$A", "${A:-3}", "${A", "$((2*", "$((7/0))"),
        *('"', "'", "(", ")", "A=(", "A=4", "\n", ";", "&&", "if [ $A = 4 ]; then"),
        *("fi", "else", "done", "for i in 1; do", "<<EOT", "> x.json", "EOT", "\\"),
        *("--zero-stage", "--bf16", "--micro-batch-size", "`", "#", "--", "\0", "é"),
        *("--deepspeed_config", "x.json", "{}", "--num-experts", "--seq-length"),
        *("--num-attention-heads", "--vocab-size", "--num_gpus", "--no_python"),
    ]
)


@given(
    parts=st.lists(WORDS | st.text(max_size=8), max_size=30),
    devices=st.none() | st.integers(1, 64),
)
@example(parts=["deepspeed", "--deepspeed", "<<EOT", "\n", "x"], devices=None)
@settings(max_examples=300)
def test_any_text_ends_in_a_job_or_a_sentence(parts, devices):
    text = " ".join(parts)
    for written in (text, "deepspeed --num_gpus 8 t.py --deepspeed " + text):
        launch = source(written, num_devices=devices, model="llama2-7b")
        with contextlib.suppress(InputError):
            read_deepspeed(launch)


@failures.over(
    "words",
    [
        "${A:-" * 5000 + "}" * 5000,
        "$((" + "(" * 5000 + "1" + ")" * 5000 + "))",
        "--num-layers 900000000000 --num-experts 8 --expert-interval 2",
        "--num-layers 8 --pipeline-model-parallel-size 900000000000",
        "--pad-vocab-size-to " + "9" * 5000,
        "--num-layers " + "9" * 5000,
    ],
    ids=["nested", "sum", "layers", "stages", "vocabulary", "digits"],
)
def test_what_is_too_large_ends_in_a_sentence(words):
    text = (
        "deepspeed --num_gpus 8 t.py --deepspeed --hidden-size 64 --seq-length 64 "
        "--num-layers 8 --num-attention-heads 8 --micro-batch-size 1 "
    )
    with contextlib.suppress(InputError):
        read_deepspeed(source(text + words))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 10)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["auto", "cpu", "none", "", "bf16", "Adam"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["enabled", "stage", "device", "ratio", "type", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@given(
    config=st.dictionaries(st.sampled_from([*ZERO3, "pipeline", "x"]), VALUES),
    devices=st.none() | st.integers(1, 64),
)
@settings(max_examples=300)
def test_any_json_ends_in_a_job_or_a_sentence(config, devices):
    launch = source(json.dumps(config), num_devices=devices, model="llama2-7b")
    with contextlib.suppress(InputError):
        assert read_deepspeed(launch).tables["plan"]["micro_batch_size"] >= 1

"""A plan goes into files that people have: only lines that must change are changed.

Each changed file is read again by the importer, on the cluster of the job, and must be
the very plan; what Bash is to run is parsed by Bash.
"""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import nestsim
from nestsim.launch.job import LaunchJob
from nestsim.launch.read import LaunchSource, imported_scenario
from nestsim.launch.readers import find_reader
from nestsim.scenario.load import Scenario
from planner.plans.build import build_plan
from tests.nestsim.launch.megatron.small import CHANGED, PLAN, small_scenario
from topologies.errors import InputError

SCRIPTS = Path(__file__).parents[1] / "megatron" / "scripts"
SIZE = {"VOCAB_SIZE": "32000"}

ARRAYS = """#!/bin/bash
# my run
NNODES=2
GPUS=8
MODEL_ARGS=(
    --num-layers 8 --hidden-size 512 --num-attention-heads 8
    --seq-length 256 --max-position-embeddings 256   # short
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size 2   # inside a node
    --pipeline-model-parallel-size 1
)
# --tensor-model-parallel-size 99: never again
torchrun --nnodes $NNODES --nproc_per_node $GPUS pretrain_gpt.py \\
    "${MODEL_ARGS[@]}" ${PARALLEL_ARGS[@]} --bf16 \\
    --micro-batch-size 1 --global-batch-size 64 --lr 1e-4 \\
    --recompute-granularity full --recompute-method uniform \\
    --recompute-num-layers 1
"""

VARIABLES = """#!/bin/bash
TP=${TP:-2}; PP=1
MBS="1"
WIDE=8 # both
ARGS=" \\
    --num-layers 8 --hidden-size 512 --num-attention-heads 8 \\
    --seq-length 256 --max-position-embeddings 256 --bf16 \\
    --tensor-model-parallel-size $TP \\
    --pipeline-model-parallel-size ${PP} \\
    --micro-batch-size ${MBS} --global-batch-size $((MBS * 64)) \\
    --save /ckpt/tp$TP --seed 1"
if [ "$DEBUG" = 1 ]; then
    ARGS="$ARGS --tensor-model-parallel-size 1"
fi
torchrun --nproc_per_node $WIDE pretrain_gpt.py $ARGS --num-workers $WIDE
"""

TITAN_TOML = """# my run
[job]
dump_folder = "./out" # mine

[model]
name = "llama3"
flavor = "8B"

[training]
seq_len = 512
local_batch_size = 2   # per rank
global_batch_size = 64

[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2 # within a node

[activation_checkpoint]
mode = "full"
"""

TITAN_SCRIPT = """NGPU=${NGPU:-"8"}
TP=2
torchrun --nproc_per_node=$NGPU --nnodes 2 -m torchtitan.train --module llama3 \\
    --config llama3_8b --training.seq_len 512 --training.local_batch_size=4 \\
    --training.global_batch_size 64 --training.disable_cuda_graphs \\
    --parallelism.tensor_parallel_degree $TP \\
    activation_checkpoint:full
"""

YAML = """# my run
base_config: "base.yml"
model_name: llama2-7b
max_target_length: 512
per_device_batch_size: 2 # small
gradient_accumulation_steps: 4
ici_fsdp_parallelism: 8   # all
learning_rate: 3.e-4
remat_policy: minimal
"""

MAXTEXT_SCRIPT = """FSDP=8
python3 -m MaxText.train MaxText/configs/base.yml model_name=llama2-7b \\
    run_name=$RUN ici_fsdp_parallelism=$FSDP per_device_batch_size=2 \\
    gradient_accumulation_steps=4 max_target_length=512 remat_policy=minimal
"""

JSON = """{
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 16,
    "bf16": { "enabled": true },
    "zero_optimization": { "stage": 2, "overlap_comm": true },
    "wall_clock_breakdown": false
}
"""

DEEPSPEED = """TP=2
OPTS="--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 256 \\
    --max-position-embeddings 256 --micro-batch-size 1 --global-batch-size 64 \\
    --tensor-model-parallel-size $TP --no-pipeline-parallel --bf16 --zero-stage 2"
deepspeed --num_gpus 8 pretrain_gpt.py $OPTS --deepspeed --deepspeed_config ds.json
"""

CASES: tuple[tuple[str, str, dict[str, Any], dict[str, Any], str], ...] = (
    ("same.sh", ARRAYS, {}, {}, ""),
    (
        "arrays.sh",
        ARRAYS,
        {
            "tensor_model_parallel_size": 4,
            "pipeline_model_parallel_size": 2,
            "data_parallel_size": 2,
            "sequence_parallel": True,
            "zero_stage": 1,
            "recompute": "selective",
        },
        {},
        """
-    --tensor-model-parallel-size 2   # inside a node
-    --pipeline-model-parallel-size 1
+    --tensor-model-parallel-size 4   # inside a node
+    --pipeline-model-parallel-size 2
+    --sequence-parallel
-    --recompute-granularity full --recompute-method uniform \\
-    --recompute-num-layers 1
+    --recompute-granularity selective --use-distributed-optimizer
""",
    ),
    (
        "variables.sh",
        VARIABLES,
        {"tensor_model_parallel_size": 4, "data_parallel_size": 2},
        {},
        """
-TP=${TP:-2}; PP=1
+TP=${TP:-4}; PP=1
""",
    ),
    (
        "apart.sh",  # the number of devices is not the micro-batch's business
        VARIABLES.replace("${MBS}", "$WIDE").replace("MBS * 64", "MBS * 512"),
        {"micro_batch_size": 16},
        {},
        """
-    --micro-batch-size $WIDE --global-batch-size $((MBS * 512)) \\
+    --micro-batch-size 16 --global-batch-size $((MBS * 512)) \\
""",
    ),
    (
        "t.toml",
        TITAN_TOML,
        {
            "tensor_model_parallel_size": 4,
            "data_parallel_size": 4,
            "recompute": "none",
        },
        {"num_devices": 16},
        """
-tensor_parallel_degree = 2 # within a node
+tensor_parallel_degree = 4 # within a node
-mode = "full"
+mode = "none"
""",
    ),
    (
        "t.sh",
        TITAN_SCRIPT,
        {
            "tensor_model_parallel_size": 1,
            "pipeline_model_parallel_size": 4,
            "data_parallel_size": 4,
            "micro_batch_size": 1,
            "recompute": "none",
            "zero_stage": 2,
            "sequence_parallel": False,
        },
        {},
        """
-TP=2
+TP=1
-    --config llama3_8b --training.seq_len 512 --training.local_batch_size=4 \\
+    --config llama3_8b --training.seq_len 512 --training.local_batch_size=16 \\
-    activation_checkpoint:full
+    --parallelism.pipeline_parallel_degree 4 \\
+    --parallelism.pipeline_parallel_layers_per_stage 8 \\
+    --parallelism.pipeline_parallel_first_stage_less_layers 0 \\
+    --parallelism.pipeline_parallel_last_stage_less_layers 0 \\
+    activation_checkpoint:none
""",
    ),
    (
        "m.yml",
        YAML,
        {
            "tensor_model_parallel_size": 2,
            "data_parallel_size": 4,
            "recompute": "full",
        },
        {"num_devices": 8},
        """
-per_device_batch_size: 2 # small
-gradient_accumulation_steps: 4
-ici_fsdp_parallelism: 8   # all
+per_device_batch_size: 1 # small
+gradient_accumulation_steps: 8
+ici_fsdp_parallelism: 4   # all
+ici_tensor_parallelism: 2
-remat_policy: minimal
+remat_policy: full
""",
    ),
    (
        "m.sh",
        MAXTEXT_SCRIPT,
        {"tensor_model_parallel_size": 2, "data_parallel_size": 4},
        {"num_devices": 8},
        """
-FSDP=8
+FSDP=4
-    run_name=$RUN ici_fsdp_parallelism=$FSDP per_device_batch_size=2 \\
-    gradient_accumulation_steps=4 max_target_length=512 remat_policy=minimal
+    run_name=$RUN ici_fsdp_parallelism=$FSDP ici_tensor_parallelism=2"""
        """ per_device_batch_size=1 \\
+    gradient_accumulation_steps=8 max_target_length=512 remat_policy=minimal
""",
    ),
    (
        "ds.json",
        JSON,
        {"zero_stage": 1, "micro_batch_size": 2},
        {"num_devices": 16, "model": "llama2-7b"},
        """
-    "train_micro_batch_size_per_gpu": 1,
-    "gradient_accumulation_steps": 16,
+    "train_micro_batch_size_per_gpu": 2,
+    "gradient_accumulation_steps": 8,
-    "zero_optimization": { "stage": 2, "overlap_comm": true },
+    "zero_optimization": { "stage": 1, "overlap_comm": true },
""",
    ),
    (
        "ds.sh",
        DEEPSPEED,
        {"tensor_model_parallel_size": 4, "data_parallel_size": 2, "zero_stage": 1}
        | {"micro_batch_size": 2},
        {},
        """
-TP=2
+TP=4
-    --max-position-embeddings 256 --micro-batch-size 1 --global-batch-size 64 \\
-    --tensor-model-parallel-size $TP --no-pipeline-parallel --bf16 --zero-stage 2"
+    --max-position-embeddings 256 --micro-batch-size 2 --global-batch-size 64 \\
+    --tensor-model-parallel-size $TP --no-pipeline-parallel --bf16 --zero-stage 1"
-    "train_micro_batch_size_per_gpu": 1,
+    "train_micro_batch_size_per_gpu": 2,
-    "zero_optimization": { "stage": 2, "overlap_comm": true },
+    "zero_optimization": { "stage": 1, "overlap_comm": true },
""",
    ),
)
"""Name, text, plan, what stands beside it, and the lines that change."""


def read(path: Path, given: Mapping[str, Any]) -> Scenario:
    """Return the scenario of a launch file."""
    source = LaunchSource(
        path=path, text=path.read_text(), **{"variables": SIZE} | dict(given)
    )
    job = find_reader(source).read(source)
    return imported_scenario(job, path.with_suffix(".scn"), origin="a file").scenario


def put(path: Path, plan: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """Put another plan into a file, write what changed over it, and return all."""
    scenario = read(path, given)
    scenario = scenario.replace({f"plan.{name}": plan[name] for name in plan})
    more = {name: given[name] for name in given if name != "num_devices"}
    report = nestsim.export(scenario, onto=path, given=more)
    for name, content in report.launch.files.items():
        if name.endswith((".sh", ".json", ".toml", ".yml", ".slurm")):
            text = content if isinstance(content, str) else content.decode()
            (path.parent / name).write_text(text)
    return LaunchJob.of(scenario), report


def differences(path: Path, job: LaunchJob, given: Mapping[str, Any]) -> list[str]:
    """Return what a changed file does not say of the job as it should."""
    job_again = read(path, given)
    plan = job_again.plan
    assert plan is not None
    others = []
    if build_plan(job.network, job.workload, plan) != job.plan:
        others.append("plan")
    if job_again.training != job.training:
        others.append("training")
    if path.suffix in (".sh", ".slurm") and shutil.which("bash"):
        done = subprocess.run(["bash", "-n", str(path)], check=False)
        others += ["bash"] * done.returncode
    return others


def test_only_lines_that_must_change_are_changed(tmp_path: Path) -> None:
    wrong = []
    for name, text, plan, given, expected in CASES:
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text(text)
        if name == "ds.sh":
            (folder / "ds.json").write_text(JSON)
        job, report = put(folder / name, plan, given)
        lines = [
            line
            for line in report.diff.splitlines()
            if line[:1] in "+-" and line[:3] not in ("+++", "---")
        ]
        if lines != expected.strip("\n").splitlines():
            wrong.append((name, lines))
        if report.launch.gaps or differences(folder / name, job, given):
            wrong.append((name, [*map(str, report.launch.gaps)]))
    assert not wrong


@pytest.mark.slow
def test_public_scripts_take_other_plans(tmp_path: Path) -> None:
    """GPT-3, Mixtral, BLOOM, ..: sizes, recompute and sharding of many kinds."""
    wrong, count = [], 0
    for script in sorted(SCRIPTS.iterdir()):
        first = read(script, {"num_devices": 1024} if "fsdp" in script.name else {})
        assert first.plan is not None
        tp, pp = (
            getattr(first.plan, f"{name}_model_parallel_size")
            for name in ("tensor", "pipeline")
        )
        dp = first.plan.data_parallel_size or 1
        for plan in (
            {"tensor_model_parallel_size": tp * 2, "data_parallel_size": dp // 2},
            {"tensor_model_parallel_size": tp // 2, "data_parallel_size": dp * 2},
            {"pipeline_model_parallel_size": pp // 2, "data_parallel_size": dp * 2},
            {"recompute": "full", "recompute_num_layers": 1, "zero_stage": 1},
            {"recompute": "selective", "micro_batch_size": 2},
        ):
            path = tmp_path / script.name
            shutil.copy(script, path)
            given = {"num_devices": 1024} if "fsdp" in script.name else {}
            try:
                read(path, given).replace({f"plan.{n}": v for n, v in plan.items()})
                job, report = put(path, plan, given)
            except InputError:
                continue  # no plan of this model
            count += 1
            if not report.launch.gaps and differences(path, job, given):
                wrong.append((script.name, plan, differences(path, job, given)))
            lines = [line for line in report.diff.splitlines() if line[:1] == "-"]
            if len(lines) > 8:
                wrong.append((script.name, plan, lines))
    assert not wrong
    assert count > 15


def test_what_is_no_launch_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my.sh").write_text(ARRAYS)
    scenario = read(tmp_path / "my.sh", {})
    (tmp_path / "a.txt").write_text("hello\n")
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (tmp_path / "none.sh").write_bytes(b"\xff\xfe\x00")
    for name, words in (
        ("a.txt", "is no launch configuration that is known"),
        ("config.json", "launch"),
        ("none.sh", "UTF"),
        ("missing.sh", "no such file"),
        (".", "is a folder"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            nestsim.export(scenario, onto=tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
    with pytest.raises(InputError, match="--to"):
        nestsim.export(scenario, "chakra", onto=tmp_path / "my.sh")


def test_line_ends_and_marks_of_windows_stay(tmp_path: Path) -> None:
    path = tmp_path / "my.sh"
    path.write_bytes(b"\xef\xbb\xbf" + ARRAYS.replace("\n", "\r\n").encode())
    plan = {"tensor_model_parallel_size": 4, "data_parallel_size": 4}
    scenario = read(path, {}).replace({f"plan.{name}": plan[name] for name in plan})
    content = nestsim.export(scenario, onto=path).launch.files["my.sh"]
    assert isinstance(content, bytes)
    before = path.read_bytes()
    assert content == before.replace(b"size 2 ", b"size 4 ")
    assert path.read_bytes() == before


KINDS = (
    ("megatron", "launch.sh"),
    ("torchtitan", "torchtitan.toml"),
    ("torchtitan", "torchtitan.sh"),
    ("deepspeed", "launch.sh"),
    ("maxtext", "maxtext.yml"),
)


def document_of(plan: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """Return a small scenario of a framework."""
    document = small_scenario({}).document()
    document["plan"] = PLAN | plan
    if preset != "megatron":
        document["software"] = {"preset": preset}
        document["model"] = {"name": "llama3-8b", "sequence_length": 256}
    return document


def test_an_exported_file_has_nothing_to_change(tmp_path: Path) -> None:
    wrong = []
    for preset, name in KINDS:
        document = document_of({}, preset)
        for file, content in nestsim.export(document, preset).launch.files.items():
            (tmp_path / file).write_text(str(content))
        report = nestsim.export(document, onto=tmp_path / name)
        if report.diff or "has to change" not in " ".join(report.notices):
            wrong.append((name, report.diff))
    assert not wrong


@pytest.mark.slow
def test_any_plan_goes_onto_an_exported_file(tmp_path: Path) -> None:
    """What the changed file does not say, a file made anew does not say either."""
    wrong, count = [], 0
    for preset, name in KINDS:
        base = document_of({"pipeline_model_parallel_size": 1}, preset)
        for file, content in nestsim.export(base, preset).launch.files.items():
            (tmp_path / file).write_text(str(content))
        for field, plan in CHANGED.items():
            try:
                document = document_of(plan, preset)
                anew = nestsim.export(document, preset).launch.gaps
            except InputError:
                continue  # a plan of experts, and the model has none
            changed = nestsim.export(document, onto=tmp_path / name).launch.gaps
            known = {gap.setting for gap in anew} | {"placement"}
            lost = [str(gap) for gap in changed if gap.setting not in known]
            wrong += [(name, field, lost)] * bool(lost)
            count += 1
    assert not wrong
    assert count > 120

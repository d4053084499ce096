"""DeepSpeed itself takes what is written; without it, lists of its names do.

DeepSpeed 0.19.8 is no dependency of the project (it asks for another py-cpuinfo than
the benchmarks do); with it installed, or its source on the path, these tests run its
configuration classes, host-file reader, partitioner and topology.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings

from nestsim.launch.formats.deepspeed.config import TABLE, is_key
from nestsim.launch.formats.deepspeed.reading import METHODS, shared_blocks
from nestsim.launch.formats.deepspeed.writing import write_deepspeed
from planner.plans.spec import DEFAULT_ORDER, PlanSpec
from tests.nestsim.launch.jobs import jobs, planned, small_job

NAMES = Path(__file__).parent / "megatron_deepspeed_options.txt"

needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="needs deepspeed 0.19.8 installed",
)


def asked(code: str, *given: str) -> object:
    """Return what Python with DeepSpeed prints as JSON in its last line."""
    done = subprocess.run(
        [sys.executable, "-c", code, *given],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


ACCEPT = """
import json, sys
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.launcher.runner import _parse_hostfile
read = []
for text, dp, hosts in json.loads(sys.argv[1]):
    written = json.loads(text)
    # Without a process group the world is one rank: the batch of one replica.
    written["train_batch_size"] //= dp
    config = DeepSpeedConfig(written)
    read.append([config.train_batch_size * dp, config.train_micro_batch_size_per_gpu,
                 config.gradient_accumulation_steps, int(config.zero_config.stage),
                 sum(_parse_hostfile(hosts.splitlines()).values())])
print(json.dumps(read))
"""

SPECS = [
    {},
    {"zero_stage": 3, "offload_optimizer": 0.5, "offload_weights": 1.0},
    {"zero_stage": 2, "offload_optimizer": 1.0, "recompute": "full"},
    {"pipeline_model_parallel_size": 4, "zero_stage": 1, "micro_batch_size": 2},
    {"context_parallel_size": 2, "cp_comm_type": "a2a", "zero_stage": 3},
    {"recompute": "full", "offload_activations": 1.0, "zero_stage": 1},
]


@needs_deepspeed
def test_deepspeed_takes_the_json_and_the_hosts():
    written, wanted = [], []
    for spec in SPECS:
        job = planned(small_job(), PlanSpec(**{"micro_batch_size": 1, **spec}))
        files = write_deepspeed(job).files
        dp = job.plan.parallel.data_parallel_size
        written.append([files["ds_config.json"], dp, files["hostfile"]])
        plan = job.plan
        steps, stage = plan.num_microbatches, plan.stages[0].zero_stage
        wanted.append([32, plan.micro_batch_size, steps, stage, 16])
    assert asked(ACCEPT, json.dumps(written)) == wanted


PARTITION = """
import json, sys
from deepspeed.runtime.utils import partition_balanced
found = []
for blocks, stages, leads, trails in json.loads(sys.argv[1]):
    weights = [0, leads, 0] + [1] * blocks + [0, trails, 0]
    parts = partition_balanced(weights, stages)
    counts = [sum(weights[a:b]) for a, b in zip(parts, parts[1:])]
    counts[0] -= leads
    counts[-1] -= trails
    found.append(counts)
print(json.dumps(found))
"""


@needs_deepspeed
def test_blocks_are_shared_out_as_deepspeed_does_it():
    cases = [
        (blocks, stages, method, tied)
        for blocks, stages in [(8, 3), (8, 4), (10, 4), (24, 5), (30, 8), (70, 12)]
        for method in METHODS
        for tied in (True, False)
    ]
    ends = [
        (b, s, int(m == METHODS[1]), int(m == METHODS[1] and t)) for b, s, m, t in cases
    ]
    ours = [list(shared_blocks(b, s, m, tied=t)) for b, s, m, t in cases]
    assert asked(PARTITION, json.dumps(ends)) == ours


TOPOLOGY = """
import json, sys
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
pp, tp, dp = json.loads(sys.argv[1])
grid = PipeModelDataParallelTopology(num_pp=pp, num_mp=tp, num_dp=dp)
print(json.dumps([grid.get_rank(pipe=p, data=d, model=t)
    for p in range(pp) for d in range(dp) for t in range(tp)]))
"""


@needs_deepspeed
def test_ranks_are_numbered_as_deepspeed_numbers_them():
    spec = PlanSpec(
        micro_batch_size=1,
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=4,
        order="tp-cp-ep-pp-dp",
    )
    job = planned(small_job(), spec)
    ranks = asked(TOPOLOGY, json.dumps([4, 2, 2]))
    devices = job.devices_of_ranks(DEFAULT_ORDER)
    held = [
        device for stage in job.plan.stages for row in stage.devices for device in row
    ]
    assert [int(devices[rank]) for rank in ranks] == held


@given(job=jobs())
@settings(max_examples=60)
def test_only_known_names_are_written(job):
    files = write_deepspeed(job).files
    known = set(NAMES.read_text().split())
    written = {
        word
        for line in files["launch.sh"].splitlines()
        if line.startswith("    --")
        for word in line.split("#")[0].split()
        if word.startswith("--")
    }
    assert written <= known
    config = json.loads(files["ds_config.json"])
    assert [name for name in config if not is_key(name)] == []
    zero = set(config["zero_optimization"])
    assert {f"zero_optimization.{name}" for name in zero} <= {
        *TABLE.options,
        *TABLE.silent,
    }
    assert "mics_shard_size" not in zero  # which 0.19 refuses

"""Small jobs that launch configurations are written of, and plans of them at random."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

from hypothesis import strategies as st

from nestsim.launch.job import LaunchFiles, LaunchJob
from nestsim.launch.read import ImportedJob, LaunchSource, imported_scenario
from nestsim.launch.readers import find_reader
from nestsim.scenario.load import Scenario
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.plans.written import plan_settings
from planner.step.plan import Plan
from topologies import InputError

SCENARIO = """
name = "small"

[model]
family = "{family}"
num_layers = 8
hidden_size = 64
num_attention_heads = 8
vocab_size = 512
sequence_length = 64
{model}

[training]
global_batch_size = 32

[software]
preset = "{preset}"

[cluster]
accelerator = "a100-80gb"
num_devices = 16

[cluster.network]
kind = "fat-tree"
nic = "device"
levels = [
    {{ name = "node", fan_out = 4, bandwidth = "300 GB/s", latency = "1 us" }},
    {{ name = "leaf", fan_out = 4, bandwidth = "25 GB/s", latency = "1 us" }},
]

[plan]
micro_batch_size = 1
"""

EXPERTS = "num_moe_experts = 4\nmoe_router_topk = 2"


@cache
def small_job(family: str = "gpt", preset: str = "deepspeed") -> LaunchJob:
    """Return a job of eight blocks on four nodes of four devices."""
    model = EXPERTS if family == "mixtral" else ""
    text = SCENARIO.format(family=family, preset=preset, model=model)
    return LaunchJob.of(Scenario.from_toml(text))


def planned(job: LaunchJob, spec: PlanSpec) -> LaunchJob:
    """Return the job with another plan.

    Raises
    ------
    InputError
        If it has no such plan.
    """
    plan = build_plan(job.network, job.workload, spec)
    return with_plan(job, plan, spec)


def with_plan(job: LaunchJob, plan: Plan, spec: PlanSpec) -> LaunchJob:
    """Return the job with a plan, and its settings as a user left them."""
    workload = job.workload
    settings = plan_settings(
        plan,
        workload.table(plan.degrees).is_block,
        workload.training.global_batch_size,
    )
    settings = replace(
        settings,
        gradient_algorithm=spec.gradient_algorithm,
        tensor_algorithm=spec.tensor_algorithm,
    )
    return replace(job, plan=plan, settings=settings)


def read_back(files: LaunchFiles, folder: Path) -> ImportedJob:
    """Write the files of a launch into a folder, and read the first of them."""
    for name, content in files.files.items():
        path = folder / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content)
    first = folder / next(iter(files.files))
    source = LaunchSource(path=first, text=first.read_text())
    return find_reader(source).read(source)


def rebuilt(job: LaunchJob, read: ImportedJob) -> Plan:
    """Return the plan of what was read, on the cluster that it was written of."""
    found = imported_scenario(
        read, Path("read.toml"), origin="a launch", cluster=job.scenario
    )
    plan = found.scenario.plan
    assert plan is not None
    return build_plan(job.network, job.workload, plan)


ALGORITHMS = ("auto", "ring", "hierarchical", "double-binary-tree")
MODES = ("none", "selective", "full", "stage")


def _some(draw, default, others, chance=4):
    """Draw a default mostly."""
    return draw(st.sampled_from([default] * chance + list(others)))


@st.composite
def specs(draw, *, experts=False) -> PlanSpec:
    """Draw plans of the small jobs, most of them with few unusual settings."""
    tp, cp, pp = draw(
        st.sampled_from(
            [
                *((1, 1, 1), (2, 1, 1), (4, 1, 2), (1, 1, 4), (2, 1, 2), (1, 1, 2)),
                *((1, 2, 1), (1, 4, 2), (2, 2, 2), (1, 1, 3), (2, 1, 4), (1, 2, 2)),
            ]
        )
    )
    dp = 16 // (tp * cp * pp)
    dp = _some(draw, dp, [dp // 2] if dp > 1 else [])
    ep = draw(st.sampled_from([1, 2, 4])) if experts else 1
    ep = ep if dp % ep == 0 else 1
    v = _some(draw, 1, [2]) if 8 % (2 * pp) == 0 and pp > 1 else 1
    each = draw(st.booleans()) and pp > 1

    def stages(default, others):
        if each and draw(st.booleans()):
            return tuple(_some(draw, default, others) for _ in range(pp))
        return _some(draw, default, others)

    recompute = stages("none", ["selective", "full", *(["stage"] if v == 1 else [])])
    modes = set(recompute) if isinstance(recompute, tuple) else {recompute}
    zero = stages(0, [1, 2, 3])
    offload = {
        f"offload_{name}": stages(0.0, [0.5, 1.0])
        for name in ("weights", "gradients", "optimizer", "activations")
    }
    layout = None
    if v == 1 and pp > 1 and draw(st.booleans()):
        cuts = draw(
            st.lists(st.integers(1, 7), min_size=pp - 1, max_size=pp - 1, unique=True)
        )
        ends = [0, *sorted(cuts), 8]
        layout = tuple(b - a for a, b in pairwise(ends))
    elif 8 % (pp * v):
        layout = tuple([3, 3, 2][:pp]) if pp == 3 else None
    kind = draw(st.sampled_from(["p2p", "all_gather", "a2a"])) if cp > 1 else "p2p"
    counted = modes <= {"full", "selective"}
    return PlanSpec(
        micro_batch_size=_some(draw, 1, [2]),
        tensor_model_parallel_size=tp,
        context_parallel_size=cp,
        pipeline_model_parallel_size=pp,
        data_parallel_size=dp,
        expert_model_parallel_size=ep,
        virtual_pipeline_model_parallel_size=v,
        cp_comm_type=kind,
        sequence_parallel=draw(st.booleans()) and tp > 1,
        schedule=_some(draw, None, ["gpipe", "zb-h1"]) if v == 1 and pp > 1 else None,
        recompute=recompute,
        recompute_num_layers=_some(draw, None, [1]) if counted else None,
        zero_stage=zero,
        zero_hpz_partition_size=_some(draw, 1, [2]) if zero == 3 else 1,
        pipeline_model_parallel_layout=layout,
        order=_some(draw, None, ["tp-cp-ep-pp-dp", "tp-dp-cp-ep-pp", "tp-pp-cp-ep-dp"]),
        gradient_algorithm=_some(draw, "auto", ALGORITHMS),
        tensor_algorithm=_some(draw, "auto", ALGORITHMS),
        **offload,
    )


@st.composite
def jobs(draw, preset="deepspeed") -> LaunchJob:
    """Draw small jobs with plans that can be built."""
    experts = draw(st.booleans())
    job = small_job("mixtral" if experts else "gpt", preset)
    spec = draw(specs(experts=experts))
    try:
        return planned(job, spec)
    except InputError:
        # What does not go together is left out one by one.
        plain = replace(
            spec,
            offload_weights=0.0,
            offload_gradients=0.0,
            offload_activations=0.0,
            zero_hpz_partition_size=1,
            schedule=None,
        )
    try:
        return planned(job, plain)
    except InputError:
        return planned(job, PlanSpec(micro_batch_size=1))

"""What frameworks' sources say of plans that earlier tables had wrong, by release.

Each case names the assertion; `tests.frameworks` runs the frameworks' own code.
"""

from dataclasses import replace

import pytest

from estimators.grouping import CP_COMM_TYPES, Grouping
from planner.frameworks.framework import FRAMEWORKS
from planner.search.launchable_sizes import LaunchSizes, size_breaches
from planner.step.plan import Offload
from tests import failures
from tests.planner.search.test_launchable import FACTS, broken, chain, made
from topologies.errors import InputError

INSIDE = {"order": "tp-cp-ep-pp-dp"}
PAIRS = {"ep": 2, "dp": 4, "pp": 2, "v": 2, "schedule": "combined-interleaved-1f1b"}
DUAL = {"dp": 4, "pp": 2, "zero": 3}
EVERY = {**DUAL, "recompute": "full"}

CASES = {
    # initialize_model_parallel: pp last, or 1, or etp ep = tp cp; dense models, too.
    "pp inside dp beside experts": [
        (
            "megatron-core",
            None,
            {"ep": 2, "dp": 4, "pp": 2, **INSIDE},
            {},
            "rank_order",
        ),
        ("nemo", None, {"ep": 2, "dp": 4, "pp": 2, **INSIDE}, {}, "rank_order"),
        (
            "megatron-core",
            None,
            {"cp": 2, "dp": 2, "pp": 2, **INSIDE},
            {},
            "rank_order",
        ),
        (
            "megatron-core",
            None,
            {"tp": 2, "ep": 2, "dp": 2, "pp": 2, "etp": 1, **INSIDE},
            {},
            None,
        ),
        ("megatron-core", None, {"tp": 2, "dp": 2, "pp": 2, **INSIDE}, {}, None),
    ],
    # validate_args: cp ep <= 1 with --use-tp-pp-dp-mapping, core 0.8 to 0.10.
    "pp inside dp, once": [
        ("megatron-lm", "0.8", {"cp": 2, "dp": 2, "pp": 2, **INSIDE}, {}, "rank_order"),
        ("megatron-lm", "0.9", {"ep": 2, "dp": 4, "pp": 2, **INSIDE}, {}, "rank_order"),
        (
            "megatron-core",
            "0.10",
            {"tp": 2, "ep": 2, "dp": 2, "pp": 2, "etp": 1, "sp": True, **INSIDE},
            {},
            "rank_order",
        ),
        ("megatron-lm", "0.8", {"tp": 2, "dp": 2, "pp": 2, **INSIDE}, {}, None),
    ],
    # allowed_modules of core_v0.12.0; shared_experts since core_v0.14.0.
    "modules that are run again": [
        (
            preset,
            release,
            {"dp": 8, "recompute": "selective", "modules": modules},
            {},
            rule,
        )
        for preset, release, modules, rule in (
            ("megatron-core", "0.11", ("layernorm",), "recompute"),
            ("megatron-core", "0.12", ("layernorm", "moe"), None),
            ("megatron-core", "0.13", ("shared_experts",), "recompute"),
            ("megatron-core", "0.14", ("shared_experts",), None),
            ("megatron-lm", None, ("layernorm",), "recompute"),
            ("torchtitan", None, ("mlp",), "recompute"),
        )
    ],
    # --decoder-first-pipeline-num-layers is in core_v0.9.0, not in core_v0.8.0.
    "other ends": [
        ("megatron-lm", "0.8", {"dp": 2, "pp": 4, "counts": [1, 3, 3, 1]}, {}, "split"),
        ("megatron-lm", "0.9", {"dp": 2, "pp": 4, "counts": [1, 3, 3, 1]}, {}, None),
        (
            "megatron-core",
            "0.12",
            {"dp": 2, "pp": 4, "counts": [2, 1, 3, 2]},
            {},
            "split",
        ),
        ("megatron-core", "0.13", {"dp": 2, "pp": 4, "counts": [2, 1, 3, 2]}, {}, None),
    ],
    "experts in fp16": [
        (preset, release, {"ep": 4, "dp": 8}, {"precision": "fp16"}, rule)
        for preset, release, rule in (
            ("megatron-lm", "0.8", "experts"),
            ("megatron-core", "0.15", "experts"),
            ("megatron-core", "0.16", None),
        )
    ],
    "more ranks than query groups": [
        ("megatron-core", "0.15", {"tp": 4, "dp": 2}, {}, "tensor_parallelism"),
        ("megatron-core", "0.16", {"tp": 4, "dp": 2}, {}, None),
        (
            "torchtitan",
            "0.2",
            {"tp": 4, "dp": 2, "zero": 3, "sp": True},
            {},
            "tensor_parallelism",
        ),
        ("torchtitan", "0.3", {"tp": 4, "dp": 2, "zero": 3}, {}, "tensor_parallelism"),
        ("fsdp", None, {"tp": 4, "dp": 2, "zero": 3}, {}, "tensor_parallelism"),
        ("llm-foundry", None, {"tp": 4, "dp": 2, "zero": 3}, {}, "tensor_parallelism"),
        ("deepspeed", None, {"tp": 4, "dp": 2}, {}, "tensor_parallelism"),
        ("maxtext", None, {"tp": 4, "dp": 2}, {}, "tensor_parallelism"),
    ],
    # Megatron-DeepSpeed's parallel_state asserts tp = pp = 1.
    "Ulysses of DeepSpeed": [
        ("deepspeed", None, {"cp": 2, "dp": 4, "a2a": True}, {}, None),
        (
            "deepspeed",
            None,
            {"cp": 2, "tp": 2, "dp": 2, "a2a": True},
            {},
            "context_parallelism",
        ),
        (
            "deepspeed",
            None,
            {"cp": 2, "pp": 2, "dp": 2, "a2a": True},
            {},
            "context_parallelism",
        ),
    ],
    # 'recompute_num_layers must be None' beside selective.
    "some blocks recomputed": [
        (preset, None, {"dp": 8, "recompute": mode, "count": 2}, {}, rule)
        for preset, mode, rule in (
            ("megatron-core", "selective", "recompute"),
            ("megatron-lm", "selective", "recompute"),
            ("deepspeed", "selective", "recompute"),
            ("megatron-core", "full", None),
            ("deepspeed", "full", None),
            ("internevo", "full", None),
        )
    ]
    + [
        # With a pipeline DeepSpeed recomputes all blocks, and keeps every n-th input.
        (
            "deepspeed",
            None,
            {"dp": 4, "pp": 2, "recompute": "full", "count": 2},
            {},
            "recompute",
        ),
        # torchtitan's selective_ac_option: every n-th block, until 0.2.
        (
            "torchtitan",
            "0.2",
            {"dp": 8, "zero": 3, "recompute": "full", "count": 4},
            {},
            None,
        ),
        (
            "torchtitan",
            "0.2",
            {"dp": 8, "zero": 3, "recompute": "full", "count": 3},
            {},
            "recompute",
        ),
        (
            "torchtitan",
            "0.3",
            {"dp": 8, "zero": 3, "recompute": "full", "count": 4},
            {},
            "recompute",
        ),
        # Blocks are counted over all that a stage holds: every second one is 2 of 4
        # and 2 of 4, or 2 of 5 and 1 of 3, but 2 and then 3 of two chunks of 5.
        *(
            (
                "torchtitan",
                "0.2",
                {**EVERY, "v": len(counts) // 2, "counts": counts, "count": count},
                {"is_block": chain(sum(counts))},
                rule,
            )
            for counts, count, rule in (
                ([4, 4], 2, None),
                ([5, 3], (2, 1), None),
                ([5, 3], (2, 2), "recompute"),
                ([2, 2, 2, 2], 1, None),
                ([4, 4, 4, 4], 2, None),
                ([5, 5, 5, 5], 2, "recompute"),
            )
        ),
    ],
    "what is left over": [
        (preset, None, {"dp": 2, "pp": 3, "counts": counts}, {"num_devices": 6}, rule)
        for preset, counts, rule in (
            ("deepspeed", [3, 3, 2], None),
            ("deepspeed", [2, 3, 3], "split"),
            ("internevo", [2, 3, 3], None),
            ("internevo", [3, 3, 2], "split"),
        )
    ],
    # "moe only support zero1, set zero1=dict(size=-1,...)".
    "InternEvo's ZeRO beside experts": [
        ("internevo", None, {"ep": 4, "dp": 4, "pp": 2, "zero": 1}, {}, None),
        (
            "internevo",
            None,
            {"ep": 4, "dp": 4, "pp": 2, "zero": 1, "group": 2},
            {},
            "sharding_group",
        ),
        ("internevo", None, {"ep": 4, "dp": 4, "pp": 2}, {}, "zero_stage"),
        ("internevo", None, {"dp": 4, "pp": 2, "zero": 1, "group": 2}, {}, None),
    ],
    # 'Bias in Moe is only supported when ETP==1', with ep = 1, too.
    "experts with biases": [
        (
            "megatron-core",
            release,
            {"tp": 2, "dp": 4, "ep": 2, "etp": etp, "sp": True},
            {"has_biased_experts": True},
            rule,
        )
        for release, etp, rule in (
            ("0.14", 1, "experts"),
            ("0.11", None, None),
            ("0.16", None, "experts"),
            ("0.16", 1, None),
        )
    ],
    "experts' all-to-alls beside layers of prediction": [
        ("megatron-core", None, PAIRS, {"mtp_num_layers": 1}, None),
        ("megatron-core", None, PAIRS, {"mtp_num_layers": 2}, "expert_overlap"),
        ("megatron-core", "0.13", PAIRS, {}, "expert_overlap"),
        (
            "megatron-core",
            None,
            {"ep": 2, "dp": 8, "schedule": "combined-1f1b"},
            {"mtp_num_layers": 1},
            "expert_overlap",
        ),
        (
            "megatron-core",
            "0.15",
            {"ep": 2, "dp": 8, "schedule": "combined-1f1b"},
            {"mtp_num_layers": 1},
            None,
        ),
    ],
    # "sequence parallelism must be used", with core 0.8 to 0.15.
    "experts beside whole sequences": [
        (preset, release, {"tp": 2, "dp": 4, "ep": 2, "sp": sp}, {}, rule)
        for preset, release, sp, rule in (
            ("megatron-lm", "0.8", False, "experts"),
            ("megatron-lm", "0.9", False, "experts"),
            ("megatron-lm", "0.9", True, None),
            ("megatron-core", "0.15", False, "experts"),
            ("megatron-core", "0.15", True, None),
            ("megatron-core", "0.16", False, None),
        )
    ],
    # data_parallel_size % num_distributed_optimizer_instances, times cp since 0.11.
    "instances of Megatron's optimizer": [
        ("megatron-core", release, {"cp": 4, "dp": 2, "zero": 1, "group": 2}, {}, rule)
        for release, rule in (("0.10", "sharding_group"), ("0.11", None))
    ],
    # --cpu-offloading-num-layers is an option from core 0.16 on.
    "activations on the host, once": [
        (
            preset,
            release,
            {"dp": 8, "offload": Offload(activations=0.5)},
            {},
            "offload",
        )
        for preset, release in (("megatron-lm", None), ("megatron-core", "0.15"))
    ],
    "activations on the host": [
        ("megatron-core", None, {"dp": 8, "recompute": mode, "offload": kept}, {}, rule)
        for mode, kept, rule in (
            ("none", Offload(activations=0.5), None),
            ("none", Offload(activations=1.0), "offload"),
            ("none", Offload(activations=0.3), "offload"),
            ("full", Offload(activations=0.5), "offload"),
            ("none", Offload(optimizer=1.0), "offload"),
        )
    ]
    + [
        (
            "megatron-core",
            None,
            {"dp": 8, "zero": 1, "offload": Offload(optimizer=1.0)},
            {},
            None,
        )
    ],
    # "DDP has not supported > 1D parallelism" until 0.3.
    "torchtitan's replicas": [
        ("torchtitan", "0.2", {"dp": 8}, {}, None),
        ("torchtitan", "0.2", {"cp": 2, "dp": 4}, {}, "zero_stage"),
        ("torchtitan", "0.2", {"dp": 4, "pp": 2}, {}, "zero_stage"),
        ("torchtitan", "0.3", {"cp": 2, "dp": 4, "zero": 3}, {}, "context_parallelism"),
        # Experts are on ranks of one replica where nothing is sharded.
        ("torchtitan", "0.2", {"dp": 8, "ep": 4}, {}, "zero_stage"),
        (
            "torchtitan",
            "0.2",
            {"tp": 2, "dp": 4, "ep": 2, "etp": 1, "sp": True},
            {},
            None,
        ),
        # DDP keeps nothing on the host.
        (
            "torchtitan",
            "0.2",
            {"dp": 8, "offload": Offload(1.0, 1.0, 1.0)},
            {},
            "offload",
        ),
        # Since 0.3 whatever FSDP2 wraps, shared or not.
        ("torchtitan", "0.3", {"dp": 8, "offload": Offload(1.0, 1.0, 1.0)}, {}, None),
        # Shards are of whole groups of ranks that share a sequence.
        (
            "torchtitan",
            "0.2",
            {"cp": 4, "dp": 2, "zero": 3, "group": 2},
            {},
            "sharding_group",
        ),
        ("torchtitan", "0.3", {"dp": 4, "pp": 2}, {}, None),
    ],
    # mics_shard_size went with 0.19.
    "DeepSpeed's shards over a part": [
        ("deepspeed", "0.16", {"dp": 8, "zero": 3, "group": 4}, {}, None),
        ("deepspeed", "0.19", {"dp": 8, "zero": 3, "group": 4}, {}, "sharding_group"),
    ],
    # mesh_axes: expert is innermost.
    "MaxText's experts": [
        ("maxtext", None, {"ep": 4, "dp": 8, "zero": 3, "group": 4}, {}, None),
        (
            "maxtext",
            None,
            {"ep": 4, "dp": 8, "zero": 3, "group": 2},
            {},
            "sharding_group",
        ),
        ("maxtext", None, {"ep": 2, "dp": 8, "zero": 3}, {}, None),
        ("maxtext", None, {"tp": 2, "ep": 2, "dp": 4, "zero": 3}, {}, "rank_order"),
    ],
    # "Pipeline Parallel is enabled but qwen3 does not support pipelining"; DeepSeek's
    # FlexAttention does not go with context parallelism.
    "torchtitan's models": [
        (
            "torchtitan",
            release,
            {"dp": 4, "pp": 2, "zero": 3},
            {"has_normed_queries": True},
            rule,
        )
        for release, rule in (("0.2", "pipeline"), ("0.3", None))
    ]
    + [
        (
            "torchtitan",
            "0.2",
            {"cp": 2, "dp": 4, "zero": 3},
            {"has_latent_attention": True},
            "context_parallelism",
        ),
    ],
    # "Gated delta net does not support context parallel for now", up to core_v0.17;
    # "Currently context parallelism is not supported by DSAttention!", up to 0.18.2.
    "Megatron's mixers": [
        ("megatron-core", release, {"cp": 2, "dp": 4}, {fact: True}, rule)
        for fact, release, rule in (
            ("has_linear_attention", "0.17", "context_parallelism"),
            ("has_linear_attention", "0.18", None),
            ("has_sparse_attention", "0.18", "context_parallelism"),
            ("has_sparse_attention", "0.19", None),
        )
    ],
    "MaxText's replicas": [
        ("maxtext", None, {"dp": 8, "zero": 1}, {}, None),
        ("maxtext", None, {"cp": 2, "dp": 4}, {}, "zero_stage"),
        ("maxtext", None, {"cp": 2, "dp": 4, "zero": 3}, {}, None),
        # logical_axis_rules split weights over all of the axis context.
        ("maxtext", None, {"cp": 2, "dp": 4, "zero": 3, "group": 4}, {}, None),
        (
            "maxtext",
            None,
            {"cp": 4, "dp": 2, "zero": 3, "group": 2},
            {},
            "sharding_group",
        ),
    ],
    "Megatron FSDP": [
        ("megatron-core", "0.13", {"dp": 8, "zero": 3}, {}, "zero_stage"),
        ("megatron-core", "0.14", {"dp": 8, "zero": 3, "group": 4}, {}, None),
        ("megatron-core", "0.16", {"dp": 8, "zero": 2}, {}, None),
    ],
    # Groups of microbatches a little longer than the pipeline.
    "rounds of microbatches": [
        (preset, release, {"pp": 4, "v": 2, "batch": m, **more}, facts, rule)
        for preset, release, m, more, rule in (
            ("megatron-lm", "0.9", 10, {}, "microbatches"),
            ("megatron-core", None, 10, {}, None),
            ("megatron-core", None, 11, {}, "microbatches"),
            ("megatron-core", None, 3, {}, "microbatches"),
            ("torchtitan", None, 10, {"zero": 2}, None),
            ("torchtitan", None, 3, {"zero": 2}, None),
            ("internevo", None, 10, {}, "microbatches"),
        )
        for facts in ({"num_devices": 4, "global_batch_size": m},)
    ]
    + [
        # Schedule1F1B wants as many microbatches as stages.
        (
            "torchtitan",
            None,
            {"pp": 4, "batch": 3, "zero": 2},
            {"num_devices": 4, "global_batch_size": 3},
            "microbatches",
        ),
    ],
    "any groups that divide": [
        (
            "fsdp",
            None,
            {"dp": 6, "zero": 3, "group": 3, "batch": 12},
            {"num_devices": 6, "global_batch_size": 12},
            None,
        ),
    ],
    # ParallelismConfig of Accelerate: "Tensor/Context parallelism (tp/cp_size > 1)
    # cannot be used with pure data parallelism (dp_replicate_size > 1 and dp_shard_size
    # == 1)". torchtitan shards over dp_shard x cp, whatever dp_shard is.
    "shards of the ranks of one sequence": [
        (preset, None, {"cp": cp, "dp": 8 // cp, "zero": 3, "group": group}, {}, rule)
        for preset, cp, group, rule in (
            ("fsdp", 2, 2, "sharding_group"),
            ("fsdp", 4, 4, "sharding_group"),
            ("fsdp", 2, 4, None),
            ("fsdp", 2, 8, None),
            ("fsdp", 8, 8, None),
            ("torchtitan", 2, 2, None),
            ("torchtitan", 4, 4, None),
        )
    ],
}
"""What was wrong -> preset, release, plan, facts, and the rule that it breaks."""


@failures.over("name", CASES)
def test_plans_that_sources_say_of(name):
    wrong = []
    for preset, release, given, facts, rule in CASES[name]:
        found = broken(made(**given), preset, release=release, **facts)
        if found != ({rule} if rule else set()):
            wrong.append((preset, release, given, facts, rule, found))
    assert not wrong


def test_maxtext_exchanges_heads_on_tpus_alone():
    rules = FRAMEWORKS["maxtext"].rules
    assert not {"a2a", "a2a+p2p"} & {*rules.on("h100-sxm").context_parallel}
    assert {"a2a", "a2a+p2p", "p2p"} < {*rules.on("tpu-v5p").context_parallel}


def test_maxtext_exchanges_no_heads_of_latent_attention():
    # "initially supported only for global causal attention"
    rules = FRAMEWORKS["maxtext"].rules.on("tpu-v5p")
    facts = replace(FACTS, has_latent_attention=True, sequence_length=4096)
    refused = set()
    for kind in CP_COMM_TYPES:
        grouping = Grouping(cp_comm_type=kind, a2a=2 if kind == "a2a+p2p" else 0)
        sizes = LaunchSizes(1, 4, 1, grouping, sequence_parallel=False)
        if list(size_breaches(sizes, rules, facts)):
            refused.add(kind)
    assert refused == {"a2a", "a2a+p2p"}


def test_a_release_whose_rules_are_not_known_is_refused():
    with pytest.raises(InputError, match="no rules of this release") as caught:
        FRAMEWORKS["megatron-core"].rules_of("0.7")
    assert caught.value.got == "0.7"


def test_no_source_is_unchecked_and_each_names_a_file_or_says_why_not():
    for name, framework in FRAMEWORKS.items():
        for release in framework.releases or (None,):
            for rule, source in framework.rules_of(release).sources:
                assert "not checked" not in source, (name, rule)
                assert name == "ideal" or any(c in source for c in "/:"), (name, rule)


def test_blocks_of_llama_go_where_deepspeed_puts_them():
    facts = {"is_block": chain(30), "num_devices": 8}
    assert broken(made(pp=8, counts=[4] * 6 + [3] * 2), "deepspeed", **facts) == set()
    assert broken(made(pp=8, counts=[3] * 2 + [4] * 6), "deepspeed", **facts) == {
        "split"
    }

"""From rows to plans: what is read, what is assumed, what is refused and why."""

from dataclasses import replace

import pytest

from nestsim.presets import PRESETS, find_preset
from nestsim.validation.refusals import REFUSALS, RowRefusedError
from nestsim.validation.row_plan import read_case
from planner.plan_spec import PlanSpec
from tests.nestsim.validation_rows import GPT, gpt

GBIT = 1e9 / 8


def test_a_full_row_is_read_as_it_is_written():
    case = read_case(gpt())
    assert case.plan == PlanSpec(
        micro_batch_size=2,
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        data_parallel_size=4,
        recompute="full",
    )
    assert case.accelerator.name == "a100-80gb"
    assert case.training.global_batch_size == 32
    assert case.training.precision == "fp16"
    model = case.model
    assert (model.family, model.num_layers, model.hidden_size) == ("gpt", 8, 1024)
    assert model.attention_implementation == "plain"
    node, fabric = case.network.levels
    assert (node.fan_out, fabric.fan_out) == (8, 2)
    assert node.bandwidth == case.accelerator.interconnect_bandwidth
    assert (case.network.nic, fabric.bandwidth) == ("device", 200 * GBIT)
    assert case.assumed == ("dropout 0.1", "gradients in fp32, adam")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"vocab": ""}, "vocab = 50257"),
        ({"sequence_parallel": "not stated"}, "sequence parallelism off"),
        ({"software": ""}, "software = megatron-lm"),
        ({"software": "own stack"}, "software own stack as megatron-lm"),
        ({"precision": ""}, "precision fp16"),
        ({"zero_or_fsdp": ""}, "ZeRO stage 0"),
        ({"recompute": ""}, "recompute none"),
        ({"flash_attention": ""}, "plain attention"),
        ({"flash_attention": "not stated (TE/cuDNN auto)"}, "flash attention"),
        ({"inter_node_net": "not stated"}, "200 Gbit/s per device between nodes"),
        ({"intra_node_link": ""}, "300 GB/s inside the node, as a100-80gb has"),
        ({"devices_per_node": ""}, "devices_per_node = 8"),
        ({"accelerator": "A100"}, "A100 with 80 GB"),
        ({"dp": ""}, "dp = 4, as the devices make"),
        ({"num_devices": ""}, "num_devices = 16, as the sizes make"),
        ({"vpp": ""}, "vpp = 1"),
        ({"gated_mlp": ""}, "gated_mlp = no, by the model's name"),
        ({"layers": "7"}, "layers per stage: 1 x 4, then 1 x 3"),
    ],
)
def test_what_a_row_does_not_say_is_assumed_and_noted(changed, said):
    assert said in read_case(gpt(**changed)).assumed
    assert said not in read_case(gpt()).assumed


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        *(({name: ""}, "missing-column") for name in ("layers", "hidden", "heads")),
        *(({name: ""}, "missing-column") for name in ("tp", "pp", "micro_batch")),
        *(({name: ""}, "missing-column") for name in ("seq_len", "global_batch")),
        ({"num_devices": "", "dp": ""}, "missing-column"),
        ({"accelerator": "Abacus 3000"}, "unknown-accelerator"),
        ({"accelerator": ""}, "unknown-accelerator"),
        ({"tp": "1/2"}, "uneven-plan"),
        ({"dp": "1/2"}, "uneven-plan"),
        ({"micro_batch": "1/2"}, "uneven-plan"),
        ({"recompute": "per stage: [0, 5]"}, "uneven-plan"),
        ({"zero_or_fsdp": "per stage: some offload"}, "uneven-plan"),
        ({"zero_or_fsdp": "ZeRO-3 with offload"}, "offload"),
        ({"notes": "activation CPU offload True"}, "offload"),
        *(
            ({"precision": text}, "low-precision")
            for text in ("MXFP8", "NVFP4", "fp8 hybrid + bf16", "int8")
        ),
        ({"precision": "posit16"}, "unknown-precision"),
        ({"recompute": "selective (op-level SAC)"}, "unknown-recompute"),
        ({"recompute": "not all of it"}, "unknown-recompute"),
        ({"zero_or_fsdp": "magic"}, "unknown-sharding"),
        ({"intra_node_link": "string"}, "unknown-network"),
        ({"model": "DeepSeekV3"}, "unknown-model"),
        ({"notes": "LoRA Performance"}, "fine-tuning"),
        ({"dp": "3"}, "contradiction"),
        ({"num_devices": "18", "dp": ""}, "contradiction"),
        ({"kv_heads": "5"}, "no-such-model"),
    ],
)
def test_what_cannot_be_expressed_is_refused_with_its_code(changed, code):
    with pytest.raises(RowRefusedError) as refused:
        read_case(gpt(**changed))
    assert refused.value.code == code
    assert refused.value.reason
    assert code in REFUSALS


def test_offload_that_is_off_is_no_offload():
    assert read_case(gpt(notes="activation CPU offload False")).plan.zero_stage == 0


@pytest.mark.parametrize(
    ("written", "zero_stage", "group"),
    [
        ("none (DDP torch/local)", 0, None),
        ("DDP + distributed optimizer", 1, None),
        ("ZeRO-1 over all DP", 1, None),
        ("ZeRO-1 within 2 GPUs (hybrid)", 1, 2),
        ("ZeRO-1 within group of 2", 1, 2),
        ("ZeRO-1 within 8 GPUs (hybrid)", 1, None),
        ("FSDP SHARD_GRAD_OP (ZeRO-2)", 2, None),
        ("FSDP FULL_SHARD (ZeRO-3)", 3, None),
        ("FSDP2 (ZeRO-3)", 3, None),
        ("FSDP", 3, None),
        ("FSDP within slice (ici_fsdp=2), data parallel across slices", 3, 2),
    ],
)
def test_sharding_is_read_from_its_description(written, zero_stage, group):
    plan = read_case(gpt(zero_or_fsdp=written)).plan
    assert (plan.zero_stage, plan.sharding_group_size) == (zero_stage, group)


@pytest.mark.parametrize(
    ("written", "nic", "bandwidth"),
    [
        ("8x200 Gb/s HDR IB per node (Selene)", "device", 200 * GBIT),
        ("4x100 Gb/s Omni-Path per node", "node", 400 * GBIT),
        ("800 Gbps per node (config)", "node", 800 * GBIT),
        ("1600 Gb/s per node RoCE", "node", 1600 * GBIT),
        ("400 Gb/s per GPU RoCE", "device", 400 * GBIT),
        ("400 Gb/s RDMA per GPU", "device", 400 * GBIT),
    ],
)
def test_links_between_nodes_are_read_from_their_description(written, nic, bandwidth):
    network = read_case(gpt(inter_node_net=written)).network
    assert network.nic == nic
    assert network.levels[1].bandwidth == pytest.approx(bandwidth)


def test_as_many_adapters_as_devices_are_one_for_each_also_where_eight_are_assumed():
    network = read_case(gpt(devices_per_node="")).network
    assert (network.nic, network.levels[1].bandwidth) == ("device", 200 * GBIT)
    network = read_case(gpt(devices_per_node="4")).network
    assert (network.nic, network.levels[1].bandwidth) == ("node", 1600 * GBIT)


def test_one_node_has_no_fabric_and_needs_no_words_for_it():
    network = read_case(gpt(num_devices="8", dp="2", inter_node_net="n/a")).network
    assert [level.fan_out for level in network.levels] == [8]


def test_an_nvlink_domain_reaches_over_its_trays():
    row = gpt(intra_node_link="NVLink5 NVL72 domain", accelerator="GB200")
    row = replace(row, values={**row.values, "devices_per_node": "4"})
    assert [level.fan_out for level in read_case(row).network.levels] == [16]


def test_hosts_of_a_slice_have_an_adapter_each():
    case = read_case(
        gpt(
            accelerator="TPU v5e",
            intra_node_link="TPU ICI torus",
            inter_node_net="DCN between slices",
            devices_per_node="4",
            notes="2 slice(s)",
        )
    )
    slices, fabric = case.network.levels
    assert (slices.fan_out, fabric.fan_out) == (8, 2)
    assert case.network.nic == "device"
    assert fabric.bandwidth == pytest.approx(25 * GBIT)


@pytest.mark.parametrize(
    ("software", "name"),
    [
        ("Megatron-LM (2021-04)", "megatron-lm"),
        ("Megatron-Bridge, 26.02 NeMo Container", "nemo"),
        ("NeMo/Megatron, MLPerf Training v3.1 submission", "nemo"),
        ("Megatron-DeepSpeed", "deepspeed"),
        ("llm-foundry / PyTorch FSDP", "llm-foundry"),
        ("TorchTitan, torch.compile=yes", "torchtitan"),
        ("MaxText (JAX/XLA)", "maxtext"),
        ("InternEvo (InternLM)", "internevo"),
        ("PyTorch DDP + LAMB (NVIDIA DLE)", "ddp"),
    ],
)
def test_a_framework_is_known_by_its_name(software, name):
    preset, assumed = find_preset(software)
    assert preset is PRESETS[name]
    assert assumed == ""


def test_the_preset_decides_what_is_overlapped():
    exposed = read_case(gpt()).execution
    overlapped = read_case(gpt(software="NeMo")).execution
    assert not exposed.overlap_grad_reduce
    assert not exposed.tp_comm_overlap
    assert overlapped.overlap_grad_reduce
    assert overlapped.tp_comm_overlap


def test_every_preset_has_gradients_for_every_precision():
    for name, preset in PRESETS.items():
        assert preset.name == name
        assert set(preset.gradients) == {"bf16", "fp16", "fp32"}


def test_models_with_gates_are_llamas():
    model = read_case(gpt(gated_mlp="yes (silu,linear)", ffn="2816")).model
    assert model.gated_linear_unit
    assert not model.tie_word_embeddings
    assert model.hidden_dropout == 0.0
    assert GPT["gated_mlp"] == "no"

"""From rows to plans: what is read, what is assumed, what is refused and why."""

from dataclasses import replace

import pytest

from estimators.models.library import load_model
from nestsim.features.validation.case import read_case
from nestsim.features.validation.cluster_table import accelerator_setting, device_of
from nestsim.features.validation.columns import REFUSALS, RowRefusedError
from nestsim.features.validation.device_names import find_device
from nestsim.features.validation.predict import Predictor
from nestsim.features.validation.reading import Reading, find_preset
from planner.frameworks.framework import PRESETS
from planner.plans.spec import PlanSpec
from tests import failures
from tests.nestsim.features.validation.validation_rows import GPT, gpt
from topologies.accelerators import accelerator_names

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


@failures.over(
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
        (
            {"intra_node_link": "String"},
            "intra_node_link string: 300 GB/s inside the node, as a100-80gb has",
        ),
        (
            {"inter_node_net": "two cans"},
            "inter_node_net two cans: 200 Gbit/s per device between nodes",
        ),
        ({"cuda_graphs": "attn, moe"}, "not modelled: cuda_graphs moe"),
        (
            {"recompute": "selective: gdn_qkv"},
            "not modelled: recompute_modules gdn_qkv",
        ),
        ({"devices_per_node": ""}, "devices_per_node = 8"),
        ({"accelerator": "A100"}, "A100 with 80 GB"),
        ({"dp": ""}, "dp = 4, as the devices make"),
        ({"num_devices": ""}, "num_devices = 16, as the sizes make"),
        ({"vpp": ""}, "vpp = 1"),
        ({"gated_mlp": ""}, "gated_mlp = no, by the model's name"),
        ({"recompute": "config does not set it"}, "recompute none"),
        ({"zero_or_fsdp": "not stated"}, "ZeRO stage 0"),
        ({"notes": "SFT Performance"}, "fine-tuning as training on full sequences"),
        (
            {"zero_or_fsdp": "DeepSpeed 3D"},
            "ZeRO stage 1 in DeepSpeed's 3D parallelism",
        ),
        ({"layers": "7"}, "layers per stage: 1 x 4, then 1 x 3"),
    ],
)
def test_what_a_row_does_not_say_is_assumed_and_noted(changed, said):
    assert said in read_case(gpt(**changed)).assumed
    assert said not in read_case(gpt()).assumed


@failures.over(
    ("changed", "code"),
    [
        *(({name: ""}, "missing-column") for name in ("layers", "hidden", "heads")),
        *(({name: ""}, "missing-column") for name in ("tp", "pp")),
        *(({name: ""}, "missing-column") for name in ("seq_len", "global_batch")),
        ({"num_devices": "", "dp": ""}, "missing-column"),
        ({"accelerator": "Abacus 3000"}, "unknown-accelerator"),
        ({"accelerator": ""}, "unknown-accelerator"),
        ({"tp": "1/2"}, "uneven-plan"),
        ({"dp": "1/2"}, "uneven-plan"),
        ({"micro_batch": "1/2"}, "uneven-plan"),
        ({"recompute": "per stage: [0, 5]"}, "uneven-plan"),
        ({"zero_or_fsdp": "per stage: some offload"}, "uneven-plan"),
        *(
            ({"precision": text}, "low-precision")
            for text in ("MXFP8", "NVFP4", "fp8 hybrid + bf16", "int8", "int4")
        ),
        ({"precision": "posit16"}, "unknown-precision"),
        ({"recompute": "selective (op-level SAC)"}, "unknown-recompute"),
        ({"recompute": "not all of it"}, "unknown-recompute"),
        ({"recompute": "full for 5 of 12 layers"}, "unknown-recompute"),
        ({"accelerator": "V100-PCIE-16GB"}, "unknown-accelerator"),
        ({"accelerator": "H100 94GB"}, "unknown-accelerator"),
        ({"zero_or_fsdp": "magic"}, "unknown-sharding"),
        ({"num_experts": "8", "moe_topk": "2"}, "missing-column"),
        ({"lora": "yes"}, "fine-tuning"),
        ({"model": "DeepSeekV3"}, "unknown-model"),
        ({"model": "DeepSeekV4 Flash", "num_experts": "64"}, "unknown-model"),
        ({"model": "Qwen3_Next_80B", "num_experts": "64"}, "unknown-model"),
        ({"model": "Qwen3_VL_235B", "num_experts": "64"}, "unknown-model"),
        ({"model": "DeepSeek-V3.2", "num_experts": "64"}, "unknown-model"),
        ({"model": "Nemotron_3_Nano"}, "unknown-model"),
        ({"model": "NemotronH-56B"}, "unknown-model"),
        ({"notes": "LoRA Performance"}, "fine-tuning"),
        ({"notes": "LORA Performance"}, "fine-tuning"),
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
    plan = read_case(gpt(notes="activation CPU offload False")).plan
    assert (plan.zero_stage, plan.offload_activations) == (0, 0.0)


@failures.over(
    ("changed", "keeps"),
    [
        ({"zero_or_fsdp": "ZeRO-3 with offload"}, (0.0, 1.0, 0.0)),
        ({"zero_or_fsdp": "ZeRO-3, param and optimizer offload"}, (1.0, 1.0, 0.0)),
        ({"notes": "activation CPU offload True"}, (0.0, 0.0, 1.0)),
        ({"recompute": "activation offloading"}, (0.0, 0.0, 1.0)),
    ],
)
def test_what_a_row_offloads_is_predicted(changed, keeps):
    case = read_case(gpt(**changed))
    plan, bare = case.plan, read_case(gpt(recompute="none"))
    found = plan.offload_weights, plan.offload_optimizer, plan.offload_activations
    assert found == keeps
    assert any("the host keeps" in text for text in case.assumed)
    predictor = Predictor()
    slower = predictor.predict(case).iteration_time
    assert slower > predictor.predict(bare).iteration_time


@failures.over(
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
        ("DeepSpeed 3D", 1, None),
        ("HSDP", 3, None),
        ("HSDP 2x2", 3, 2),
        ("HSDP (shard 2, replicate 2)", 3, 2),
        ("FSDP within a node", 3, None),
        ("FSDP HYBRID_SHARD", 3, None),
        ("FSDP _HYBRID_SHARD_ZERO2", 2, None),
        ("FSDP (dp2 fsdp2 tp2)", 3, None),
        ("FSDP within slice (ici_fsdp=2), data parallel across slices", 3, 2),
    ],
)
def test_sharding_is_read_from_its_description(written, zero_stage, group):
    plan = read_case(gpt(zero_or_fsdp=written)).plan
    assert (plan.zero_stage, plan.sharding_group_size) == (zero_stage, group)


@failures.over(
    ("written", "nic", "bandwidth"),
    [
        ("8x200 Gb/s HDR IB per node (Selene)", "device", 200 * GBIT),
        ("4x100 Gb/s Omni-Path per node", "node", 400 * GBIT),
        ("800 Gbps per node (config)", "node", 800 * GBIT),
        ("1600 Gb/s per node RoCE", "node", 1600 * GBIT),
        ("400 Gb/s per GPU RoCE", "device", 400 * GBIT),
        ("400 Gb/s RDMA per GPU", "device", 400 * GBIT),
        ("8x400G NDR", "device", 400 * GBIT),
        ("8 x 50 GB/s", "device", 400 * GBIT),
        ("EFA, 3200 Gbps per node", "node", 3200 * GBIT),
        ("100GbE", "node", 100 * GBIT),
        ("8 GPUs per node, network not stated", "device", 200 * GBIT),
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
            precision="bf16",
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


@failures.over(
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


@failures.over(
    ("software", "name"),
    [
        ("Megatron Core 0.8", "megatron-core"),
        ("Megatron-LM (core_r0.9)", "megatron-core"),
        ("mcore", "megatron-core"),
        ("Megatron Bridge", "nemo"),
        ("Megatron-LM + DeepSpeed", "deepspeed"),
        ("Mist", "mist"),
        ("PyTorch Fully Sharded Data Parallel", "fsdp"),
    ],
)
def test_blanks_and_short_names_are_the_same_framework(software, name):
    assert find_preset(software) == (PRESETS[name], "")


@failures.over("software", ["Mistral's own", "nemotron", "addpipe", "Megatron"])
def test_words_that_only_contain_a_name_are_noted_as_unknown(software):
    assert find_preset(software)[1] == f"software {software} as megatron-lm"


@pytest.mark.parametrize(
    "changed",
    [
        {"zero_or_fsdp": "distributed optimizer"},
        {"flash_attention": "yes (TE/cuDNN)"},
        {"precision": "fp8 hybrid", "accelerator": "H100-80GB-SXM"},
    ],
)
def test_what_only_megatron_core_has_tells_it_from_megatron_of_2021(changed):
    for software in ("Megatron-LM", "own stack", ""):
        row = gpt(**{"software": software, "source": "own logs", **changed})
        assert read_case(row).preset == "megatron-core"
    assert read_case(gpt(software="own stack")).preset == "megatron-lm"
    assert read_case(gpt(software="MaxText", **changed)).preset == "maxtext"
    said = read_case(gpt(software="own stack", **changed)).assumed
    assert "software own stack as megatron-core" in said


@pytest.mark.parametrize("software", ["Meta (FSDP)", "Meta internal (FSDP+TP+PP+CP)"])
def test_meta_s_own_frees_the_gradients_that_it_reduces_once(software):
    cells = {"pp": "2", "zero_or_fsdp": "FSDP (grads/opt sharded)"}
    case = read_case(gpt(software=software, **cells, num_devices="16"))
    assert (case.preset, case.plan.zero_stage) == ("megatron-core", 1)
    assert case.execution.frees_gradients
    other = read_case(gpt(software="Megatron Core", zero_or_fsdp="ZeRO-1"))
    assert not other.execution.frees_gradients


def test_an_open_micro_batch_has_those_that_divide_the_batch_for_alternatives():
    case = read_case(gpt(micro_batch="", global_batch="24"))
    sizes = [spec.micro_batch_size for spec in (case.plan, *case.alternatives)]
    assert sizes == [1, 2]
    assert "micro_batch: the fastest that fits, of 1, 2" in case.assumed
    assert case.assumes_layout
    assert not read_case(gpt()).assumes_layout
    assert read_case(gpt()).alternatives == ()


def test_open_chunks_are_alternatives_only_beside_an_open_micro_batch():
    both = read_case(gpt(micro_batch="", vpp="", global_batch="4"))
    chunks = [
        spec.virtual_pipeline_model_parallel_size
        for spec in (both.plan, *both.alternatives)
    ]
    assert chunks == [1, 2, 4]
    assert read_case(gpt(vpp="")).alternatives == ()
    without = read_case(gpt(software="DeepSpeed", micro_batch="", vpp=""))
    assert {
        spec.virtual_pipeline_model_parallel_size
        for spec in (without.plan, *without.alternatives)
    } == {1}


def test_a_step_without_a_batch_is_one_micro_batch_where_that_is_not_what_counts():
    rate = {"iter_time_s": "", "samples_per_s": "100", "pp": "1", "dp": "8"}
    case = read_case(gpt(global_batch="", **rate))
    assert case.training.global_batch_size == 16
    assert case.assumes_layout
    alone = read_case(
        gpt(global_batch="", pp="1", dp="8", notes="iteration = one micro-batch")
    )
    assert alone.training.global_batch_size == 16
    assert not alone.assumes_layout
    for kept in ({**rate, "pp": "2", "dp": "4"}, {"pp": "1", "dp": "8"}):
        with pytest.raises(RowRefusedError, match="global_batch is empty"):
            read_case(gpt(global_batch="", **kept))


@failures.over(
    ("policy", "mode"),
    [
        ("minimal", "selective"),
        ("minimal_flash", "selective"),
        ("save_dot_except_mlpwi", "selective"),
        ("save_dot_with_context_except_mlp", "full"),
        ("save_qkv_proj", "full"),
        ("gradient checkpointing", "full"),
    ],
)
def test_policies_of_xla_are_the_nearest_mode(policy, mode):
    assert read_case(gpt(recompute=policy)).plan.recompute == mode


def test_nemotron_4_is_a_dense_rotary_transformer_without_biases():
    model = read_case(gpt(model="Nemotron4-340b", kv_heads="4")).model
    assert (model.family, model.position_embedding_type) == ("gpt", "rope")
    assert not model.gated_linear_unit
    assert not model.add_bias_linear
    assert not model.tie_word_embeddings


def test_models_with_latent_attention_have_the_published_widths():
    cells = {"num_experts": "160", "gated_mlp": "yes", "ep": "2", "kv_heads": ""}
    cells["flash_attention"] = "yes"
    empty = {"hidden": "", "heads": "", "moe_topk": "", "moe_ffn": "", "ffn": ""}
    case = read_case(gpt(model="DeepSeekV2", **cells, **empty))
    model = case.model
    assert (model.hidden_size, model.num_attention_heads) == (5120, 128)
    assert (model.kv_lora_rank, model.q_lora_rank) == (512, 1536)
    assert (model.ffn_hidden_size, model.moe_router_topk) == (12288, 6)
    assert model.moe_ffn_hidden_size == 1536
    assert model.moe_shared_expert_intermediate_size == 2 * 1536
    assert "hidden = 5120" in case.assumed
    assert "no multi-token prediction" in case.assumed
    lite = gpt(model="DeepSeek-V2-Lite", moe_topk="6", moe_ffn="512", **cells)
    assert (read_case(lite).model.q_lora_rank, read_case(lite).model.v_head_dim) == (
        0,
        128,
    )
    llama = gpt(model="Llama4 Scout", moe_topk="1", moe_ffn="512", **cells)
    model = read_case(llama).model
    assert (model.kv_lora_rank, model.moe_shared_expert_intermediate_size) == (0, 512)
    stated = gpt(model="Kimi K2", moe_topk="8", moe_ffn="512", **cells, heads="128")
    model = read_case(stated).model
    assert model.hidden_size == 1024
    assert model.moe_shared_expert_intermediate_size == 512


@failures.over(
    ("software", "length", "tokens"),
    [
        ("PyTorch DDP (NVIDIA DLE)", "512", 288),
        ("PyTorch DDP, unpadded", "512", 256),
        ("PyTorch DDP", "512", 512),
        ("PyTorch DDP (NVIDIA DLE)", "128", 128),
    ],
)
def test_padding_of_berts_long_sequences_is_left_out(software, length, tokens):
    model = read_case(gpt(model="BERT-large", seq_len=length, software=software)).model
    assert model.sequence_length == tokens
    assert model.max_position_embeddings == int(length)


def test_long_sequences_of_gpts_have_no_padding():
    case = read_case(gpt(seq_len="512", software="PyTorch DDP (NVIDIA DLE)"))
    assert case.model.sequence_length == 512


@failures.over(
    ("layers", "pp", "vpp", "layout"),
    [
        ("61", "4", "4", (4,) * 15 + (1,)),
        ("61", "8", "4", (2,) * 30 + (1, 0)),
        ("64", "4", "4", None),
        ("62", "4", "4", None),
    ],
)
def test_chunks_that_are_not_equal_are_filled_from_the_front(layers, pp, vpp, layout):
    cells = {"num_devices": "32", "dp": "", "tp": "1", "layers": layers}
    plan = read_case(gpt(pp=pp, vpp=vpp, **cells)).plan
    assert plan.pipeline_model_parallel_layout == layout


@pytest.mark.parametrize("name", ["TPU v5 lite", "TPU-v5e", "Google TPU v5e"])
def test_a_tpu_has_several_spellings(name):
    tpu = {"intra_node_link": "ICI", "software": "MaxText", "precision": "bf16"}
    case = read_case(gpt(accelerator=name, **tpu))
    assert case.accelerator.name == "tpu-v5e"
    assert case.preset == "maxtext"


def test_int8_is_a_format_where_the_device_has_a_rate_for_it():
    tpu = {"accelerator": "TPU v5p", "intra_node_link": "ICI", "software": "MaxText"}
    case = read_case(gpt(precision="int8 quantized training (AQT)", **tpu))
    assert case.training.matmul_precision == "int8"
    assert case.training.precision == "bf16"


@failures.over(
    ("written", "name", "each"),
    [
        ("B300-288GB", "b300", 900e9),
        ("GB300", "gb300", 900e9),
        ("A800-80GB", "a800", 200e9),
        ("H800", "h800", 200e9),
        ("NVIDIA H100 80GB HBM3", "h100-sxm", 450e9),
        ("H100-80GB-PCIe", "h100-pcie", 63e9),
        ("H100 NVL 94GB", "h100-nvl", 63e9),
        ("A100-80GB-PCIe", "a100-80gb-pcie", 31.5e9),
        ("GB200 NVL72", "gb200", 900e9),
        ("TPU v7 (Ironwood)", "tpu-v7", 600e9),
        ("Ascend 910B", "ascend-910b", 196e9),
        ("AMD Instinct MI350X", "mi350x", 537.6e9),
        ("Gaudi 2", "gaudi2", 262.5e9),
        ("B200-180GB (row labelled H200 in table)", "b200", 900e9),
        ("A100-SXM4-40GB", "a100-40gb", 300e9),
    ],
)
def test_newer_and_cut_down_devices_are_known(written, name, each):
    accelerator = device_of(accelerator_setting(Reading(gpt(accelerator=written))))
    assert accelerator.name == name
    assert accelerator.interconnect_bandwidth == each


def test_every_accelerator_of_the_catalogue_is_known_by_its_name_with_blanks():
    for name in accelerator_names():
        written = name.replace("-", " ").upper()
        assert find_device(written.lower(), None)[0] == name


def test_boards_and_memory_that_the_catalogue_lacks_are_other_devices():
    for written in ("v100 pcie", "a100 64gb", "h100-96gb-hbm2e", "hopper"):
        assert find_device(written, None) == (None, False)
    assert find_device("a100", None) == ("a100-80gb", True)
    assert find_device("a100", 40.0) == ("a100-40gb", False)


def test_a_torus_without_stated_slices_has_as_many_pods_as_it_needs():
    tpu = {"accelerator": "TPU v6e (Trillium)", "intra_node_link": ""}
    tpu["precision"] = "bf16"
    case = read_case(gpt(num_devices="512", dp="128", inter_node_net="ICI; DCN", **tpu))
    assert [level.fan_out for level in case.network.levels] == [256, 2]
    assert "2 slices of a pod each" in case.assumed


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


DEEPSEEK = {
    "accelerator": "H100-80GB-SXM",
    "num_devices": "1024",
    "software": "Megatron-Bridge, 25.09 NeMo Container",
    "model": "DeepSeekV3 (dropless)",
    "layers": "61",
    "hidden": "7168",
    "ffn": "18432",
    "heads": "128",
    "kv_heads": "128",
    "num_experts": "256",
    "moe_topk": "8",
    "moe_ffn": "2048",
    "gated_mlp": "yes",
    "global_batch": "8192",
    "micro_batch": "1",
    "tp": "2",
    "pp": "8",
    "vpp": "4",
    "dp": "64",
    "ep": "64",
    "recompute": "none",
    "precision": "fp8, bf16 master",
    "flash_attention": "yes",
}
"""A row of a recipe that hides its all-to-alls."""


def test_all_to_alls_are_hidden_where_the_recipe_of_the_row_says_so():
    case = read_case(gpt(**DEEPSEEK))
    assert case.plan.overlap_moe_expert_parallel_comm
    assert case.software.ranks_per_node == 8
    assert any("by recipe" in sentence for sentence in case.assumed)
    for changed in (
        {"software": "Megatron-Bridge, 26.02 NeMo Container"},
        {"software": "Megatron-Core 0.14"},
        {"accelerator": "B200-180GB"},
        {"ep": "32"},
    ):
        case = read_case(gpt(**{**DEEPSEEK, **changed}))
        assert not case.plan.overlap_moe_expert_parallel_comm


def test_a_recipe_says_what_is_run_again_where_the_row_does_not():
    case = read_case(gpt(**DEEPSEEK | {"recompute": "not in table"}))
    assert case.plan.recompute == "selective"
    assert case.software.recompute_modules == ("mla_up_proj",)
    assert not case.leaves_recompute_open
    stated = read_case(gpt(**DEEPSEEK))
    assert stated.plan.recompute == "none"


def test_recipes_with_the_dispatcher_of_nccl_send_each_token_to_every_expert():
    qwen = {
        "model": "Qwen3_235B_a22B",
        "software": "Megatron-Bridge, 26.02 NeMo Container",
        "num_devices": "256",
        "num_experts": "128",
        "kv_heads": "4",
        "layers": "94",
        "dp": "16",
        "ep": "32",
    }
    case = read_case(gpt(**{**DEEPSEEK, **qwen}))
    assert case.plan.overlap_moe_expert_parallel_comm
    assert case.software.moe_token_dispatcher_type == "alltoall"


DEEPSEEK_V3 = {
    "model": "DeepSeekV3",
    "layers": "61",
    "hidden": "7168",
    "heads": "128",
    "kv_heads": "",
    "ffn": "18432",
    "moe_ffn": "2048",
    "moe_topk": "8",
    "num_experts": "256",
    "gated_mlp": "yes",
    "vocab": "129280",
    "ep": "2",
    "flash_attention": "yes",
}


@pytest.mark.parametrize(("name", "depths"), [("", 0), (" (w/ MTP)", 1)])
def test_published_models_have_their_blocks(name, depths):
    """671.0 billion parameters, and a layer of 11.6 where the row says so."""
    model = read_case(gpt(**DEEPSEEK_V3 | {"model": f"DeepSeekV3{name}"})).model
    published = load_model("deepseek-v3", sequence_length=model.sequence_length)
    rows = model.max_position_embeddings
    published = replace(published, max_position_embeddings=rows)
    assert replace(published, mtp_num_layers=depths) == model


def test_cut_models_keep_their_dense_first_layers():
    model = read_case(gpt(**DEEPSEEK_V3 | {"layers": "5"})).model
    published = load_model("deepseek-v3")
    assert model.block_pattern == published.block_pattern[:5]
    assert model.ffn_hidden_size == published.ffn_hidden_size
    assert model.moe_ffn_hidden_size == published.moe_ffn_hidden_size
    assert read_case(gpt(**DEEPSEEK_V3 | {"layers": "62"})).model.block_pattern == ()


def test_experts_have_the_width_of_the_model_that_a_row_names():
    stated = read_case(gpt(**DEEPSEEK_V3)).model
    empty = {"moe_ffn": "", "moe_topk": ""}
    assert read_case(gpt(**DEEPSEEK_V3 | empty)).model == stated
    with pytest.raises(RowRefusedError, match="moe_ffn"):
        read_case(gpt(**DEEPSEEK_V3 | {"moe_ffn": "", "hidden": "4096"}))


def test_a_hybrid_of_the_library_is_taken_as_a_whole():
    sizes = dict.fromkeys(("layers", "hidden", "heads", "ffn", "vocab"), "")
    case = read_case(gpt(model="Nemotron_3_Nano", tp="1", pp="1", dp="16", **sizes))
    published = load_model("nemotron-3-nano-30b-a3b")
    assert case.model.block_pattern == published.block_pattern
    assert case.model.num_moe_experts == 128


@failures.over(
    ("changed", "found", "value"),
    [
        ({"moe_overlap": "yes"}, "plan.overlap_moe_expert_parallel_comm", True),
        ({"cuda_graphs": "full"}, "software.cuda_graphs", "full_iteration"),
        ({"cuda_graphs": "none"}, "software.cuda_graphs", "none"),
        ({"cuda_graphs": "attn + moe_router"}, "software.cuda_graphs", "layers"),
        ({"cuda_graphs": "moe_router"}, "software.cuda_graph_modules", ("moe_router",)),
        ({"moe_dispatcher": "hybridep"}, "software.moe_token_dispatcher_type", "flex"),
        ({"moe_dispatcher": "hybridep"}, "software.moe_flex_dispatcher_num_sms", 32),
        ({"moe_dispatcher": "deepep"}, "software.moe_flex_dispatcher_num_sms", 0),
        ({"overlaps": "delay_wgrad"}, "execution.delay_wgrad_compute", True),
        ({"overlaps": "shared_expert"}, "execution.moe_shared_expert_overlap", True),
        (
            {"moe_dispatcher": "allgather"},
            "software.moe_token_dispatcher_type",
            "allgather",
        ),
        ({"expandable_segments": "yes"}, "software.expandable_segments", True),
        ({"overlaps": "none"}, "execution.overlap_grad_reduce", False),
        ({"overlaps": "no tp_comm, p2p"}, "execution.tp_comm_overlap", False),
        ({"overlaps": "tp_comm"}, "execution.tp_comm_overlap", True),
        ({"offload": "activations of 15 layers"}, "plan.offload_activations", 0.25),
        ({"offload": "optimizer"}, "plan.offload_optimizer", 1.0),
        (
            {"recompute": "selective: layernorm, moe_act"},
            "software.recompute_modules",
            ("layernorm", "moe_act"),
        ),
        (
            {"recompute": "not stated", "recompute_modules": "mla_up_proj"},
            "software.recompute_modules",
            ("mla_up_proj",),
        ),
    ],
)
def test_columns_about_what_ran_are_settings(changed, found, value):
    cells = {"layers": "60", "pp": "1", "dp": "8", "ep": "8", "software": "NeMo"}
    case = read_case(gpt(**DEEPSEEK_V3 | cells | {"recompute": "none"} | changed))
    table, setting = found.split(".")
    assert getattr(getattr(case, table), setting) == value
    assert not any("not modelled" in sentence for sentence in case.assumed)


def test_a_recipe_holds_for_what_a_row_leaves_empty():
    """Megatron-Bridge v0.5.0: DEEPSEEK_V3_PRETRAIN_CONFIG_GB200_FP8_MX_V2."""
    cells = {
        "software": "Megatron-Bridge, 26.06 NeMo Container",
        "model": "DeepSeekV3",
        "accelerator": "GB200",
        "num_devices": "256",
        "precision": "MXFP8",
        "recompute": "not in table",
        "tp": "1",
        "pp": "4",
        "vpp": "4",
        "dp": "64",
        "ep": "64",
    }
    case = read_case(gpt(**DEEPSEEK | cells))
    assert case.software.captures_step
    assert case.software.moe_token_dispatcher_type == "flex"
    assert case.plan.overlap_moe_expert_parallel_comm
    assert case.execution.delay_wgrad_compute
    assert "cuda_graphs full, by recipe" in case.assumed
    stated = read_case(gpt(**DEEPSEEK | cells | {"cuda_graphs": "none"}))
    assert stated.software.cuda_graphs == "none"
    assert stated.plan.overlap_moe_expert_parallel_comm


@pytest.mark.parametrize(("accelerator", "layers"), [("GB200", 40), ("GB300", 20)])
def test_llama_70b_under_megatron_fsdp_keeps_blocks_on_the_host(accelerator, layers):
    """cpu_offloading_num_layers of Megatron-Bridge's recipes."""
    cells = {
        "software": "Megatron-Bridge, 26.04 NeMo Container",
        "model": "LLAMA3_70B",
        "layers": "80",
        "accelerator": accelerator,
        "zero_or_fsdp": "Megatron-FSDP 64",
        "precision": "FP8",
        "tp": "1",
        "pp": "1",
        "dp": "16",
    }
    plan = read_case(gpt(**cells, micro_batch="2")).plan
    assert plan.offload_activations == layers / 80
    assert read_case(gpt(**cells, micro_batch="1")).plan.offload_activations == 0.0


def test_what_a_source_says_of_its_rows_holds_for_them():
    cells = {"software": "MindSpeed-LLM (Megatron Core)", "notes": "measured with mc2"}
    case = read_case(gpt(**cells))
    assert case.execution.tp_comm_overlap
    assert "tp_comm_overlap = True, by the source" in case.assumed
    assert not read_case(gpt(**cells | {"notes": ""})).execution.tp_comm_overlap
    assert not read_case(gpt(**cells, overlaps="none")).execution.tp_comm_overlap

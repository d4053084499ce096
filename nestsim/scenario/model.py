"""The table [model]: from the library or a file, traced, or spelled out."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from estimators.models.huggingface import load_huggingface
from estimators.models.library import build_spec, load_model, model_names
from estimators.models.limits import MAX_LAYERS, MAX_VOCABULARY
from estimators.models.spec import (
    TransformerSpec,
    with_num_layers,
    without_padding,
)
from estimators.tracing.user_module import TracedModule, UserModule
from nestsim.scenario.architectures import (
    Architecture,
    Attention,
    Depths,
    EncoderDecoderModel,
    NumLayers,
    SequenceLength,
    VisionModel,
    Width,
)
from nestsim.scenario.base import Table, input_file
from nestsim.scenario.errors import nearest
from topologies.errors import InputError
from topologies.settings import Argument, Text


class NamedModel(Table):
    """A model that is known by its name or its file, and what may differ from it."""

    sequence_length: SequenceLength | None = Field(None, examples=[4096])
    """Tokens of a training sequence. Left out, the published length, or the longest
    that the file allows."""

    decoder_sequence_length: SequenceLength | None = Field(None, examples=[114])
    """Tokens of a training sequence that a decoder writes, of a model with an encoder
    too. Left out, the published length; 114 for a file, as in T5's pre-training."""

    mean_sequence_length: SequenceLength | None = Field(None, examples=[288])
    """Tokens of a sequence on average, where the framework leaves padding out of the
    computation; attention is that of sequences of this length. Left out, all tokens of
    a sequence are computed."""

    num_layers: NumLayers | None = Field(None, examples=[4])
    """Transformer blocks, for small variants. Left out, as many as were published or
    the file says."""

    mtp_num_layers: Depths | None = Field(None, examples=[0])
    """Layers that predict tokens further ahead; 0 to train without. Left out, as many
    as were published or the file says."""

    attention: Attention = "flash"
    """How attention is computed: by one fused kernel ("flash"), or by two products with
    a softmax between them."""

    def adapted(self, spec: TransformerSpec) -> TransformerSpec:
        """Return the published architecture with what differs from it."""
        given: dict[str, Any] = {
            "attention_implementation": self.attention,
            "decoder_sequence_length": self.decoder_sequence_length,
            "mtp_num_layers": self.mtp_num_layers,
        }
        written = {name: value for name, value in given.items() if value is not None}
        spec = replace(spec, **written)
        return _adapted(spec, self.num_layers, self.mean_sequence_length)


class LibraryModel(NamedModel):
    """A published model, by name."""

    name: Text = Field(
        examples=["llama2-7b"], json_schema_extra={"enum": list(model_names())}
    )
    """Name of a published model, one that `nestsim models` lists."""

    def build(self, folder: Path) -> TransformerSpec:  # noqa: ARG002  # one interface
        """Return the architecture."""
        known = model_names()
        if self.name not in known:
            raise InputError(
                "no such model in the library",
                where="name",
                got=self.name,
                expected="one of " + ", ".join(known),
                hint=nearest(self.name, known),
            )
        return self.adapted(load_model(self.name, sequence_length=self.sequence_length))


class HuggingFaceModel(NamedModel):
    """A Hugging Face config.json of a type that is read; errors list these types."""

    config: Text = Field(examples=["config.json"])
    """A Hugging Face config.json, relative to the scenario's folder. Nothing is
    downloaded."""

    def build(self, folder: Path) -> TransformerSpec:
        """Return the architecture.

        Parameters
        ----------
        folder
            The scenario file's.
        """
        expected = "a Hugging Face config.json, relative to the scenario's folder"
        path = input_file(folder, self.config, "config", expected)
        try:
            spec = load_huggingface(path, sequence_length=self.sequence_length)
        except InputError as error:
            raise error.at("config", separator=": ") from None
        return self.adapted(spec)


class SpelledOutModel(Architecture):
    """An architecture under Megatron's names.

    Where a setting is left out, the family decides: Llama and Mixtral have RMSNorm,
    SwiGLU, rotary positions, no biases and an untied head; GPT and BERT have LayerNorm,
    GELU, learned positions, biases and a tied head; Mamba has RMSNorm, the square of a
    ReLU, no positions, no biases and an untied head.
    """

    family: Literal["gpt", "llama", "mixtral", "mamba", "bert"]
    """Family of the model, which decides which modules it is built of. Mistral is a
    "llama", GPT-NeoX a "gpt", a hybrid of Mamba-2 and attention a "mamba". The families
    "t5" and "vit" have settings of their own."""

    num_layers: NumLayers = Field(examples=[32])
    """Transformer blocks of the model."""

    vocab_size: int = Field(ge=1, le=MAX_VOCABULARY, examples=[32000])
    """Entries of the word embedding."""

    sequence_length: SequenceLength = Field(examples=[4096])
    """Tokens of a training sequence."""

    mean_sequence_length: SequenceLength | None = Field(None, examples=[288])
    """Tokens of a sequence on average, where the framework leaves padding out of the
    computation; attention is that of sequences of this length. Left out, all tokens of
    a sequence are computed."""

    num_query_groups: Width | None = Field(None, examples=[8])
    """Key and value heads of each attention layer. Left out, as many as query heads."""

    kv_channels: Width | None = Field(None, examples=[128])
    """Width of one attention head. Left out, `hidden_size` over
    `num_attention_heads`."""

    max_position_embeddings: SequenceLength | None = Field(None, examples=[4096])
    """Rows of a learned position embedding. Left out, `sequence_length`."""

    gated_linear_unit: bool | None = Field(None, examples=[True])
    """Whether the feed-forward layer is gated, as in SwiGLU. Left out, as the family
    has it."""

    activation_func: Literal["gelu", "silu", "relu", "squared_relu"] | None = None
    """Nonlinearity of the feed-forward layer. Left out, SiLU where it is gated, else
    GELU."""

    normalization: Literal["layernorm", "rmsnorm"] | None = None
    """Norm of attention and feed-forward layer. Left out, as the family has it."""

    layernorm_bias: bool = Field(True, examples=[False])
    """Whether a LayerNorm has a bias."""

    layernorm_affine: bool = Field(True, examples=[False])
    """Whether a LayerNorm has weights at all; those of OLMo have none."""

    norm_placement: Literal["pre", "post", "sandwich", "shared"] = "pre"
    """Where a block normalises: before each branch ("pre"), behind it ("post", OLMo 2),
    both ("sandwich", Gemma 2 and GLM-4), or once before two parallel branches
    ("shared", Falcon 7B)."""

    parallel_residual: bool = Field(False, examples=[True])
    """Whether attention and feed-forward layer read the same hidden states, as in
    GPT-NeoX and Falcon. They are computed one by one."""

    position_embedding_type: Literal["learned", "rope", "alibi", "none"] | None = None
    """How positions are told apart. Left out, as the family has it."""

    rotary_percent: float = Field(1.0, gt=0, le=1, examples=[0.5])
    """Part of the channels of a head that rotary positions turn."""

    embedding_layernorm: bool = Field(False, examples=[True])
    """Whether a norm follows the word embedding, as in BLOOM."""

    scale_embeddings: bool = Field(False, examples=[True])
    """Whether embeddings of words are multiplied by a constant, as in Gemma."""

    qk_layernorm: bool = Field(False, examples=[True])
    """Whether queries and keys are normalised, each head by itself, as in Qwen 3."""

    qk_layernorm_whole: bool = Field(False, examples=[True])
    """Whether `qk_layernorm` normalises all heads of a token together, as in OLMo 2."""

    softmax_type: Literal["vanilla", "learnable"] = "vanilla"
    """Softmax of attention: "learnable" has one learned score of no key for each head,
    the sinks of GPT-OSS."""

    attn_logit_softcapping: float = Field(0.0, ge=0, le=1e6, examples=[50.0])
    """Bound that attention scores are bent below, as in Gemma 2; 0 for none."""

    final_logit_softcapping: float = Field(0.0, ge=0, le=1e6, examples=[30.0])
    """Bound that logits of the output layer are bent below, as in Gemma 2; 0 for
    none."""

    window_size: SequenceLength | None = Field(None, examples=[4096])
    """Tokens that a token attends to, itself included: Megatron's (window_size - 1, 0).
    Left out, all before it."""

    window_attn_skip_freq: int = Field(0, ge=0, le=MAX_LAYERS, examples=[2])
    """Every which block has no window: 2 for every second one, as in Gemma 2, 6 as in
    Gemma 3; 0 for none of them, as in Mistral."""

    tie_word_embeddings: bool | None = Field(None, examples=[False])
    """Whether the output layer shares the word embedding's weight. Left out, as the
    family has it."""

    add_bias_linear: bool | None = Field(None, examples=[False])
    """Whether all linear layers of a block have a bias. Left out, as the family has
    it."""

    add_qkv_bias: bool = Field(False, examples=[False])
    """Whether at least the query, key and value projections have a bias."""

    add_attention_bias: bool = Field(False, examples=[False])
    """Whether at least the linear layers of attention have a bias."""

    num_moe_experts: Width | None = Field(None, examples=[8])
    """Routed experts of each feed-forward layer that has any; for the family
    "mixtral"."""

    moe_router_topk: Width | None = Field(None, examples=[2])
    """Experts that each token is sent to; for the family "mixtral"."""

    moe_ffn_hidden_size: Width | None = Field(None, examples=[2048])
    """Inner width of one routed expert. Left out, `ffn_hidden_size`, which is that of
    blocks without experts."""

    moe_layer_freq: int | list[int] | Text | None = Field(
        None, examples=["[0]*3+[1]*58"]
    )
    """Which blocks have experts: a number N for the first of each N blocks, a list with
    1 for each block that has some and 0 for each other, or such a list as a text. Left
    out, all blocks have experts."""

    moe_shared_expert_intermediate_size: Width | None = Field(None, examples=[2048])
    """Inner width of the experts that all tokens go to, together. Left out, there are
    none."""

    moe_shared_expert_gate: bool = Field(False, examples=[True])
    """Whether what the experts of all tokens return is weighed by a gate."""

    moe_router_score_function: Literal["softmax", "sigmoid"] = "softmax"
    """What the scores of a router are: a softmax over all experts, or a sigmoid of each
    one."""

    moe_router_pre_softmax: bool = Field(False, examples=[True])
    """Whether the softmax comes before the choice of experts, and weights of those
    chosen add up to less than one."""

    moe_router_enable_expert_bias: bool = Field(False, examples=[True])
    """Whether a bias of each expert takes part in the choice, set from how busy it
    is."""

    moe_router_num_groups: Width | None = Field(None, examples=[8])
    """Groups of experts, a few of which a token may use: the fewer, the fewer nodes are
    sent the token. Left out, experts have no groups."""

    moe_router_group_topk: Width | None = Field(None, examples=[4])
    """Groups that the experts of one token are of; with `moe_router_num_groups`."""

    mtp_num_layers: Depths | None = Field(None, examples=[1])
    """Layers that predict tokens further ahead: a block like the last one each, a
    projection, and a loss at the head. Left out, there are none."""

    kv_lora_rank: Width | None = Field(None, examples=[512])
    """Width that keys and values are made of, in multi-head latent attention, whose
    `kv_channels` are those without a position."""

    q_lora_rank: Width | None = Field(None, examples=[1536])
    """Width that queries are made of, in multi-head latent attention. Left out, the
    hidden states."""

    qk_pos_emb_head_dim: Width | None = Field(None, examples=[64])
    """Rotary channels of queries and keys, in multi-head latent attention."""

    v_head_dim: Width | None = Field(None, examples=[128])
    """Width of one value, in multi-head latent attention. Left out, `kv_channels`."""

    hybrid_override_pattern: Text | None = Field(None, examples=["M-M-M*-"])
    """Kind of each block in turn: Mamba-2 "M", attention "*", feed-forward "-"; for the
    family "mamba". Left out, every block is a Mamba-2 layer."""

    mamba_state_dim: Width | None = Field(None, examples=[128])
    """Numbers that a Mamba-2 layer keeps for each channel. Left out, 128."""

    mamba_head_dim: Width | None = Field(None, examples=[64])
    """Width of one head of a Mamba-2 layer. Left out, 64."""

    mamba_num_groups: Width | None = Field(None, examples=[8])
    """Groups of heads of a Mamba-2 layer that share how the state is written and read;
    tensor parallelism splits them. Left out, 8."""

    mamba_num_heads: Width | None = Field(None, examples=[128])
    """Heads of a Mamba-2 layer. Left out, as many as make it twice as wide as
    `hidden_size`."""

    mamba_chunk_size: Width | None = Field(None, examples=[128])
    """Tokens that the scan of a Mamba-2 layer treats as one product. Left out, 128."""

    def build(self, folder: Path) -> TransformerSpec:  # noqa: ARG002  # one interface
        """Return the architecture."""
        spec = build_spec(self.words("mean_sequence_length"))
        return _adapted(spec, None, self.mean_sequence_length)


class ModuleModel(Table):
    """A torch.nn.Module of your own, which a function of your own file returns.

    The file is run as it is, with all that it does; nothing but this setting runs code
    of yours.
    """

    module: Text = Field(examples=["my_model.py:build"])
    """A Python file, relative to the scenario's folder, and the name of one of its
    functions, which returns a torch.nn.Module: "my_model.py:build". The file is run
    whenever the scenario is read."""

    arguments: dict[Annotated[str, Field(min_length=1)], Argument] = Field(
        {}, examples=[{"num_layers": 24}]
    )
    """Keyword arguments of the function: texts, numbers, true, false, or lists of
    these. Left out, it is called without any."""

    sequence_length: SequenceLength = Field(examples=[2048])
    """Tokens of a training sequence. The module is called with token ids of the shape
    (batch, sequence_length)."""

    def build(self, folder: Path) -> TransformerSpec:
        """Return what is known of the architecture."""
        return self.trace(folder).graph.spec

    def trace(self, folder: Path) -> TracedModule:
        """Run the file, and return the chain of layers.

        Parameters
        ----------
        folder
            The scenario file's.

        Raises
        ------
        InputError
            If there is no such file or function, or what it returns cannot be split
            into a chain.
        """
        name, _, function = self.module.rpartition(":")
        expected = 'a Python file and a function of it, "my_model.py:build"'
        if not name or not function.isidentifier():
            raise InputError(
                "names no function of a file",
                where="module",
                got=self.module,
                expected=expected,
            )
        path = input_file(folder, name, "module", expected)
        module = UserModule(
            file=path,
            function=function,
            sequence_length=self.sequence_length,
            arguments=self.arguments,
        )
        try:
            return module.trace()
        except InputError as error:
            raise error.at("module", separator=": ") from None


def module_file(setting: str) -> str:
    """Return the file that the setting `module` names."""
    return setting.rpartition(":")[0]


_SPELLED_OUT: Mapping[str, type[Table]] = MappingProxyType(
    {"t5": EncoderDecoderModel, "vit": VisionModel}
)
"""Family -> form of the table, where it has one of its own."""

_FORMS: tuple[type[Table], ...] = (SpelledOutModel, *_SPELLED_OUT.values())
_ARCHITECTURE = frozenset(
    name for form in _FORMS for name in form.model_fields
) - frozenset(LibraryModel.model_fields)


def _in_one_way(value: object) -> object:
    """Refuse a model that is named and spelled out at once."""
    if not isinstance(value, dict):
        return value
    given = [word for word in ("name", "config", "module") if word in value]
    if _ARCHITECTURE.intersection(value):
        given.append(min(_ARCHITECTURE.intersection(value)))
    if len(given) > 1:
        raise InputError(
            "the model is described in more than one way",
            got=given,
            expected='name = "llama2-7b", or config = "config.json", or module = '
            '"my_model.py:build", or an architecture spelled out',
            hint=f"leave out {given[0]}, or everything else",
        )
    return value


def _which(value: object) -> str | None:
    """Tell the forms of the table apart."""
    if isinstance(value, Table):
        return type(value).__name__
    if not isinstance(value, dict):
        return None
    if "config" in value:
        return "HuggingFaceModel"
    if "module" in value:
        return "ModuleModel"
    if "name" in value or not _ARCHITECTURE.intersection(value):
        return "LibraryModel"
    return _SPELLED_OUT.get(str(value.get("family")), SpelledOutModel).__name__


AnyModel = (
    Annotated[LibraryModel, Tag("LibraryModel")]
    | Annotated[HuggingFaceModel, Tag("HuggingFaceModel")]
    | Annotated[ModuleModel, Tag("ModuleModel")]
    | Annotated[SpelledOutModel, Tag("SpelledOutModel")]
    | Annotated[EncoderDecoderModel, Tag("EncoderDecoderModel")]
    | Annotated[VisionModel, Tag("VisionModel")]
)

WHICH_MODEL = Discriminator(_which)
IN_ONE_WAY = BeforeValidator(_in_one_way)


def _adapted(
    spec: TransformerSpec, num_layers: int | None, mean_length: int | None
) -> TransformerSpec:
    """Return the architecture at another depth, and without padding."""
    if num_layers is not None:
        spec = with_num_layers(spec, num_layers)
    return spec if mean_length is None else without_padding(spec, mean_length)

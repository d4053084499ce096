"""The table [model]: from the library or a file, traced, or spelled out."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, get_args

from annotated_types import Ge, Le
from pydantic import BeforeValidator, Discriminator, Field, Tag

from estimators.models.changed import (
    with_num_layers,
    with_picture,
    without_padding,
)
from estimators.models.document_lengths import counted_lengths
from estimators.models.huggingface import load_huggingface
from estimators.models.layer_loads import layer_loads
from estimators.models.library import build_spec, family_words, load_model, model_names
from estimators.models.limits import (
    MAX_LAYERS,
    CapacityFactor,
    Depths,
    DocumentLength,
    DocumentLengths,
    Documents,
    ExpertLoads,
    Exponent,
    ImagePixels,
    NumLayers,
    Placement,
    Routing,
    SequenceLength,
    Sigma,
)
from estimators.models.spec import TransformerSpec
from estimators.tracing.hub_module import trace_hub_model
from estimators.tracing.user_module import TracedModule, UserModule
from nestsim.scenario.architectures import (
    Attention,
    EncoderDecoderModel,
    VisionModel,
)
from nestsim.scenario.base import Table, input_file, is_table
from nestsim.scenario.errors import checked, nearest
from nestsim.scenario.pictures import PictureSettings
from topologies.errors import InputError, located
from topologies.settings import Argument, CheckedBy, Derived, Examples, NameChoice, Text

DOCUMENTS = (
    *("documents", "document_length", "document_length_sigma"),
    *("document_length_samples", "document_length_counts"),
)
"""What a model says of the documents that fill sequences."""

TAKEN_OF_ROUTING = (
    *("moe_routing", "moe_routing_exponent", "moe_routing_sigma", "moe_expert_loads"),
    *("moe_layer_loads", "moe_expert_skew"),
)
"""What is taken of where tokens go among experts, which no framework is told."""

ROUTING = (
    *TAKEN_OF_ROUTING[:-2],
    *("moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity"),
    "moe_expert_placement",
)
"""Settings that say where tokens go among experts, and how many an expert takes."""


class NamedModel(Table):
    """A model that is known by its name or its file, and what may differ from it."""

    sequence_length: SequenceLength | None = Field(None, examples=[4096])
    """Tokens of a training sequence. Left out, the published length, or the longest
    that the file allows."""

    decoder_sequence_length: SequenceLength | None = Field(None, examples=[114])
    """Tokens of a training sequence that a decoder writes, of a model with an encoder
    too. Left out, the published length; 114 for a file, as in T5's pre-training."""

    image_pixels: ImagePixels = Field((), examples=[[1024, 1024]])
    """Height and width in pixels of the picture or film that a diffusion transformer
    makes, of which its tokens follow; or of pictures of a model that sees, where a
    tower takes any (Qwen's). Left out, what the model is known for, or the file
    says."""

    frames: int = Field(0, ge=0, le=100_000, examples=[81])
    """Pictures of a film that a diffusion transformer makes. Left out, what the model
    is known for."""

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

    documents: Documents = "whole"
    """Which documents fill a sequence, each of which attends to itself alone: "whole"
    (one), "fixed" (of `document_length` tokens), "log-normal" (with that median and
    `document_length_sigma`), or "measured" (`document_length_samples` or
    `document_lengths`). They follow each other in a stream that is cut into
    sequences."""

    document_length: DocumentLength = Field(0, examples=[2048])
    """Tokens of a document with `documents` = "fixed", their median with
    "log-normal"."""

    document_length_sigma: Sigma = Field(0.0, examples=[1.0])
    """Standard deviation of the natural logarithm of documents' lengths, with
    `documents` = "log-normal"."""

    document_length_samples: DocumentLengths = Field((), examples=[[512, 900, 4096]])
    """Tokens of some documents, drawn as those that train the model, with `documents` =
    "measured"."""

    document_lengths: Text | None = Field(None, examples=["lengths.csv"])
    """A CSV file in place of `document_length_samples`, relative to the scenario's
    folder: its columns `length` and `count` say how many documents have so many
    tokens."""

    moe_routing: Routing = "balanced"
    """Where tokens go, which decides how busy the busiest rank of an expert group is:
    "balanced" (as many to each expert), "random" (each token chooses any experts
    alike), "power-law" (of `moe_routing_exponent`), "log-normal" (of
    `moe_routing_sigma`), or "measured" (`moe_expert_loads` or `moe_routing_file`)."""

    moe_routing_exponent: Exponent = Field(0.0, examples=[1.2])
    """Exponent of `moe_routing` = "power-law": tokens of an expert are drawn from a
    density x^-a, as AIConfigurator measured layers of experts, with 1.01 and 1.2."""

    moe_routing_sigma: Sigma = Field(0.0, examples=[0.3])
    """Standard deviation of the natural logarithm of experts' loads, with `moe_routing`
    = "log-normal"."""

    moe_expert_loads: ExpertLoads = Field((), examples=[[4, 2, 1, 1]])
    """Tokens that each expert got, in any unit, with `moe_routing` = "measured": one
    number for each expert, in the order of their numbers."""

    moe_routing_file: Text | None = Field(None, examples=["loads.csv"])
    """CSV with the columns layer, expert and tokens, relative to the scenario's folder:
    tokens that each expert of each layer got, with `moe_routing` = "measured"."""

    moe_expert_placement: Placement = "linear"
    """Which rank of an expert group holds which experts: "linear" (neighbours, in their
    order), or "balanced" (by load, as DeepSeek's EPLB packs them, where that is better)
    with a `moe_routing` whose loads are known."""

    moe_expert_capacity_factor: CapacityFactor = Field(0.0, examples=[1.25])
    """Megatron's option: what an expert takes of a rank's tokens at most, over an even
    share; others are dropped. Left out, none are."""

    moe_pad_expert_input_to_capacity: bool = Field(False, examples=[True])
    """Megatron's option: experts compute and are sent as many tokens as
    `moe_expert_capacity_factor` lets them take, whatever came."""

    attention: Attention = "flash"
    """How attention is computed: by one fused kernel ("flash"), or by two products with
    a softmax between them."""

    def adapted(self, spec: TransformerSpec, folder: Path) -> TransformerSpec:
        """Return the published architecture with what differs from it."""
        given: dict[str, Any] = {
            "attention_implementation": self.attention,
            "decoder_sequence_length": self.decoder_sequence_length,
            "mtp_num_layers": self.mtp_num_layers,
            "moe_layer_loads": layer_loads(folder, self.moe_routing_file),
            **{name: getattr(self, name) for name in (*ROUTING, *DOCUMENTS[:-1])},
            **counted_lengths(
                self.document_lengths, self.document_length_samples, folder
            ),
        }
        written = {name: value for name, value in given.items() if value is not None}
        spec = replace(spec, **written)
        return _adapted(spec, self.num_layers, self.mean_sequence_length)


def _library_name(name: str) -> str:
    """Return the name of a model; refuse one that the library does not have."""
    known = model_names()
    if name not in known:
        raise InputError(
            "no such model in the library",
            got=name,
            expected="one of " + ", ".join(known),
            hint=nearest(name, known),
        )
    return name


class LibraryModel(NamedModel):
    """A published model, by name."""

    name: Annotated[Text, CheckedBy(_library_name)] = Field(
        examples=["llama2-7b"], json_schema_extra={"enum": list(model_names())}
    )
    """Name of a published model, one that `nestsim models` lists."""

    def build(self, folder: Path) -> TransformerSpec:
        """Return the architecture."""
        spec = load_model(self.name, sequence_length=self.sequence_length)
        spec = with_picture(spec, self.image_pixels, self.frames)
        return self.adapted(spec, folder)


class HuggingFaceModel(PictureSettings, NamedModel):
    """A Hugging Face config.json of a type that is read; errors list these types."""

    config: Text = Field(examples=["config.json"])
    """A Hugging Face config.json, relative to the scenario's folder. Nothing is
    downloaded. Of a type without a reader the module of transformers is traced, where
    that is installed."""

    def build(self, folder: Path) -> TransformerSpec:
        """Return the architecture, or what is known of a module's.

        Parameters
        ----------
        folder
            The scenario file's.
        """
        if module := self.trace(folder):
            return module.graph.spec
        images = self.num_pictures(folder)
        with located("config", ": "):
            path = self._path(folder)
            spec = load_huggingface(
                path,
                sequence_length=self.sequence_length,
                images=images,
                image_pixels=self.image_pixels,
                frames=self.frames,
            )
        return self.adapted(self.seen(spec, folder), folder)

    def trace(self, folder: Path) -> TracedModule | None:
        """Return the module of transformers, traced; None for a type with a reader.

        Raises
        ------
        InputError
            If the module cannot be traced, or the table has what only readers heed.
        """
        path = self._path(folder)
        with located("config", ": "):
            try:
                module = trace_hub_model(
                    path,
                    sequence_length=self.sequence_length,
                    num_layers=self.num_layers,
                )
            except InputError:
                load_huggingface(path)  # what the type has says more, where it is known
                raise
        for name in _OF_READERS if module else ():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise InputError(
                    "does not go with a module of transformers that is traced",
                    where=name,
                    got=getattr(self, name),
                    expected=f"no {name}",
                )
        return module

    def _path(self, folder: Path) -> Path:
        expected = "a Hugging Face config.json, relative to the scenario's folder"
        return input_file(folder, self.config, "config", expected)


_OF_READERS = (
    "attention",
    "decoder_sequence_length",
    "mean_sequence_length",
    "mtp_num_layers",
    *(*PictureSettings.model_fields, "image_pixels", "frames"),
    *(*ROUTING, "moe_routing_file", *DOCUMENTS[:-1], "document_lengths"),
)
"""Settings of a model that is read, not traced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpelledOutModel(TransformerSpec):
    """An architecture under Megatron's names.

    Where a setting is left out, the family decides: Llama and Mixtral have RMSNorm,
    SwiGLU, rotary positions, no biases and an untied head; GPT and BERT have LayerNorm,
    GELU, learned positions, biases and a tied head; Mamba has RMSNorm, the square of a
    ReLU, no positions, no biases and an untied head.
    """

    family: Annotated[str, NameChoice(("gpt", "llama", "mixtral", "mamba", "bert"))]
    """Family of the model, which decides which modules it is built of. Mistral is a
    "llama", GPT-NeoX a "gpt", a hybrid of Mamba-2 and attention a "mamba". The families
    "t5" and "vit" have settings of their own."""

    attention: Attention = "flash"
    """How attention is computed: by one fused kernel ("flash"), or by two products with
    a softmax between them."""

    mean_sequence_length: Annotated[SequenceLength | None, Examples(288)] = None
    """Tokens of a sequence on average, where the framework leaves padding out of the
    computation; attention is that of sequences of this length. Left out, all tokens of
    a sequence are computed."""

    moe_routing_file: Annotated[Text | None, Examples("loads.csv")] = None
    """CSV with the columns layer, expert and tokens, relative to the scenario's folder:
    tokens that each expert of each layer got, with `moe_routing` = "measured"."""
    document_lengths: Annotated[Text | None, Examples("lengths.csv")] = None
    """A CSV file in place of `document_length_samples`, relative to the scenario's
    folder: its columns `length` and `count` say how many documents have so many
    tokens."""

    position_embedding_type: Annotated[
        str,
        NameChoice(("learned", "rope", "alibi", "none")),
        Examples(default=None),
    ] = "learned"
    """How positions are told apart. Left out, as the family has it."""

    window_attn_skip_freq: Annotated[int, Ge(0), Le(MAX_LAYERS), Examples(2)] = 0
    """Every which block has no window: 2 for every second one, as in Gemma 2, 6 as in
    Gemma 3; 0 for none of them, as in Mistral."""

    moe_layer_freq: Annotated[
        int | list[int] | Text | None, Examples("[0]*3+[1]*58")
    ] = None
    """Which blocks have experts: a number N for the first of each N blocks, a list with
    1 for each block that has some and 0 for each other, or such a list as a text. Left
    out, all blocks have experts."""

    linear_attention_freq: Annotated[int | list[int] | None, Examples(4)] = None
    """Which blocks have linear attention: all but every Nth for a number N, or a list
    with 1 for each such block and 0 for each other. Left out, none."""

    linear_attention: Annotated[
        str, NameChoice(("gated_delta", "kimi_delta", "lightning"))
    ] = "gated_delta"
    """What linear attention is: gated delta nets of Qwen3-Next, Kimi Delta Attention,
    or lightning attention of MiniMax-01."""

    dsa_indexer_layers: Annotated[list[int] | None, Examples([1, 1, 0, 0])] = None
    """With `dsa_indexer_topk`, a list with 1 for each block whose indexer chooses keys
    and 0 for each that attends to what the one before it chose, as in GLM-5.2. Left
    out, all blocks have an indexer."""

    hybrid_override_pattern: Annotated[Text | None, Examples("M-M-M*-")] = None
    """Kind of each block in turn: Mamba-2 "M", attention "*", feed-forward "-"; for the
    family "mamba". Left out, every block is a Mamba-2 layer."""

    def __post_init__(self) -> None:
        """Check nothing yet: what blocks are like follows when it is built."""

    def build(self, folder: Path) -> TransformerSpec:
        """Return the architecture."""
        words = {name: getattr(self, name) for name in _spelled_out()}
        words["moe_layer_loads"] = layer_loads(folder, words.pop("moe_routing_file"))
        file = words.pop("document_lengths")
        words |= counted_lengths(file, self.document_length_samples, folder)
        words["attention_implementation"] = words.pop("attention")
        mean_length = words.pop("mean_sequence_length")
        return _adapted(build_spec(words), None, mean_length)


@cache
def _spelled_out() -> frozenset[str]:
    """Return the settings of an architecture that is spelled out."""
    marks = {field.name: get_args(field.type) for field in fields(SpelledOutModel)}
    derived = {k for k in marks if any(isinstance(mark, Derived) for mark in marks[k])}
    return frozenset(marks) - derived


def with_family(table: object) -> object:
    """Return a table that spells an architecture out, with what its family decides."""
    if not isinstance(table, dict):
        return table
    family = table.get("family")
    words = family_words().get(family, {}) if isinstance(family, str) else {}
    return {k: v for k, v in words.items() if k in _spelled_out()} | table


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
        with located("module", ": "):
            return module.trace()


def module_file(setting: str) -> str:
    """Return the file that the setting `module` names."""
    return setting.rpartition(":")[0]


_SPELLED_OUT: Mapping[str, type[Table]] = MappingProxyType(
    {"t5": EncoderDecoderModel, "vit": VisionModel}
)
"""Family -> form of the table, where it has one of its own."""


@cache
def _architecture() -> frozenset[str]:
    """Return the settings that only tables that spell an architecture out have."""
    others = (name for form in _SPELLED_OUT.values() for name in form.model_fields)
    return _spelled_out().union(others) - frozenset(LibraryModel.model_fields)


def _in_one_way(value: object) -> object:
    """Refuse a model that is named and spelled out at once."""
    if not isinstance(value, dict):
        return value
    given = [word for word in ("name", "config", "module") if word in value]
    if spelled_out := _architecture().intersection(value):
        given.append(min(spelled_out))
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
    if is_table(type(value)):
        return type(value).__name__
    if not isinstance(value, dict):
        return None
    if "config" in value:
        return "HuggingFaceModel"
    if "module" in value:
        return "ModuleModel"
    if "name" in value or not _architecture().intersection(value):
        return "LibraryModel"
    family = str(value.get("family"))
    return (
        _SPELLED_OUT[family].__name__ if family in _SPELLED_OUT else "SpelledOutModel"
    )


AnyModel = (
    Annotated[LibraryModel, Tag("LibraryModel")]
    | Annotated[HuggingFaceModel, Tag("HuggingFaceModel")]
    | Annotated[ModuleModel, Tag("ModuleModel")]
    | Annotated[SpelledOutModel, BeforeValidator(with_family), Tag("SpelledOutModel")]
    | Annotated[EncoderDecoderModel, Tag("EncoderDecoderModel")]
    | Annotated[VisionModel, Tag("VisionModel")]
)

ModelSetting = Annotated[AnyModel, Discriminator(_which), BeforeValidator(_in_one_way)]
"""The setting of a model, in any of its forms."""

_ANY_MODEL: Any = ModelSetting


def build_model(table: Mapping[str, object], folder: Path) -> TransformerSpec:
    """Return the architecture of a table [model] by itself.

    Parameters
    ----------
    table
        The table.
    folder
        Of the files that it names.

    Raises
    ------
    InputError
        If it makes none.
    """
    spec: TransformerSpec = checked(_ANY_MODEL, {**table}).build(folder)
    return spec


def _adapted(
    spec: TransformerSpec, num_layers: int | None, mean_length: int | None
) -> TransformerSpec:
    """Return the architecture at another depth, and without padding."""
    if num_layers is not None:
        spec = with_num_layers(spec, num_layers)
    if mean_length is not None and spec.documents != "whole":
        raise InputError(
            "is of sequences that are padded, and documents fill them",
            where="mean_sequence_length",
            got=mean_length,
            expected='to be left out, or documents = "whole"',
        )
    if spec.moe_layer_loads is not None:
        spec.moe_layer_loads.check_blocks(spec.expert_blocks)
    return spec if mean_length is None else without_padding(spec, mean_length)

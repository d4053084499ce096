"""Reader of vision transformers."""

from estimators.models.huggingface.config_file import GELUS, ConfigFile
from estimators.models.limits import NUM_CHANNELS
from estimators.models.spec import TransformerSpec

_MOST = 10**6
"""Largest size of a tower that is counted."""


def read_vit(config: ConfigFile) -> TransformerSpec:
    """Read a ViT with the classifier that its labels ask for; two classes without."""
    config.require("hidden_act", default="gelu", allowed=GELUS)
    config.require("qkv_bias", default=True, allowed=(True,))
    config.require("num_channels", default=NUM_CHANNELS, allowed=(NUM_CHANNELS,))
    labels = config.values.get("id2label")
    classes = len(labels) if isinstance(labels, dict) and labels else 0
    image, patch = config.integer("image_size", 224), config.integer("patch_size", 16)
    return TransformerSpec(
        family="vit",
        num_layers=config.integer("num_hidden_layers", 12),
        hidden_size=config.integer("hidden_size", 768),
        ffn_hidden_size=config.integer("intermediate_size", 3072),
        num_attention_heads=config.integer("num_attention_heads", 12),
        vocab_size=classes or config.integer("num_labels", 2),
        sequence_length=(image // patch) ** 2 + 1,
        image_size=image,
        patch_size=patch,
        causal=False,
        tie_word_embeddings=False,
        hidden_dropout=config.number("hidden_dropout_prob", 0.0),
        attention_dropout=config.number("attention_probs_dropout_prob", 0.0),
    )


def left_out(config: ConfigFile) -> str:
    """Return what of a configuration no model here has, as a sentence; else nothing.

    Of models that see pictures the text model alone is read. The blocks of a tower are
    those of a ViT: ``4 h^2 + 2 h f`` weights, ``9 h + f`` biases and norms.
    """
    tower = config.values.get("vision_config")
    if not isinstance(tower, dict):
        return ""
    names = ("num_hidden_layers", "hidden_size", "intermediate_size")
    sizes = [tower.get(name) for name in names]
    if not all(isinstance(size, int) and 0 < size < _MOST for size in sizes):
        return "The vision tower (vision_config) is left out, and what pictures cost."
    layers, h, f = (int(size or 0) for size in sizes)
    weights = layers * (4 * h * h + 2 * h * f + 9 * h + f)
    return (
        f"The vision tower (vision_config: {layers} blocks, {weights / 1e6:,.0f} "
        "million parameters in them) is left out, and what pictures cost."
    )

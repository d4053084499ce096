"""Reader of vision transformers."""

from estimators.models.huggingface.config_file import GELUS, ConfigFile
from estimators.models.limits import NUM_CHANNELS
from estimators.models.spec import TransformerSpec


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

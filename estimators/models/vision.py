"""The tower that turns a sequence's pictures into tokens, as plain data.

Nothing here knows torch. A tower is read from a ``config.json`` of a model that sees
(`estimators.models.config_vision`), together with the pictures of a training sequence,
whose tokens are among those of the sequence.
"""

from dataclasses import dataclass

TOWER_KINDS = ("siglip", "llama4", "qwen2_5_vl", "qwen3_vl")
"""Towers that there are modules of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTower:
    """Blocks over the patches of each picture, and what makes tokens of them."""

    kind: str
    """One of `TOWER_KINDS`."""

    num_layers: int
    """Blocks of the tower."""

    hidden_size: int
    """Width of its hidden states."""

    ffn_hidden_size: int
    """Inner width of its feed-forward layers."""

    num_heads: int
    """Heads of its attention, which also has as many of keys and values."""

    patch_elements: int
    """Numbers of a patch: its pixels, colours, and pictures of a film."""

    positions: int = 0
    """Rows of learned positions; 0 without them."""

    images: int = 1
    """Pictures of a sequence, of one size."""

    patches: int = 256
    """Patches of a picture."""

    merged: int = 4
    """Patches that one token is made of."""

    windows: int = 1
    """Parts of a picture that most blocks attend within; 1 for all of it."""

    full_blocks: int = 0
    """Blocks that attend to whole pictures where others have windows."""

    projector_width: int = 0
    """Width of Llama 4's adapter; 0 for others."""

    deep_mergers: int = 0
    """Blocks whose hidden states become tokens, too, added up: Qwen3-VL's DeepStack."""

    tensor_parallel: bool = True
    """Whether ranks of a tensor-parallel group split it; else all of them do all."""

    freeze_model: bool = False
    """Whether everything in front of the projector is not trained."""

    freeze_projection: bool = False
    """Whether the projector, deep mergers included, is not trained."""

    image_counts: tuple[int, ...] = ()
    """Pictures of sequences that are as likely each, in order; empty where all have
    `images`."""

    def __str__(self) -> str:
        return (
            f"{self.kind} of {self.num_layers} blocks, {self.images} pictures of "
            f"{self.patches} patches"
        )

    @property
    def rows(self) -> int:
        """Hidden states of a picture: patches, and Llama 4's class token."""
        return self.patches + (self.kind == "llama4")

    def split_problem(self, tp: int) -> str | None:
        """Say why a tensor-parallel group cannot split the tower, or return None."""
        if not self.tensor_parallel:
            return None
        for name in ("num_heads", "ffn_hidden_size"):
            if (size := getattr(self, name)) % tp:
                return (
                    f"tensor_model_parallel_size {tp} does not divide {name} {size} "
                    "of the vision tower"
                )
        return None

    @property
    def tokens(self) -> int:
        """Tokens of a sequence that its pictures make."""
        return self.images * self.patches // self.merged

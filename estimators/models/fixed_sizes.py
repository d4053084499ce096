"""Sizes that all published models of an architecture share, and that none can choose.

Nothing here knows torch: readers of configurations hold files to them.
"""

CONVOLUTION_WIDTH = 4
"""Tokens that the convolution of a Mamba-2 layer reaches (Dao and Gu, 2024)."""

NUM_BUCKETS = 32
"""Ranges of distances that T5's position biases tell apart (Raffel et al., 2020)."""

LONGEST_DISTANCE = 128
"""Distance from which on T5's position biases tell none apart [tokens]."""

NUM_CHANNELS = 3
"""Colours of a pixel of a vision transformer's images."""

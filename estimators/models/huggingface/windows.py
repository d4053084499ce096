"""Sliding windows and rotary shares, which many configurations spell the same way."""

from collections.abc import Sequence

from estimators.models.huggingface.config_file import ConfigFile
from estimators.models.spec import TransformerSpec, with_windowed_blocks
from topologies.errors import InputError

_WINDOWED = "sliding_attention"
_FULL = "full_attention"


def with_config_windows(
    config: ConfigFile,
    spec: TransformerSpec,
    usual: Sequence[bool],
    *,
    default: int | None = None,
) -> TransformerSpec:
    """Return the model with the sliding windows of a file.

    Parameters
    ----------
    config
        The file, whose ``layer_types`` say which blocks have a window.
    spec
        The model without windows.
    usual
        Which blocks have one where the file does not say so.
    default
        Window where the file has no ``sliding_window``; None for no window.
    """
    if config.values.get("sliding_window", default) is None:
        return spec
    window = config.integer("sliding_window", default)
    return with_windowed_blocks(spec, window, _windowed(config, usual))


def _windowed(config: ConfigFile, usual: Sequence[bool]) -> list[bool]:
    types = config.values.get("layer_types")
    if types is None:
        return list(usual)
    known = isinstance(types, list) and all(one in (_WINDOWED, _FULL) for one in types)
    if not known or len(types) != len(usual):
        raise InputError(
            "not one known kind for each block",
            where="layer_types",
            got=types,
            expected=f'{len(usual)} of "{_WINDOWED}" or "{_FULL}"',
        )
    return [one == _WINDOWED for one in types]


def rotary_percent(config: ConfigFile, *keys: str, default: float) -> float:
    """Return which part of a head's channels is turned.

    Parameters
    ----------
    config
        The file; newer ones have ``rope_parameters``.
    keys
        Names of the setting.
    default
        Part where the file does not say so.
    """
    newer = config.values.get("rope_parameters")
    if isinstance(newer, dict) and "partial_rotary_factor" in newer:
        return ConfigFile(newer).number("partial_rotary_factor", default)
    return config.number(config.spelled(*keys), default)

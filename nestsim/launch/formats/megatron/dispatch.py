"""How tokens travel to experts, of the options of Megatron-LM.

Facts: ``megatron/training/arguments.py`` and ``core/transformer/moe`` of
NVIDIA/Megatron-LM at ``000c4ac``. ``allgather``, the default, hands all tokens to all
ranks of an expert group; ``alltoall`` sends a token to each of its experts; ``flex``,
which is DeepEP or HybridEP, sends it once to each node that has experts for it.
"""

from nestsim.launch.formats.megatron.options import GivenOptions
from planner.frameworks.framework import PRESETS

_ONCE = ("deepep", "hybridep")
_NAME = "moe-token-dispatcher-type"


def read_dispatcher(given: GivenOptions, preset: str) -> dict[str, str]:
    """Return the setting of [software], where it is not the preset's.

    Parameters
    ----------
    given
        The options; what is taken instead of them is noted there.
    preset
        Name of the framework's preset.

    Raises
    ------
    InputError
        If there is no such dispatcher.
    """
    if not given.whole("num-experts"):
        return {}
    kind = given.meaning(_NAME, "allgather")
    if not given.flag("moe-grouped-gemm"):
        given.assume("Products of experts are grouped.")
    if (given.whole("expert-model-parallel-size") or 1) == 1:
        return {}
    if kind == "allgather":
        begin = f"--{_NAME}: " if _NAME in given else ""
        given.assume(
            f"{begin}A token is sent to each of its experts; Megatron-LM's allgather, "
            "its default, hands all tokens to all ranks of an expert group."
        )
    backend = given.word("moe-flex-dispatcher-backend", "deepep")
    if kind == "flex" and backend not in _ONCE:
        given.assume(f"--moe-flex-dispatcher-backend: {backend} sends as DeepEP does.")
    if given.flag("moe-enable-deepep") and kind != "flex":
        given.assume("--moe-enable-deepep: Of the dispatchers flex alone has DeepEP.")
    taken = "flex" if kind == "flex" else "alltoall"
    if (taken == "flex") == PRESETS[preset].sends_tokens_once:
        return {}
    return {"moe_token_dispatcher_type": taken}

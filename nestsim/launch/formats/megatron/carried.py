"""Options of an imported script of Megatron-LM that come back on export.

`nestsim.launch.carried` is how; here is which, and what does not go together.
"""

import re
from typing import Any

from nestsim.launch.carried import (
    OptionGroup,
    brought_back,
    carried_options,
    joined,
    stored_words,
    with_imported,
    words_of_option,
)
from nestsim.launch.formats.megatron import options as known
from nestsim.launch.formats.megatron.composed import (
    Launched,
    read_tables,
    read_vocabulary,
)
from nestsim.launch.formats.megatron.options import GivenOptions
from nestsim.launch.formats.megatron.settings import Options, script_of
from nestsim.launch.job import LaunchGap, LaunchJob
from topologies.errors import InputError

TOKENS = frozenset(
    {
        *("tokenizer-type", "tokenizer-model", "vocab-size", "padded-vocab-size"),
        *("pad-vocab-size-to", "make-vocab-size-divisible-by"),
    }
)
"""Options that say how large the vocabulary is, together."""

_FINER = frozenset({"attention-backend", "fp4-recipe", "fp8-recipe"})
_FINER |= {"moe-flex-dispatcher-backend", "moe-token-dispatcher-type"}
_FINER |= {"recompute-modules"}
"""Options that say more than the setting that they are read into."""

_READ = known.BY_NAME.keys() | known.COMPOSED
_RETIRED = frozenset(known.TABLE.facts["retired"].split())
_DATA = re.compile(r"data-(args-)?path|split-paths")


def kept_options(given: GivenOptions) -> dict[str, Any]:
    """Return what of a command no setting holds, as a scenario has it."""
    held = (_READ - known.TABLE.finer) & given.ticked
    return {
        name: stored_words(words)
        for name, words in given.values.items()
        if name not in held
    }


def script_options(job: LaunchJob) -> Options | None:
    """Return the options that a job has of a script of Megatron-LM; None if of none."""
    options = carried_options(job, known.FORMAT)
    if options is None:
        return None
    return {name: words_of_option(value) for name, value in options.items()}


def with_script(
    job: LaunchJob, groups: tuple[OptionGroup, ...]
) -> tuple[tuple[OptionGroup, ...], tuple[LaunchGap, ...]]:
    """Return the options of a job with those of its script, and what does not fit.

    An option of the script stays as it was, unless the plan asks for another value, the
    vocabulary is another one, or this version does not take it.

    Parameters
    ----------
    job
        The job.
    groups
        Its own options.
    """
    script = script_options(job)
    if script is None:
        return groups, ()
    values = joined(groups)
    if "tokenizer-type" not in script:  # the vocabulary is the model's, and no more
        script.pop("vocab-size", None)
    back, gaps = brought_back(
        values,
        script,
        reads=lambda options: _read(job, options),
        matter=_READ - TOKENS,
        refusal=lambda name: _unfit(values, name),
        shown=lambda name, words: (f"--{name}", " ".join(words) or True),
    )
    *kept, rest = with_imported(groups, back, name="SCRIPT_ARGS", file="script")
    return (*kept, *([rest] if rest.options else [])), tuple(gaps)


def has_tokens(job: LaunchJob) -> bool:
    """Whether a job's script says which tokens there are, and they are the model's."""
    script = script_options(job) or {}
    tokens = {name: words for name, words in script.items() if name in TOKENS}
    if "tokenizer-type" not in tokens:
        return False
    size = job.model.vocab_size
    launched = Launched(script=script_of(job.model), vocab_size=size)
    try:
        return read_vocabulary(GivenOptions(values=tokens), launched) == size
    except InputError:
        return False


def has_data(job: LaunchJob) -> bool:
    """Whether a job's script says what it is trained on."""
    script = script_options(job) or {}
    return any(name == "mock-data" or _DATA.search(name) for name in script)


def _unfit(values: Options, name: str) -> str:
    """Return why an option of the script does not come back; empty if it may."""
    if name in _RETIRED or not known.is_known(name):
        return "This version of Megatron-LM has no such option."
    if name in TOKENS and "tokenizer-type" in values:
        return "The vocabulary is the model's: made-up tokens have it without padding."
    if name in values and name not in _FINER:
        now = " ".join(values[name]) or "given"
        return f"The plan asks for another value: --{name} is {now}."
    return ""


def _read(job: LaunchJob, values: Options) -> Any:
    """Return what options are read as."""
    launched = Launched(
        script=script_of(job.model),
        num_devices=job.plan.parallel.num_devices,
        vocab_size=job.model.vocab_size,
    )
    tables = read_tables(GivenOptions(values=values), launched)
    # Which kernel of attention runs is not said by options of ours.
    tables["software"].pop("attention_kernel", None)
    return tables

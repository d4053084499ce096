"""A scenario of a few words: a model, a number of devices, a system, a framework.

What the words leave open is chosen as people do who train such models, and stands in
the scenario, which can be saved and edited.
"""

import os
from pathlib import Path
from typing import Any

from nestsim.scenario.editing import toml_text
from nestsim.scenario.hardware.prices import price_of
from nestsim.scenario.hardware.systems import load_system
from nestsim.scenario.load import Scenario
from topologies.errors import InputError, located

HEADING = "# Made of a model, a system and a number of devices."
"""First line of such a scenario."""

TOKENS = 4 * 2**20
"""Tokens of an optimizer step where nothing says how many: about 4 million, as Llama 2
was trained with (Touvron et al., "Llama 2", 2023, section 2.2)."""

MOST_SEQUENCES = 16
"""Most sequences of a step for each device, where nothing says how many."""

LEAST_SHARE = 8
"""Devices for each sequence of a step at most, where nothing says how many."""


def scenario_of(  # noqa: PLR0913 - one for each option
    model: str,
    num_devices: int,
    system: str,
    *,
    framework: str | None = None,
    batch: int | None = None,
    sequence_length: int | None = None,
    prices: str | os.PathLike[str] | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Scenario:
    """Return the scenario of a job in a few words, checked.

    Parameters
    ----------
    model
        A name that `nestsim models` lists, the path of a ``config.json``, or a module
        of one's own as ``my_model.py:build``, which needs `sequence_length`.
    num_devices
        Devices of the cluster.
    system
        A name that `nestsim systems` lists.
    framework
        A preset of the table [software]; None for the system's usual one.
    batch
        Sequences of an optimizer step; None for about 4 million tokens, with 16
        sequences for each device at most.
    sequence_length
        Tokens of a sequence; None for the model's own.
    prices
        ``"published"`` for a published price of the system's hour with its date, or a
        file of prices; None for none.
    path
        The file that it stands for; None for one named after it.

    Raises
    ------
    InputError
        If something in it is wrong.
    """
    is_config, is_module = model.endswith(".json"), ".py:" in model
    stem = Path(model).parent.name if is_config else model
    stem = Path(stem.partition(".py:")[0]).name or "model"
    file = Path(path or f"{stem}_{num_devices}_{system}.toml")
    table: dict[str, Any] = {"name": model}
    if is_config or is_module:
        kind = "config" if is_config else "module"
        table = {kind: os.path.relpath(model, file.parent)}
    if sequence_length is not None:
        table["sequence_length"] = sequence_length
    elif is_module:
        raise InputError(
            "is missing: a module does not say how long its sequences are",
            where="--seq",
            expected="a number of tokens, e.g. 2048",
        )
    with located("--system", ": "):
        usual = load_system(system).framework
    document: dict[str, Any] = {
        "name": f"{stem} on {num_devices:,} devices, {system}",
        "model": table,
        "training": {"global_batch_size": batch or 1},
        "software": {"preset": framework or usual},
        "cluster": {"system": system, "num_devices": num_devices},
    }
    heading = HEADING
    if prices is not None:
        with located("--prices", ": "):
            price = price_of(system, prices)
        document["cost"] = {"device_hour": price.written}
        heading += f"\n{price.comment()}"
    if batch is None:
        length = Scenario.from_dict(document, file).spec.sequence_length
        document["training"]["global_batch_size"] = usual_batch(num_devices, length)
    return Scenario.from_toml(f"{heading}\n\n{toml_text(document)}", file)


def usual_batch(num_devices: int, sequence_length: int) -> int:
    """Return a usual number of sequences of an optimizer step.

    The least multiple of the devices' odd part and of a power of two that has `TOKENS`,
    within what devices can share.
    """
    wanted = -(-TOKENS // sequence_length)
    wanted = min(wanted, MOST_SEQUENCES * num_devices)
    wanted = max(wanted, -(-num_devices // LEAST_SHARE))
    number = num_devices
    while number % 2 == 0:
        number //= 2
    while number < wanted:
        number *= 2
    return number

"""What a job's times rest on: software, number formats, where operator times are from.

Whoever reads a report sees which framework's habits and whose measurements are in it.
"""

from dataclasses import asdict
from itertools import accumulate
from typing import TYPE_CHECKING

from estimators.constants import load_constants
from estimators.operators.shape_tables import measured_relative
from estimators.user_files import constants_with
from nestsim.document.wording import percent, plural
from planner.step.plan import to_ranges
from topologies.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from estimators.software import Software
    from estimators.training import TrainingSpec
    from nestsim.evaluate.results import Assumptions
    from nestsim.scenario.hardware.accelerator import DeviceGroup
    from planner.step.execution import Execution
    from topologies.accelerators import Accelerator

_OVERLAPS = {
    "overlap_grad_reduce": "gradient reduction",
    "overlap_param_gather": "parameter gathering",
    "overlap_p2p_comm": "transfers between stages",
    "tp_comm_overlap": "tensor-parallel collectives inside nodes",
}
"""Setting -> what it hides behind compute."""


def assumptions_json(assumed: "Assumptions") -> dict[str, object]:
    """Return what was assumed, for programs."""
    software, training, profile = assumed.software, assumed.training, assumed.profile
    return {
        "software": assumed.preset,
        "attention_kernel": software.attention_kernel,
        "compiled": software.compiled,
        "cuda_graphs": software.cuda_graphs,
        "cuda_graph_modules": list(software.cuda_graph_modules)
        if software.cuda_graphs == "layers"
        else [],
        **{name: getattr(assumed.execution, name) for name in _OVERLAPS},
        "communication_slowdown": assumed.execution.communication_slowdown,
        "precision": training.precision,
        "matmul_precision": training.matmul_precision or training.precision,
        "gradient_precision": _gradients(training),
        "weights_in_fp32": training.weights_in_fp32,
        "bytes_per_parameter": assumed.parameter_bytes._asdict(),
        "beside_tensors": asdict(
            constants_with(assumed.constants).allocator(
                software.name, expandable=software.expandable_segments
            )
        ),
        "operator_times": {
            "measured": profile is not None,
            "device": profile.device if profile else assumed.accelerator.name,
            "date": profile.date if profile else None,
            "driver": profile.driver if profile else None,
            **_device_json(assumed.accelerator),
        },
        **groups_json(assumed.groups),
        **_user_json(assumed),
    }


def groups_json(groups: "Sequence[DeviceGroup]") -> dict[str, object]:
    """Return the groups of devices; nothing where all are the same."""
    if not groups:
        return {}
    return {
        "groups": [
            {
                "accelerator": group.accelerator.name,
                "num_devices": group.num_devices,
                "devices": devices,
                "memory_bytes": group.accelerator.memory_bytes,
                **_device_json(group.accelerator),
            }
            for group, devices in _with_ranges(groups)
        ]
    }


def _with_ranges(
    groups: "Sequence[DeviceGroup]",
) -> "Iterator[tuple[DeviceGroup, list[str]]]":
    """Yield groups with the numbers of their devices."""
    ends = accumulate(group.num_devices for group in groups)
    for group, end in zip(groups, ends, strict=True):
        yield group, to_ranges(range(end - group.num_devices, end))


def _device_json(device: "Accelerator") -> dict[str, object]:
    """Return what a device borrows from another; nothing where it is its own."""
    described: dict[str, object] = {}
    if device.measured_as:
        described["reached_as_on"] = device.measured_as
    if device.like:
        described["like"] = device.like
        described["overrides"] = list(device.overrides)
    return described


def _user_json(assumed: "Assumptions") -> dict[str, object]:
    """Return the user's own constants and links; nothing where there are none."""
    constants, links = assumed.constants, assumed.links
    described: dict[str, object] = {}
    if assumed.network:
        described["network"] = list(assumed.network)
    if constants is not None:
        described["user_constants"] = {
            "file": constants.name,
            "date": constants.date,
            "source": constants.source,
            "values": dict(constants.values),
        }
    if links is not None:
        described["user_links"] = asdict(links)
    return described


def assumptions_rows(assumed: "Assumptions") -> dict[str, str]:
    """Return what was assumed in words, by name."""
    return {
        "software": _software(assumed),
        "overlaps": _overlaps(assumed.execution),
        "interference": _interference(assumed.execution),
        "number formats": _formats(assumed),
        **_memory(assumed),
        "operator times": _operator_times(assumed),
        **_group_rows(assumed),
        **_user_rows(assumed),
    }


def _group_rows(assumed: "Assumptions") -> dict[str, str]:
    """Say which devices are of which accelerator; nothing where all are the same."""
    listed = [
        f"{group.accelerator.name} ({format_size(group.accelerator.memory_bytes)}): "
        f"{', '.join(devices)}"
        for group, devices in _with_ranges(assumed.groups)
    ]
    return {"devices": "; ".join(listed)} if listed else {}


def _user_rows(assumed: "Assumptions") -> dict[str, str]:
    """Say what is the user's own; nothing where all is as shipped."""
    constants, links = assumed.constants, assumed.links
    rows: dict[str, str] = {}
    if assumed.network:
        rows["network"] = "; ".join(assumed.network)
    if constants is not None:
        count = plural(len(constants.values), "constant")
        rows["constants"] = (
            f"the user's own: {count} of {constants.name}, fitted to "
            f"{constants.source}, {constants.date}"
        )
    if links is not None:
        reached = [
            f"{percent(link.transport.efficiency)} {where}"
            for link, where in (
                (links.node, "inside a node"),
                (links.fabric, "between nodes"),
            )
            if link is not None
        ]
        rows["links"] = (
            f"the user's own: {links.name}, {links.backend} on {links.device}, "
            f"{links.date}; reached {' and '.join(reached)}, where the network says "
            "nothing else"
        )
    return rows


def _memory(assumed: "Assumptions") -> dict[str, str]:
    """Say what is kept free for the allocator, if anything is."""
    software = assumed.software
    held = constants_with(assumed.constants).allocator(
        software.name, expandable=software.expandable_segments
    )
    if held.context + held.workspace + held.full_fragmentation <= 0.0:
        return {}
    frees = assumed.execution.frees_gradients
    return {
        "memory": "that of tensors; kept free beside them: "
        f"{format_size(held.context)} for contexts and libraries, "
        f"{format_size(held.workspace)} of workspaces, "
        f"{held.full_fragmentation:.0%} lost to fragmentation"
        + software.expandable_segments * " of segments that grow"
        + frees * "; gradients are freed by chunks, which searches do not count on"
    }


def _software(assumed: "Assumptions") -> str:
    if assumed.preset == "ideal":
        return "ideal: the device's own time alone, no launches, no allocator"
    software = assumed.software
    kernel = {"flash": "FlashAttention-2", "fused": "the vendor's fused attention"}
    words = [f"{assumed.preset}: {_launched(software)}"]
    if assumed.profile is None:
        words.append(kernel[software.attention_kernel])
    return ", ".join(words)


def _launched(software: "Software") -> str:
    if software.captures_step:
        return "a step launched as one CUDA graph"
    if software.cuda_graphs == "layers":
        parts = ", ".join(software.cuda_graph_modules)
        return f"layers launched as CUDA graphs ({parts}), the rest kernel by kernel"
    if software.compiled:
        return "layers launched as compiled programs"
    return "kernels launched one by one"


def _overlaps(execution: "Execution") -> str:
    hidden = [what for name, what in _OVERLAPS.items() if getattr(execution, name)]
    return ", ".join(hidden) if hidden else "none"


def _interference(execution: "Execution") -> str:
    factor = execution.communication_slowdown
    if factor == 1.0:
        return "compute is not slowed down by communication beside it"
    return f"compute takes {factor:g} times as long while its device communicates"


def _gradients(training: "TrainingSpec") -> str:
    return training.gradient_precision if training.precision != "fp32" else "fp32"


def _formats(assumed: "Assumptions") -> str:
    training, sizes = assumed.training, assumed.parameter_bytes
    words = [training.precision]
    if training.matmul_precision:
        words.append(f"products with weights in {training.matmul_precision}")
    words.append(f"gradients in {_gradients(training)}")
    if training.weights_in_fp32 and training.precision != "fp32":
        words.append("weights kept in fp32")
    words += _narrow_words(training)
    sent = (
        f"{sizes.gather:g} B of a weight and {sizes.reduce:g} B of a gradient on the "
        "wire"
    )
    return f"{', '.join(words)}; {sent}"


def _narrow_words(training: "TrainingSpec") -> list[str]:
    """Say what is in narrow formats beside products; nothing where nothing is."""
    words = []
    if training.fp8_param_gather:
        words.append(f"matrices of blocks kept in {training.matmul_precision}")
    if training.moe_dispatch_precision:
        words.append(f"tokens dispatched in {training.moe_dispatch_precision}")
    names = {
        "main_params_dtype": "master weights",
        "exp_avg_dtype": "momentum",
        "exp_avg_sq_dtype": "variance",
    }
    words += [
        f"{words_for} in {getattr(training, name)}"
        for name, words_for in names.items()
        if getattr(training, name) != "fp32"
    ]
    if training.optimizer == "muon":
        words.append("Muon for matrices of blocks, Adam for the rest")
    if training.tells_matrices_apart:
        words.append("each parameter as the model's are on average")
    return words


def _operator_times(assumed: "Assumptions") -> str:
    profile = assumed.profile
    if profile is None:
        device = assumed.accelerator
        used = (group.accelerator.name for group in assumed.groups)
        names = list(dict.fromkeys(used)) or [device.name]
        words = [f"from the rates of {' and '.join(names)}"]
        words += _borrowed(assumed)
        if device.like:
            words.append(_likeness(device))
        if device.measured_as not in {"", device.like}:
            words.append(
                f"what is reached of them as on {device.measured_as}: {device.name} "
                "was not measured"
            )
        elif not load_constants().knows_accelerator(device.constants_name):
            words.append(
                "what is reached of them as between the measured accelerators: "
                f"{device.name} is none of them"
            )
        return "; ".join(words)
    return f"measured on {profile.device}, {profile.date} ({profile.driver})"


def _borrowed(assumed: "Assumptions") -> list[str]:
    """Say whose kernels stand for those of devices that were not measured."""
    devices = [group.accelerator for group in assumed.groups] or [assumed.accelerator]
    names = dict.fromkeys(device.constants_name for device in devices)
    return [
        f"shapes of kernels on {name} as on {measured_relative(name)}"
        for name in names
        if measured_relative(name) != name
    ]


def _likeness(device: "Accelerator") -> str:
    """Say which device of the catalogue one is like, and in what it differs."""
    if not device.overrides:
        return f"as {device.like} has them"
    return f"a {device.like} but for {', '.join(device.overrides)}"

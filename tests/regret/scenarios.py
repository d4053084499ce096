"""Random realistic scenarios, one for each seed, as people would write them.

GPTs of 1.3 to 175 billion parameters, Llamas of 7 to 70, Mixtrals, on 8 to 512 devices
of the catalogue, below switches or in a torus, with every preset that frameworks have.
Nothing is drawn that nobody has: large models get many devices, TPUs no InfiniBand.
"""

import random
from dataclasses import dataclass

from tests.fuzz.formats import Tree, dump

PRESETS = (
    "megatron-core",
    "fsdp",
    "torchtitan",
    "maxtext",
    "megatron-lm",
    "deepspeed",
    "ideal",
    "internevo",
    "ddp",
)
"""Of scenarios, in turn."""

MOST_DEVICES = 512


@dataclass(frozen=True, slots=True)
class Drawn:
    """A scenario."""

    seed: int
    text: str
    """The file, in TOML."""
    preset: str


@dataclass(frozen=True, slots=True)
class _Device:
    """What people build of an accelerator."""

    name: str
    node_bandwidth: str = ""
    """Empty if it stands in a torus."""
    nics: tuple[str, ...] = ()
    precision: str = "bf16"
    torus_bandwidth: str = ""


# Bandwidths of nodes and adapters: the data sheets of DGX-1, DGX A100 and DGX H100, and
# 100 Gbit/s as clouds have it. Of a torus' links: the catalogue's over six links each.
_GPUS = (
    _Device("a100-80gb", "300 GB/s", ("200 Gbit/s", "100 Gbit/s")),
    _Device("h100-sxm", "450 GB/s", ("400 Gbit/s", "200 Gbit/s", "100 Gbit/s")),
    _Device("h100-sxm", "450 GB/s", ("400 Gbit/s", "100 Gbit/s")),
    _Device("a100-40gb", "300 GB/s", ("200 Gbit/s", "100 Gbit/s")),
    _Device("v100", "150 GB/s", ("100 Gbit/s",), precision="fp16"),
)
_TPUS = (
    _Device("tpu-v4", torus_bandwidth="50 GB/s"),
    _Device("tpu-v5p", torus_bandwidth="100 GB/s"),
    _Device("tpu-v5e", torus_bandwidth="50 GB/s"),
)

# Model -> the fewest devices on which people train it.
_MODELS = {
    "gpt3-1.3b": 8,
    "gpt3-2.7b": 8,
    "gpt3-6.7b": 16,
    "gpt3-13b": 32,
    "gpt3-35b": 64,
    "gpt3-175b": 128,
    "llama2-7b": 8,
    "llama2-13b": 32,
    "llama2-70b": 64,
    "llama3-8b": 16,
    "llama3-70b": 64,
    "mixtral-790m": 8,
    "mixtral-8x7b": 64,
}
_OF_DDP = ("gpt3-1.3b", "mixtral-790m", "gpt3-2.7b")
"""Models of which a device holds all."""

_TORI = {
    4: (2, 2),
    8: (2, 2, 2),
    16: (2, 2, 4),
    32: (2, 4, 4),
    64: (4, 4, 4),
    128: (4, 4, 8),
    256: (4, 8, 8),
    512: (8, 8, 8),
}
_SIZES = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_RATIOS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


def draw(seed: int, *, most_devices: int = MOST_DEVICES) -> Drawn:
    """Return the scenario of a seed.

    Parameters
    ----------
    seed
        Any number; presets take turns.
    most_devices
        Larger clusters are not drawn.
    """
    # Names the draw, so that other users of the same numbers draw something else.
    rng = random.Random(f"regret {seed}")
    preset = PRESETS[seed % len(PRESETS)]
    likes_tpus = {"maxtext": 0.6, "ideal": 0.3}
    gpus = rng.random() >= likes_tpus.get(preset, 0.0)
    device = rng.choice(_GPUS if gpus else _TPUS)
    if preset == "ddp":
        device = rng.choice(_GPUS[:2])
    models = _OF_DDP if preset == "ddp" else tuple(_MODELS)
    model = rng.choice([name for name in models if _MODELS[name] <= most_devices])
    sizes = [n for n in _SIZES if _MODELS[model] <= n <= most_devices]
    sizes = [n for n in sizes if gpus or n in _TORI]
    num_devices = rng.choice(sizes)
    network = _tree(rng, device, num_devices) if gpus else _torus(device, num_devices)
    tree: dict[str, Tree] = {
        "name": f"{seed}: {model} on {num_devices} {device.name}",
        "model": {"name": model},
        "training": {
            "global_batch_size": _batch(rng, num_devices),
            "precision": device.precision,
        },
        "software": {"preset": preset},
        "cluster": {"accelerator": device.name, "network": network},
    }
    if rng.random() < 0.7:
        tree["search"] = {"micro_batch_sizes": [1, 2, 4]}
    return Drawn(seed, dump("scenario.toml", tree).decode(), preset)


def draw_small(seed: int) -> Drawn:
    """Return a scenario of at most 16 devices and a few layers, solved in a second."""
    rng = random.Random(f"small regret {seed}")
    preset = PRESETS[seed % len(PRESETS)]
    gpus = rng.random() < 0.8
    device = rng.choice(_GPUS[:3] if gpus else _TPUS)
    num_devices = rng.choice((8, 16))
    model = rng.choice(("gpt3-1.3b", "llama2-7b", "mixtral-790m"))
    network = _tree(rng, device, num_devices) if gpus else _torus(device, num_devices)
    tree: dict[str, Tree] = {
        "name": f"small {seed}",
        "model": {
            "name": model,
            "num_layers": rng.choice((4, 6, 8)),
            "sequence_length": rng.choice((512, 2048)),
        },
        "training": {
            "global_batch_size": rng.choice((16, 32, 48)),
            "precision": device.precision,
        },
        "software": {"preset": preset},
        "cluster": {"accelerator": device.name, "network": network},
        "search": {"micro_batch_sizes": [1, 2]},
    }
    return Drawn(seed, dump("scenario.toml", tree).decode(), preset)


def _batch(rng: random.Random, num_devices: int) -> int:
    """Draw sequences of a step: about one to eight for each device."""
    least = max(64, num_devices)
    sizes = [64, 96, 128, 192, 256, 384, 480, 512, 768, 1024, 1536, 2048]
    most = max(128, 8 * num_devices)
    return rng.choice([size for size in sizes if least <= size <= most])


def _torus(device: _Device, num_devices: int) -> dict[str, Tree]:
    return {
        "kind": "torus",
        "dimensions": list(_TORI[num_devices]),
        "bandwidth": device.torus_bandwidth,
        "latency": "1 us",
    }


def _tree(rng: random.Random, device: _Device, num_devices: int) -> dict[str, Tree]:
    """Draw a network of switches."""
    kind = rng.choice(("spine-leaf", "spine-leaf", "fat-tree", "rail"))
    nodes = num_devices // 8
    nic = rng.choice(device.nics)
    ratio = rng.choice(_RATIOS)
    lower = rng.choice([n for n in (1, 2, 4, 8) if nodes % n == 0 and n <= nodes])
    shared = rng.choice(("device", "device", "node"))
    links: dict[str, Tree] = {
        "node_bandwidth": device.node_bandwidth,
        "node_latency": "500 ns",
        "nic_bandwidth": nic,
        "nic_latency": "1 us",
        "spine_latency": "500 ns",
        "oversubscription": ratio,
        "num_spines": rng.choice((1, 2, 4)),
        "devices_per_node": 8,
    }
    if kind == "spine-leaf":
        if rng.random() < 0.5:
            links |= {"node_efficiency": 0.85, "nic_efficiency": 0.95}
        return {
            "kind": kind,
            **links,
            "nic": shared,
            "nodes_per_leaf": lower,
            "num_leaves": nodes // lower,
        }
    if kind == "rail":
        return {
            "kind": kind,
            **links,
            "nodes_per_unit": lower,
            "num_units": nodes // lower,
            "pxn": rng.random() < 0.7,
        }
    # The link of a node: that of its adapter, or of all eight.
    across = nic if shared == "node" else _times(nic, 8)
    levels: list[Tree] = [
        _level("node", 8, "500 ns", bandwidth=device.node_bandwidth),
        _level("rack", lower, "1 us", bandwidth=across, oversubscription=ratio),
        _level("core", nodes // lower, "1 us"),
    ]
    return {"kind": "fat-tree", "nic": "node", "levels": levels}


def _level(name: str, fan_out: int, latency: str, **others: Tree) -> dict[str, Tree]:
    return {"name": name, "fan_out": fan_out, "latency": latency, **others}


def _times(bandwidth: str, factor: int) -> str:
    number, unit = bandwidth.split()
    return f"{int(number) * factor} {unit}"

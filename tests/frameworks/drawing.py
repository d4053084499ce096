"""Small jobs and plans, drawn from what ``draws.toml`` has for a framework.

Most draws are right; each part is wrong now and then, so that about as many plans are
refused as are accepted.
"""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli

Tables = dict[str, Any]
"""A scenario, as its file has it."""

Weights = Mapping[str, float]
"""What is drawn, in JSON or as a word -> how often."""

FILE = tomli.loads(Path(__file__).with_name("draws.toml").read_text("utf-8"))
MODELS: Mapping[str, Mapping[str, Any]] = FILE.pop("models")


class Draw:
    """A drawer with the weights of a framework."""

    def __init__(self, rng: random.Random, name: str) -> None:
        self.rng = rng
        like = FILE[FILE[name].get("like", "usual")]
        self.weights: Mapping[str, Weights] = FILE["usual"] | like | FILE[name]

    def of(self, setting: str) -> Any:
        """Draw a setting, None if there is nothing to draw."""
        weights = self.weights.get(setting, {})
        if not weights:
            return None
        (word,) = self.rng.choices(list(weights), list(weights.values()))
        try:
            return json.loads(word)
        except ValueError:
            return word

    def scenario(self) -> Tables:
        """Draw a job with a plan; the settings may make none."""
        world = self.of("num_devices")
        kind = self.of("model")
        model = dict(MODELS[kind])
        blocks = model.pop("blocks", None) or self.of("num_layers")
        if "name" not in model:
            model = {**MODELS["sizes"], **model, "num_layers": blocks}
        if groups := model.pop("query_groups", None):
            model["num_query_groups"] = self.rng.choice(groups)
        training = {"global_batch_size": self.of("global_batch_size")}
        if precision := self.of("precision"):
            training["precision"] = precision
        return {
            "name": "drawn",
            "model": model,
            "training": training,
            "cluster": cluster(world, self.of("accelerator")),
            "plan": self.plan(world, blocks, has_experts="experts" in kind),
        }

    def plan(self, world: int, blocks: int, *, has_experts: bool) -> Tables:
        """Draw settings that fill a number of devices."""
        tp, cp, pp = (self.of(size) for size in ("tp", "cp", "pp"))
        while world % (tp * cp * pp):
            tp, cp, pp = (self.of(size) for size in ("tp", "cp", "pp"))
        ranks = world // (tp * pp)
        plan: Tables = {
            "micro_batch_size": self.of("micro_batch_size"),
            "tensor_model_parallel_size": tp,
            "context_parallel_size": cp,
            "pipeline_model_parallel_size": pp,
            "data_parallel_size": ranks // cp,
            "sequence_parallel": tp > 1 and self.of("sequence_parallel"),
            "order": self.of("order"),
        }
        if cp > 1:
            plan["cp_comm_type"] = self.of("cp_comm_type")
        if plan.get("cp_comm_type") == "a2a+p2p" and cp == 2:
            plan["cp_comm_type"] = "a2a"
        elif plan.get("cp_comm_type") == "a2a+p2p":
            plan["hierarchical_context_parallel_sizes"] = [2, cp // 2]
        if has_experts:
            plan |= self.experts(tp, world // pp, is_sharded=plan["sequence_parallel"])
        if pp > 1:
            plan |= self.pipeline(blocks, pp)
        plan |= self.recompute(pp) | self.states(ranks)
        return {name: value for name, value in plan.items() if value is not None}

    def recompute(self, pp: int) -> Tables:
        """Draw what is computed again."""
        mode = self.of("recompute")
        if mode == "by stage":
            return {"recompute": ["full", *["none"] * (pp - 1)]}
        counted = {"full": "recompute_num_layers", "selective": "selective_num_layers"}
        number = self.of(counted[mode]) if mode in counted else None
        return {"recompute": mode, "recompute_num_layers": number}

    def states(self, ranks: int) -> Tables:
        """Draw what of the states so many ranks share, and what their hosts keep."""
        drawn: Tables = {"zero_stage": self.of("zero_stage") if ranks > 1 else 0}
        parts = [size for size in range(2, ranks) if ranks % size == 0]
        if drawn["zero_stage"] and parts and self.of("shares"):
            drawn["sharding_group_size"] = self.rng.choice(parts)
        for kept in self.of("offload") or ():
            drawn[f"offload_{kept}"] = self.of("offload_part") or 1.0
        if part := self.of("offload_activations"):
            drawn["offload_activations"] = part
        return drawn

    def experts(self, tp: int, ranks: int, *, is_sharded: bool) -> Tables:
        """Draw how experts are spread over the ranks of a stage."""
        etp = self.of("etp") if is_sharded else "tp"
        etp = tp if etp == "tp" else etp
        sizes = [ep for ep in (1, 2, 4, 8, 16) if ranks % (ep * etp) == 0]
        ep = self.rng.choice(sizes or [1])
        drawn: Tables = {"expert_model_parallel_size": ep}
        if etp != tp:
            drawn["expert_tensor_parallel_size"] = etp
        if ep > 1 and self.of("overlap_experts"):
            drawn["overlap_moe_expert_parallel_comm"] = True
        return drawn

    def pipeline(self, blocks: int, pp: int) -> Tables:
        """Draw a schedule, its chunks, and how blocks are shared out."""
        drawn: Tables = {"schedule": self.of("schedule")}
        split, v = self.of("split"), self.of("chunks")
        if drawn["schedule"] in ("1f1b", "gpipe", "scanned"):
            v = 1
        elif drawn["schedule"] is not None:
            v = max(v, 2)
        if split == "ends":
            ends = ("first", "last")[: self.rng.choice((1, 2))]
            count = self.rng.choice((1, 2, 3))
            return {f"num_layers_in_{end}_pipeline_stage": count for end in ends}
        if v > 1:
            drawn["virtual_pipeline_model_parallel_size"] = v
        if split == "counted":
            for end in ("embedding", "loss"):
                drawn[f"account_for_{end}_in_pipeline_split"] = True
        elif split != "even" and pp * v <= blocks:
            drawn["pipeline_model_parallel_layout"] = self.layout(split, blocks, pp * v)
        return drawn

    def layout(self, split: str, total: int, parts: int) -> list[int]:
        """Draw numbers of blocks: as even as can be, or any."""
        if split == "any":
            cuts = sorted(self.rng.sample(range(1, total), parts - 1))
            return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]
        base, more = divmod(total, parts)
        early = [base + (part < more) for part in range(parts)]
        return early if split == "early" else early[::-1]


def cluster(num_devices: int, accelerator: str | None) -> Tables:
    """Return the table [cluster] of nodes of eight devices, H100 if none are named."""
    node = {"fan_out": 8, "bandwidth": "450 GB/s", "latency": "500 ns"}
    fabric = {"fan_out": 2, "bandwidth": "400 Gbit/s", "latency": "1 us"}
    levels = [{"name": "node", **node}, {"name": "fabric", **fabric}]
    return {
        "accelerator": accelerator or "h100-sxm",
        "num_devices": num_devices,
        "network": {
            "kind": "fat-tree",
            "nic": "device",
            "levels": levels[: 1 + (num_devices > 8)],
        },
    }

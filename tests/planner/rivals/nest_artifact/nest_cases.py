"""Random instances of the NEST artifact's format, and its cost model by definition.

The oracle shares nothing with the package: it reads the JSON itself, places explicit
devices, and walks every edge of every stage. Numbers are drawn so that sums are exact
(integers, powers of two), and values can be compared with ``==``.
"""

import math
from itertools import combinations, pairwise

from hypothesis import strategies as st


@st.composite
def instances(draw, max_nodes=7):
    """Small instances: memory from a fraction of the model to plenty."""
    num_nodes = draw(st.sampled_from([5, 3, 7, 6, 4, 2, 1]).filter(max_nodes.__ge__))
    ids = draw(st.permutations(range(-1, num_nodes - 1)))
    widths = draw(st.sets(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3))
    skips = [(i, j) for i in range(num_nodes) for j in range(i + 2, num_nodes)]
    pairs = list(pairwise(range(num_nodes)))
    pairs += draw(st.lists(st.sampled_from(skips), unique=True)) if skips else []
    pairs = draw(st.permutations(pairs))
    sizes = draw(st.lists(st.integers(2, 4), min_size=2, max_size=4))
    sizes[-1:] = draw(st.sampled_from([sizes[-1:], [1], [1, 3]]))
    most = min(16, math.prod(sizes))
    num_devices = draw(st.sampled_from([most]) | st.integers(1, most))
    optimizer = draw(st.sampled_from(["SGD", "SGD", "Adam"]))

    def nodes():
        kinds = draw(st.lists(node_kinds(), min_size=1, max_size=3))
        order = draw(st.permutations(range(num_nodes)))
        picked = {i: draw(st.sampled_from(kinds)) for i in order}
        return [{"id": ids[i], **picked[i]} for i in order]

    def edges():
        return [
            {
                "sourceId": ids[u],
                "destId": ids[v],
                "communicationCost": draw(st.sampled_from([0, 1, 2, 6, 16, 48])),
            }
            for u, v in pairs
        ]

    tables = {str(t): nodes() for t in sorted(widths)}
    whole = sum(
        (8 if optimizer == "Adam" else 2) * node["parameterSize"]
        + node["activationSize"]
        for node in tables[str(min(widths))]
    )
    return {
        "ep_degree": draw(st.sampled_from([1, 1, 1, 2])),
        "cp_degree": draw(st.sampled_from([1, 1, 1, 2])),
        "sp_enabled": False,
        "maxMemoryPerDevice": 1
        + whole * draw(st.sampled_from([1, 0.5, 0.25, 0.125, 9])),
        "maxDevices": num_devices,
        "bandwidth": 1.0,
        "bws": [2.0 ** draw(st.integers(-2, 4)) for _ in sizes],
        "latency_per_level": [float(draw(st.integers(0, 3))) for _ in sizes],
        "devices_per_level": sizes,
        "frequency": 4.0,
        "mbsInBatch": draw(st.sampled_from([8.0, 12.0, 30.0, 5.5, 3.0, 2.0, 1.0])),
        "nodes": tables,
        "edges": {str(t): edges() for t in sorted(widths)},
        "activationRecomputation": draw(st.booleans()),
        "optimizerAlgorithm": optimizer,
        "baselines": {},
    }


@st.composite
def node_kinds(draw):
    """Sizes and times of a node."""
    return {
        "parameterSize": draw(st.sampled_from([4, 1, 0, 9, 64, 512])),
        "activationSize": draw(st.integers(0, 8)),
        "optimalLatencyFw": float(draw(st.integers(0, 30))),
        "optimalLatencyBw": float(draw(st.integers(0, 30))),
        "isTensorParallelized": False,
    }


class Definition:
    """The cost model of one width, word for word."""

    def __init__(self, data, t, zero=False):
        self.data, self.t, self.zero = data, t, zero
        self.a = t * data["ep_degree"] * data["cp_degree"]
        edges = data["edges"][str(t)]
        nodes = {node["id"]: node for node in data["nodes"][str(t)]}
        ids = []
        while len(ids) < len(nodes):
            for node in nodes:
                before = {e["sourceId"] for e in edges if e["destId"] == node}
                if node not in ids and before <= set(ids):
                    ids.append(node)
        self.ids = ids
        self.nodes = [nodes[node] for node in ids]
        place = {node: i for i, node in enumerate(ids)}
        self.edges = [
            (place[e["sourceId"]], place[e["destId"]], e["communicationCost"])
            for e in edges
        ]

    def p2p(self, num_bytes, level):
        """Return the time of a message between stages."""
        slowest = min(self.data["bws"][: level + 1])
        time = num_bytes / slowest + self.data["latency_per_level"][level]
        return time if level == 0 else 2 * time

    def groups(self, device):
        """Return the group of a device at every level."""
        found = []
        for size in self.data["devices_per_level"]:
            device //= size
            found.append(device)
        return found

    def level(self, placed, new):
        """Return the lowest level that joins a new stage to some placed device."""
        first = self.groups(min(new))
        return min(
            level
            for device in placed
            for level, group in enumerate(self.groups(device))
            if group == first[level]
        )

    def load(self, stage, f, b, recompute):
        """Return the time of one microbatch in a stage."""
        forward, finish = {}, 0.0
        for v in stage:
            start = 0.0
            for u, w, num_bytes in self.edges:
                if w == v:
                    here = u in stage
                    start = max(start, forward[u] if here else self.p2p(num_bytes, f))
            forward[v] = finish = start + self.nodes[v]["optimalLatencyFw"]
        again = sum(self.nodes[v]["optimalLatencyBw"] for v in stage)
        backward, back = {}, 0.0
        for v in reversed(stage):
            start = again if recompute else 0.0
            for u, w, num_bytes in self.edges:
                if u == v:
                    here = w in stage
                    start = max(start, backward[w] if here else self.p2p(num_bytes, b))
            backward[v] = back = start + self.nodes[v]["optimalLatencyBw"]
        return finish + back

    def parameters(self, stage):
        """Return the parameters of a stage."""
        return sum(self.nodes[v]["parameterSize"] for v in stage)

    def slots(self, stage, z=1, kind=0):
        """Return the last position from the end at which a stage fits."""
        data = self.data
        p = self.parameters(stage)
        opt = 6 * p if data["optimizerAlgorithm"] == "Adam" else 0
        a = sum(self.nodes[v]["activationSize"] for v in stage)
        const = (
            a
            + {
                0: 2 * p + opt,
                2: p + p / z + opt / z,
                3: 2 * p / z + opt / z,
            }[kind]
        )
        stash = a
        if data["activationRecomputation"]:
            stash = sum(c for u, w, c in self.edges if w in stage and u not in stage)
        fits = 0
        for s in range(1, data["maxDevices"] + 1):
            if const + (s - 1) * stash <= data["maxMemoryPerDevice"]:
                fits = s
        return fits

    def shard(self, stage):
        """Return degree and type of ZeRO, (1, 0) without."""
        if not self.zero or self.slots(stage) > 0:
            return 1, 0
        positions = min(self.data["maxDevices"], len(self.nodes))
        z = 2
        while self.a * z <= self.data["maxDevices"]:
            for kind in (2, 3):
                if self.slots(stage, z, kind) >= positions:
                    return z, kind
            z *= 2
        return 1, 0

    def all_reduce(self, d, p, q):
        """Return the time to combine gradients of replicas q devices apart."""
        bws, lat = self.data["bws"], self.data["latency_per_level"]
        ranks = [self.groups(i * q) for i in range(d)]
        top = 1 + next(
            i for i in range(len(bws)) if len({rank[i] for rank in ranks}) == 1
        )
        total, low = 0.0, 0.0
        for i in range(int(math.log2(d))):
            total += lat[0] + p / 2**i / bws[0]
        for i in range(1, top):
            total += 2 * (lat[i] + p / bws[i]) + low
            low += total
        return total

    def cost(self, bounds, d, *, listed_backwards=False):
        """Return the time per batch of a plan; infinite if it is not possible.

        ``listed_backwards``: as baselines are scored, from a list of stages whose
        first entry is the last stage.
        """
        data = self.data
        stages = [list(range(i, j)) for i, j in pairwise(bounds)]
        shards = [self.shard(stage) for stage in stages]
        devices, used = [], 0
        for z, _ in reversed(shards):
            devices.insert(0, list(range(used, used + self.a * z)))
            used += self.a * z
        batch = int(data["mbsInBatch"])
        if d * used > data["maxDevices"] or d > batch:
            return math.inf
        listed = list(range(len(stages)))
        if listed_backwards:
            listed.reverse()
        slowest = 0.0
        for index, k in enumerate(listed):
            s = len(stages) - index
            z, kind = shards[k]
            if self.slots(stages[k], z, kind) < s:
                return math.inf
            f = self.level(devices[k], devices[k - 1]) if k > 0 else 0
            last = k == len(stages) - 1
            b = 0 if last else self.level(devices[k + 1], devices[k])
            recompute = data["activationRecomputation"] and s > 1
            load = self.load(stages[k], f, b, recompute)
            load += {0: 0, 2: -1, 3: -2}[kind] / data["frequency"]
            slowest = max(slowest, load)
        z, kind = shards[listed[0]]
        p = self.parameters(stages[listed[0]])
        p = p / z if kind == 3 else p
        rounds = -(-batch // d) + len(stages) - 1
        return slowest * rounds + self.all_reduce(d, p, used)

    def plans(self):
        """Yield every split, and every number of replicas with it."""
        n = len(self.nodes)
        for count in range(n):
            for cuts in combinations(range(1, n), count):
                for d in range(1, self.data["maxDevices"] + 1):
                    yield (0, *cuts, n), d


def zero_gates(data):
    """Return width -> whether ZeRO is on, decided by the last node alone."""
    gates, still = {}, True
    for t in sorted(map(int, data["nodes"])):
        model = Definition(data, t, zero=True)
        last = [len(model.nodes) - 1]
        if model.slots(last) > 0:
            still = False
        gates[t] = still and model.shard(last) != (1, 0)
    return gates


def brute_force(data):
    """Return the least time per batch, infinite if nothing fits."""
    return min(
        (
            model.cost(bounds, d)
            for t, zero in zero_gates(data).items()
            for model in [Definition(data, t, zero)]
            for bounds, d in model.plans()
        ),
        default=math.inf,
    )

"""Slow and simple answers to compare with."""

import itertools
from collections import deque

import numpy as np

from topologies import Network


def all_pairs(network: Network):
    devices = np.arange(network.num_devices)
    sources, targets = np.meshgrid(devices, devices, indexing="ij")
    return sources.ravel(), targets.ravel()


def smallest_halving_cut(network: Network) -> float:
    """Try every half of the devices with every side for every switch."""
    links, num_devices = network.links, network.num_devices
    num_switches = len(network.vertex_names) - num_devices
    sides = list(itertools.product([False, True], repeat=num_switches))
    choices = np.array(sides, dtype=bool).reshape(len(sides), num_switches)
    best = np.inf
    for half in itertools.combinations(range(num_devices), num_devices // 2):
        inside = np.zeros((len(choices), num_devices), dtype=bool)
        inside[:, list(half)] = True
        side = np.concatenate([inside, choices], axis=1)
        crosses = side[:, links.source] & ~side[:, links.target]
        best = min(best, (crosses @ links.bandwidth).min())
    return float(best)


def hop_distances(network: Network, present) -> np.ndarray:
    """Count the hops between all devices, one vertex after the other; -1 for no way."""
    neighbours = {v: set() for v in range(len(network.vertex_names))}
    links = network.links
    for link in np.flatnonzero(present):
        neighbours[int(links.source[link])].add(int(links.target[link]))
    distances = np.full((network.num_devices, len(network.vertex_names)), -1)
    for device in range(network.num_devices):
        distances[device, device] = 0
        queue = deque([device])
        while queue:
            vertex = queue.popleft()
            for other in neighbours[vertex]:
                if distances[device, other] < 0:
                    distances[device, other] = distances[device, vertex] + 1
                    queue.append(other)
    return distances[:, : network.num_devices]

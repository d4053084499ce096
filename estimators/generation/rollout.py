"""How long it takes to answer prompts on replicas of an engine.

Prompts go round the replicas in turn, with all responses to one on one replica; each
replica answers its own by continuous batching (`estimators.generation.batching`), with
steps priced by `estimators.generation.forward` and caches by
`estimators.generation.caches`. Replicas share nothing but the network, over which
ranks of different replicas send side by side; ranks of one replica's expert groups take
equal parts of its responses.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from estimators.generation.batching import (
    NUM_TOTALS,
    PEAK_BYTES,
    PEAK_SEQUENCES,
    PREFILL,
    PROMPT_TOKENS,
    PUT_OUT,
    SEQUENCE_TIME,
    TIME,
    Answers,
    Costs,
    run_batches,
)
from estimators.generation.caches import Caches
from estimators.generation.engine import EngineSetup
from estimators.generation.forward import ForwardTimes
from estimators.generation.lengths import Lengths
from estimators.generation.memory import EngineMemory, device_memory
from estimators.models.spec import TransformerSpec
from estimators.platform import Platform
from topologies import InputError, Network
from topologies.arrays import FloatVector, IntVector


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollout:
    """What answering a batch of prompts takes."""

    time: float
    """Time until the last response is done [s]."""

    finished: FloatVector
    """When each response is done, in order, shape ``(prompts x samples,)`` [s]."""

    prefill_time: float
    """Part of the busiest replica's time that prompts take [s]."""

    decode_tokens: int
    """Tokens of all responses."""

    prompt_tokens: int
    """Tokens of all prompts that were worked on: a prompt whose responses share it
    counts once for each replica's pass over it."""

    tokens_per_second: float
    """`decode_tokens` over `time`, all replicas together [token/s]."""

    peak_sequences: int
    """Most responses that a replica works on at a time."""

    kv_bytes: float
    """Most that a device's cache of keys, values and states holds [byte]."""

    weight_bytes: float
    """Weights of one device [byte]."""

    put_out: int = 0
    """How often a response was put out because caches were full, and taken up again."""

    idle_share: float = 0.0
    """Part of the places for responses (`peak_sequences` of each replica, for all of
    `time`) that stand empty: while caches fill, and in the long tail."""

    def time_at(self, fraction: float) -> float:
        """Return when a fraction of the responses is done [s]."""
        number = len(self.finished)
        place = min(max(int(-(-fraction * number // 1)), 1), number)
        return float(self.finished[place - 1])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replica:
    """What one replica of an engine takes, and how much it holds."""

    engine: EngineSetup
    """How it is set up."""

    caches: Caches
    """What sequences keep."""

    memory: EngineMemory
    """Memory of each device."""

    costs: Costs
    """What its steps take."""

    @classmethod
    def of(
        cls,
        model: TransformerSpec,
        platform: Platform,
        network: Network,
        engine: EngineSetup,
    ) -> "Replica":
        """Build that of a model; made once for the same arguments.

        Raises
        ------
        InputError
            If the engine cannot run the model so, or has no room for it.
        """
        return _replica(model, platform, network, engine)

    def step_time(self, sequences: int, keys: float) -> float:
        """Return the time of a step of so many responses with so many keys each [s].

        No more keys than a window's are read where layers have windows.
        """
        costs = self.costs
        windowed = min(keys, costs.window)
        per_sequence = costs.per_key * keys + costs.per_window_key * windowed
        return float(costs.base[sequences] + sequences * per_sequence)


@lru_cache(maxsize=64)
def _replica(
    model: TransformerSpec, platform: Platform, network: Network, engine: EngineSetup
) -> Replica:
    times = ForwardTimes.of(model, platform, network, engine)
    caches = Caches.of(model, times)
    memory = device_memory(model, times)
    tokens, layers, heads = times.tables
    kernel, per_sequence, per_key, per_window_key = caches.step
    lengths, mixing = caches.mixing
    rows = np.arange(engine.max_sequences + 1) / engine.ep
    fixed = engine.step_overhead + kernel
    full = (layers[-1] + fixed) / tokens[-1]
    beyond = np.maximum(rows - tokens[-1], 0.0)
    costs = Costs(
        base=fixed
        + per_sequence * rows
        + np.interp(rows, tokens, layers)
        + beyond * full
        + np.interp(rows, tokens, heads),
        tokens=tokens,
        layers=layers,
        full=float(full),
        lengths=lengths,
        mixing=mixing,
        per_key=per_key / engine.ep,
        per_window_key=per_window_key / engine.ep,
        window=caches.window,
        ranks=float(engine.ep),
        capacity=engine.ep * memory.caches,
        token_bytes=float(caches.whole_bytes),
        window_bytes=float(caches.window_bytes),
        state_bytes=float(caches.state_bytes),
        reserves=int(engine.reserves),
    )
    return Replica(engine=engine, caches=caches, memory=memory, costs=costs)


def rollout(  # noqa: PLR0913, PLR0917 - one call is one question
    model: TransformerSpec,
    platform: Platform,
    network: Network,
    engine: EngineSetup,
    prompts: int,
    samples: int,
    prompt_lengths: Lengths,
    response_lengths: Lengths,
    replicas: int,
    seed: int,
) -> Rollout:
    """Return what answering ``prompts`` prompts ``samples`` times each takes.

    Parameters
    ----------
    model
        The model that answers.
    platform
        Its devices; of the software only what joins devices counts.
    network
        Where replicas stand, side by side from device 0.
    engine
        One replica.
    prompts, samples
        How many prompts there are, and responses to each.
    prompt_lengths, response_lengths
        How long they are [tokens].
    replicas
        Engines that share the prompts.
    seed
        Of the order in which lengths come.

    Raises
    ------
    InputError
        If there is nothing to answer, replicas have more devices than the network, or
        a response is longer than a replica has room for.
    """
    for name, number in (
        ("prompts", prompts),
        ("samples", samples),
        ("replicas", replicas),
    ):
        if number < 1:
            raise InputError(
                "is not possible", where=name, got=number, expected="at least 1"
            )
    if replicas * engine.num_devices > network.num_devices:
        raise InputError(
            "replicas have more devices than the network",
            where="replicas",
            got=f"{replicas:,} x {engine.num_devices:,} devices",
            expected=f"at most {network.num_devices:,} devices",
        )
    replica = Replica.of(model, platform, network, engine)
    asked = prompt_lengths.sample(prompts, seed)
    answers = response_lengths.sample(prompts * samples, seed + 1)
    answers = answers.reshape(prompts, samples)
    runs = [
        _answer(replica, asked[first::replicas], answers[first::replicas])
        for first in range(min(replicas, prompts))
    ]
    finished = np.sort(np.concatenate([times for times, _ in runs]))
    totals = np.array([noted for _, noted in runs])
    time = float(totals[:, TIME].max())
    peak = int(totals[:, PEAK_SEQUENCES].max())
    tokens = int(answers.sum())
    places = peak * replicas * time
    return Rollout(
        time=time,
        finished=finished,
        prefill_time=float(totals[:, PREFILL].max()),
        decode_tokens=tokens,
        prompt_tokens=int(totals[:, PROMPT_TOKENS].sum()),
        tokens_per_second=tokens / time,
        peak_sequences=peak,
        kv_bytes=float(totals[:, PEAK_BYTES].max()) / engine.ep,
        weight_bytes=replica.memory.weights,
        put_out=int(totals[:, PUT_OUT].sum()),
        idle_share=1.0 - float(totals[:, SEQUENCE_TIME].sum()) / places,
    )


def _answer(
    replica: Replica, prompts: IntVector, answers: IntVector
) -> tuple[FloatVector, FloatVector]:
    """Return when one replica's responses are done, and what it notes.

    Parameters
    ----------
    replica
        The replica.
    prompts
        Tokens of its prompts, shape ``(P,)``.
    answers
        Tokens of responses to each, shape ``(P, samples)``.
    """
    shares = replica.engine.shares_prompts
    number, samples = answers.shape
    groups = np.repeat(np.arange(number), samples)
    brings = np.ones((number, samples), dtype=np.int64)
    if shares:
        brings[:, 1:] = 0
    else:
        groups = np.arange(number * samples)
    asked = np.repeat(prompts, samples)
    responses = np.ascontiguousarray(answers.ravel())
    work = Answers(
        prompts=asked, responses=responses, groups=groups, brings=brings.ravel()
    )
    finished, totals = np.zeros(len(asked)), np.zeros(NUM_TOTALS)
    stuck = run_batches(work, replica.costs, finished, totals)
    if stuck < len(asked):
        room = replica.costs.capacity / replica.engine.ep
        raise InputError(
            "a response has no room in a replica's caches",
            where="response_lengths",
            got=f"{asked[stuck]:,} + {responses[stuck]:,} tokens",
            expected=f"caches of at most {room / 1e9:,.1f} GB a device",
            hint="more tp, a larger memory_utilisation, or a cap of lengths",
        )
    return finished, totals

"""Random plans for the compiled bound, and the call of it."""

from itertools import accumulate
from types import SimpleNamespace

import numpy as np

from planner.kernels import replay_bound as kernel
from planner.kernels import replay_memory as terms
from planner.kernels import tables
from planner.search.replayed.orders import pass_order
from planner.step.ledger import KERNEL_LEDGER
from tests.planner.search.replayed.naive_bounds import Case

NUM_OPTIONS = 2
NUM_ROWS = 2


def numbers(rng, *shape, low=0, high=9):
    """Return nested lists of whole numbers as floats."""
    if not shape:
        return float(rng.randint(low, high))
    return [numbers(rng, *shape[1:], low=low, high=high) for _ in range(shape[0])]


def drawn_case(rng, zero, option):
    """Draw a plan; every quantity is small and whole."""
    p = rng.randint(1, 6)
    v = rng.randint(1, 3) if p > 1 else 1
    m = rng.randint(1, 3 * p)
    if v > 1:
        rounds = rng.randint(1, 3)
        m = rounds * (p + rng.randint(0, (p - 1) // rounds))
    length = m // max(1, m // p)
    held = [rng.randint(1, 3) for _ in range(p * v)]
    layers = sum(held)
    has_experts = rng.random() < 0.4
    dense = numbers(rng, layers, low=1)
    rows = rng.randint(0, 3)
    return Case(
        p=p,
        v=v,
        m=m,
        cuts=[0, *accumulate(held)],
        zero=zero,
        option=option,
        mode=rng.randrange(tables.NUM_MODES),
        forward=numbers(rng, NUM_ROWS, layers),
        backward=numbers(rng, NUM_ROWS, tables.NUM_MODES, layers),
        alone_forward=numbers(rng, NUM_ROWS, layers),
        alone_backward=numbers(rng, NUM_ROWS, tables.NUM_MODES, layers),
        alone=[[[rng.randint(0, m) for _ in range(v)] for _ in "fb"] for _ in range(p)],
        sharded=numbers(rng, NUM_ROWS, NUM_OPTIONS, 2, layers),
        hidden=numbers(rng, NUM_ROWS, NUM_OPTIONS, 2, layers, high=25),
        signature=[rng.randrange(NUM_ROWS) for _ in range(p)],
        dense=dense,
        expert=numbers(rng, layers) if has_experts else [0.0] * layers,
        tied=min(dense[0], dense[-1]) * rng.randint(0, 1),
        wires=numbers(rng, rng.randint(1, 3), p, 2, high=rng.choice((2, 30))),
        sum_rates=numbers(rng, p, 2, 2, high=3),
        inside=numbers(rng, p, NUM_OPTIONS, 2, high=3),
        across=numbers(rng, p, NUM_OPTIONS, 2, high=3),
        inside_experts=numbers(rng, p, 2, high=3),
        groups=[8.0, 2.0],
        expert_group=float(rng.choice((1, 2, 4))),
        senders=[4.0, 2.0],
        first_passes=[min(p - i, m) for i in range(p)]
        if v == 1
        else [min(m * v, 2 * (p - 1 - i) + (v - 1) * length + 1) for i in range(p)],
        length=length,
        exits=numbers(rng, rows, 4, p, high=rng.choice((0, 4))),
        exits_across=numbers(rng, rows, NUM_OPTIONS, p, high=4),
        exits_inside=numbers(rng, rows, NUM_OPTIONS, p, high=4),
        exit_inverses=numbers(rng, rows, high=rng.choice((1, 5))),
        is_choice=rng.random() < 0.4,
        reduces_behind=rng.random() < 0.5,
        gathers_ahead=rng.random() < 0.5,
        by_layer=rng.random() < 0.5,
        gradient_bytes=4.0,
        weight_bytes=2.0,
        boundary_bytes=float(rng.randint(0, 3)),
        step_time=float(rng.randint(0, 2)),
        step_once=float(rng.randint(0, 5)),
        shard_time=float(rng.randint(0, 2)),
        tied_time=float(rng.randint(0, 9)),
        messages_time=float(rng.randint(0, 2)) if p > 1 else 0.0,
    )


def sums(values):
    """Return sums over the layers before each, in the last axis."""
    values = np.array(values)
    found = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    found[..., 1:] = values.cumsum(axis=-1)
    return found


def compiled(case, cutoff=np.inf):
    """Ask the kernel."""
    found = kernel.replay_bounds(*arguments(case), cutoff)
    return float(found.values[0, 0])


def arguments(case):
    """Return a plan as kernels take it."""
    num_layers = len(case.dense)
    is_block = np.ones(num_layers)
    is_block[[0, -1]] = 0.0
    ends = np.zeros((case.p, tables.NUM_FIXED_RATES + 4 * NUM_OPTIONS))
    for i in range(case.p):
        for kind, column in enumerate((tables.DENSE_REDUCE, tables.EXPERT_REDUCE)):
            ends[i, column : column + 2] = case.sum_rates[i][kind]
        ends[i, tables.EXPERT_PASS : tables.EXPERT_PASS + 2] = case.inside_experts[i]
        for option in range(NUM_OPTIONS):
            for column, rates in (
                (tables.SHARD_PASS, case.inside),
                (tables.SHARD_ACROSS, case.across),
            ):
                place = column + 4 * option
                ends[i, place : place + 2] = rates[i][option]
    constants = tables.JobConstants(
        weight_bytes=0.0,
        gradient_bytes=0.0,
        optimizer_bytes=0.0,
        copies_bytes=0.0,
        gather_bytes=case.weight_bytes,
        update_bytes=case.weight_bytes,
        reduce_bytes=case.gradient_bytes,
        step_time=case.step_time,
        memory=np.inf,
        expert_group=case.expert_group,
    )
    job = terms.JobTerms(
        constants=constants,
        ledger=KERNEL_LEDGER,
        step_once=case.step_once,
        shard_time=case.shard_time,
        tied_time=case.tied_time,
        tied_parameters=case.tied,
        boundary_bytes=case.boundary_bytes,
        messages_time=case.messages_time,
        reduces_behind=case.reduces_behind,
        gathers_ahead=case.gathers_ahead,
        by_layer=case.by_layer,
    )
    rows = len(case.exits)
    exits = terms.BlockExits(
        shares=np.array(case.exits).reshape(rows, 4, case.p),
        across=np.array(case.exits_across).reshape(rows, NUM_OPTIONS, case.p),
        inside=np.array(case.exits_inside).reshape(rows, NUM_OPTIONS, case.p),
        inverses=np.array(case.exit_inverses, dtype=np.float64),
        is_choice=case.is_choice,
    )
    plans = terms.PlanFamily(
        pipeline=terms.Pipeline(
            p=case.p,
            v=case.v,
            m=case.m,
            in_flight=np.ones(case.p, dtype=np.int64),
            first_passes=np.array(case.first_passes),
            last_in_flight=1,
            round_passes=case.length,
        ),
        passes=terms.PassDurations(
            forward=sums(case.forward),
            backward=sums(case.backward),
            sharded=sums(case.sharded),
            hidden=sums(case.hidden),
            signature=np.array(case.signature),
            alone_forward=sums(case.forward) + sums(case.alone_forward),
            alone_backward=sums(case.backward) + sums(case.alone_backward),
        ),
        layers=terms.LayerColumns(
            dense=np.array(case.dense),
            expert=np.array(case.expert),
            largest=np.zeros(num_layers),
            is_block=is_block,
            frozen=np.zeros(num_layers),
            saved=np.zeros((tables.NUM_MODES, num_layers)),
            working=np.zeros((tables.NUM_MODES, num_layers)),
        ),
        sent=terms.SentTerms(
            wires=np.array(case.wires),
            ends=ends,
            group_sizes=np.array(case.groups),
            senders=np.array(case.senders),
            exits=exits,
        ),
        job=job,
        order=pass_order(
            "1f1b" if case.v == 1 else "interleaved-1f1b",
            case,
            (SimpleNamespace(num_layers=num_layers),),
            np.array(case.wires),
        )._replace(alone=np.array(case.alone)),
        devices=terms.StageDevices(
            step_time=np.full(case.p, case.step_time),
            host_saving=np.zeros(case.p),
            scarcity=np.ones(case.p),
        ),
    )
    choice = tables.Choices(
        *(np.array([n]) for n in (case.mode, case.zero, case.option)),
        counting=np.zeros(1, dtype=np.int64),
        unless=np.full(1, -1),
        offload=np.zeros((1, 4)),
        host_step=np.zeros(1),
        host_once=np.zeros(1),
    )
    variants = terms.Variants(np.array([case.cuts]), choice)
    return plans, variants

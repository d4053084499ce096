"""Jobs that compute and send over one link: as works, and simulated without nestsim."""

from fractions import Fraction

import numpy as np

from nestsim.simulator.work import EdgePhase
from tests.nestsim.simulator.cases import network, pipeline

TRUNK = 0


def dumbbell(num_jobs, *, trunk=1e9, nics=None):
    """Join devices ``2 k`` on the left with ``2 k + 1`` on the right by one trunk.

    Link 0 is the trunk, ``1 + k`` leads to it, ``1 + n + k`` from it.
    """
    n = num_jobs
    nics = nics or [2 * trunk] * n
    left, right = 2 * n, 2 * n + 1
    links = [(left, right, trunk, 0.0)]
    links += [(2 * k, left, nics[k], 0.0) for k in range(n)]
    links += [(right, 2 * k + 1, 10 * trunk, 0.0) for k in range(n)]
    return network(
        2 * n, 2 * n + 2, links, lambda a, b: [1 + a // 2, TRUNK, 1 + n + b // 2]
    )


def sender(job, num_bytes, compute):
    """Work for a while, then send from the left to the right."""
    phase = EdgePhase(np.array([2 * job]), np.array([2 * job + 1]), num_bytes, 1)
    return pipeline(
        [[[2 * job], [2 * job + 1]]],
        1,
        forward_time=[compute / 2],
        backward_time=[compute / 2],
        reduce_phases=((phase,),),
    )


def shared_rates(caps, trunk):
    """Fill one link: the least caps first, the rest get equal shares."""
    rates, left = {}, trunk
    for count, job in zip(
        range(len(caps), 0, -1), sorted(caps, key=caps.get), strict=True
    ):
        rates[job] = min(caps[job], left / count)
        left -= rates[job]
    return rates


def by_hand(jobs, trunk):
    """Return the ends of steps of (compute, bytes, cap, steps, start), exactly."""
    now = Fraction(0)
    until = [start + compute for compute, _, _, _, start in jobs]
    left = [None] * len(jobs)
    ends = [[] for _ in jobs]
    while any(len(e) < timed[3] for e, timed in zip(ends, jobs, strict=True)):
        sending = {k: jobs[k][2] for k in range(len(jobs)) if left[k] is not None}
        rates = shared_rates(sending, trunk)
        moments = [u for u in until if u is not None]
        moments += [now + left[k] / rates[k] for k in rates]
        then = min(moments)
        for k, rate in rates.items():
            left[k] -= rate * (then - now)
            if left[k] == 0:
                left[k] = None
                ends[k].append(then)
                more = len(ends[k]) < jobs[k][3]
                until[k] = then + jobs[k][0] if more else None
        for k in range(len(jobs)):
            if until[k] == then and k not in rates:
                until[k], left[k] = None, Fraction(jobs[k][1])
        now = then
    return ends


def orbit_by_hand(jobs, trunk, most):
    """Return how jobs of (compute, bytes, cap, start) repeat: steps, period; or None.

    The state at the end of a step of the first job is what the others have left: of
    their compute, or of their bytes. The first state that comes again, to 1e-9 of its
    parts, ends an orbit.
    """
    seen = []
    for state, moment, steps in states_by_hand(jobs, trunk, most):
        for other, before, made in seen:
            if alike(state, other):
                counts = [b - a for a, b in zip(made, steps, strict=True)]
                return counts, float(moment - before)
        seen.append((state, moment, steps))
    return None


def alike(state, other):
    """Whether all jobs do the same and have equally much left."""
    pairs = list(zip(state, other, strict=True))
    if any(a[0] != b[0] for a, b in pairs):
        return False
    return all(abs(a[1] - b[1]) <= 1e-9 * max(a[2], b[2]) for a, b in pairs)


def states_by_hand(jobs, trunk, most):
    """Yield (what each has left, moment, steps made) when the first ends a step."""
    now = Fraction(0)
    left = [[False, start + compute] for compute, _, _, start in jobs]
    steps = [0] * len(jobs)
    while steps[0] < most:
        sending = {k: jobs[k][2] for k, (sends, _) in enumerate(left) if sends}
        rates = shared_rates(sending, trunk)
        speeds = [rates.get(k, 1) for k in range(len(jobs))]
        wait = min(part / speed for (_, part), speed in zip(left, speeds, strict=True))
        now += wait
        ended = False
        for k, (speed, of_job) in enumerate(zip(speeds, left, strict=True)):
            of_job[1] -= speed * wait
            if of_job[1] == 0:
                of_job[0] = not of_job[0]
                of_job[1] = Fraction(jobs[k][1] if of_job[0] else jobs[k][0])
                steps[k] += not of_job[0]
                ended |= k == 0 and not of_job[0]
        if ended:
            parts = [
                (sends, float(part), float(jobs[k][1] if sends else jobs[k][0]))
                for k, (sends, part) in enumerate(left)
            ]
            yield parts, now, tuple(steps)

"""Published steps: within bounds, and never predicted slower than they were."""

from statistics import median

from tests.nestsim.features.rl.published_runs import published_steps


def test_published_steps_are_near() -> None:
    """Four set-ups within 15 %, all within 30 %."""
    steps = published_steps()
    errors = [step.error("step") for step in steps]
    assert sum(abs(error) <= 0.15 for error in errors) >= 4
    assert max(map(abs, errors)) < 0.30
    # The engine's overhead is that of the first row: the others are held out.
    rollouts = [step.error("rollout") for step in steps[1:4]]
    assert max(map(abs, rollouts)) < 0.15
    assert median(abs(step.error("log_probs")) for step in steps[:4]) < 0.25

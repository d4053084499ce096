"""What an optimizer step moves through a device's memory."""

from estimators.training import ParameterBytes


def optimizer_step_bytes(each: ParameterBytes) -> int:
    """Return the memory traffic of an optimizer step per parameter [byte].

    Reads the gradient, reads and writes every optimizer state, writes the weight:
    30 bytes for mixed-precision Adam with fp32 gradients.
    """
    return each.gradients + 2 * (each.optimizer + each.copies) + each.weights

"""What a device's memory holds beside the tensors of a job.

    allocated = tensors + workspace
    reserved  = (1 + fragmentation) * allocated
    device    = reserved + context
    needed    = (1 + full_fragmentation) * allocated + context

Allocated is what PyTorch's caching allocator has given out (``max_memory_allocated``):
tensors, and the workspaces of cuBLAS and its like. Reserved is what it keeps
(``max_memory_reserved``): blocks are split and seldom fit what is asked for next.
Device is what ``nvidia-smi`` shows: the CUDA context and NCCL's buffers lie outside of
the allocator. Needed is what has to fit: before a request fails the allocator gives
cached blocks back, so that jobs run with less than they reserve where there is room.

References
----------
.. [1] PyTorch, "CUDA semantics", sections Memory management and cuBLAS workspaces.
"""

from dataclasses import dataclass

from estimators.constants import AllocatorConstants


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocator:
    """The memory of one framework."""

    constants: AllocatorConstants
    """What it holds beside tensors."""

    def allocated(self, tensors: float) -> float:
        """Return what has been given out at a peak of tensors [byte]."""
        return tensors + self.constants.workspace

    def reserved(self, tensors: float) -> float:
        """Return what the allocator keeps at a peak of tensors [byte]."""
        return (1.0 + self.constants.fragmentation) * self.allocated(tensors)

    def device(self, tensors: float) -> float:
        """Return what is taken of the device at a peak of tensors [byte]."""
        return self.reserved(tensors) + self.constants.context

    def needed(self, tensors: float) -> float:
        """Return the least device that a peak of tensors fits in [byte]."""
        part = 1.0 + self.constants.full_fragmentation
        return part * self.allocated(tensors) + self.constants.context

    def usable(self, capacity: float) -> float:
        """Return the most that tensors may take of a device [byte].

        Not positive where nothing is left for them.
        """
        free = capacity - self.constants.context
        part = 1.0 + self.constants.full_fragmentation
        return free / part - self.constants.workspace

"""Mist: overlap-centred stage costs, Pareto samples, and an integer program of stages.

Formulas and constants are those of Zhu et al., "Mist: Efficient Distributed Training of
Large Language Models via Memory-Parallelism Co-Optimization", EuroSys 2025, as its
public implementation has them. Letters: ``G`` accumulation steps, ``S`` stages, ``l``
layers of a stage, ``ck`` of them recomputed, ``b`` sequences of a micro-batch, ``t``
tensor-parallel size; a strategy is ``(ws, gs, os, WO, GO, OO, AO)``: whether weights,
gradients and optimizer states are sharded, and the fractions of them and of the
activations that hosts keep.
"""

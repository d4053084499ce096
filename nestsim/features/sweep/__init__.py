"""Many points, one mechanism: evaluate on all cores, store one by one, resume."""

"""Memory alone: the least that a job needs, what makes it fit, what still fits."""

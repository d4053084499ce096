"""The search: dynamic programs, memory feasibility, objective, plans."""

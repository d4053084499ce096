"""How long and how much memory: models, operators, collectives, layers."""

"""How long collectives and messages between ranks take on a network."""

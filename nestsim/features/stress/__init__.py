"""Plans under worse networks: what holds, what to change, what is robust."""

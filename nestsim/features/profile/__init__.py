"""Constants and links of a user's own machines, from their measurements."""

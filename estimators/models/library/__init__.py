"""Published models by name, each with its source."""

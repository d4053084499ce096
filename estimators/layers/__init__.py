"""What a layer works, keeps and sends, for every way to shard it."""

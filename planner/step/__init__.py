"""What one training step sends, holds and hides: facts that search and replay read."""

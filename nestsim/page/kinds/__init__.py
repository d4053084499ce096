"""Pages of results other than runs, of the JSON that their folders hold."""

"""What long work needs: progress, interruption, a store of finished points."""

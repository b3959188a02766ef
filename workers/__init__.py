"""The GPU side: a Job becomes token ids, the engine's chunks become Deltas."""

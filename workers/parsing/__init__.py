"""Generated text to Deltas (pure)."""

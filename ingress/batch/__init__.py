"""Batches: their life, their lines, and the batcher that runs them."""

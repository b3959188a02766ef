"""Token generators behind one protocol."""

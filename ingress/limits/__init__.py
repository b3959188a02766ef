"""How much accounts may use, over all processes of a deployment."""

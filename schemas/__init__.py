"""The contract: the values ingress and workers agree on, and the transports that carry them."""

"""What is too large for a message: the port of a blob store, and the stores."""

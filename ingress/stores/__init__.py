"""What outlives the process: the port of files and batches, and its stores."""

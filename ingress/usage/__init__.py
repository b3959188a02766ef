"""What was used: one record per request, and sums of them."""

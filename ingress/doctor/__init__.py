"""`headrace doctor`: whether a process would find what it needs, and what to do where not."""

"""Injuries by a seeded plan, to a service made of real processes, and what must hold all the same.

`python -m tests.chaos --help` runs them; pytest collects the short run only.
"""

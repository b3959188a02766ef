"""Measurements of the service and of what it is compared with. Each module is a command."""

"""Who may use the service, and how: accounts and their keys."""

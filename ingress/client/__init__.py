"""`headrace batch`: the side of a client. It knows a service by its URL and never from within."""

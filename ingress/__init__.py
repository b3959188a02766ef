"""The HTTP side: a request in one of the public dialects becomes a Job, its reply an answer."""

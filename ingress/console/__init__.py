"""The console: a page that shows how the service stands, and a playground for its dialects."""

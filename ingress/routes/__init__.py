"""HTTP routes: thin, one file per group."""

"""The public API shapes, one file each."""

"""The service beside its peers; each module but a few is one of them. See docs/performance.md.

base.py       what a peer is, and where it is started
registry.py   all of them: a new peer is a new module and a line there
__main__.py   the command
"""

"""Carriers of Jobs and replies. `base` has the two ports; `memory` and `rabbit` implement them."""

"""The stages of a call: what features do in it, each in one place. `order_stages` has their order."""

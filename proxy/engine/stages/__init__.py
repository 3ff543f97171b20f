"""The stages of a call: what features do in it, each in one place. `order_stages` has their order.

Two features have no hook in a call: `shadow` listens to calls that have ended, `tool_diet` is asked which tools a
request offers. `managing` builds them.
"""

"""A running pipeline: the supervisor decides what runs when, and the packages below do the work.

A package imports only those after it: `host`, then `pipeline` on top of `report`, `supervisor`, `stages`, `copies`,
`source`, `tables`.
"""

"""A running pipeline. The supervisor schedules the work, and the packages below do it.

A package imports only those after it: `host`, then `pipeline` on top of `report`, `supervisor`, `stages`, `copies`,
`source`, `tables`.
"""

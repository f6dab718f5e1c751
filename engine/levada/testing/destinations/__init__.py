"""The conformance suite of a destination: the behaviour on which the engine relies.

Each module has the tests of one subject, and `suite` has the class that is all of them. `steps` is what tests share.
Settings, servers and values of one destination do not belong here.
"""

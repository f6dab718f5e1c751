"""The pipeline as a whole: phases, the supervisor, progress, metrics, health.

Every stage's work is done by the packages below; here it is decided which runs when.
"""

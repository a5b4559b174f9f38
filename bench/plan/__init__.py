"""What is to be measured: a TOML file becomes workloads, strategies and repeats, which are cases.

A plan is checked before anything runs. A user's model, sampler and step context enter here, as
classes that the plan names (``doors.py``).
"""

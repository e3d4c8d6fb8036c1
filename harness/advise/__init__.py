"""What to serve models with: layouts on devices, their speed and cost, and a run's models.

A room like a stranger's plugin: nothing else knows it, and the command line imports its commands
when they are called. `rates` and `layouts` read nothing and run nothing.
"""

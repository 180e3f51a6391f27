"""Measures the kernels of a model on this machine's device, as a profile.

The kernels that are timed here are those that the device runner serves with, so a profile describes what is run.
torch is needed for it; it is imported by the modules that touch a device, and by nothing that plans, writes or reads.
"""

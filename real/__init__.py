"""The serving loop on a device: torch kernels, wall clock, and what a simulation of the same run says."""

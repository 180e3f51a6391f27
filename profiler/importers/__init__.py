"""Kernel tables that other projects publish, read into our form of a profile: one module a format."""

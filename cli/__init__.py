"""The command ``bulletsim``: thin layers over the documented Python calls."""

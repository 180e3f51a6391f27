"""Pages: runs, sweeps and searches as one HTML file each, which needs no other file and no network."""

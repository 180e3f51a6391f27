"""What a file is known by: its SHA-256."""

from __future__ import annotations

import hashlib
from pathlib import Path

from traces.progress import Progress, ToldFile, untold


def sha256(path: Path, progress: Progress = untold) -> str:
    """The file's hash; of a folder, the hash of its files' names and hashes. ``progress`` hears how far a file is."""
    if path.is_dir():
        listing = "".join(f"{sha256(file)}  {file.name}\n" for file in sorted(path.glob("chunk-*")))
        return hashlib.sha256(listing.encode()).hexdigest()
    with ToldFile(path, progress) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

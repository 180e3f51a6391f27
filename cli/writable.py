"""Whether a file could be written, asked before the work that it would hold."""

from __future__ import annotations

from pathlib import Path


def check_writable(out: Path, *files: Path) -> None:
    """Raises ValueError, naming ``out``, where it or one of the ``files`` beside it could not be written.

    Tried in the nearest folder that exists, since permissions say too little: root may write anywhere but in /proc.
    Leaves nothing.
    """
    for file in files or (out,):
        folder = file.parent
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if not folder.is_dir():
            raise ValueError(f"{out} cannot be written: {folder} is a file, not a folder; choose another name")
        # With the suffix that files have while they are written.
        trial = folder / f"{file.name}.partial"
        try:
            left = trial.exists()
            trial.open("ab").close()
        except OSError as error:
            raise ValueError(f"{out} cannot be written: {error.strerror}; choose another name") from None
        if not left:
            trial.unlink(missing_ok=True)

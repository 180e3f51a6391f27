"""Memory that processes share: tensors in one anonymous file, which the kernel frees with its last process.

However a process ends, nothing stays behind: the file has no name. Pages are taken when they are first written, or when
another process is handed the region. That one settles on its cores before torch is loaded, so torch is imported in
functions here.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
from math import prod
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ALIGNMENT = 64


class Arena:
    """A region of ``size`` bytes. Give it to a process among its arguments, and it has the same memory there.

    present: whether this process maps every page at once, so that none is missing when it is first used.
    Raises MemoryError where there is not so much address space.
    """

    def __init__(self, size: int, descriptor: int | None = None, *, present: bool = False) -> None:
        self.size = size
        made = descriptor is None
        self._descriptor = os.memfd_create("bulletsim") if descriptor is None else descriptor
        try:
            if made:
                os.truncate(self._descriptor, size)
            flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if present else 0)
            self._map = mmap.mmap(self._descriptor, size, flags=flags)
        except OSError as error:
            self.close()
            raise MemoryError(f"{size / 1e9:.1f} GB of shared memory cannot be had: {error.strerror}") from error
        self._used = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self.size, DupFd(self._descriptor))

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A new tensor of zeros. Raises ValueError where the region is full."""
        size = prod(shape) * dtype.itemsize
        if self._used + size > self.size:
            raise ValueError(f"{self._used + size} bytes are asked of a shared memory of {self.size}; make it larger")
        offset = self._used
        self._used += footprint(size)
        return self._view(offset, shape, dtype)

    def pack(self, value: Any) -> bytes:
        """``value``, whatever holds tensors, as :meth:`unpack` reads it in any process that has the arena.

        Tensors that do not lie here are copied in; one that occurs twice is copied once.
        """
        file = io.BytesIO()
        _Packer(file, self).dump(value)
        return file.getvalue()

    def unpack(self, packed: bytes) -> Any:
        """The packed value over this memory: no tensor is copied."""
        return _Unpacker(io.BytesIO(packed), self).load()

    def close(self) -> None:
        """Gives the file up here; memory that tensors still show stays until they go."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _view(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        import torch

        return torch.frombuffer(self._map, dtype=dtype, count=prod(shape), offset=offset).view(shape)

    def _place(self, tensor: Tensor) -> tuple[int, tuple[int, ...], torch.dtype]:
        """Where the tensor lies, after copying it here if it does not yet."""
        base = self._view(0, (1,), tensor.dtype).data_ptr()
        offset = tensor.data_ptr() - base
        if not (0 <= offset < self.size and tensor.is_contiguous()):
            copied = self.empty(tuple(tensor.shape), tensor.dtype).copy_(tensor)
            offset = copied.data_ptr() - base
        return offset, tuple(tensor.shape), tensor.dtype


def footprint(size: int) -> int:
    """Bytes of the arena that a tensor of ``size`` bytes takes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _opened(size: int, descriptor: Any) -> Arena:
    # A page that a lane meets for the first time costs microseconds in the middle of a launch, and each request's KV
    # lies on pages that no launch of this process has met.
    return Arena(size, descriptor.detach(), present=True)


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, arena: Arena) -> None:
        super().__init__(file)
        self._arena = arena
        # Tensors are kept, so that an address is not used again for another.
        self._placed: dict[tuple[int, tuple[int, ...]], tuple[Tensor, Any]] = {}

    def persistent_id(self, value: Any) -> Any:
        from torch import Tensor

        if not isinstance(value, Tensor):
            return None
        key = value.data_ptr(), tuple(value.shape)
        if key not in self._placed:
            self._placed[key] = value, self._arena._place(value)
        return self._placed[key][1]


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, arena: Arena) -> None:
        super().__init__(file)
        self._arena = arena

    def persistent_load(self, place: Any) -> Tensor:
        return self._arena._view(*place)


def available_bytes() -> int:
    """Memory that this process may still take: of the machine, or of its group where that is limited."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) << 10
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):
        # No limit ("max"), or a machine that keeps it elsewhere.
        return free
    return min(free, limit - used + _reclaimable_bytes(group))


def _reclaimable_bytes(group: Path) -> int:
    """Of what the group uses: files that were read and give way to anything else."""
    try:
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(counts.get("inactive_file", 0))

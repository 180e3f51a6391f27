"""Memory that processes share: tensors laid out in it, what a whole model takes, and how much there is."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.api import LINK
from profiler.measure.transformer import Weights
from real import cpu
from real.arena import ALIGNMENT, Arena, available_bytes, footprint
from tests.test_real_cpu import nothing_is_left
from tests.test_real_model import SPEC

__all__ = ["nothing_is_left"]


def test_tensors_in_an_arena_are_the_same_in_another_process() -> None:
    arena = Arena(1 << 16)
    shared = arena.empty((3, 5), torch.float32)
    own = torch.arange(4)
    packed = arena.pack({"shared": shared, "own": own, "again": own, "kept": ["text", 3]})
    script = (
        "found = arena.unpack(packed); found['shared'][1] += 2; found['own'] *= 10; "
        "assert found['kept'] == ['text', 3]; assert found['again'][3] == 30"
    )
    process = multiprocessing.get_context("spawn").Process(
        target=exec, args=(script, {"arena": arena, "packed": packed})
    )
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert shared.tolist() == [[0.0] * 5, [2.0] * 5, [0.0] * 5]
    assert arena.unpack(packed)["own"].tolist() == [0, 10, 20, 30]
    assert own.tolist() == [0, 1, 2, 3], "what was copied in stays what it was"
    arena.close()
    arena.close()
    shared += 1
    assert shared[1, 0] == 3, "memory that is shown stays"


def test_a_process_that_is_handed_an_arena_has_all_of_its_pages() -> None:
    """Not one of them is missing when a launch comes to it; each would cost a fault."""
    arena = Arena(1 << 24)
    script = (
        "import resource; faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt; before = faults(); "
        "pages = [arena._map[at] for at in range(0, arena.size, 4096)]; assert faults() - before < len(pages) / 10"
    )
    process = multiprocessing.get_context("spawn").Process(target=exec, args=(script, {"arena": arena}))
    process.start()
    process.join(60)
    arena.close()
    assert process.exitcode == 0


def test_more_than_there_is_room_for() -> None:
    with pytest.raises(MemoryError, match=r"^1152921504\.6 GB of shared memory cannot be had: "):
        Arena(1 << 60)


def test_an_arena_lays_tensors_apart_and_copies_each_once() -> None:
    arena = Arena(4 * ALIGNMENT)
    first, second = arena.empty((3,), torch.float32), arena.empty((1,), torch.int64)
    assert second.data_ptr() - first.data_ptr() == ALIGNMENT == footprint(12)
    assert [footprint(size) for size in (0, 1, 64, 65)] == [0, 64, 64, 128]
    table = torch.ones(5)
    found = arena.unpack(arena.pack([table, table, second]))
    assert found[0].data_ptr() == found[1].data_ptr() == first.data_ptr() + 2 * ALIGNMENT
    assert found[2].data_ptr() == second.data_ptr()
    # One place is left; a part of a tensor that is not all in a row is copied whole.
    assert arena.unpack(arena.pack(torch.arange(6).view(2, 3).T)).tolist() == [[0, 3], [1, 4], [2, 5]]
    with pytest.raises(ValueError, match=f"260 bytes are asked of a shared memory of {4 * ALIGNMENT}; make it larger"):
        arena.empty((1,), torch.float32)
    arena.close()


def test_an_arena_takes_a_whole_model_in_what_was_reckoned_for_it() -> None:
    """Tied embeddings are one table, and every tensor begins at a border."""
    weights = Weights.random(SPEC, torch.device("cpu"), torch.float32)
    arena = Arena(cpu._size(SPEC, [("prefill", "decode"), ("decode", LINK)], 3, 32, 8))
    found = arena.unpack(arena.pack(weights))
    for layer, other in zip(found.layers, weights.layers, strict=True):
        assert torch.equal(layer.qkv, other.qkv)
    for _ in range(2 * 2 * SPEC.layers):
        arena.empty((3 * 32, SPEC.kv_heads, SPEC.head_dim), torch.float32)
    for _ in range(2 * 3):
        arena.empty((8, SPEC.hidden), torch.float32)
    arena.close()


def test_free_memory_is_the_machines_or_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    1000 kB\n"}

    def read(path: Path, *given: Any, **named: Any) -> str:
        try:
            return files[str(path)]
        except KeyError:
            raise FileNotFoundError(path) from None

    monkeypatch.setattr(Path, "read_text", read)
    assert available_bytes() == 1000 << 10
    group = "/sys/fs/cgroup/memory."
    files |= {f"{group}max": "max\n", f"{group}current": "5\n"}
    assert available_bytes() == 1000 << 10
    files |= {f"{group}max": "9000\n", f"{group}current": "5000\n"}
    assert available_bytes() == 4000
    # Files that were read and can go again are no use of memory.
    files[f"{group}stat"] = "anon 1000\ninactive_file 2500\nactive_file 300\n"
    assert available_bytes() == 6500
    files[f"{group}max"] = str(1 << 40)
    assert available_bytes() == 1000 << 10

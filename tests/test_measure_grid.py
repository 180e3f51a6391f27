"""Which points are measured, and in which order."""

from __future__ import annotations

import pytest

import profiler
from profiler.measure.grid import CPU, GPU, MEASURED, Grid, Group, Reach, Shares, host_parts, plan
from profiler.measure.models import ghost, projections, sets_of
from profiler.measure.shares_cpu import cpu_shares
from profiler.profile import SHAPES

H200 = Shares(132, ((16, 116), (32, 100), (48, 84), (64, 68), (80, 52), (96, 36)))
LLAMA, TINY = profiler.model("Llama-3.1-8B"), profiler.model("tiny")

CASES = [
    (LLAMA, H200, GPU),
    (TINY, Shares(2, ((1, 1),)), CPU),
    (TINY, Shares(1, ()), CPU),
    (LLAMA, cpu_shares(16), CPU),
]


def points(grid: Grid) -> list[tuple[object, object]]:
    return [(group.target, variant) for group in grid.groups for variant in group.variants]


@pytest.mark.parametrize(("model", "shares", "reach"), CASES)
def test_every_kernel_once_at_shapes_that_exist(model: profiler.ModelSpec, shares: Shares, reach: Reach) -> None:
    full, quick = (plan(model, shares, reach, quick=quick) for quick in (False, True))
    found = points(full)
    assert len(found) == len(set(found)) == full.points
    assert {group.target.kernel for group in full.groups} == set(MEASURED)
    assert {group.target.kernel for group in quick.groups} == set(MEASURED)
    # What the coarse grid leaves out comes last, so that a full run cut off early holds the quick one.
    assert found[: quick.points] == points(quick)
    assert full.digest != quick.digest == plan(model, shares, reach, quick=True).digest
    for group in full.groups:
        assert len(group.target.shape) == len(SHAPES[group.target.kernel])
        for variant in group.variants:
            assert variant.sms in shares.all
            apart = variant.sms + variant.beside_sms <= shares.whole
            assert apart or (variant.sms, variant.beside_sms) in shares.common


def test_the_ceilings_come_first_and_every_kernel_on_the_key_shares_before_any_other() -> None:
    groups = plan(LLAMA, H200, GPU, quick=True).groups
    assert [group.target.kernel for group in groups[:3]] == ["gemm", "copy", "copy"]
    first = {kernel: i for i, kernel in reversed(list(enumerate(group.target.kernel for group in groups)))}
    elsewhere = next(i for i, group in enumerate(groups) for variant in group.variants if variant.sms not in H200.key)
    assert max(first.values()) < elsewhere
    assert H200.key == (132, 68, 32)


def test_co_runs_of_prefill_and_decode_on_every_split_from_both_sides() -> None:
    groups = plan(LLAMA, H200, GPU, quick=True).groups
    seen: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for group in groups:
        for variant in group.variants:
            if variant.beside is not None:
                pair = (group.target.kernel, variant.beside.kernel)
                seen.setdefault(pair, set()).add((variant.sms, variant.beside_sms))
    both = {pair for a, b in H200.splits for pair in ((a, b), (b, a))}
    layers, traffic = ("prefill_layers", "decode_layers"), ("copy", "gemm")
    assert seen == dict.fromkeys((layers, layers[::-1], traffic, traffic[::-1]), both)


def test_whole_layers_alone_at_the_sizes_of_steps_and_no_co_runs_of_these() -> None:
    groups = plan(TINY, cpu_shares(2), CPU, quick=False).groups
    alone: dict[str, set[int]] = {"prefill_layers": set(), "decode_layers": set()}
    beside: dict[str, set[int]] = {"prefill_layers": set(), "decode_layers": set()}
    for target, variants in groups:
        if target.kernel in alone:
            size = target.shape[1] if target.kernel == "prefill_layers" else target.shape[0]
            for variant in variants:
                (alone if variant.beside is None else beside)[target.kernel].add(size)
    assert alone == {
        "prefill_layers": {4, 8, 16, 28, 32, 48, 64, 96, 128, 256},
        "decode_layers": {1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13, 15, 16, 32},
    }
    assert beside == {"prefill_layers": {64, 128, 256}, "decode_layers": {1, 4, 8, 16}}


def test_products_have_points_just_above_tile_borders_and_of_all_the_models_matrices() -> None:
    grid = plan(LLAMA, H200, GPU, quick=False)
    shapes = [group.target.shape for group in grid.groups if group.target.kernel == "gemm"]
    for n, k in list(projections(LLAMA).values())[:4]:
        rows = {m for m, *matrix in shapes if matrix == [n, k]}
        assert {128, 129, 256, 257, 2048, 2049} <= rows
    heads = {m for m, *matrix in shapes if matrix == [LLAMA.vocab, LLAMA.hidden]}
    assert max(heads) == 256


def test_shapes_stay_within_context_and_memory() -> None:
    grid = plan(TINY, H200, GPU._replace(kv_tokens=20_000), quick=False)
    for group in grid.groups:
        sizes = group.target.columns()
        assert sizes.get("new_tokens", 0) + sizes.get("cached_tokens", 0) <= TINY.max_context
        assert sizes.get("decode_requests", 0) * sizes.get("decode_context_tokens", 0) <= 20_000


def test_some_kernels_only() -> None:
    grid = plan(TINY, H200, GPU, quick=True, kernels=("norm", "copy"))
    assert {group.target.kernel for group in grid.groups} == {"norm", "copy"}
    with pytest.raises(ValueError, match="unknown kernel 'softmax'; known: gemm, attention_prefill"):
        plan(TINY, H200, GPU, quick=True, kernels=("softmax",))


def test_a_device_without_shares_is_measured_whole() -> None:
    grid = plan(TINY, Shares(1, ()), CPU, quick=False)
    assert {variant for group in grid.groups for variant in group.variants} == {(1, None, 0)}


def test_cores_are_shared_in_disjoint_pairs() -> None:
    assert cpu_shares(1).splits == ()
    assert cpu_shares(2).splits == ((1, 1),)
    assert cpu_shares(8)[:2] == (8, ((1, 7), (2, 6), (4, 4)))


def test_all_cores_beside_any_part_are_measured_too() -> None:
    assert cpu_shares(1).common == ((1, 1),)
    assert cpu_shares(2).common == ((2, 1), (1, 2), (2, 2))
    seen = {
        (group.target.kernel, group.target.shape[:2], variant.sms, variant.beside_sms)
        for group in plan(TINY, cpu_shares(2), CPU, quick=True).groups
        for variant in group.variants
        if variant.sms + variant.beside_sms > 2
    }
    shapes = [
        ("decode_layers", (1, 256)),
        ("decode_layers", (8, 256)),
        ("prefill_layers", (1, 64)),
        ("prefill_layers", (1, 256)),
    ]
    assert seen == {(*shape, *pair) for shape in shapes for pair in cpu_shares(2).common}


def test_host_time_is_read_from_all_kernels_of_a_pass() -> None:
    (group,) = (g for g in plan(TINY, cpu_shares(2), CPU, quick=True).groups if g.target == ("host_pass", (4,)))
    assert isinstance(group, Group)
    runs: dict[str, int] = {}
    for part, count in host_parts(ghost(TINY), group.target, 4):
        assert part.shape[0] == 4
        runs[part.kernel] = runs.get(part.kernel, 0) + count
    layers = TINY.layers
    assert runs == {
        "gemm": 4 * layers + 1,
        "norm": 2 * layers + 1,
        "rotary": layers,
        "attention_decode": layers,
        "activation": layers,
        "embedding": 1,
        "sampling": 1,
    }


def test_weights_are_rotated_among_more_than_the_cache_holds() -> None:
    l2 = 60 << 20
    layers = sets_of(LLAMA, 2, l2)
    assert layers * min(n * k for n, k in projections(LLAMA).values()) * 2 > 2 * l2
    assert sets_of(TINY, 4, l2) == TINY.layers

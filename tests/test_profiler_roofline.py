"""The roofline model: the tabulated sum equals the kernels', monotone laws, contention, capacity, settings."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import profiler
from profiler import Efficiencies, RooflineModel, Work, roofline
from profiler.cpu import cpu_device
from profiler.tiles import idle_share, plan_gemm, waves

MIXED_LAYERS = replace(
    profiler.model("tiny"),
    name="mixed",
    experts=8,
    experts_per_token=2,
    moe_intermediate=128,
    shared_intermediate=256,
    dense_layers=1,
    learned_positions=64,
    qk_norm=True,
    gated_mlp=False,
)


@cache
def latency(index: int) -> RooflineModel:
    """Dense and MoE, one device and eight."""
    return (
        roofline("Llama-3.1-8B", "A100-80G"),
        roofline("Llama-3.1-70B", "H100", 8),
        roofline("Qwen3-235B-A22B", "H20", 8),
        roofline("Qwen3-235B-A22B-FP8", "H200", 4),
        roofline("tiny", "RTX-4090"),
        RooflineModel(model=MIXED_LAYERS, device=profiler.device("L40S"), tensor_parallel=2),
    )[index]


MODELS = st.integers(0, 5).map(latency)
CHUNKS = st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 100_000)), max_size=4).map(tuple)
SHARES = st.floats(0.001, 1.0)


@st.composite
def works(draw: st.DrawFn) -> Work:
    chunks = draw(CHUNKS)
    requests = draw(st.integers(0 if chunks else 1, 300))
    context = requests * draw(st.integers(1, 40_000))
    layers = draw(st.one_of(st.none(), st.integers(1, 4)))
    return Work(chunks, requests, context, layers, draw(st.booleans()))


def sms_of(model: RooflineModel, share: float) -> int:
    return max(1, round(share * model.device.sms))


def seconds(model: RooflineModel, work: Work, sms: int | None = None) -> float:
    return model.estimate(work, sms or model.device.sms).seconds


@given(MODELS, works(), SHARES)
def test_tables_equal_the_sum_over_kernels(model: RooflineModel, work: Work, share: float) -> None:
    sms = sms_of(model, share)
    expected = sum(part.seconds for part in model.breakdown(work, sms)) + model.launch_overhead_s
    if work.head or work.layers is None:
        expected += model.pass_overhead_s
    assert seconds(model, work, sms) == pytest.approx(expected, rel=1e-12)
    assert model.estimate(work, sms).source == "roofline"


@given(MODELS, works())
def test_cost_equals_the_sum_over_kernels(model: RooflineModel, work: Work) -> None:
    kernels = model.kernels_of(work)
    flops = sum(kernel.runs * kernel.flops for kernel in kernels)
    moved = sum(kernel.runs * kernel.dram_bytes for kernel in kernels)
    assert model.cost(work) == pytest.approx((flops, moved), rel=1e-12)


@given(MODELS, works(), SHARES)
def test_more_sms_are_never_slower(model: RooflineModel, work: Work, share: float) -> None:
    sms = sms_of(model, share)
    more = min(model.device.sms, sms + 1)
    for few, many in zip(model.breakdown(work, sms), model.breakdown(work, more), strict=True):
        assert many.seconds <= few.seconds
    assert 0 < seconds(model, work, more) <= seconds(model, work, sms) < float("inf")


@given(MODELS, works(), SHARES, st.integers(1, 3000))
def test_more_work_is_never_faster(model: RooflineModel, work: Work, share: float, extra: int) -> None:
    sms = sms_of(model, share)
    grown = [
        work._replace(prefill=(*work.prefill, (extra, 0))),
        work._replace(
            decode_requests=work.decode_requests + 1, decode_context_tokens=work.decode_context_tokens + extra
        ),
    ]
    if work.prefill:
        (new, cached), *others = work.prefill
        grown.append(work._replace(prefill=((new + extra, cached), *others)))
        grown.append(work._replace(prefill=((new, cached + extra), *others)))
    for larger in grown:
        assert seconds(model, larger, sms) >= seconds(model, work, sms) * (1 - 1e-12)


@given(
    st.floats(1, 20_000),
    st.integers(1, 3000),
    st.sampled_from([(6144, 4096), (4096, 4096), (4096, 14336), (320, 100), (28672, 4096), (7, 8192)]),
    st.sampled_from([78, 108, 132, 142]),
    st.floats(1, 128),
    st.integers(1, 142),
)
@settings(max_examples=300)
def test_a_product_of_more_rows_is_never_faster(
    rows: float, extra: int, shape: tuple[int, int], device_sms: int, groups: float, sms: int
) -> None:
    """Tile and split change with the rows and never make the larger product faster, on any share."""
    few, few_flops = plan_gemm(rows, *shape, device_sms, groups)
    many, many_flops = plan_gemm(rows + extra, *shape, device_sms, groups)
    assert waves(many, sms) * many_flops >= waves(few, sms) * few_flops * (1 - 1e-12)


@given(st.integers(1, 5000), st.integers(1, 142), st.integers(1, 4))
def test_idle_share_is_a_share(blocks: int, sms: int, blocks_per_sm: int) -> None:
    assert 0 <= idle_share(blocks, sms, blocks_per_sm) < 1


def test_idle_share_by_hand() -> None:
    """5 blocks, 2 SMs: 3 waves, 1 of 6 slots idle. Two blocks an SM: 2 waves, 1 of 4 idle."""
    assert idle_share(5, 2) == pytest.approx(1 / 6)
    assert idle_share(5, 2, 2) == pytest.approx(1 / 4)


def test_layer_groups_add_up_to_the_pass() -> None:
    model = latency(0)
    whole = Work(prefill=((3000, 500), (200, 0)))
    group = whole._replace(layers=8, head=False)
    groups = 3 * seconds(model, group) + seconds(model, group._replace(head=True))
    assert groups == pytest.approx(seconds(model, whole) + 3 * model.launch_overhead_s, rel=1e-12)
    costs = [model.cost(group)] * 3 + [model.cost(group._replace(head=True))]
    assert [sum(part) for part in zip(*costs, strict=True)] == pytest.approx(model.cost(whole))


def test_tensor_parallelism_pays_for_large_work() -> None:
    work = Work(prefill=((8192, 0),))
    one, eight = roofline("Llama-3.1-70B", "H100"), roofline("Llama-3.1-70B", "H100", 8)
    assert 4 < seconds(one, work) / seconds(eight, work) < 8


def test_all_reduce_follows_the_link() -> None:
    """The paper's A100 server: 20 GB/s between GPUs. A ring sends 2 (n - 1) / n of the hidden states."""
    a100 = profiler.device("A100-80G")
    slow = roofline("Llama-3.1-70B", replace(a100, link_bytes_per_s=20e9), 8)
    kernels = {part.kernel.name: part for part in slow.breakdown(Work(prefill=((1000, 0),)), 108)}
    part = kernels["mlp_all_reduce"]
    sent = 2 * 7 / 8 * 1000 * 8192 * 2
    assert part.seconds == pytest.approx(80 * (10e-6 + sent / 20e9))
    assert part.bound == "link"


def test_experts_touched() -> None:
    """One token reads 8 of 128 experts' weights, many read all."""
    model = roofline("Qwen3-235B-A22B", "H20", 8)
    expert = 2 * 4096 * 1536 // 8 * 2

    def moved(tokens: int) -> float:
        kernels = model.kernels_of(Work(decode_requests=tokens, decode_context_tokens=tokens))
        return next(kernel.dram_bytes for kernel in kernels if kernel.name == "experts_gate_up")

    assert moved(1) == pytest.approx(8 * expert, rel=0.01)
    assert moved(1000) > 128 * expert


def test_decode_is_slowed_by_the_traffic_beside_it() -> None:
    model = latency(0)
    decode = Work(decode_requests=16, decode_context_tokens=16 * 1024)
    prefill = Work(prefill=((4096, 0),), layers=4, head=False)
    alone = seconds(model, decode, 54)
    beside = model.estimate(decode, 54, prefill, 54).seconds
    share = model.cost(prefill)[1] / seconds(model, prefill, 54) / model.device.dram_bytes_per_s
    on_device = alone - model.pass_overhead_s - model.launch_overhead_s
    assert 0 < share < 1
    assert beside - alone == pytest.approx(0.20 * share * on_device)
    assert beside <= 1.20 * alone


@given(works(), works(), st.integers(1, 107))
def test_contention_stays_under_the_ceiling(work: Work, beside: Work, sms: int) -> None:
    model = latency(0)
    alone, together = seconds(model, work, sms), model.estimate(work, sms, beside, 108 - sms).seconds
    assert alone <= together <= alone * 1.2
    if not work.decode_requests:
        assert together == alone


def test_shares_that_overlap_take_turns() -> None:
    model = latency(0)
    prefill = Work(prefill=((4096, 0),))
    decode = Work(decode_requests=4, decode_context_tokens=4000)
    assert model.estimate(prefill, 108, decode, 108).seconds == seconds(model, prefill, 54)
    assert model.estimate(prefill, 81, decode, 81).seconds == seconds(model, prefill, 54)
    assert model.estimate(prefill, 1, decode, 108).seconds == seconds(model, prefill, 1)


def test_launches_in_step_that_share_a_core_take_twice_as_long() -> None:
    """Decode on three cores of four beside prefill on two: one has half of its time for each; all wait for it."""
    model = replace(roofline("tiny", cpu_device(4)), launch_overhead_s=0.25, pass_overhead_s=0.125)
    decode, prefill = Work(decode_requests=4, decode_context_tokens=400), Work(prefill=((64, 0),), layers=4, head=False)
    alone_s = seconds(model, decode, 3) - 0.375
    assert model.estimate(decode, 3, prefill, 2).seconds == pytest.approx(2 * alone_s + 0.375)
    alone_s = seconds(model, prefill, 2) - 0.25
    assert model.estimate(prefill, 2, decode, 3).seconds == pytest.approx(2 * alone_s + 0.25)
    assert model.estimate(prefill, 1, decode, 3).seconds == seconds(model, prefill, 1), "no core in common"
    transfer = Work(kv_transfer_tokens=10)
    assert model.estimate(decode, 4, transfer, 4).seconds == pytest.approx(seconds(model, decode, 4))
    with pytest.raises(ValueError, match="beside_sms is 5"):
        model.estimate(decode, 4, prefill, 5)


def test_kv_transfer_uses_the_link_alone() -> None:
    model = latency(0)
    work = Work(kv_transfer_tokens=1000)
    expected = 10e-6 + 1000 * 131072 / 300e9
    beside = Work(prefill=((100, 0),))
    assert seconds(model, work, 1) == pytest.approx(expected)
    assert model.estimate(work, 7, beside, 3).seconds == pytest.approx(expected)
    assert model.estimate(beside, 50, work, 0).seconds == seconds(model, beside, 50)
    assert model.cost(work) == (0.0, 0.0)
    assert model.kernels_of(work) == []


@pytest.mark.parametrize(
    "work",
    [
        Work(),
        Work(prefill=((0, 5),)),
        Work(prefill=((5, -1),)),
        Work(decode_requests=4, decode_context_tokens=3),
        Work(decode_context_tokens=3),
        Work(decode_requests=-1),
    ],
)
def test_impossible_token_counts_raise(work: Work) -> None:
    for answer in (lambda: latency(0).estimate(work, 108), lambda: latency(0).cost(work)):
        with pytest.raises(ValueError, match="no launch has these token counts"):
            answer()


def test_bad_arguments_name_the_value() -> None:
    model, work = latency(0), Work(prefill=((5, 0),))
    for sms in (0, -1, 109):
        with pytest.raises(ValueError, match=f"sms is {sms}; A100-80G has SMs 1 to 108"):
            model.estimate(work, sms)
        with pytest.raises(ValueError, match=f"beside_sms is {sms}"):
            model.estimate(work, 1, work, sms)
        with pytest.raises(ValueError, match=f"sms is {sms}"):
            model.ceilings(sms)
    with pytest.raises(ValueError, match="layers is 33; it must be 1 to 32"):
        model.estimate(work._replace(layers=33), 108)
    with pytest.raises(ValueError, match="layers is 0"):
        model.cost(work._replace(layers=0))
    with pytest.raises(ValueError, match="a KV transfer moves"):
        model.estimate(Work(kv_transfer_tokens=5, decode_requests=1), 108)
    with pytest.raises(ValueError, match=r"efficiency gemm is 1\.2"):
        Efficiencies(gemm=1.2)
    with pytest.raises(ValueError, match="pass_overhead_s is -1"):
        replace(model, pass_overhead_s=-1)
    with pytest.raises(ValueError, match="A100-80G has no fp8"):
        roofline("Llama-3.1-8B", "A100-80G", dtype="fp8")


def test_ceilings_are_the_papers() -> None:
    assert latency(0).ceilings(54) == (156e12, 2.039e12)
    assert latency(0).ceilings(15) == pytest.approx((312e12 * 15 / 108, 1.0195e12))


def test_kv_capacity() -> None:
    model = latency(0)
    tokens = model.kv_capacity_tokens(0.9)
    left = 0.9 * 80 * (1 << 30) - 16_060_522_496 - tokens * 131072
    assert 0 < left < 2e9
    assert model.kv_capacity_tokens(0.5) < tokens
    with pytest.raises(ValueError, match=r"memory_fraction is 1\.5"):
        model.kv_capacity_tokens(1.5)
    with pytest.raises(ValueError, match=r"Llama-3\.1-70B does not fit A100-80G.*weights 141\.1 GB.*take a larger"):
        roofline("Llama-3.1-70B", "A100-80G").kv_capacity_tokens(0.9)


def test_pickle_equality_and_settings() -> None:
    model = latency(5)
    model.estimate(Work(prefill=((100, 0),)), 20)
    again = pickle.loads(pickle.dumps(model))
    assert again == model
    assert hash(again) == hash(model)
    assert len(pickle.dumps(model)) < 5000
    assert RooflineModel.from_settings(json.loads(json.dumps(model.settings()))) == model
    assert replace(model, tensor_parallel=1) != model


def test_settings_are_checked() -> None:
    described = latency(0).settings()
    with pytest.raises(ValueError, match="unknown field 'alpha'; known: device, efficiencies"):
        RooflineModel.from_settings({**described, "alpha": 1})
    with pytest.raises(ValueError, match="latency model lacks the field 'device'"):
        RooflineModel.from_settings({"model": described["model"]})
    device = {name: value for name, value in described["device"].items() if name != "sms"}
    with pytest.raises(ValueError, match="latency model device lacks the field 'sms'"):
        RooflineModel.from_settings({**described, "device": device})
    with pytest.raises(ValueError, match="latency model model is 'tiny'"):
        RooflineModel.from_settings({**described, "model": "tiny"})


def test_tables_stay_bounded_and_models_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is full starts anew; two models used in turn answer as each alone."""
    monkeypatch.setattr("profiler.tables.TABLE_ENTRIES", 3)
    small, other = roofline("tiny", "A100-80G"), roofline("Llama-3.1-8B", "A100-80G")
    decode = Work(decode_requests=2, decode_context_tokens=50)
    for tokens in [*range(1, 12), 1, 2, 3]:
        work = Work(prefill=((tokens, tokens),), decode_requests=tokens, decode_context_tokens=tokens)
        assert seconds(small, work) == seconds(roofline("tiny", "A100-80G"), work)
        assert seconds(other, work) == pytest.approx(seconds(latency(0), work), rel=1e-12)
        fresh = roofline("tiny", "A100-80G")
        assert small.estimate(decode, 50, work, 50) == fresh.estimate(decode, 50, work, 50)

"""Built-in devices and models, each number with its source, and look-up by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from profiler.specs import DeviceSpec, ModelSpec

GIB = 1 << 30
MIB = 1 << 20

_MEMORY = "datasheet capacity, which is in GiB, less 1 % that the driver keeps (assumed)"
_PORT_KNEE = "assumed: A100's 30 SMs are 75 % of 64 B/clock per SM; the same 75 % at this boost clock"
_LATENCY = "assumed: one small all-reduce or the start of one copy"
_GREEN = "green contexts grant multiples of 8 SMs from compute capability 9.0"
_HOPPER_CEILING = "paper: decode slowed by at most 30 % on Hopper"

DEVICES: tuple[DeviceSpec, ...] = (
    DeviceSpec(
        name="A100-80G",
        sms=108,
        bf16_flops=312e12,
        fp8_flops=None,
        dram_bytes_per_s=2.039e12,
        memory_bytes=80 * GIB * 99 // 100,
        l2_bytes=40 * MIB,
        link_bytes_per_s=300e9,
        link_latency_s=10e-6,
        bandwidth_knee_sms=30,
        sm_granularity=2,
        contention_ceiling=0.20,
        sources=(
            ("sms, bf16_flops, fp8_flops, l2_bytes", "NVIDIA A100 architecture whitepaper"),
            ("dram_bytes_per_s", "NVIDIA A100 80GB SXM datasheet, 2,039 GB/s"),
            ("memory_bytes", _MEMORY),
            ("link_bytes_per_s", "NVLink 3, 600 GB/s both ways; the paper's A100 server has 20 GB/s"),
            ("link_latency_s", _LATENCY),
            ("bandwidth_knee_sms", "paper, section 3.2 and figure 8: 30 SMs"),
            ("sm_granularity", "paper: SM masks by TPC, 2 SMs"),
            ("contention_ceiling", "paper: decode slowed by at most 20 % on the A100"),
        ),
    ),
    DeviceSpec(
        name="H100",
        sms=132,
        bf16_flops=989.4e12,
        fp8_flops=1978.9e12,
        dram_bytes_per_s=3.35e12,
        memory_bytes=80 * GIB * 99 // 100,
        l2_bytes=50 * MIB,
        link_bytes_per_s=450e9,
        link_latency_s=10e-6,
        bandwidth_knee_sms=38,
        sm_granularity=8,
        contention_ceiling=0.30,
        sources=(
            ("sms, bf16_flops, fp8_flops, l2_bytes", "NVIDIA H100 architecture whitepaper, SXM5, dense"),
            ("dram_bytes_per_s", "NVIDIA H100 SXM datasheet, 3.35 TB/s"),
            ("memory_bytes", _MEMORY),
            ("link_bytes_per_s", "NVLink 4, 900 GB/s both ways; the paper's table gives 600 GB/s"),
            ("link_latency_s", _LATENCY),
            ("bandwidth_knee_sms", f"{_PORT_KNEE}, 1.83 GHz"),
            ("sm_granularity", _GREEN),
            ("contention_ceiling", _HOPPER_CEILING),
        ),
    ),
    DeviceSpec(
        name="H200",
        sms=132,
        bf16_flops=989.4e12,
        fp8_flops=1978.9e12,
        dram_bytes_per_s=4.8e12,
        memory_bytes=141 * GIB * 99 // 100,
        l2_bytes=60 * MIB,
        link_bytes_per_s=450e9,
        link_latency_s=10e-6,
        bandwidth_knee_sms=55,
        sm_granularity=8,
        contention_ceiling=0.30,
        sources=(
            ("sms, bf16_flops, fp8_flops", "NVIDIA H200 datasheet, SXM, dense (half of the sparse figures)"),
            ("l2_bytes", "the device's own property, 60 MiB"),
            ("dram_bytes_per_s", "NVIDIA H200 datasheet, 4.8 TB/s"),
            ("memory_bytes", _MEMORY),
            ("link_bytes_per_s", "NVLink 4, 900 GB/s both ways"),
            ("link_latency_s", _LATENCY),
            ("bandwidth_knee_sms", f"{_PORT_KNEE}, 1.83 GHz"),
            ("sm_granularity", _GREEN),
            ("contention_ceiling", _HOPPER_CEILING),
        ),
    ),
    DeviceSpec(
        name="H20",
        sms=78,
        bf16_flops=148e12,
        fp8_flops=296e12,
        dram_bytes_per_s=4.0e12,
        memory_bytes=96 * GIB * 99 // 100,
        l2_bytes=60 * MIB,
        link_bytes_per_s=450e9,
        link_latency_s=10e-6,
        bandwidth_knee_sms=42,
        sm_granularity=8,
        contention_ceiling=0.30,
        sources=(
            ("sms, bf16_flops, fp8_flops, dram_bytes_per_s, l2_bytes", "NVIDIA H20 datasheet, dense"),
            ("memory_bytes", _MEMORY),
            ("link_bytes_per_s", "NVLink 4, 900 GB/s both ways; the paper's table gives 400 GB/s"),
            ("link_latency_s", _LATENCY),
            ("bandwidth_knee_sms", f"{_PORT_KNEE}, 1.98 GHz"),
            ("sm_granularity", _GREEN),
            ("contention_ceiling", _HOPPER_CEILING),
        ),
    ),
    DeviceSpec(
        name="L40S",
        sms=142,
        bf16_flops=362.05e12,
        fp8_flops=733e12,
        dram_bytes_per_s=864e9,
        memory_bytes=45 * GIB * 99 // 100,
        l2_bytes=96 * MIB,
        link_bytes_per_s=32e9,
        link_latency_s=20e-6,
        bandwidth_knee_sms=7,
        sm_granularity=2,
        contention_ceiling=0.30,
        sources=(
            ("sms, bf16_flops, fp8_flops, dram_bytes_per_s", "NVIDIA L40S datasheet, dense"),
            ("l2_bytes", "NVIDIA Ada GPU architecture whitepaper, AD102"),
            ("memory_bytes", "datasheet capacity of 48 GiB, less 1/16 for ECC and 1 % for the driver (assumed)"),
            ("link_bytes_per_s", "NVIDIA L40S datasheet: PCIe 4.0 x16, 64 GB/s both ways; no NVLink"),
            ("link_latency_s", f"{_LATENCY}, over PCIe"),
            ("bandwidth_knee_sms", f"{_PORT_KNEE}, 2.52 GHz"),
            ("sm_granularity", "assumed: one TPC, 2 SMs"),
            ("contention_ceiling", "assumed: as on Hopper"),
        ),
    ),
    DeviceSpec(
        name="RTX-4090",
        sms=128,
        bf16_flops=165.2e12,
        fp8_flops=330.3e12,
        dram_bytes_per_s=1.008e12,
        memory_bytes=25_250_627_584,
        l2_bytes=72 * MIB,
        link_bytes_per_s=32e9,
        link_latency_s=20e-6,
        bandwidth_knee_sms=8,
        sm_granularity=2,
        contention_ceiling=0.30,
        sources=(
            (
                "sms, bf16_flops, fp8_flops, dram_bytes_per_s, l2_bytes",
                "NVIDIA Ada GPU architecture whitepaper, dense with FP32 accumulation",
            ),
            ("memory_bytes", "the device's own property"),
            ("link_bytes_per_s", "PCIe 4.0 x16, 64 GB/s both ways; no NVLink and no peer copies"),
            ("link_latency_s", f"{_LATENCY}, over PCIe"),
            ("bandwidth_knee_sms", f"{_PORT_KNEE}, 2.52 GHz"),
            ("sm_granularity", "assumed: one TPC, 2 SMs"),
            ("contention_ceiling", "assumed: as on Hopper"),
        ),
    ),
)

_QWEN3_235B = ModelSpec(
    name="Qwen3-235B-A22B",
    layers=94,
    hidden=4096,
    intermediate=12288,
    heads=64,
    kv_heads=4,
    head_dim=128,
    vocab=151936,
    max_context=40960,
    qk_norm=True,
    experts=128,
    experts_per_token=8,
    moe_intermediate=1536,
    source="config.json of Qwen/Qwen3-235B-A22B",
)

MODELS: tuple[ModelSpec, ...] = (
    ModelSpec(
        name="Llama-3.1-8B",
        layers=32,
        hidden=4096,
        intermediate=14336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab=128256,
        max_context=131072,
        source="config.json of meta-llama/Llama-3.1-8B",
    ),
    ModelSpec(
        name="Llama-3.1-70B",
        layers=80,
        hidden=8192,
        intermediate=28672,
        heads=64,
        kv_heads=8,
        head_dim=128,
        vocab=128256,
        max_context=131072,
        source="config.json of meta-llama/Llama-3.1-70B",
    ),
    ModelSpec(
        name="Qwen3-32B",
        layers=64,
        hidden=5120,
        intermediate=25600,
        heads=64,
        kv_heads=8,
        head_dim=128,
        vocab=151936,
        max_context=40960,
        qk_norm=True,
        source="config.json of Qwen/Qwen3-32B",
    ),
    _QWEN3_235B,
    replace(
        _QWEN3_235B,
        name="Qwen3-235B-A22B-FP8",
        dtype="fp8",
        source="config.json of Qwen/Qwen3-235B-A22B-FP8",
    ),
    ModelSpec(
        name="tiny",
        layers=8,
        hidden=512,
        intermediate=1408,
        heads=8,
        kv_heads=4,
        head_dim=64,
        vocab=8192,
        max_context=8192,
        source="ours: made up for tests, demonstrations and CPUs; no such checkpoint",
    ),
)


def _folded(name: str) -> str:
    return "".join(character for character in name.casefold() if character.isalnum())


_DEVICES_BY_NAME = {_folded(spec.name): spec for spec in DEVICES}
_MODELS_BY_NAME = {_folded(spec.name): spec for spec in MODELS}


def device(name: str) -> DeviceSpec:
    """The built-in device of this name; case and punctuation do not matter. Raises ValueError for others."""
    spec = _DEVICES_BY_NAME.get(_folded(name))
    if spec is None:
        known = ", ".join(spec.name for spec in DEVICES)
        raise ValueError(f"unknown device {name!r}; known: {known}")
    return spec


def model(name_or_path: str | Path) -> ModelSpec:
    """The built-in model of this name, or the one that a Hugging Face config.json (or its folder) describes.

    Raises ValueError for a name that is neither, and for a config that cannot be modelled.
    """
    spec = _MODELS_BY_NAME.get(_folded(str(name_or_path)))
    if spec is not None:
        return spec
    path = Path(name_or_path)
    if path.exists():
        from profiler.hf_config import from_hf_config  # pydantic, needed for files only

        return from_hf_config(path)
    known = ", ".join(spec.name for spec in MODELS)
    raise ValueError(f"unknown model {str(name_or_path)!r}; known: {known}, or a path to a config.json")

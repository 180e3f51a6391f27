"""Importers against the real tables, where they are: a folder ``shared`` beside the repository holds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.importers import aiconfigurator, vllm_tables
from profiler.profile import Profile, rows_digest

SHARED = Path(__file__).resolve().parent.parent.parent / "shared"


def source(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs {name} in {SHARED}")
    return path


def counts(profile: Profile) -> dict[str, int]:
    return {str(kernel): int(rows) for kernel, rows in profile.rows["kernel"].value_counts().items()}


def latency_us(profile: Profile, kernel: str, **shape: int) -> float:
    rows = profile.select(kernel)
    for name, value in shape.items():
        rows = rows[rows[name] == value]
    (latency,) = rows["latency_s"]
    return float(latency) * 1e6


@pytest.mark.parametrize(
    ("device", "system", "digest", "decodes", "prefills", "gemm_us"),
    [
        ("A100-80G", "a100", "2627535a6b9d", 5093, 5627, 328.05),
        ("H100", "h100", "f914fe95b05e", 6770, 5763, 86.685),
        ("H200", "h200", "4e2ef8ab262f", 6770, 5763, 84.362),
    ],
)
def test_aiconfigurators_bf16_tables(
    device: str, system: str, digest: str, decodes: int, prefills: int, gemm_us: float
) -> None:
    files = sorted(source("profiles").glob(f"{system}_*.csv.gz"))
    profile = aiconfigurator.read_tables(files, device)
    assert counts(profile) == {"gemm": 35742, "attention_decode": decodes, "attention_prefill": prefills}
    assert profile.provenance.settings["left_out"] == {}
    assert rows_digest(profile.rows)[:12] == digest
    assert latency_us(profile, "gemm", m=2048, n=4096, k=4096) == pytest.approx(gemm_us, rel=1e-4)


def test_the_vllm_tables_of_an_rtx_4090() -> None:
    profile = vllm_tables.read_tables(source("silicon/vllm_rtx4090_llama31_8b"), "RTX-4090")
    layers = dict.fromkeys(("norm", "rotary", "activation", "embedding"), 152)
    attention = {"attention_prefill": 96, "attention_decode": 99, "attention_mixed": 8448}
    assert counts(profile) == {"gemm": 648, "sampling": 40, **layers, **attention}
    assert rows_digest(profile.rows)[:12] == "2d234d61952f"
    assert latency_us(profile, "gemm", m=2048, n=4096, k=14336) == pytest.approx(1459.55)
    assert latency_us(profile, "attention_prefill", new_tokens=2048, cached_tokens=0) == pytest.approx(336.126)
    # 256 sequences of 16,385 tokens, 4 KiB a token: 17.2 GB, a device of 1,008 GB/s.
    most = latency_us(profile, "attention_decode", decode_requests=256, decode_context_tokens=16385)
    assert 256 * 16385 * 4096 / (most * 1e-6) == pytest.approx(0.95 * 1.008e12, rel=0.01)

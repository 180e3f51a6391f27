"""Vidur's profiles from small files of their form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from profiler.importers import vidur
from profiler.profile import Profile

MODEL = {"n_head": 32, "n_kv_head": 8, "n_embd": 4096, "n_expanded_embd": 14336, "use_gated_mlp": "True"}
OPERATORS = {
    "emb": 0.002,
    "input_layernorm": 0.003,
    "attn_pre_proj": 0.1,
    "attn_rope": 0.005,
    "attn_post_proj": 0.08,
    "post_attention_layernorm": 0.005,
    "mlp_up_proj": 0.4,
    "mlp_act": 0.02,
    "mlp_down_proj": 0.2,
    "add": 0.001,
}
ATTENTION = {"n_embd": 4096, "n_q_head": 32, "n_kv_head": 8, "num_tensor_parallel_workers": 2}


def table(path: Path, *rows: dict[str, object]) -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(str(row.get(name, "")) for name in names) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([",".join(names), *lines]) + "\n", encoding="utf-8")
    return path


def timed(std: float = 0.0, **medians: object) -> dict[str, object]:
    stats = {f"time_stats.{name}.median": median for name, median in medians.items()}
    return stats | {f"time_stats.{name}.std": std for name in medians}


def mlp(tokens: int = 64, ways: int = 1, std: float = 0.0, **changed: object) -> dict[str, object]:
    sizes = {"num_tokens": tokens, "num_tensor_parallel_workers": ways}
    return {**timed(std, **OPERATORS), **MODEL, **sizes, **changed}


def attention(batch: int, chunk: int, cached: int, **medians: float) -> dict[str, object]:
    sizes = {"batch_size": batch, "prefill_chunk_size": chunk, "kv_cache_size": cached}
    return {**timed(0.0, **medians), **ATTENTION, **sizes}


def rows(profile: Profile, kernel: str, *columns: str) -> list[tuple[object, ...]]:
    return list(profile.select(kernel)[[*columns]].itertuples(index=False, name=None))


def test_products_have_the_shapes_of_one_device(tmp_path: Path) -> None:
    path = table(tmp_path / "mlp.csv", mlp(), mlp(ways=4))
    profile = vidur.read_tables([path], "A100-80G")
    assert sorted(rows(profile, "gemm", "m", "n", "k", "latency_s")) == [
        (64, 1536, 4096, pytest.approx(100e-6)),
        (64, 4096, 1024, pytest.approx(80e-6)),
        (64, 4096, 3584, pytest.approx(200e-6)),
        (64, 4096, 4096, pytest.approx(80e-6)),
        (64, 4096, 14336, pytest.approx(200e-6)),
        (64, 6144, 4096, pytest.approx(100e-6)),
        (64, 7168, 4096, pytest.approx(400e-6)),
        (64, 28672, 4096, pytest.approx(400e-6)),
    ]
    assert rows(profile, "rotary", "heads", "kv_heads", "head_dim") == [(32, 8, 128), (8, 2, 128)]
    assert rows(profile, "activation", "width") == [(14336,), (3584,)]


def test_a_norm_includes_the_residual_sum(tmp_path: Path) -> None:
    profile = vidur.read_tables([table(tmp_path / "mlp.csv", mlp())], "A100-80G")
    # The layer's two norms of 3 and 5 us are one shape; each is followed by a sum of 1 us.
    assert rows(profile, "norm", "tokens", "width", "latency_s") == [(64, 4096, pytest.approx(5e-6))]


def test_spread_is_the_deviation_of_normal_deviates(tmp_path: Path) -> None:
    profile = vidur.read_tables([table(tmp_path / "mlp.csv", mlp(std=0.01))], "A100-80G")
    assert rows(profile, "gemm", "spread")[0] == (pytest.approx(0.6745 * 0.01 / 0.1),)
    assert rows(profile, "norm", "spread")[0][0] == pytest.approx(0.6745 * 2**0.5 * (0.01 / 0.004 + 0.01 / 0.006) / 2)


def test_a_model_without_some_operators_has_none_of_them(tmp_path: Path) -> None:
    gone = ("post_attention_layernorm", "attn_rope")
    row = {key: value for key, value in mlp().items() if not any(name in key for name in gone)}
    profile = vidur.read_tables([table(tmp_path / "mlp.csv", row)], "A100-80G")
    assert profile.select("rotary").empty
    assert rows(profile, "norm", "latency_s") == [(pytest.approx(4e-6),)]


def test_attention_counts_the_new_token_and_the_cache_write(tmp_path: Path) -> None:
    path = table(
        tmp_path / "attention.csv",
        attention(1, 128, 256, attn_prefill=0.05, attn_kv_cache_save=0.01),
        attention(16, 0, 512, attn_decode=0.03, attn_kv_cache_save=0.005),
    )
    profile = vidur.read_tables([path], "A100-80G")
    prefill = rows(profile, "attention_prefill", "sequences", "new_tokens", "cached_tokens", "heads", "latency_s")
    assert prefill == [(1, 128, 256, 16, pytest.approx(60e-6))]
    decode = rows(profile, "attention_decode", "decode_requests", "decode_context_tokens", "kv_heads", "latency_s")
    assert decode == [(16, 513, 4, pytest.approx(35e-6))]


def test_all_reduces_are_in_bytes_and_within_a_server(tmp_path: Path) -> None:
    def row(workers: int, per_node: int, collective: str) -> dict[str, object]:
        sizes = {"num_workers": workers, "size": 2048, "collective": collective, "devices_per_node": per_node}
        return {**timed(0.0, all_reduce=0.04), **sizes}

    path = table(tmp_path / "all_reduce.csv", row(4, 4, "all_reduce"), row(4, 2, "all_reduce"), row(4, 4, "send_recv"))
    profile = vidur.read_tables([tmp_path], "A100-80G")
    assert rows(profile, "all_reduce", "bytes", "devices", "latency_s") == [(2048, 4, pytest.approx(40e-6))]
    assert profile.provenance.settings["left_out"] == {
        "rows of other collectives": 1,
        "all-reduce rows over several servers": 1,
    }
    assert path.name in profile.provenance.origin


def test_bad_rows_are_refused_or_counted(tmp_path: Path) -> None:
    zero = {"time_stats.mlp_act.median": 0}
    path = table(tmp_path / "mlp.csv", mlp(), mlp(tokens=128, **zero))
    message = "mlp.csv: row 2: time_stats.mlp_act.median is 0; wanted: a time above 0; correct the file"
    with pytest.raises(ValueError, match=re.escape(message)):
        vidur.read_tables([path], "A100-80G")
    profile = vidur.read_tables([path], "A100-80G", skip_bad=True)
    assert rows(profile, "activation", "tokens") == [(64,)]
    assert len(profile.select("gemm")) == 8
    assert profile.provenance.settings["left_out"]["rows of mlp.csv that cannot be"] == 1


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    def refused(path: Path, message: str, device: str = "A100-80G") -> None:
        with pytest.raises(ValueError, match=re.escape(message)) as refusal:
            vidur.read_tables([path], device)
        assert "\n" not in str(refusal.value)

    refused(tmp_path, "no table of Vidur in this folder; known: mlp.csv, attention.csv, all_reduce.csv")
    other = table(tmp_path / "other" / "other.csv", mlp())
    refused(other, "other.csv: its name tells none of the tables that are read")
    refused(tmp_path / "mlp.csv", "mlp.csv: no such file")
    without = {key: value for key, value in mlp().items() if key != "n_kv_head"}
    refused(table(tmp_path / "mlp.csv", without), "column 'n_kv_head' is missing")
    no_time = {key: value for key, value in mlp().items() if "attn_pre_proj" not in key}
    refused(table(tmp_path / "mlp.csv", no_time), "column 'time_stats.attn_pre_proj.median' is missing")
    elsewhere = table(tmp_path / "network" / "h100_dgx" / "mlp.csv", mlp())
    refused(elsewhere, "its folder says h100_dgx, which is not the device A100-80G")
    assert len(vidur.read_tables([elsewhere], "H100").rows)

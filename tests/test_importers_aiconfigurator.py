"""AIConfigurator's tables from small files of their form: units, precisions, what is left out, what is refused."""

from __future__ import annotations

import gzip
import re
from importlib import metadata
from pathlib import Path

import pandas as pd
import pytest

from profiler.importers import aiconfigurator, package
from profiler.profile import Profile

H100 = "NVIDIA H100 80GB HBM3"
GEMM = "device,kernel_source,gemm_dtype,m,n,k,latency_ms\n"
ATTENTION = "device,batch_size,isl,step,num_heads,num_key_value_heads,head_dim,latency_ms\n"
GEMM_ROW = f"{H100},torch,bfloat16,256,4096,4096,0.02\n"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def shapes(profile: Profile, kernel: str, *columns: str) -> list[tuple[object, ...]]:
    return list(profile.select(kernel)[list(columns)].itertuples(index=False, name=None))


def left_out(profile: Profile) -> dict[str, int]:
    found = profile.provenance.settings["left_out"]
    assert isinstance(found, dict)
    return found


def test_products_are_read_in_bf16_and_one_kind_of_fp8(tmp_path: Path) -> None:
    rows = [
        f"{H100},torch,bfloat16,256,4096,1024,0.02",
        f"{H100},cutlass,fp8,256,4096,1024,0.0125",
        f"{H100},deepgemm,fp8_block,256,4096,1024,0.016",
        f"{H100},x,int8_wo,256,4096,1024,0.5",
        f"{H100},x,nvfp4,256,4096,1024,nonsense",
    ]
    path = write(tmp_path, "h100_gemm_perf_all.csv.gz", GEMM + "\n".join(rows) + "\n")
    tensor = aiconfigurator.read_tables([path], "h100")
    columns = ("dtype", "m", "n", "k", "sms", "latency_s")
    assert shapes(tensor, "gemm", *columns) == [
        ("bf16", 256, 4096, 1024, 132, pytest.approx(20e-6)),
        ("fp8", 256, 4096, 1024, 132, pytest.approx(12.5e-6)),
    ]
    assert left_out(tensor) == {"gemm rows in fp8_block": 1, "gemm rows in int8_wo": 1, "gemm rows in nvfp4": 1}
    block = aiconfigurator.read_tables([path], "H100", fp8="block")
    assert block.select("gemm")["latency_s"].tolist() == pytest.approx([20e-6, 16e-6])


def test_attention_counts_the_batch_and_the_new_token(tmp_path: Path) -> None:
    prefill = write(tmp_path, "context_attention_perf.csv", f"{ATTENTION}{H100},4,512,128,32,8,64,1.5\n")
    decode = write(tmp_path, "generation_attention_perf.csv", f"{ATTENTION}{H100},16,1,1023,32,8,64,0.03\n")
    profile = aiconfigurator.read_tables([prefill, decode], "H100")
    heads = ("heads", "kv_heads", "head_dim", "latency_s")
    assert shapes(profile, "attention_prefill", "sequences", "new_tokens", "cached_tokens", *heads) == [
        (4, 512, 128, 32, 8, 64, pytest.approx(1.5e-3))
    ]
    assert shapes(profile, "attention_decode", "decode_requests", "decode_context_tokens", *heads) == [
        (16, 1024, 32, 8, 64, pytest.approx(30e-6))
    ]


def attention_frame(**changed: list[object]) -> pd.DataFrame:
    columns: dict[str, list[object]] = {
        "device": [H100] * 5,
        "batch_size": [1] * 5,
        "isl": [1] * 5,
        "step": [7, 7, 7, 15, 15],
        "num_heads": [32] * 5,
        "num_key_value_heads": [8] * 5,
        "head_dim": [128] * 5,
        "attn_dtype": ["bfloat16", "bfloat16", "bfloat16", "fp8", "bfloat16"],
        "kv_cache_dtype": ["bfloat16", "fp8", "bfloat16", "fp8", "int8"],
        "window_size": [0, 0, 128, 0, 0],
        "latency": [0.02, 0.01, 0.5, 0.6, 0.7],
    }
    return pd.DataFrame(columns | changed)


def test_decode_knows_the_cache_and_prefill_is_bf16(tmp_path: Path) -> None:
    decode, prefill = tmp_path / "generation_attention_perf.parquet", tmp_path / "context_attention_perf.parquet"
    attention_frame().to_parquet(decode)
    attention_frame().to_parquet(prefill)
    profile = aiconfigurator.read_tables([tmp_path], "H100")
    assert shapes(profile, "attention_decode", "dtype", "decode_context_tokens", "latency_s") == [
        ("bf16", 8, pytest.approx(20e-6)),
        ("fp8", 8, pytest.approx(10e-6)),
    ]
    assert shapes(profile, "attention_prefill", "dtype", "latency_s") == [("bf16", pytest.approx(20e-6))]
    assert left_out(profile) == {
        "prefill attention rows with a sliding window": 1,
        "prefill attention rows not multiplied in bf16": 1,
        "prefill attention rows over a cache that is not bf16": 2,
        "decode attention rows with a sliding window": 1,
        "decode attention rows not multiplied in bf16": 1,
        "decode attention rows over a cache of neither bf16 nor fp8": 1,
    }


def test_all_reduces_count_elements_and_leave_out_the_host(tmp_path: Path) -> None:
    custom = write(
        tmp_path,
        "custom_allreduce_perf.csv",
        "device,kernel_source,allreduce_dtype,num_gpus,message_size,latency\n"
        f"{H100},vLLM_custom_graph,bfloat16,4,4096,0.005\n{H100},vLLM_custom_eager,bfloat16,4,4096,0.022\n",
    )
    columns = ("dtype", "bytes", "devices", "latency_s")
    profile = aiconfigurator.read_tables([custom], "H100")
    assert shapes(profile, "all_reduce", *columns) == [("bf16", 8192, 4, pytest.approx(5e-6))]
    assert left_out(profile) == {"all-reduce rows launched from the host": 1}
    assert profile.provenance.settings["kernels"] == {"all_reduce": ["vLLM_custom_graph"]}
    nccl = write(
        tmp_path,
        "nccl_perf.csv",
        "device,op_name,kernel_source,nccl_dtype,num_gpus,message_size,latency\n"
        f"{H100},all_reduce,NCCL,half,2,512,0.006\n{H100},all_reduce,NCCL,half,2,512,0.008\n"
        f"{H100},all_reduce,NCCL,int8,2,512,0.006\n{H100},all_gather,NCCL,half,2,512,0.006\n",
    )
    with pytest.raises(ValueError, match=r"nccl_perf\.csv: a second kind of all-reduce; a profile holds one"):
        aiconfigurator.read_tables([tmp_path], "H100")
    profile = aiconfigurator.read_tables([nccl], "H100")
    assert shapes(profile, "all_reduce", *columns) == [("bf16", 1024, 2, pytest.approx(7e-6))]
    assert left_out(profile) == {
        "NCCL rows of other collectives": 1,
        "all-reduce rows that are not 16-bit floats": 1,
        "repeats of a shape, folded into its median": 1,
    }


def test_provenance_says_where_it_comes_from(tmp_path: Path) -> None:
    path = write(tmp_path, "gemm_perf.csv", GEMM + GEMM_ROW)
    provenance = aiconfigurator.read_tables([path], "H100").provenance
    assert (provenance.device, provenance.sms, provenance.source) == ("H100", 132, "imported")
    assert provenance.origin == "AIConfigurator (aiconfigurator-core, Apache-2.0): gemm_perf.csv"
    assert provenance.settings["kernels"] == {"gemm": ["torch"]}
    assert list(provenance.settings["files_sha256"]) == ["gemm_perf.csv"]


BAD = {
    "zero": (f"{H100},t,bfloat16,1,2,3,0\n", "gemm_perf.csv: row 2: latency is 0; wanted: a time above 0"),
    "NaN": (f"{H100},t,bfloat16,1,2,3,nan\n", "gemm_perf.csv: row 2: latency is nan; wanted: a time above 0"),
    "infinite": (f"{H100},t,bfloat16,1,2,3,inf\n", "gemm_perf.csv: row 2: latency is inf; wanted"),
    "negative": (f"{H100},t,bfloat16,1,2,3,-1\n", "gemm_perf.csv: row 2: latency is -1; wanted"),
    "no time": (f"{H100},t,bfloat16,1,2,3,\n", "gemm_perf.csv: row 2: latency is empty; wanted"),
    "cut row": (f"{H100},t,bfloat16,1,2\n", "gemm_perf.csv: row 2: k is empty; wanted: a whole number of 1 or more"),
    "no count": (f"{H100},t,bfloat16,1,2.5,3,1\n", "gemm_perf.csv: row 2: n is 2.5; wanted: a whole number"),
    "count 0": (f"{H100},t,bfloat16,0,2,3,1\n", "gemm_perf.csv: row 2: m is 0; wanted: a whole number of 1 or more"),
}


@pytest.mark.parametrize(("row", "message"), BAD.values(), ids=BAD)
def test_rows_that_cannot_be_are_refused_or_counted(tmp_path: Path, row: str, message: str) -> None:
    path = write(tmp_path, "gemm_perf.csv", GEMM + GEMM_ROW + row)
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        aiconfigurator.read_tables([path], "H100")
    assert "--skip-bad" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    profile = aiconfigurator.read_tables([path], "H100", skip_bad=True)
    assert len(profile.rows) == 1
    assert left_out(profile) == {"rows of gemm_perf.csv that cannot be": 1}


FILES = {
    "missing": ("gemm_perf.csv", None, "H100", "gemm_perf.csv: no such file; give a table"),
    "empty": ("gemm_perf.csv", "", "H100", "gemm_perf.csv: the file is empty"),
    "header only": ("gemm_perf.csv", GEMM, "H100", "gemm_perf.csv: a header and no rows"),
    "wrong header": ("gemm_perf.csv", f"device,m,n\n{H100},1,2\n", "H100", "column 'gemm_dtype' is missing; the file"),
    "no latency": ("gemm_perf.csv", f"device,gemm_dtype,m,n,k\n{H100},b,1,2,3\n", "H100", "column 'latency' is miss"),
    "wide row": ("gemm_perf.csv", f"{GEMM}{GEMM_ROW}{H100},t,b,1,2,3,4,5\n", "H100", "gemm_perf.csv: cut off, or no"),
    "other table": ("context_mla_perf.csv", GEMM, "H100", "context_mla_perf.csv: its name tells none of the tables"),
    "other device": ("gemm_perf.csv", GEMM + GEMM_ROW, "H200", f"measured on '{H100}', which is not the device H200"),
    "no Parquet": ("gemm_perf.parquet", GEMM, "H100", "gemm_perf.parquet: cut off, or no table"),
    "pointer": ("gemm_perf.csv", "version https://git-lfs.github.com/spec/v1\n", "H100", "run git lfs pull"),
    "unknown device": ("gemm_perf.csv", GEMM + GEMM_ROW, "B200", "unknown device 'B200'; known: A100-80G, H100, H200"),
    "nothing left": (
        "gemm_perf.csv",
        f"{GEMM}{H100},t,int8_wo,1,2,3,4\n",
        "H100",
        "gemm_perf.csv: nothing to import; left out: 1 gemm rows in int8_wo",
    ),
}


@pytest.mark.parametrize(("name", "text", "device", "message"), FILES.values(), ids=FILES)
def test_bad_files_are_refused_in_one_line(
    tmp_path: Path, name: str, text: str | None, device: str, message: str
) -> None:
    path = tmp_path / name if text is None else write(tmp_path, name, text)
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        aiconfigurator.read_tables([path], device)
    assert "\n" not in str(refusal.value)


def test_a_file_cut_off_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "gemm_perf.csv.gz", GEMM + GEMM_ROW * 500)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(ValueError, match=r"gemm_perf\.csv\.gz: cut off, or no table"):
        aiconfigurator.read_tables([path], "H100")


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no table of AIConfigurator in this folder"):
        aiconfigurator.read_tables([tmp_path], "H100")


@pytest.mark.parametrize(
    ("found", "device"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100-80G"),
        ("NVIDIA A100 80GB PCIe", "A100-80G"),
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA GH200 480GB", "H200"),
        ("NVIDIA H20", "H200"),
        ("NVIDIA H200", "H20"),
    ],
)
def test_kin_are_other_devices(tmp_path: Path, found: str, device: str) -> None:
    path = write(tmp_path, "gemm_perf.csv", GEMM + GEMM_ROW.replace(H100, found))
    with pytest.raises(ValueError, match=f"measured on '{found}', which is not the device {device}"):
        aiconfigurator.read_tables([path], device)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the same layout: gemm and attention in two versions, all-reduces in an older one."""
    data = tmp_path / "data"
    gemm = pd.DataFrame({"device": [H100], "gemm_dtype": ["bfloat16"], "m": [1], "n": [2], "k": [3]})
    reduce = pd.DataFrame({"device": [H100], "num_gpus": [2], "message_size": [64], "latency": [0.01]})
    tables = {}
    for version, latency in (("0.9.0", 0.1), ("0.24.0", 0.2)):
        tables[f"gemm/vllm/{version}/gemm_perf"] = gemm.assign(latency=latency)
        tables[f"attention/vllm/{version}/context_attention_perf"] = attention_frame()
        tables[f"attention/vllm/{version}/generation_attention_perf"] = attention_frame()
    tables["comm/vllm/0.10.0/custom_allreduce_perf"] = reduce.assign(allreduce_dtype="bfloat16")
    tables["comm/nccl/2.27.3/nccl_perf"] = reduce.assign(op_name="all_reduce", nccl_dtype="half")
    for name, table in tables.items():
        path = data / "h100_sxm" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        table.to_parquet(path)
    monkeypatch.setattr(package, "installed", lambda: package.Installed("0.12.0", data))
    return data


def test_the_package_gives_the_newest_or_the_named_version(installed: Path) -> None:
    newest = aiconfigurator.read_package("H100")
    assert newest.select("gemm")["latency_s"].tolist() == pytest.approx([0.2e-3])
    assert newest.provenance.origin == (
        "aiconfigurator-core 0.12.0 (Apache-2.0): h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet, "
        "h100_sxm/attention/vllm/0.24.0/context_attention_perf.parquet, "
        "h100_sxm/attention/vllm/0.24.0/generation_attention_perf.parquet, "
        "h100_sxm/comm/vllm/0.10.0/custom_allreduce_perf.parquet"
    )
    older = aiconfigurator.read_package("H100", version="0.9.0", all_reduce="nccl")
    assert older.select("gemm")["latency_s"].tolist() == pytest.approx([0.1e-3])
    assert "comm/nccl/2.27.3/nccl_perf.parquet" in older.provenance.origin


@pytest.mark.parametrize(
    ("device", "backend", "version", "message"),
    [
        ("H20", "vllm", None, "aiconfigurator-core 0.12.0 has no tables of H20; it has: A100-80G, H100, H200, L40S"),
        ("H100", "tgi", None, "has no gemm tables under 'tgi' for h100_sxm; it has: vllm"),
        ("H100", "vllm", "0.8.0", "has no gemm tables of vllm 0.8.0 for h100_sxm; it has: 0.9.0, 0.24.0"),
        ("H200", "vllm", None, "has no gemm tables under 'vllm' for h200_sxm; it has: none"),
    ],
)
def test_what_the_package_has_not_is_refused(
    installed: Path, device: str, backend: str, version: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        aiconfigurator.read_package(device, backend, version)


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=re.escape("not installed; run pip install 'bulletsim[aic]'")):
        aiconfigurator.read_package("H100")


def test_the_real_package_is_read_where_it_is_installed() -> None:
    try:
        metadata.version(package.PACKAGE)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{package.PACKAGE} is not installed")
    profile = aiconfigurator.read_package("A100-80G", "vllm")
    assert set(profile.rows["kernel"]) == {"gemm", "attention_prefill", "attention_decode", "all_reduce"}

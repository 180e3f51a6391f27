"""The public files themselves, where a folder of them lies beside the checkout: counts, spans, known oddities."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

import traces
from traces import ReadOptions, TraceError

SHARED = Path(__file__).parents[1].parent / "shared"
DATA = SHARED / "traces"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="no folder of public traces beside the checkout")


def span(trace: traces.Trace) -> float:
    assert trace.arrival_s is not None
    assert trace.arrival_s[0] == 0
    return float(trace.arrival_s[-1])


@pytest.mark.parametrize(
    ("file", "format", "requests", "span_s"),
    [
        ("azure-llm-2023/AzureLLMInferenceTrace_code.csv", "azure", 8_819, 3_435.948056),
        ("azure-llm-2023/AzureLLMInferenceTrace_conv.csv", "azure", 19_366, 3_501.721937),
        ("azure-llm-2024-format/AzureLLMInferenceTrace_conv_1week.first5.csv", "azure", 5, 0.247116),
        ("burstgpt/BurstGPT_1.first400.csv", "burstgpt", 383, 37_269),
        ("mooncake/conversation_trace.jsonl", "mooncake", 12_031, 3_536.999),
        ("mooncake/mooncake_trace_arxiv.first1000.jsonl", "mooncake", 1_000, 177.098),
        ("vidur/splitwise_code.csv", "vidur", 8_819, 3_435.948056),
        ("apex/llama_creation_05_lengths.csv", "apex", 512, 1_097.369632),
        ("apex/llama_lmsys_05_lengths.csv", "apex", 1_024, 2_023.473242),
        ("vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv", "vidur", 28_257, None),
        ("sarathi-sharegpt/sharegpt_8k_filtered_stats_llama2_tokenizer.csv", "vidur", 30_731, None),
        ("arxiv-long/arxiv_sample.csv", "vidur", 2_895, None),
        ("sharegpt-lengths/first_exchange.csv", "exchanges", 11_460, None),
        ("sharegpt-lengths/sharegpt_v3_message_lengths_cl100k.csv", "sharegpt-lengths", 11_460, None),
        ("../silicon/vllm_rtx4090_llama31_8b/requests.jsonl", "vllm", 300, 29.120628),
    ],
)
def test_counts_and_spans(file: str, format: str, requests: int, span_s: float | None) -> None:
    trace = traces.load(DATA / file)
    assert (trace.provenance.format, len(trace)) == (format, requests)
    assert trace.provenance.sha256 == hashlib.sha256((DATA / file).read_bytes()).hexdigest()
    if span_s is None:
        assert trace.arrival_s is None
    else:
        assert span(trace) == pytest.approx(span_s, abs=1e-6)


def test_vidur_is_azure_in_order_and_tokens_and_within_0_4_us() -> None:
    for service in ("code", "conv"):
        azure = traces.load(DATA / f"azure-llm-2023/AzureLLMInferenceTrace_{service}.csv")
        vidur = traces.load(DATA / f"vidur/splitwise_{service}.csv")
        assert np.array_equal(azure.prompt_tokens, vidur.prompt_tokens)
        assert np.array_equal(azure.output_tokens, vidur.output_tokens)
        assert azure.arrival_s is not None
        assert vidur.arrival_s is not None
        assert np.abs(azure.arrival_s - vidur.arrival_s).max() <= 0.4e-6


def test_azure_code_is_silent_for_2377_of_3436_seconds() -> None:
    arrivals = traces.summarise(traces.load(DATA / "azure-llm-2023/AzureLLMInferenceTrace_code.csv")).arrivals
    assert arrivals is not None
    assert (arrivals.silences, round(arrivals.silent_s), round(arrivals.span_s)) == (45, 2377, 3436)


def test_burstgpt_drops_17_failed_rows() -> None:
    trace = traces.load(DATA / "burstgpt/BurstGPT_1.first400.csv")
    assert "17 of 400 rows dropped: prompt or output of 0 tokens" in trace.provenance.notes


def test_mooncake_blocks_are_chains_from_one_root() -> None:
    trace = traces.load(DATA / "mooncake/conversation_trace.jsonl")
    assert trace.block_hashes is not None
    assert trace.block_tokens == 512
    assert {blocks[0] for blocks in trace.block_hashes} == {0}
    assert traces.summarise(trace).arrivals is not None
    assert any("1180 distinct stamps" in note for note in trace.provenance.notes)
    spread = traces.summarise(traces.spread_bins(trace)).arrivals
    assert spread is not None
    assert spread.gap_cv == pytest.approx(1.0, abs=0.1)  # 3.03 with the bins


def test_first_exchanges_of_the_messages_are_the_file_of_first_exchanges() -> None:
    messages = traces.load(DATA / "sharegpt-lengths/sharegpt_v3_message_lengths_cl100k.csv")
    exchanges = traces.load(DATA / "sharegpt-lengths/first_exchange.csv")
    assert np.array_equal(messages.prompt_tokens, exchanges.prompt_tokens)
    assert np.array_equal(messages.output_tokens, exchanges.output_tokens)
    assert messages.request_ids == exchanges.request_ids


def test_servegen_reasoning_client_load_is_kept() -> None:
    folder = DATA / "servegen/reason/deepseek-r1"
    trace = traces.load(folder, options=ReadOptions(end_s=3600.0))
    windows = [line.split(",") for file in folder.glob("*-trace.csv") for line in file.read_text().splitlines()[:6]]
    assert len(trace) == round(sum(float(rate) * 600 for _, rate, *_ in windows))
    assert span(trace) < 3600


def test_servegen_language_is_too_large_whole_and_names_the_clients_left_out() -> None:
    folder = DATA / "servegen/language/m-small"
    with pytest.raises(TraceError, match=r"about 5\.01e\+08 requests, more than 5000000; read a slice"):
        traces.load(folder)
    trace = traces.load(folder, options=ReadOptions(end_s=600.0, scale=0.01))
    assert any("clients without a dataset left out: 0, 1, 2," in note for note in trace.provenance.notes)


def test_servegen_multimodal_prompts_hold_image_tokens() -> None:
    folder = DATA / "servegen/multimodal/mm-image"
    trace = traces.load(folder, options=ReadOptions(end_s=600.0))
    assert trace.prompt_tokens.mean() > 1_000

"""Each format read from a small file written here: columns by name, units, oddities, rules."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import traces
from traces import ReadOptions, TraceError


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def lengths(trace: traces.Trace) -> list[tuple[int, int]]:
    return list(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True))


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".jsonl"])
def test_reading_tells_how_far_it_is(ending: str, tmp_path: Path) -> None:
    path, heard = tmp_path / f"t{ending}", []
    if ending == ".jsonl":
        one = '{"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}\n'
        path.write_text(one * 5000)
    else:
        traces.save(traces.workload("code", 20_000), path, progress=heard.append)
        assert (heard == sorted(heard), 0 < heard[0] <= heard[-1] <= 1) == (True, True)
        heard.clear()
    traces.load(path, options=ReadOptions(progress=heard.append))
    assert heard == sorted(heard)
    assert len(set(heard)) >= 2
    assert 0 < heard[0] < 0.7 <= heard[-1] < 1


def test_azure_2023_has_seven_decimals_crlf_and_no_final_newline(tmp_path: Path) -> None:
    rows = ("2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:04.0319600,3180,8")
    path = write(tmp_path, "a.csv", "\r\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *rows)))
    trace = traces.load(path)
    assert trace.provenance.format == "azure"
    assert lengths(trace) == [(4808, 10), (3180, 8)]
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == [0.0, 0.052]
    assert trace[1] == traces.Request(request_id="1", arrival_s=0.052, prompt_tokens=3180, output_tokens=8)


def test_azure_2024_mixes_offsets_fractions_and_zones(tmp_path: Path) -> None:
    stamps = ("2024-05-12 00:00:00.25+00:00", "2024-05-12 00:00:01+00:00", "2024-05-12T02:00:02.5+02:00")
    body = "".join(f"{stamp},1,2\n" for stamp in stamps)
    trace = traces.load(write(tmp_path, "a.csv", f"TIMESTAMP,ContextTokens,GeneratedTokens\n{body}"))
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == [0.0, 0.75, 2.25]
    assert trace.provenance.notes == ()


def test_stamps_without_a_zone_among_zoned_ones_are_utc_and_noted(tmp_path: Path) -> None:
    body = "2024-05-12 00:00:00,1,2\n2024-05-12 00:00:01+00:00,1,2\n"
    trace = traces.load(write(tmp_path, "a.csv", f"TIMESTAMP,ContextTokens,GeneratedTokens\n{body}"))
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == [0.0, 1.0]
    assert any("UTC" in note for note in trace.provenance.notes)


def test_azure_2025_counts_images_apart_and_adds_token_columns(tmp_path: Path) -> None:
    row = "2024-10-15 00:00:00,3,1000,7"
    trace = traces.load(write(tmp_path, "a.csv", f"TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n{row}\n"))
    assert lengths(trace) == [(1000, 7)]
    head = "TIMESTAMP,NumImages,ImageTokens,ContextTokens,GeneratedTokens"
    trace = traces.load(write(tmp_path, "b.csv", f"{head}\n2024-10-15 00:00:00,3,500,1000,7\n"))
    assert lengths(trace) == [(1500, 7)]
    assert trace.provenance.notes == ("prompt = ImageTokens + ContextTokens",)


def test_burstgpt_1_drops_failed_rows_and_says_how_many(tmp_path: Path) -> None:
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    body = "5,ChatGPT,0,0,0,Conversation log\n7,ChatGPT,472,18,490,Conversation log\n7,GPT-4,3,0,3,API log\n"
    trace = traces.load(write(tmp_path, "b.csv", f"{head}\n{body}9,GPT-4,5,6,11,API log\n"))
    assert lengths(trace) == [(472, 18), (5, 6)]
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == [0.0, 2.0]
    assert "2 of 4 rows dropped: prompt or output of 0 tokens" in trace.provenance.notes


def test_burstgpt_3_has_columns_inserted_in_the_middle(tmp_path: Path) -> None:
    head = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    body = (
        "19440110.0,1722ac82-0a46-4bf0-aa08-89794e7a2b3f,43,GPT-4,906,446,1352,Conversation log\n"
        "19454781.0,,21,GPT-4,264,171,435,API log\n"
    )
    trace = traces.load(write(tmp_path, "b.csv", f"{head}\n{body}"))
    assert lengths(trace) == [(906, 446), (264, 171)]
    assert trace.session_ids == ("1722ac82-0a46-4bf0-aa08-89794e7a2b3f", None)
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == [0.0, 14671.0]


def test_mooncake_is_in_milliseconds_with_blocks_of_512(tmp_path: Path) -> None:
    rows = (
        {"timestamp": 3000, "input_length": 513, "output_length": 5, "hash_ids": [0, 7]},
        {"timestamp": 3000, "input_length": 512, "output_length": 6, "hash_ids": [0]},
        {"timestamp": 6001, "input_length": 1, "output_length": 7, "hash_ids": [9]},
    )
    trace = traces.load(write(tmp_path, "m.jsonl", "\n".join(map(json.dumps, rows))))
    assert trace.provenance.format == "mooncake"
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 0.0, 3.001], abs=1e-12)
    assert (trace.block_hashes, trace.block_tokens) == (((0, 7), (0,), (9,)), 512)
    assert any(note.startswith("binned: 3 arrivals have 2 distinct stamps") for note in trace.provenance.notes)


def test_vidur_files_come_with_arrivals_or_without_and_with_float_counts(tmp_path: Path) -> None:
    timed = traces.load(
        write(tmp_path, "v.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.3,9,1\n")
    )
    assert timed.arrival_s is not None
    assert timed.arrival_s.tolist() == [0.0, 4.3]
    head = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio"
    bare = traces.load(write(tmp_path, "l.csv", f"{head}\n7564.0,192.0,7756.0,39.4\n"))
    assert bare.arrival_s is None
    assert lengths(bare) == [(7564, 192)]


def test_apex_offsets_are_nanoseconds(tmp_path: Path) -> None:
    head = "ContextTokens,GeneratedTokens,TotalTokens,StartTimeOffset"
    trace = traces.load(write(tmp_path, "x.csv", f"{head}\n304,822,1126,618518284\n497,1,498,1236439963\n"))
    assert trace.provenance.format == "apex"
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 0.617921679], abs=1e-12)


def test_vllm_log_arrives_when_it_was_queued(tmp_path: Path) -> None:
    rows = [
        {
            "request_id": f"bench-{i}",
            "input_toks": 10 + i,
            "output_toks": 2,
            "queued_ts": 100.5 + i,
            "arrival_time": 1e9,
        }
        for i in range(2)
    ]
    trace = traces.load(write(tmp_path, "r.jsonl", "\n".join(map(json.dumps, rows))))
    assert trace.request_ids == ("bench-0", "bench-1")
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == [0.0, 1.0]


def test_first_exchange_rule_on_message_lengths(tmp_path: Path) -> None:
    rows = (
        "0,0,human,34",
        "0,1,gpt,244",
        "0,2,human,36",
        "1,0,gpt,5",  # whatever their roles
        "1,1,gpt,6",
        "2,0,human,1",  # too short
        "2,1,gpt,90",
        "3,0,human,50",  # alone
        "4,0,human,131000",  # too long together
        "4,1,gpt,100",
    )
    trace = traces.load(write(tmp_path, "s.csv", "\n".join(("conversation,turn,role,tokens", *rows))))
    assert lengths(trace) == [(34, 244), (5, 6)]
    assert trace.request_ids == ("0", "1")
    assert trace.provenance.notes[0].startswith("first exchanges of 2 of 5 conversations")


def test_conversations_as_text_need_a_tokenizer(tmp_path: Path) -> None:
    document = [
        {"id": "a", "conversations": [{"from": "human", "value": "one two"}, {"from": "gpt", "value": "x y z"}]},
        {"id": "b", "conversations": []},
        {"id": "a", "conversations": [{"from": "human", "value": "one"}, {"from": "gpt", "value": "x y z"}]},
    ]
    path = write(tmp_path, "sharegpt.json", json.dumps(document, indent=1))
    with pytest.raises(TraceError, match=r"sharegpt\.json: conversations as text.*count_tokens"):
        traces.load(path)
    trace = traces.load(path, options=ReadOptions(count_tokens=lambda text: len(text.split())))
    assert lengths(trace) == [(2, 3)]
    cut_off = write(tmp_path, "cut.json", path.read_text()[:-20])
    with pytest.raises(TraceError, match="not a whole JSON document"):
        traces.load(cut_off, options=ReadOptions(count_tokens=len))


def test_length_files_of_first_exchanges(tmp_path: Path) -> None:
    trace = traces.load(write(tmp_path, "e.csv", "conversation,prompt_tokens,output_tokens\n0,34,244\n5,17,71\n"))
    assert (trace.provenance.format, trace.request_ids, trace.arrival_s) == ("exchanges", ("0", "5"), None)


def test_disorder_is_sorted_stably_and_noted(tmp_path: Path) -> None:
    body = "3.0,1,1\n1.0,2,2\n3.0,3,3\n1.0,4,4\n"
    trace = traces.load(write(tmp_path, "v.csv", f"arrived_at,num_prefill_tokens,num_decode_tokens\n{body}"))
    assert [prompt for prompt, _ in lengths(trace)] == [2, 4, 1, 3]
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == [0.0, 0.0, 2.0, 2.0]
    assert any(note.startswith("sorted by arrival") for note in trace.provenance.notes)


def test_blank_lines_and_a_byte_order_mark_are_no_rows(tmp_path: Path) -> None:
    path = write(
        tmp_path, "o.csv", "\ufeffrequest_id,arrival_s,prompt_tokens,output_tokens\n\na,0.5,1,2\n\nb,1.5,3,4\n"
    )
    trace = traces.load(path)
    assert trace.request_ids == ("a", "b")
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == [0.5, 1.5]  # our own files keep their origin


def test_hash_of_the_file_is_kept(tmp_path: Path) -> None:
    import hashlib

    path = write(tmp_path, "o.csv", "prompt_tokens,output_tokens\n1,2\n")
    assert traces.load(path).provenance.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_million_rows_are_read_by_columns(tmp_path: Path) -> None:
    rows = 1_000_000
    line = b"2023-11-16 18:17:03.9799600,4808,10\n"
    path = tmp_path / "big.csv"
    path.write_bytes(b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + line * rows)
    trace = traces.load(path)
    assert len(trace) == rows
    assert np.all(trace.prompt_tokens == 4808)

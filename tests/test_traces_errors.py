"""Bad traces end in one clear TraceError: file, place, value, remedy."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

import traces
from traces import TraceError

OWN = "request_id,arrival_s,prompt_tokens,output_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"

BAD_FILES = {
    "empty": ("t.csv", "", "t.csv: the file is empty"),
    "blank": ("t.csv", "\n \n", "t.csv: the file is empty"),
    "header only": ("t.csv", AZURE, "t.csv: a header and no rows"),
    "unknown columns": ("t.csv", "a,b\n1,2\n", "t.csv: line 1: no known format has the columns a, b"),
    "a column twice": ("t.csv", "prompt_tokens,output_tokens,prompt_tokens\n1,2,3\n", "'prompt_tokens' appears twice"),
    "a column not ours": ("t.csv", "arrival,prompt_tokens,output_tokens\n0,1,2\n", "t.csv: unknown column 'arrival'"),
    "negative": ("t.csv", f"{OWN}a,0,1,2\nb,1,-3,2\n", "t.csv: line 3: prompt_tokens is '-3'; wanted: whole numbers"),
    "not whole": ("t.csv", f"{OWN}a,0,1,2\nb,1,3,2.5\n", "t.csv: line 3: output_tokens is '2.5'"),
    "not a number": ("t.csv", f"{OWN}a,0,x,2\n", "t.csv: line 2: prompt_tokens is 'x'"),
    "no value": ("t.csv", f"{OWN}a,0,,2\n", "t.csv: line 2: prompt_tokens is ''"),
    "tokens NaN": ("t.csv", f"{OWN}a,0,nan,2\n", "t.csv: line 2: prompt_tokens is 'nan'"),
    "tokens infinite": ("t.csv", f"{OWN}a,0,inf,2\n", "t.csv: line 2: prompt_tokens is 'inf'"),
    "tokens huge": ("t.csv", f"{OWN}a,0,1,99999999999\n", "t.csv: line 2: output_tokens is '99999999999'"),
    "tokens beyond 64 bits": (
        "t.csv",
        f"{OWN}a,0,99999999999999999999,1\n",
        "prompt_tokens is '99999999999999999999'; wanted: whole numbers of 0 or more, below 2^31;",
    ),
    "JSON tokens huge": (
        "t.jsonl",
        '{"timestamp": 1, "input_length": 2147483648, "output_length": 3}\n',
        "t.jsonl: line 1: input_length is 2147483648; wanted: a whole number of 0 or more, below 2^31;",
    ),
    "time NaN": ("t.csv", f"{OWN}a,0,1,1\n\nb,nan,1,2\n", "t.csv: line 4: arrival_s is 'nan'"),
    "number with underscore": ("t.csv", f"{OWN}a,0,1,1\nb,1_0,1,2\n", "t.csv: line 3: arrival_s is '1_0'"),
    "header with a line end": ("t.csv", '"a\nb",c\n1,2\n', "no known format has the columns a b, c"),
    "time negative": ("t.csv", f"{OWN}a,-1,1,2\n", "t.csv: line 2: arrival_s is '-1'"),
    "bad stamp": (
        "t.csv",
        f"{AZURE}2023-11-16 18:17:03,1,2\n16/11/2023,1,2\n",
        "t.csv: line 3: TIMESTAMP is '16/11/2023'",
    ),
    "uneven": ("t.csv", f"{OWN}a,0,1,2\nb,1,1\n", "t.csv: line 3: 3 values for 4 columns"),
    "nothing left": ("t.csv", f"{OWN}a,0,0,2\n", "t.csv: no row has both prompt and output tokens"),
    "block hashes": (
        "t.csv",
        "prompt_tokens,output_tokens,block_hashes\n5,1,x\n",
        "t.csv: line 2: block_hashes is 'x'",
    ),
    "block count": (
        "t.csv",
        "prompt_tokens,output_tokens,block_hashes\n5,1,1 2\n",
        "2 block hashes for 5 prompt tokens",
    ),
    "unknown keys": ("t.jsonl", '{"a": 1}\n', "t.jsonl: line 1: no known format has the JSON keys a"),
    "no JSON": (
        "t.jsonl",
        '{"timestamp": 1, "input_length": 2, "output_length": 3}\n{"timestamp": 1,\n',
        "t.jsonl: line 2: not JSON",
    ),
    "no object": (
        "t.jsonl",
        '{"timestamp": 1, "input_length": 2, "output_length": 3}\n7\n',
        "t.jsonl: line 2: 7 is no JSON object",
    ),
    "JSON tokens": (
        "t.jsonl",
        '{"timestamp": 1, "input_length": "2", "output_length": 3}\n',
        't.jsonl: line 1: input_length is "2"; wanted: a whole number',
    ),
    "JSON key gone": (
        "t.jsonl",
        '{"timestamp": 1, "input_length": 2, "output_length": 3}\n{"timestamp": 1, "input_length": 2}\n',
        "t.jsonl: line 2: no 'output_length'",
    ),
    "wrong hash count": (
        "t.jsonl",
        '{"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": [1, 2]}\n',
        "t.jsonl: line 1: hash_ids is [1, 2]; wanted: 1 ids",
    ),
    "JSON of something else": ("t.json", "[[64, 0.1]]", "t.json: line 1: no known format"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_refused_with_place_and_value(tmp_path: Path, case: str) -> None:
    name, text, message = BAD_FILES[case]
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(TraceError, match=re.escape(message)) as caught:
        traces.load(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x00\x01\x02\x03" * 100, "a binary file"),
        (b"\xff\xfe\xfa,b\n1,2\n", "not a text file in UTF-8"),
        (gzip.compress(b"a,b\n", mtime=0), "compressed; run gunzip"),
        (b"PAR1 and then nothing", "not a sound Parquet file"),
    ],
)
def test_binary_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "junk.bin"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message) as caught:
        traces.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", BAD_FILES)
def test_refusals_name_the_path_as_it_was_given(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, text, _ = BAD_FILES[case]
    monkeypatch.chdir(tmp_path)
    folder = Path("mine")
    folder.mkdir()
    (folder / name).write_text(text)
    with pytest.raises(TraceError) as caught:
        traces.load(f"mine/{name}")
    assert str(caught.value).startswith(f"mine/{name}: ")


def test_requests_of_one_name_are_refused_in_our_own_form(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{OWN}a,0,1,2\nb,1,3,2\n\na,2,3,2\n")
    with pytest.raises(TraceError, match=r"t\.csv: line 5: request_id 'a' is also that of line 2"):
        traces.load(path)
    parquet = tmp_path / "t.parquet"
    pq.write_table(
        pa.table({"request_id": ["a", "b", "b"], "prompt_tokens": [1] * 3, "output_tokens": [1] * 3}), parquet
    )
    with pytest.raises(TraceError, match=r"t\.parquet: row 2: request_id 'b' is also that of row 1"):
        traces.load(parquet)
    path.write_text("conversation,prompt_tokens,output_tokens\nx,3,4\nx,5,6\n")
    public = traces.load(path)
    assert [request.request_id for request in public] == ["0", "1"]
    assert "requests numbered by row: the source gives a name twice" in public.provenance.notes


@pytest.mark.parametrize(
    ("name", "text", "good", "bad", "said"),
    [
        ("t.csv", OWN + "a,{},1,2\n", "1e12", "1.1e12", "at most 1e+12"),
        ("t.csv", "Timestamp,Request tokens,Response tokens\n{},1,2\n", "1e12", "2e12", "at most 1e+12"),
        ("t.csv", "num_prefill_tokens,num_decode_tokens,arrived_at\n1,2,{}\n", "1e12", "1e300", "at most 1e+12"),
        ("t.csv", "ContextTokens,GeneratedTokens,StartTimeOffset\n1,2,{}\n", "1e21", "2e21", "at most 1e+21"),
        ("t.jsonl", '{{"timestamp": {}, "input_length": 2, "output_length": 3}}\n', "1e15", "2e15", "at most 1e+15"),
        ("t.jsonl", '{{"queued_ts": {}, "input_toks": 2, "output_toks": 3}}\n', "1e12", "2e12", "at most 1e+12"),
    ],
)
def test_arrivals_end_at_1e12_seconds(tmp_path: Path, name: str, text: str, good: str, bad: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text.format(good))
    assert len(traces.load(path)) == 1
    path.write_text(text.format(bad))
    with pytest.raises(TraceError, match=re.escape(said)):
        traces.load(path)


@pytest.mark.parametrize(("mark", "word"), [(";", "semicolons"), ("\t", "tabs")])
def test_columns_that_are_parted_by_something_else_are_told(mark: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,3\n".replace(",", mark))
    with pytest.raises(TraceError, match=f"part columns by commas, not {word}"):
        traces.load(path)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="there is no file that fails as it is read")
def test_a_file_that_fails_as_it_is_read_is_named() -> None:
    with pytest.raises(TraceError, match="/proc/self/mem: cannot be read: "):
        traces.load("/proc/self/mem")


def test_a_missing_file_and_a_plain_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        traces.load(tmp_path / "nothing.csv")
    with pytest.raises(TraceError, match="a folder without chunk"):
        traces.load(tmp_path)


@pytest.mark.parametrize("format", [name for name in traces.FORMATS if name != "azure"])
def test_a_wrong_format_forced_is_refused(tmp_path: Path, format: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{AZURE}2023-11-16 18:17:03,1,2\n")
    with pytest.raises(TraceError):
        traces.load(path, format)


def test_a_forced_format_names_the_missing_column(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{AZURE}2023-11-16 18:17:03,1,2\n")
    with pytest.raises(TraceError, match="format 'burstgpt' needs column 'Timestamp'; the file has TIMESTAMP"):
        traces.load(path, "burstgpt")
    with pytest.raises(TraceError, match="unknown trace format 'nope'; formats: azure"):
        traces.load(path, "nope")
    assert len(traces.load(path, "azure")) == 1

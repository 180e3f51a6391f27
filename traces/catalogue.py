"""Public traces by name: where they are, their licence, and fetching them, checked, into a folder.

Addresses are pinned to a commit or a release. Where the SHA-256 of the whole file is known it is checked;
where it is not, the hash of what came is reported and nothing vouches for it.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from traces.errors import TraceError

_GITHUB = "https://raw.githubusercontent.com"
_AZURE_2023 = f"{_GITHUB}/Azure/AzurePublicDataset/790921015d50dd6aae7f7e47f39ba0e235ad6b08/data"
_AZURE_2024 = "https://github.com/Azure/AzurePublicDataset/releases/download/dataset-llm-2024"
_BURSTGPT = "https://github.com/HPMLL/BurstGPT/releases/download/v2.0"
_TIMEOUT_S = 60.0
_REASON = 60
"""Characters of what a server says of an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicTrace:
    """One file: ``size_bytes`` and ``sha256`` are None where nobody stated them."""

    name: str
    url: str
    about: str
    licence: str
    size_bytes: int | None = None
    sha256: str | None = None

    @property
    def file(self) -> str:
        """Its name on disk."""
        return self.url.rpartition("/")[2]


CATALOGUE: dict[str, PublicTrace] = {
    entry.name: entry
    for entry in (
        PublicTrace(
            name="azure-code-2023",
            url=f"{_AZURE_2023}/AzureLLMInferenceTrace_code.csv",
            about="code completion, 8,819 requests in an hour",
            licence="CC-BY-4.0",
            size_bytes=320_117,
            sha256="54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
        ),
        PublicTrace(
            name="azure-conv-2023",
            url=f"{_AZURE_2023}/AzureLLMInferenceTrace_conv.csv",
            about="conversation, 19,366 requests in an hour",
            licence="CC-BY-4.0",
            size_bytes=719_188,
            sha256="2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        ),
        PublicTrace(
            name="azure-code-2024",
            url=f"{_AZURE_2024}/AzureLLMInferenceTrace_code_1week.csv",
            about="code, 16.8 million requests in a week",
            licence="CC-BY-4.0",
            size_bytes=691_989_454,
        ),
        PublicTrace(
            name="azure-conv-2024",
            url=f"{_AZURE_2024}/AzureLLMInferenceTrace_conv_1week.csv",
            about="conversation, 27.3 million in a week",
            licence="CC-BY-4.0",
            size_bytes=1_100_000_000,
        ),
        PublicTrace(
            name="burstgpt-1",
            url=f"{_BURSTGPT}/BurstGPT_1.csv",
            about="ChatGPT and GPT-4, days 1 to 61",
            licence="CC-BY-4.0",
            size_bytes=52_283_111,
        ),
        PublicTrace(
            name="burstgpt-2",
            url=f"{_BURSTGPT}/BurstGPT_2.csv",
            about="ChatGPT and GPT-4, days 62 to 121",
            licence="CC-BY-4.0",
        ),
        PublicTrace(
            name="burstgpt-3",
            url=f"{_BURSTGPT}/BurstGPT_3.csv",
            about="with sessions, from day 225 on",
            licence="CC-BY-4.0",
        ),
        PublicTrace(
            name="mooncake-conversation",
            url=f"{_GITHUB}/kvcache-ai/Mooncake/a2a4b18ac537fd798d50e6e9f57031ce86419a37"
            "/FAST25-release/traces/conversation_trace.jsonl",
            about="prefix blocks, 12,031 in an hour",
            licence="Apache-2.0",
            size_bytes=3_029_533,
            sha256="b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        ),
        PublicTrace(
            name="vidur-splitwise-code",
            url=f"{_GITHUB}/microsoft/vidur/4f9167b6e76099943b2a8195cb1fcac7d693ead9"
            "/data/processed_traces/splitwise_code.csv",
            about="Azure 2023 code in Vidur's form",
            licence="MIT",
            size_bytes=166_195,
            sha256="f266b907d109d471c61283ab69771c17ad79a18b33ff6e96aa546346f52767a6",
        ),
        PublicTrace(
            name="vidur-splitwise-conv",
            url=f"{_GITHUB}/microsoft/vidur/8e54dd5c137a9b5aa0b6ff512ace6cc7caf8a377"
            "/data/processed_traces/splitwise_conv.csv",
            about="Azure 2023 conversation, Vidur's form",
            licence="MIT",
            size_bytes=382_729,
            sha256="439e4138b7e384f316de614c071f7162be05b8af0cef866f82faacd1b0472249",
        ),
        PublicTrace(
            name="vidur-arxiv",
            url=f"{_GITHUB}/microsoft/vidur/6d98aa8f71696520acc603d87439e77cc78160a7"
            "/data/processed_traces/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
            about="lengths of summaries, at most 4,096",
            licence="MIT",
            size_bytes=884_932,
            sha256="9d3580538d915ca75e4aaaa54590b42dbb17abc6d74c8913310cf07c232adcdc",
        ),
        PublicTrace(
            name="arxiv-long",
            url=f"{_GITHUB}/microsoft/vattention/2de72e9f95661c343b667137eeac141ebeee041d"
            "/pod_attention/scripts/traces/arxiv_summarization_filtered_stats_llama2_tokenizer_pod.csv",
            about="lengths of summaries of long articles",
            licence="MIT",
            size_bytes=112_352,
            sha256="ad25b3049557f99f29033a27d84e65b91f10154768eabb1b926e698677ba03a2",
        ),
        PublicTrace(
            name="sarathi-sharegpt",
            url=f"{_GITHUB}/microsoft/sarathi-serve/72339db5b120614033b317880ad3a05a5e4c9415"
            "/data/processed_traces/sharegpt_8k_filtered_stats_llama2_tokenizer.csv",
            about="lengths of ShareGPT turns, 30,731",
            licence="Apache-2.0",
            size_bytes=949_600,
            sha256="6d6c296302a853e2669a674a96f269283e60c57e60363bd450588a1066919f9f",
        ),
    )
}
"""By name. Data that must not be passed on, or that no single file holds (ServeGen), is not here."""


def cache_folder() -> Path:
    """Where fetched traces are kept unless told otherwise: the user's cache folder."""
    import pooch  # type: ignore[import-untyped]

    return Path(pooch.os_cache("bulletsim")) / "traces"


def fetched(name: str, folder: Path | None = None) -> Path | None:
    """The file of a catalogue trace if it has been fetched, else None."""
    path = (folder or cache_folder()) / known(name).file
    return path if path.exists() else None


def known(name: str) -> PublicTrace:
    """The entry called ``name``; TraceError with the names that there are."""
    if name not in CATALOGUE:
        raise TraceError(f"no public trace is called {name!r}; known: {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def fetch(
    name: str,
    folder: Path | None = None,
    base_url: str | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """The file of a catalogue trace, brought into ``folder`` unless it is there already.

    ``base_url`` is a mirror that has the file under its own name; ``progress`` hears the bytes that have come.
    The file appears only when it has come whole and, where its hash is known, unchanged. Raises TraceError
    if it cannot be had.
    """
    import pooch

    entry = known(name)
    url = entry.url if base_url is None else f"{base_url.rstrip('/')}/{entry.file}"
    try:
        with _quiet(pooch.get_logger()):
            path: str = pooch.retrieve(
                url,
                known_hash=None if entry.sha256 is None else f"sha256:{entry.sha256}",
                fname=entry.file,
                path=folder or cache_folder(),
                downloader=partial(_download, progress),
            )
    except OSError as error:  # before ValueError: a malformed URL is both
        raise TraceError(
            f"{name}: cannot fetch {url} ({_reason(error)}); check the connection, or get the file another way and "
            "give its path"
        ) from None
    except ValueError:
        raise TraceError(
            f"{name}: what {url} sent is not the file known by SHA-256 {entry.sha256}; nothing was kept; try "
            "again, or get the file another way and give its path"
        ) from None
    return Path(path)


def _download(progress: Callable[[int], None] | None, url: str, target: str, pooch: object) -> None:
    """What pooch calls to bring ``url`` to the temporary file ``target``.

    Its own downloader leaves the connection of a refused request open. Raises OSError for whatever goes wrong.
    """
    import requests

    done = 0
    try:
        with requests.get(url, stream=True, timeout=_TIMEOUT_S) as response, Path(target).open("wb") as file:
            response.raise_for_status()
            for chunk in response.iter_content(chunk_size=1 << 16):
                file.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done)
    except ValueError as error:
        # Addresses that what requests is made of cannot read, also such as the server redirects to.
        raise error if isinstance(error, OSError) else OSError(errno.EINVAL, "no address") from None
    if not done:
        raise OSError(errno.ENODATA, "an empty answer")


def _reason(error: OSError) -> str:
    """A few words: what requests says of a failed connection fills lines."""
    response = getattr(error, "response", None)
    if response is not None:
        # Words of the server's own, which may be anything.
        words = "".join(filter(str.isprintable, response.reason or ""))
        return f"HTTP {response.status_code} {words[:_REASON]}".rstrip()
    return error.strerror or type(error).__name__


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """pooch tells of each download by itself; the command does that here."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)

"""Built-in workloads: prompt and output lengths drawn from fitted distributions of public traces.

``workloads.json`` holds, for each workload, knots of the distribution of prompt and of output tokens
and one correlation, with the file they were fitted to and its hash; no rows of the sources are kept.
``benchmarks/workloads.py --fit`` makes the file and checks it.

A margin is a list of (tokens, cumulative share): between two knots log(tokens) is linear in the share,
and a draw is rounded up to a whole token, so a value that many requests have in common is given back
exactly when a knot stands on it and another just below. The two margins are joined by a Gaussian copula:
pairs of correlated normals are drawn and only their ranks used, so no normal distribution function is
ever evaluated. Request i takes the share (rank_i + u_i) / n with u_i uniform: a Latin hypercube sample,
in which even a few hundred requests have the mean and the quantiles of the source whatever the seed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from traces.chance import generator
from traces.errors import TraceError
from traces.request import FloatColumn, IntColumn, Provenance, Trace

FITTED = Path(__file__).with_name("workloads.json")
"""The fitted numbers."""
MOST_REQUESTS = 100_000_000
"""More take tens of GB to draw; a longer test repeats a shorter one with other seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """A distribution of token counts: ``tokens`` rises strictly, ``shares`` is P(X <= tokens), last 1."""

    tokens: tuple[int, ...]
    shares: tuple[float, ...]

    def quantile(self, share: FloatColumn) -> IntColumn:
        """Whole tokens at shares in [0, 1), shape kept."""
        log_tokens = np.log(np.maximum(np.concatenate(([self.tokens[0] - 1.0], self.tokens)), 0.5))
        value = np.exp(np.interp(share, np.concatenate(([0.0], self.shares)), log_tokens))
        # exp(log(k)) may land just above k, and would then be rounded up to k + 1.
        return np.ceil(value * (1 - 1e-12)).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Fitted lengths; ``correlation`` is that of the copula's normals, ``source`` the data and its licence."""

    name: str
    about: str
    prompt: Margin
    output: Margin
    correlation: float
    source: str
    sha256: str
    source_rows: int

    def draw(self, requests: int, seed: int) -> tuple[IntColumn, IntColumn]:
        """Prompt and output tokens, each of shape (requests,); equal arguments give equal draws."""
        rng = generator(seed, f"lengths of {self.name}")
        first = rng.standard_normal(requests)
        second = self.correlation * first + np.sqrt(1 - self.correlation**2) * rng.standard_normal(requests)
        shares = [(_ranks(normals) + rng.random(requests)) / requests for normals in (first, second)]
        return self.prompt.quantile(shares[0]), self.output.quantile(shares[1])


@cache
def workloads() -> dict[str, Workload]:
    """The built-in workloads by name."""
    fitted = json.loads(FITTED.read_text(encoding="utf-8"))["workloads"]
    return {name: _workload(name, entry) for name, entry in fitted.items()}


def workload(name: str, requests: int, seed: int = 0) -> Trace:
    """``requests`` requests of a built-in workload: lengths alone, to be given arrivals.

    Raises TraceError for an unknown name or a count outside 1..MOST_REQUESTS.
    """
    known = workloads()
    if name not in known:
        raise TraceError(f"unknown workload {name!r}; built-in workloads: {', '.join(known)}")
    if requests < 1:
        raise TraceError(f"a workload of {requests} requests was asked for; ask for 1 or more")
    if requests > MOST_REQUESTS:
        raise TraceError(
            f"a workload of {requests} requests was asked for; ask for {MOST_REQUESTS:,} at most, or several seeds"
        )
    fitted = known[name]
    prompt, output = fitted.draw(requests, seed)
    provenance = Provenance(
        source=f"workload:{name}",
        format="workload",
        sha256=fitted.sha256,
        notes=(f"{requests} requests drawn with seed {seed} from lengths fitted to {fitted.source}",),
    )
    return Trace(provenance=provenance, prompt_tokens=prompt, output_tokens=output, name=name)


def _ranks(values: FloatColumn) -> IntColumn:
    ranks = np.empty(len(values), np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return ranks


def _workload(name: str, entry: dict[str, object]) -> Workload:
    fields = dict(entry)
    for part in ("prompt", "output"):
        knots = fields[part]
        assert isinstance(knots, Sequence)
        fields[part] = Margin(tokens=tuple(k for k, _ in knots), shares=tuple(s for _, s in knots))
    return Workload(name=name, **fields)  # type: ignore[arg-type]

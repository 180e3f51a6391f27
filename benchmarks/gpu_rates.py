"""Rates for a validation, around the highest that a device holds by its fitted latency model. Prints JSON.

    python benchmarks/gpu_rates.py out/model.json --model Llama-3.1-8B --trace workload:sharegpt --slots 128

Limits: a TTFT and a TPOT of so many times what the model gives a prompt and a step of the trace's mean length alone on
the device, TTFT in proportion to the prompt, but for no prompt less than for one of mean length. The knee is the rate
up to which chunked prefill keeps nine tenths of the requests within both (sim.metrics.knee), simulated with more
requests than are served for real, for a queue to show; the rates are half of it, the knee, and 1.3 times it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from profiler.devicecalibration import load_calibration  # noqa: E402
from profiler.work import Work  # noqa: E402
from sim.config import LatencySettings, PolicySettings, RunConfig, SloSettings  # noqa: E402
from sim.metrics import attainment, knee  # noqa: E402
from sim.simulate import prepare  # noqa: E402
from traces import open_trace, save, shrunk  # noqa: E402

POLICY = "chunked"
AROUND = (0.5, 1.0, 1.3)
SCALE = 5.0
KEPT = 0.9
MOST_DOUBLINGS = 8
BETWEEN = (0.25, 0.5, 0.75)
BLOCK_TOKENS = 16


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("latency", type=Path, help="a latency model of bulletsim fit")
    parser.add_argument("--model", required=True)
    parser.add_argument("--trace", required=True)
    parser.add_argument("--shrink", type=int, default=1)
    parser.add_argument("--requests", type=int, default=600, help="of each simulation (default %(default)s)")
    parser.add_argument("--slots", type=int, required=True, help="requests that the device may hold")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        print(json.dumps(found(options), indent=1))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def found(options: argparse.Namespace) -> dict[str, Any]:
    """Rates, limits, and the attainment at each rate that was tried."""
    trace = shrunk(open_trace(options.trace, options.seed, options.requests), options.shrink)
    prompt, output = float(trace.prompt_tokens.mean()), float(trace.output_tokens.mean())
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.parquet"
        save(trace, path)
        config = RunConfig(
            trace=str(path),
            rate=1.0,
            policy=PolicySettings(name=POLICY, settings={"max_resident": options.slots}),
            model=options.model,
            device=load_calibration(options.latency).device.name,
            latency=LatencySettings(model=str(options.latency)),
            seed=options.seed,
            kv_blocks=-(-longest // BLOCK_TOKENS) * options.slots,
            block_tokens=BLOCK_TOKENS,
        )
        ttft_s, step_s = _alone(config, round(prompt), round(prompt + output / 2))
        slo = SloSettings(ttft_per_token_s=SCALE * ttft_s / prompt, ttft_floor_s=SCALE * ttft_s, tpot_s=SCALE * step_s)
        config = config.model_copy(update={"slo": slo})
        tried = _tried(config, options.slots / 4 / (ttft_s + output * step_s))
    rate = knee(list(tried), list(tried.values()), KEPT).rate or min(tried)
    rates = [float(f"{part * rate:.3g}") for part in AROUND]
    return {"knee": rate, "rates": rates, "slo": slo.model_dump(), "policy": POLICY, "attainment": tried}


def _alone(config: RunConfig, prompt: int, context: int) -> tuple[float, float]:
    """Seconds of a prompt and of a decode step of one request."""
    latency = prepare(config).latency
    whole = latency.device.sms
    step = Work(decode_requests=1, decode_context_tokens=context)
    return latency.estimate(Work(prefill=((prompt, 0),)), whole).seconds, latency.estimate(step, whole).seconds


def _tried(config: RunConfig, rate: float) -> dict[float, float]:
    """Attainment by rate: doubled or halved from ``rate`` until the target is crossed, and between the last two."""

    def kept(rate: float) -> float:
        prepared = prepare(config.model_copy(update={"rate": rate}))
        return attainment(prepared.run().records, config.slo.value()) or 0.0

    tried = {rate: kept(rate)}
    factor = 2.0 if tried[rate] >= KEPT else 0.5
    for _ in range(MOST_DOUBLINGS):
        before, rate = rate, rate * factor
        tried[rate] = kept(rate)
        if (tried[rate] >= KEPT) != (tried[before] >= KEPT):
            tried |= {between: kept(between) for part in BETWEEN if (between := before + part * (rate - before))}
            break
    return tried


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

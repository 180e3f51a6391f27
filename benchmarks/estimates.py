"""What an estimate costs: microseconds a call of a latency model, milliseconds until it can be asked. Prints Markdown.

    python benchmarks/estimates.py [--device A100-80G] [--model Llama-3.1-8B]

Best of 100 rounds of 5,000 calls on one core, of the roofline and of the fitted model where the device has one.
*Tabulated*: a step whose token counts the model has met, which is what a run's loop asks almost always; a decode step
is of another context each time. *Untabulated*: every call of a shape never asked before, each prompt of another length
up to 8,000 tokens with another cached prefix beside another decode batch, so filling the tables is in the figure. The
times depend on the machine, so the first row is that of one iteration of an empty loop that adds a number.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.paper_kernels import cpu_name, table  # noqa: E402
from profiler import LatencyModel, Work, fitted, roofline  # noqa: E402
from profiler.devicecalibration import built_in, built_in_names, load_calibration  # noqa: E402
from profiler.fittedmodel import tabulated  # noqa: E402

ROUNDS = 100
CALLS = 5000
SEED = 0

ASKED_US = {"decode step, tabulated": 0.5, "any step, untabulated": 10.0}
ASKED_MS = {"load the model's file": 50.0}


def best_us(calls: Callable[[], Iterable[object]], rounds: int = ROUNDS) -> float:
    """Microseconds a call, the best round."""
    found = []
    for _ in range(rounds):
        todo = calls()
        begun = time.process_time()
        count = sum(1 for _ in todo)
        found.append((time.process_time() - begun) / count)
    return 1e6 * min(found)


def fresh(seed: int, count: int) -> list[Work]:
    """Hybrid steps of shapes that hardly repeat."""
    draw = random.Random(seed)
    works = []
    for _ in range(count):
        requests = draw.randint(1, 200)
        chunk = (draw.randint(1, 8000), draw.randint(0, 8000))
        works.append(Work((chunk,), requests, requests * draw.randint(100, 4000)))
    return works


def speeds(model: LatencyModel) -> dict[str, float]:
    """Microseconds by kind of step, less those of the loop that asks."""
    sms = model.device.sms
    half = sms // 2
    prefill = Work(prefill=((2048, 0),), layers=4, head=False)
    decodes = [Work(decode_requests=32, decode_context_tokens=32_000 + step) for step in range(CALLS)]
    hybrid = Work(((512, 1024),), 32, 32_000)
    seeds = itertools.count()
    estimate, cost = model.estimate, model.cost

    def never_asked() -> Iterator[object]:
        works = fresh(next(seeds), CALLS)
        return (estimate(work, sms) for work in works)

    estimate(fresh(next(seeds), 1)[0], sms)
    loop = best_us(lambda: (work for work in decodes))
    calls: dict[str, Callable[[], Iterable[object]]] = {
        "decode step, tabulated": lambda: (estimate(work, sms) for work in decodes),
        "hybrid step, tabulated": lambda: (estimate(hybrid, sms) for _ in decodes),
        "decode step beside a prefill": lambda: (estimate(work, half, prefill, half) for work in decodes),
        "cost of a decode step": lambda: (cost(work) for work in decodes),
        "any step, untabulated": never_asked,
    }
    return {name: best_us(call) - loop for name, call in calls.items()}


def starts(device: str, model: str) -> dict[str, float]:
    """Milliseconds until a fitted model's file is read, until the model is made of it, and of its first answer."""
    path = ROOT / "profiler" / "builtin" / f"{device}.json"
    loads, makes, firsts = [], [], []
    for _ in range(ROUNDS):
        begun = time.process_time()
        calibration = load_calibration(path)
        loads.append(time.process_time() - begun)
        tabulated.cache_clear()
        begun = time.process_time()
        made = fitted(model, calibration)
        makes.append(time.process_time() - begun)
        begun = time.process_time()
        made.estimate(Work(((512, 1024),), 32, 32_000), made.device.sms)
        firsts.append(time.process_time() - begun)
    found = {"load the model's file": loads, "make the model": makes, "first estimate": firsts}
    return {name: 1e3 * min(seconds) for name, seconds in found.items()}


def main() -> int:
    """Print the tables; 1 where what is asked is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="A100-80G")
    parser.add_argument("--model", default="Llama-3.1-8B")
    options = parser.parse_args()
    models: dict[str, LatencyModel] = {"roofline": roofline(options.model, options.device)}
    if built_in(options.device) is not None:
        models["fitted"] = fitted(options.model, options.device)
    found = {name: speeds(model) for name, model in models.items()}
    unit = best_us(lambda: (number + 1 for number in range(CALLS)))
    rows: list[list[object]] = [["one iteration of an empty loop", *(f"{unit:.3f}" for _ in found), ""]]
    for step in next(iter(found.values())):
        rows.append([step, *(f"{each[step]:.2f}" for each in found.values()), ASKED_US.get(step, "")])
    title = f"Microseconds a call, {options.model} on {options.device} ({cpu_name()}, one core)"
    table(title, ("call", *found, "asked"), rows)
    met = all(found[name][step] <= limit for name in found for step, limit in ASKED_US.items())
    if options.device in built_in_names():
        begun = starts(options.device, options.model)
        table(
            "Milliseconds", ("", "found", "asked"), [(n, f"{ms:.1f}", ASKED_MS.get(n, "")) for n, ms in begun.items()]
        )
        met = met and all(begun[name] <= limit for name, limit in ASKED_MS.items())
    print(f"\nAll that is asked is met: {'yes' if met else 'NO'}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())

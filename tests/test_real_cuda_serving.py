"""Every policy on the lanes of a GPU whose streams run at once on the CPU: transformers' tokens, by the wall clock."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profiler.measure import transformer
from real.cuda import CudaLanes
from real.residents import Residents
from sim import ServingLoop
from tests.fake_cuda import LaneRuntime, device_attention
from tests.inline_lanes import NotingExecutor
from tests.reference_model import one_thread
from tests.test_measure_cuda import FakeDriver
from tests.test_real_model import NUMERICS, SPEC, WEIGHTS
from tests.twins import POLICIES, SLOT_TOKENS, Rows, Twin

SLOTS = 6
ROWS: Rows = ((0.0, 17, 12), (0.0, 90, 9), (0.01, 1, 14), (0.02, 63, 8), (0.03, 2, 11))
MODEL: Any = SimpleNamespace(spec=SPEC, numerics=NUMERICS, weights=lambda device, dtype: WEIGHTS)


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twin]:
    with one_thread():
        yield Twin.at(tmp_path_factory.mktemp("twin"))


@pytest.mark.parametrize("label", POLICIES)
def test_tokens_are_those_of_transformers(twin: Twin, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, ready = twin.expected(ROWS), twin.prepared(label, ROWS)
    monkeypatch.setattr(transformer, "attention", device_attention)
    config, runtime = ready.config, LaneRuntime()
    names = [ready.policy.lanes(role) for role in ready.policy.roles(config.instances)]
    lanes = CudaLanes(
        MODEL,
        lanes=names,
        slots=SLOTS,
        slot_tokens=SLOT_TOKENS,
        launch_tokens=256,
        dtype=torch.float32,
        open_runtime=lambda number: runtime,
        driver=FakeDriver(),
    )
    runtime.replayed = 0
    residents = Residents(instances=config.instances, slots=SLOTS, vocab=SPEC.vocab, seed=config.seed)
    executor = NotingExecutor(lanes, residents, layers=SPEC.layers)
    loop = ServingLoop(
        policy=ready.policy,
        arrivals=ready.arrivals.source(ready.trace, config.seed),
        latency=ready.estimator,
        executor=executor,
        instances=config.instances,
        slo=config.slo.value(),
        limits=ready.limits,
    )
    result = loop.run()
    lanes.close()
    assert dict(executor.tokens) == expected
    assert set(result.records.state.tolist()) == {0}
    # Graphs are those of an instance's last lane; DuetServe decodes on the first where it does not split.
    assert runtime.replayed > 0 or label == "duetserve"

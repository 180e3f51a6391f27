"""The loop, the executor and closed-loop arrivals against queueing theory, within 99 % intervals over replications.

The experiments are those of benchmarks/theory.py, which states the formulas. The seeds are fixed: a pass is a pass for
ever, and the interval's width says how sharp the test is.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.theory import (
    CONFIDENCE,
    MM1_SERVICE_S,
    OPEN_REQUESTS,
    REPLICATIONS,
    Experiment,
    closed_throughput,
    exponential_tokens,
    finite_source,
    in_order,
    interval,
    measure,
    sharing,
    waiting,
)

ALIKE = [*waiting(), *sharing(), *finite_source()]


def test_the_intervals_are_worth_having() -> None:
    assert REPLICATIONS >= 20
    assert CONFIDENCE == 0.99


@pytest.mark.parametrize("experiment", ALIKE, ids=lambda experiment: experiment.name)
def test_theory_lies_in_the_interval(experiment: Experiment) -> None:
    """Waits of M/D/1 and M/M/1, and the throughput of users in closed loop, sharing a device or taking turns.

    Under sharing it depends on the service's mean alone; first come, first served does not give it for deterministic
    or hyperexponential service, so a loop that queued instead of re-rating would fail.
    """
    found = measure(experiment)
    assert found.low <= experiment.theory <= found.high
    assert found.width < experiment.widest
    assert found.passes


def test_queueing_in_order_does_not_pass_for_sharing() -> None:
    """The same users on one lane, first come, first served: the interval of deterministic service lies elsewhere."""
    found = measure(in_order())
    assert found.low > closed_throughput(2, 2.0)
    assert found.inside
    assert found.passes


def test_exponential_services_have_the_mean_that_theory_is_given() -> None:
    means = [exponential_tokens(np.random.default_rng([2, i]), OPEN_REQUESTS[0.8]).mean() for i in range(REPLICATIONS)]
    assert np.mean(means) * 1e-3 == pytest.approx(MM1_SERVICE_S, rel=0.02)


def test_the_formulas_of_closed_loops_at_points_known_otherwise() -> None:
    """One user: 1 / (Z + S). Two: the text-book form. Many: the device is the bottleneck, 1 / S."""
    assert closed_throughput(1, 0.5) == pytest.approx(1 / 1.5)
    for a in (0.5, 2.0):
        assert closed_throughput(2, a) == pytest.approx((1 - 1 / (1 + 2 * a + 2 * a * a)) / a)
    assert closed_throughput(50, 0.5) == pytest.approx(2.0)


def test_the_interval_is_students() -> None:
    """Of 1, 2, 3: mean 2, standard error 1 / sqrt(3), and 9.9248 as the 99.5 % quantile at two degrees of freedom."""
    low, high = interval([1.0, 2.0, 3.0])
    assert (low + high) / 2 == pytest.approx(2.0)
    assert (high - low) / 2 == pytest.approx(9.9248 / np.sqrt(3), rel=1e-4)

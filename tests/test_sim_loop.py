"""The loop's seams: the fast path against the plain one, what policies may and may not do, what a run is bounded by."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import SLO, Bullet, ChunkedPrefill, Decision, Disaggregation, LeastLoaded, Policy, RoundRobin, StaticSplit
from policies.api import Chunk, Role, Step, View
from profiler import roofline
from sim import STATES, Limits, PolicyError, RunResult, ServingLoop, SimExecutor
from sim.between import NOTHING_BETWEEN, BetweenSteps
from tests.toys import PlainExecutor, serve, toy_latency, trace_of
from traces import Trace
from traces.arrivals import ClosedLoop, OpenArrivals


def a100_trace() -> Trace:
    rng = np.random.default_rng(11)
    arrivals = np.cumsum(rng.exponential(0.3, 120))
    rows = zip(arrivals.tolist(), rng.integers(1, 3000, 120).tolist(), rng.integers(1, 200, 120).tolist(), strict=True)
    return trace_of(list(rows))


def a100_loop(policy: Policy, instances: int, arrivals: OpenArrivals, *, plain: bool, blocks: int) -> ServingLoop:
    latency = roofline("Llama-3.1-8B", "A100-80G")
    executor = SimExecutor(latency=latency)
    return ServingLoop(
        policy=policy,
        arrivals=arrivals,
        latency=latency,
        executor=PlainExecutor(executor) if plain else executor,
        instances=instances,
        slo=SLO(ttft_s=1.0, tpot_s=0.05),
        limits=Limits(total_blocks=blocks, context_tokens=1 << 17),
        keep_token_times=True,
    )


def a100_run(policy: Policy, instances: int, *, plain: bool, blocks: int) -> RunResult:
    return a100_loop(policy, instances, OpenArrivals(a100_trace()), plain=plain, blocks=blocks).run()


@pytest.mark.parametrize("blocks", [350, 28_000])
@pytest.mark.parametrize(
    ("policy", "instances"),
    [
        (ChunkedPrefill(), 1),
        (ChunkedPrefill(), 2),
        (Bullet(), 1),
        (Bullet(), 2),
        (Disaggregation(), 2),
        (StaticSplit(), 1),
        (StaticSplit(lend=True), 2),
    ],
    ids=["chunked", "2 chunked", "bullet", "2 bullet", "1P1D", "static split", "2 static splits that lend"],
)
def test_coasting_over_decode_steps_changes_nothing(policy: Policy, instances: int, blocks: int):
    """Repeating a decode step without asking is the same, to the bit, as asking and launching each time."""
    fast = a100_run(policy, instances, plain=False, blocks=blocks)
    plain = a100_run(policy, instances, plain=True, blocks=blocks)
    assert_same(fast, plain)


def assert_same(ours: RunResult, theirs: RunResult) -> None:
    """Equal to the bit, in every column."""
    for part in ("records", "steps"):
        a, b = getattr(ours, part), getattr(theirs, part)
        for column in dataclasses.fields(a):
            left, right = getattr(a, column.name), getattr(b, column.name)
            same = left.tobytes() == right.tobytes() if isinstance(left, np.ndarray) else left == right
            assert same, column.name
    assert ours.itl_s.tobytes() == theirs.itl_s.tobytes()
    assert ours.itl_count.tolist() == theirs.itl_count.tolist()
    assert ours.source_s == theirs.source_s
    assert all(ours.token_times[name].tolist() == theirs.token_times[name].tolist() for name in ours.token_times)


@settings(max_examples=120, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 60).map(lambda t: t / 20), st.integers(1, 40), st.integers(1, 25)),
        min_size=1,
        max_size=10,
    ).map(sorted),
    policy=st.sampled_from(
        [
            (ChunkedPrefill(budget_tokens=20), 1),
            (ChunkedPrefill(), 2),
            (Bullet(layers_per_step=2), 1),
            (Bullet(queue_horizon=2, percentile=0.1), 1),
            (Bullet(), 2),
            (Bullet(), 4),
            (Disaggregation(), 2),
            (Disaggregation(decode_instances=2), 3),
            (StaticSplit(layers_per_step=3), 1),
            (StaticSplit(batch_tokens=20, lend=True), 2),
        ]
    ),
    slo=st.sampled_from([SLO(), SLO(ttft_s=0.3), SLO(ttft_s=0.5, tpot_s=0.15)]),
    blocks=st.integers(9, 60),
    users=st.sampled_from([0, 1, 3]),
    until_s=st.sampled_from([None, 1.75]),
    between=st.sampled_from([NOTHING_BETWEEN, BetweenSteps(repartition_s=0.01, handover_s=0.02)]),
)
def test_coasting_changes_nothing_whatever_happens_meanwhile(rows, policy, slo, blocks, users, until_s, between):
    """Times on a grid make completions and arrivals of several instances fall on one instant."""

    def run(plain: bool) -> RunResult:
        source = ClosedLoop(trace_of(rows), users=users, think_s=0.2, seed=1) if users else None
        return serve(
            policy[0],
            rows,
            arrivals=source,
            latency=toy_latency(prefill_token_s=0.005, shared_slowdown=2.0, transfer_token_s=0.005),
            instances=policy[1],
            slo=slo,
            blocks=blocks,
            block_tokens=7,
            until_s=until_s,
            between=between,
            plain=plain,
        )

    assert_same(run(plain=False), run(plain=True))


def test_two_runs_in_one_process_do_not_disturb_each_other():
    """Two loops built side by side and run one after the other give what each gives alone."""
    rows = [(0.0, 30, 5), (0.1, 20, 9), (0.3, 40, 2)]
    alone = serve(ChunkedPrefill(budget_tokens=16), rows)

    def built() -> ServingLoop:
        latency = toy_latency()
        return ServingLoop(
            policy=ChunkedPrefill(budget_tokens=16),
            arrivals=OpenArrivals(trace_of(rows)),
            latency=latency,
            executor=SimExecutor(latency=latency),
            instances=1,
            slo=SLO(),
            limits=Limits(total_blocks=1000, context_tokens=1 << 20),
        )

    first, second = built(), built()
    for loop in (first, second):
        assert loop.run().records.last_token_s.tolist() == alone.records.last_token_s.tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """Answers with one step made from the view by ``make``; anything once nothing is left to do."""

    name: ClassVar[str] = "scripted"
    needs_truth: ClassVar[bool] = False
    fewest_instances: ClassVar[int] = 1
    make: object
    router: LeastLoaded = field(default_factory=LeastLoaded)

    def roles(self, instances: int) -> tuple[Role, ...]:
        mixed: tuple[Role, ...] = ("mixed",)
        return mixed * instances

    def lanes(self, role: Role) -> tuple[str, ...]:
        return ("main",)

    def decide(self, view: View) -> Decision:
        if view.lanes["main"].busy or not (view.waiting or view.prefilling or view.decoding):
            return Decision()
        return Decision((self.make(view),))  # type: ignore[operator]


def first_waiting(view: View):
    return next(iter(view.waiting.values()))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda view: Step("other", 1, decode=True), "lane 'other' is unknown"),
        (
            lambda view: Step("main", 11, (Chunk(first_waiting(view), 5),)),
            "a step on 11 SMs; it takes a whole number",
        ),
        (lambda view: Step("main", 0, (Chunk(first_waiting(view), 5),)), "a step on 0 SMs"),
        (lambda view: Step("main", 1), "a step with nothing in it"),
        (lambda view: Step("main", 1, (5,)), "a step holds a value of the wrong type: "),
        (lambda view: Step("main", 1, preempt=(5,)), "a step holds a value of the wrong type: "),
        (lambda view: Step("main", 5.5, (Chunk(first_waiting(view), 5),)), "a step on 5.5 SMs"),
        (lambda view: Step("main", 5, (Chunk(first_waiting(view), 2.5),)), "a chunk of 2.5 tokens"),
        (
            lambda view: Step("main", 1, (Chunk(first_waiting(view), 99),)),
            "a chunk of 99 tokens; request 0 has 30 left",
        ),
        (lambda view: Step("main", 1, (Chunk(first_waiting(view), 0),)), "a chunk of 0 tokens"),
        (lambda view: Step("main", 1, (Chunk(first_waiting(view), 30),), layers=9), "9 layers of a batch with 4 left"),
        (lambda view: Step("main", 1, transfer=first_waiting(view)), "transfers, and they alone"),
        (lambda view: Step("main", 1, preempt=(first_waiting(view),)), "request 0 cannot be pre-empted now"),
    ],
)
def test_a_step_that_cannot_be_is_refused_with_the_policy_and_the_reason(make, complaint: str):
    with pytest.raises(PolicyError, match="policy scripted at 0 s: ") as caught:
        serve(Scripted(make=make), [(0.0, 30, 2)])
    assert complaint in str(caught.value)


def test_a_step_without_kv_for_it_is_refused():
    with pytest.raises(PolicyError, match="a prefill chunk needs 2 KV blocks of instance 0, 1 are free"):
        serve(
            Scripted(make=lambda v: Step("main", 1, tuple(Chunk(r, r.prefill_tokens) for r in v.waiting.values()))),
            [(0.0, 30, 1), (0.0, 60, 1)],
            blocks=2,
            block_tokens=32,
        )


def boom(view: View) -> Step:
    raise RuntimeError("boom")


def leave(view: View) -> Step:
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (boom, "policy scripted: decide raised RuntimeError: boom (test_sim_loop.py line "),
        (leave, "policy scripted: decide raised SystemExit: 0"),
        (lambda view: view.waiting.clear(), "decide raised AttributeError"),
    ],
)
def test_what_a_policy_raises_comes_back_as_its_error(make, complaint: str):
    with pytest.raises(PolicyError) as caught:
        serve(Scripted(make=make), [(0.0, 30, 2)])
    assert complaint in str(caught.value)


def test_answers_of_the_wrong_kind_are_refused():
    """One word wrong at a time: the decision, its memo, roles, lanes, the router's choice."""

    def refused(complaint: str, **methods: object) -> None:
        bases = {"__slots__": (), **methods}
        wrong = dataclass(frozen=True, kw_only=True)(type("Wrong", (ChunkedPrefill,), bases))
        with pytest.raises(PolicyError, match=complaint):
            serve(wrong(), [(0.0, 5, 1)])

    refused("decide returned 3; it returns a Decision", decide=lambda self, view: 3)
    refused("the steps are a list; make them a tuple", decide=lambda self, view: Decision([]))
    refused("a decision holds 7; it holds Steps", decide=lambda self, view: Decision((7,)))
    refused("the memo is a list, which can change", decide=lambda self, view: Decision((), []))
    refused("roles returned", roles=lambda self, n: ("foo",))
    refused("roles returned", roles=lambda self, n: ("mixed",) * 3)
    refused("no request can be served to its end", roles=lambda self, n: ("prefill",) * n)
    refused("lanes returned", lanes=lambda self, role: ("main", "main"))
    refused("lanes returned", lanes=lambda self, role: ("a", "b", "c"))
    refused("roles raised TypeError", roles=lambda self: ())
    nowhere = type("Nowhere", (), {"route": lambda self, request, loads: 9})()
    with pytest.raises(PolicyError, match="the router chose instance 9 of 0, 1"):
        serve(ChunkedPrefill(router=nowhere), [(0.0, 5, 1)], instances=2)


def test_a_request_in_two_chunks_is_refused():
    def twice(view: View) -> Step:
        return Step("main", 1, (Chunk(first_waiting(view), 5), Chunk(first_waiting(view), 5)))

    with pytest.raises(PolicyError, match="request 0 is in two chunks at once"):
        serve(Scripted(make=twice), [(0.0, 30, 1)])


def test_a_policy_that_leaves_requests_is_told_so():
    with pytest.raises(PolicyError, match="1 requests \\(the first is 0\\) are left with nothing running"):
        serve(Idle(), [(0.0, 5, 1)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle(ChunkedPrefill):
    """Does nothing."""

    def decide(self, view: View) -> Decision:
        return Decision()


def test_a_view_cannot_be_written_to():
    def meddle(view: View) -> Step:
        with pytest.raises(AttributeError, match="read-only"):
            view.slo = SLO()  # type: ignore[misc]
        with pytest.raises(TypeError):
            view.waiting[7] = first_waiting(view)  # type: ignore[index]
        return Step("main", 1, (Chunk(first_waiting(view), 5),))

    serve(Scripted(make=meddle), [(0.0, 5, 1)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Seer(ChunkedPrefill):
    """Notes the true answer length of whoever waits."""

    needs_truth: ClassVar[bool] = True
    seen: list[int] = field(default_factory=list)

    def decide(self, view: View) -> Decision:
        self.seen.extend(view.output_tokens(request) for request in view.waiting.values())  # type: ignore[attr-defined]
        return ChunkedPrefill.decide(self, view)


def test_only_a_policy_that_needs_the_truth_is_shown_answer_lengths():
    seer = Seer()
    serve(seer, [(0.0, 5, 7)])
    assert seer.seen == [7]

    def look(view: View) -> Step:
        request = first_waiting(view)
        assert not hasattr(view, "output_tokens")
        assert not any("output" in name or "answer" in name for name in dir(request))
        return Step("main", 1, (Chunk(request, 5),))

    serve(Scripted(make=look), [(0.0, 5, 1)])


def test_memo_observed_and_outcomes_come_back():
    """A policy gets its memo back, sees finished steps with predicted and measured times, and finished requests."""
    log: list[tuple[object, int, int]] = []

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Counting(ChunkedPrefill):
        def decide(self, view: View) -> Decision:
            count = view.memo if isinstance(view.memo, int) else 0
            log.append((view.memo, len(view.observed), len(view.outcomes)))
            if view.observed:
                last = view.observed[-1]
                assert last.predicted_s == pytest.approx(last.measured_s)
            steps, _ = ChunkedPrefill.decide(self, view)
            return Decision(tuple(step._replace(again=False) for step in steps), count + 1)

    serve(Counting(), [(0.0, 10, 3)], slo=SLO(ttft_s=0.2, tpot_s=0.2))
    # Asked at the arrival, after the prefill, after each of two decode steps.
    assert log == [(None, 0, 0), (1, 1, 0), (2, 2, 0), (3, 3, 1)]


def test_requests_that_can_never_fit_are_rejected_with_a_reason():
    rows = [(0.0, 30, 3), (0.0, 31, 2), (0.0, 31, 3), (0.0, 5, 5)]
    result = serve(ChunkedPrefill(), rows, blocks=2, block_tokens=16)
    # 32 tokens of KV: 30 + 3 - 1 and 31 + 2 - 1 just fit, 31 + 3 - 1 does not.
    assert [STATES[state] for state in result.records.state] == ["finished", "finished", "rejected", "finished"]
    assert result.records.reason == ("", "", "kv_capacity", "")


def test_a_full_queue_rejects_the_newcomer():
    result = serve(ChunkedPrefill(max_resident=1), [(0.0, 100, 1), (0.1, 5, 1), (0.2, 5, 1)], queue_limit=1)
    assert result.records.reason == ("", "", "queue_full")


def test_closed_loop_users_wait_for_their_answers():
    """One user, no thinking: each request arrives as the one before ends."""
    trace = trace_of([(0.0, 10, 2), (0.0, 20, 1), (0.0, 5, 1)])
    result = serve(ChunkedPrefill(), arrivals=ClosedLoop(trace, users=1, think_s=0.0, seed=0))
    assert result.records.arrival_s.tolist() == pytest.approx([0.0, 0.2, 0.4])
    assert result.records.last_token_s.tolist() == pytest.approx([0.2, 0.4, 0.45])


def test_routers():
    rows = [(0.0, 100, 1), (0.1, 10, 1), (0.2, 10, 1), (0.3, 10, 1)]
    turns = serve(ChunkedPrefill(router=RoundRobin()), rows, instances=2)
    assert turns.records.instance.tolist() == [0, 1, 0, 1]
    # The first is on its 100 tokens until 1.0; the other has fewer left each time.
    loads = serve(ChunkedPrefill(), rows, instances=2)
    assert loads.records.instance.tolist() == [0, 1, 1, 1]


def test_a_step_in_flight_at_the_end_held_its_sms():
    """A prefill of 10 s cut at 5 s held all ten SMs for 5 s."""
    assert serve(ChunkedPrefill(), [(0.0, 1000, 1)], until_s=5.0).sm_seconds == pytest.approx(50.0)


def test_requests_on_the_link_count_as_residents_of_where_they_go():
    """1P2D: the second request leaves while the first is on its way to instance 1, and goes to instance 2."""
    rows = [(0.0, 10, 50), (0.15, 10, 50)]
    policy = Disaggregation(decode_instances=2)
    result = serve(policy, rows, instances=3, latency=toy_latency(transfer_token_s=0.05))
    assert result.records.instance.tolist() == [1, 2]


def test_a_preempted_answer_at_a_decode_instance_is_prefilled_again():
    """1P1D with five blocks of 4: both answers outgrow the decode instance, the later goes back and comes again."""
    rows = [(0.0, 7, 6), (0.0, 8, 4)]
    result = serve(Disaggregation(), rows, instances=2, blocks=5, block_tokens=4)
    assert [STATES[state] for state in result.records.state] == ["finished", "finished"]
    assert result.records.preemptions.sum() >= 1
    assert result.records.generated_tokens.tolist() == [6, 4]

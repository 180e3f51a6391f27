"""Figures: what is drawn is what the rows say; files are whole, vector and pixels, equal for equal input."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from policies import POLICIES
from sim.plots.frontier import frontier
from sim.plots.latency import latency
from sim.plots.levels import held
from sim.plots.looks import POLICY_LOOKS
from sim.plots.prediction import errors_over_time, prediction
from sim.plots.series import panels, slo_text
from sim.plots.style import figure, looks, save, styled
from sim.plots.timeline import timeline
from sim.records import StepLog
from sim.results import Row


def row(policy: str, rate_per_gpu: float, attainment: float | None, **changes: object) -> Row:
    settings = {
        "policy": f"2x {policy}",
        "policy_name": policy,
        "trace": "workload:code",
        "model": "Llama-3.1-8B",
        "device": "A100-80G",
        "tensor_parallel": 1,
        "instances": 2,
        "gpus": 2,
        "seed": 0,
        "rate": 2 * rate_per_gpu,
        "slo_ttft_s": None,
        "slo_ttft_per_token_s": 0.0015,
        "slo_ttft_floor_s": 1.0,
        "slo_tpot_s": 0.2,
        "attainment": attainment,
        "ttft_mean_s": 0.2 * rate_per_gpu,
        "ttft_p90_s": 0.4 * rate_per_gpu,
        "tpot_mean_s": 0.02 * rate_per_gpu,
        "tpot_p90_s": 0.03 * rate_per_gpu,
    }
    return settings | changes


ROWS = [
    *(row("chunked", rate, met) for rate, met in ((1, 1.0), (2, 1.0), (4, 0.4))),
    *(row("bullet", rate, met) for rate, met in ((1, 1.0), (2, 1.0), (4, 0.95))),
]


def test_curves_are_by_rate_and_policy_with_their_knees() -> None:
    (panel,) = panels([*ROWS[::-1]])
    assert panel.title == "code: Llama-3.1-8B on 2\N{MULTIPLICATION SIGN} A100-80G"
    curves = {curve.label: curve for curve in panel.curves}
    assert curves["2x chunked"].points("attainment") == [(1, 1.0), (2, 1.0), (4, 0.4)]
    assert [str(curves[label].knee()) for label in ("2x chunked", "2x bullet")] == ["2.33", ">= 4.00"]


def test_seeds_are_averaged_and_missing_values_left_out() -> None:
    rows = [row("chunked", 1, 0.8), row("chunked", 1, 1.0, seed=1), row("chunked", 2, 1.0, ttft_p90_s=None)]
    (curve,) = panels(rows)[0].curves
    assert curve.points("attainment") == [(1, pytest.approx(0.9)), (2, 1.0)]
    assert [rate for rate, _ in curve.points("ttft_p90_s")] == [1]


def test_workloads_and_slos_get_panels_of_their_own() -> None:
    found = panels([*ROWS, row("chunked", 1, 1.0, trace="traces/x.csv"), row("chunked", 1, 1.0, slo_tpot_s=0.1)])
    assert [panel.workload for panel in found] == ["code", "x.csv", "code"]
    assert found[2].title.endswith("TTFT 1.5 ms/token (at least 1 s), TPOT 100 ms")
    assert slo_text(row("chunked", 1, 1, slo_ttft_per_token_s=None, slo_tpot_s=None)) == "no SLO"


def test_a_sweep_without_rates_has_no_axis() -> None:
    with pytest.raises(ValueError, match="no cell of this sweep sets a rate"):
        panels([row("chunked", 1, 1.0, rate=None)])


def test_a_policy_looks_the_same_everywhere() -> None:
    alone = looks([("b", "bullet")])
    among = looks([("x", "own.py:Mine"), ("a", "chunked"), ("b", "bullet"), ("b2", "bullet")])
    assert alone["b"] == among["b"]
    assert (among["b2"].colour, among["b2"].marker) == (among["b"].colour, among["b"].marker)
    assert among["b2"].line != among["b"].line
    assert len({look.colour for look in among.values()}) == 3


def test_frontier_shows_rows_limits_and_knees() -> None:
    drawing = frontier(ROWS)
    ttft, tpot, met = drawing.axes
    assert [axes.get_ylabel() for axes in drawing.axes] == ["P90 TTFT (s)", "P90 TPOT (ms)", "SLO attainment (%)"]
    assert np.asarray(ttft.lines[0].get_ydata()).tolist() == pytest.approx([0.4, 0.8, 1.6])
    assert "SLO" in [text.get_text() for text in tpot.texts]
    assert [text.get_text() for text in met.texts] == ["90%", "\N{GREATER-THAN OR EQUAL TO} 4.00", "2.33", "knee"]
    assert [text.get_text() for text in drawing.legends[0].get_texts()] == ["2x chunked", "2x bullet"]


def test_a_long_title_takes_no_room_from_its_panels() -> None:
    widths = []
    for model in ("short", "a model of a very long name" * 2):
        drawing = frontier([row("bullet", rate, 1.0, model=model) for rate in (1.0, 2.0)])
        drawing.draw_without_rendering()
        widths.append([axes.get_position().width for axes in drawing.axes])
    assert widths[0] == pytest.approx(widths[1])


def test_limits_above_the_data_are_in_view() -> None:
    mean_ttft, _, mean_tpot, _ = latency(ROWS).axes
    assert mean_tpot.get_ylim()[1] > 200
    assert mean_ttft.get_ylabel() == "Mean TTFT (s)"


def test_cells_that_served_nothing_and_limits_far_below_are_drawn(tmp_path: Path) -> None:
    nothing = {f"{metric}_{part}_s": None for metric in ("ttft", "tpot") for part in ("mean", "p90")}
    low = {"slo_ttft_per_token_s": None, "slo_ttft_s": 1e-9}
    for rows in ([row("chunked", 1, 0.0, **nothing)], [row("chunked", 1, 0.0, **low)]):
        for draw in (frontier, latency):
            assert save(draw(rows), tmp_path / "f.png")


def test_held_is_a_time_average() -> None:
    edges = np.array([0.0, 1.0, 2.0, 3.0])
    found = held(edges, np.array([0.5, 2.0]), np.array([1.5, 2.25]), np.array([4.0, 8.0]))
    np.testing.assert_allclose(found, [2.0, 2.0, 2.0])
    np.testing.assert_allclose(held(edges, np.zeros(0), np.zeros(0), np.zeros(0)), 0.0)


def steps() -> StepLog:
    ints = np.array([1, 1, 1, 1])
    return StepLog(
        lane_names=("prefill", "decode"),
        start_s=np.array([0.0, 0.0, 1.0, 1.0]),
        end_s=np.array([1.0, 1.0, 2.0, 2.0]),
        instance=np.array([0, 0, 0, 1]),
        lane=np.array([0, 1, 0, 1], np.int8),
        sms=np.array([54, 54, 108, 27]),
        prefill_tokens=np.array([100, 0, 100, 0]),
        prefill_requests=ints,
        decode_requests=np.array([0, 8, 0, 8]),
        context_tokens=ints,
        layers=ints,
        predicted_s=np.ones(4),
        waiting=np.array([0, 1, 2, 3]),
        free_blocks=np.array([2000, 1990, 1980, 1970]),
    )


def test_timeline_has_a_column_an_instance() -> None:
    drawing = timeline(steps(), sms=108)
    assert len(drawing.axes) == 8
    assert [axes.get_title(loc="left") for axes in drawing.axes[:2]] == ["instance 0", "instance 1"]
    assert {text.get_text() for text in drawing.legends[0].get_texts()} == {
        "prefill SMs",
        "decode SMs",
        "prefill tokens",
        "decode batch",
    }


def test_timeline_needs_steps_in_its_span() -> None:
    with pytest.raises(ValueError, match=r"no step ran between 5 s and 9 s; give another span"):
        timeline(steps(), sms=108, start_s=5.0, end_s=9.0)


def test_a_figure_is_a_vector_and_pixels_and_equal_each_time(tmp_path: Path) -> None:
    first, again = save(frontier(ROWS), tmp_path / "a" / "x.pdf"), save(frontier(ROWS), tmp_path / "b" / "x.pdf")
    assert [path.name for path in first] == ["x.pdf", "x.png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    svg, png = save(frontier(ROWS), tmp_path / "y.svg")
    assert svg.read_text().startswith("<?xml")
    assert png.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"ends in \.pdf, \.svg or \.png"):
        save(frontier(ROWS), tmp_path / "x.jpg")


def test_a_figure_is_no_directory_and_a_failed_one_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.png").mkdir()
    for name in ("x.png", "x.pdf"):
        with pytest.raises(ValueError, match=r"x\.png is a directory"):
            save(frontier(ROWS), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["x.png"]

    def full(self: object, path: Path, **_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(OSError, match=r"y\.pdf") as caught:
        save(frontier(ROWS), tmp_path / "y.pdf")
    assert caught.value.errno == 28
    assert [path.name for path in tmp_path.iterdir()] == ["x.png"]


def test_without_an_slo_there_are_no_knees(tmp_path: Path) -> None:
    rows = [row("chunked", rate, None, slo_ttft_per_token_s=None, slo_tpot_s=None) for rate in (1, 2)]
    (panel,) = panels(rows)
    assert panel.curves[0].knee() is None
    save(frontier(rows), tmp_path / "x.png")  # a warning of its layout would be an error here
    assert [text.get_text() for text in frontier(rows).axes[2].texts] == ["90%", "no SLO given"]
    assert len(latency(rows).axes) == 4


def test_log_axes_have_plain_numbers(tmp_path: Path) -> None:
    rows = [row("chunked", rate, 1.0, ttft_p90_s=ttft) for rate, ttft in ((1, 0.05), (2, 0.07))]
    drawing = frontier(rows)
    save(drawing, tmp_path / "x.svg")
    labels = [label.get_text() for label in drawing.axes[0].get_yticklabels(minor=True)]
    assert "0.06" in labels
    assert all(label.replace(".", "").isdigit() for label in labels if label)


def test_shares_of_overlapping_steps_stay_within_the_device() -> None:
    overlapping = dataclasses.replace(steps(), sms=np.array([108, 54, 108, 27]))
    shares = timeline(overlapping, sms=108).axes[0]
    tops = [float(path.vertices[:, 1].max()) for layer in shares.collections for path in layer.get_paths()]
    assert max(tops) == pytest.approx(100.0)


def test_every_policy_has_a_look_of_its_own() -> None:
    assert set(POLICY_LOOKS) == set(POLICIES)
    colours, markers = zip(*POLICY_LOOKS.values(), strict=True)
    assert len(set(colours)) == len(set(markers)) == len(POLICIES)


def test_predictions_are_drawn_against_what_steps_took_and_over_time() -> None:
    found = dataclasses.replace(steps(), predicted_s=np.array([1.0, 2.0, 0.5, 1.0]))
    prefill, decode, errors = prediction(found).axes
    assert [axes.get_title(loc="left") for axes in (prefill, decode)] == ["prefill", "decode"]
    offsets = np.asarray(prefill.collections[0].get_offsets())
    assert offsets.tolist() == [[1000.0, 1000.0], [1000.0, 500.0]]
    curves = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in errors.lines}
    assert curves["prefill"] == [0.0, -50.0]
    assert curves["decode"] == [100.0, 0.0]
    (axes, _) = prediction(found, start_s=0.5, end_s=1.5).axes[:2]
    assert np.asarray(axes.collections[0].get_offsets()).tolist() == [[1000.0, 500.0]]
    with pytest.raises(ValueError, match="no step that was predicted began"):
        prediction(found, start_s=3.0)


def test_errors_over_time_are_quantiles_of_what_began_in_a_bin() -> None:
    found = dataclasses.replace(steps(), predicted_s=np.array([1.0, 2.0, 0.5, 1.5]))
    low, median, high = errors_over_time(np.array([0.0, 0.5, 1.0, 1.5]), found, np.arange(4))
    np.testing.assert_allclose(low, [0.1, np.nan, -0.4])
    np.testing.assert_allclose(median, [0.5, np.nan, 0.0])
    np.testing.assert_allclose(high, [0.9, np.nan, 0.4])


def test_a_figure_shows_itself_in_a_notebook_in_its_own_style() -> None:
    with styled():
        drawing = figure(3.0, 2.0)
        drawing.subplots().plot([0, 1])
    picture, size = drawing._repr_png_()
    assert picture.startswith(b"\x89PNG")
    assert size == {"width": 300, "height": 200}
    assert struct.unpack(">II", picture[16:24]) == (600, 400)
    with matplotlib.rc_context({"font.size": 30, "xtick.labelsize": 30}):
        assert drawing._repr_png_()[0] == picture

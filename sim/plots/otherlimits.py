"""SLO attainment of one run for every pair of a TTFT and a TPOT limit, as figures and pages draw it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.slo import SLO
from sim.metrics import FINISHED, TARGET_ATTAINMENT, Mask, tpot_s, ttft_limits_s, ttft_s
from sim.records import Records

Floats = NDArray[np.float64]

COLUMNS, ROWS = 24, 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeatMap:
    """``attained`` has shape (rows, columns): the share of requests within a TPOT and a TTFT limit.

    ttft: limits, shape (columns,), in seconds, or where ``relative`` as multiples of each request's own limit, for an
    SLO that grows with the prompt. tpot_s: limits, shape (rows,). slo: the run's own limits among them, if it has both.
    """

    ttft: Floats
    tpot_s: Floats
    attained: Floats
    relative: bool
    slo: tuple[float, float] | None

    def attained_at(self, ttft: float, tpot_s: float) -> float:
        """The share under two of the limits."""
        row, column = np.searchsorted(self.tpot_s, tpot_s), np.searchsorted(self.ttft, ttft)
        return float(self.attained[row, column])

    def least_tpot(self) -> list[int | None]:
        """Of each TTFT limit the row of the least TPOT limit that keeps the target attainment with it."""
        kept = self.attained >= TARGET_ATTAINMENT
        return [int(np.argmax(column)) if column.any() else None for column in kept.T]


def heat_map(records: Records, slo: SLO, inside: Mask) -> HeatMap | None:
    """Of the requests ``inside``, shape (n,), which all count; None where none of them finished.

    Limits run from what hardly a request meets to what all finished ones do, evenly on a log scale, the SLO's own
    among them. A request of one token meets every TPOT limit.
    """
    relative = slo.ttft_per_token_s is not None
    ttft = ttft_s(records) / ttft_limits_s(records, slo) if relative else ttft_s(records)
    done = inside & (records.state == FINISHED)
    if not done.any():
        return None
    tpot = np.nan_to_num(tpot_s(records), nan=0.0)
    own = (1.0 if relative else slo.ttft_s, slo.tpot_s)
    columns, rows = _limits(ttft[done], COLUMNS, own[0]), _limits(tpot[done], ROWS, own[1])
    counts = [
        np.searchsorted(np.sort(ttft[done & (tpot <= limit)]), columns, side="right").astype(np.float64)
        for limit in rows
    ]
    return HeatMap(
        ttft=columns,
        tpot_s=rows,
        attained=np.array(counts) / inside.sum(),
        relative=relative,
        slo=None if own[0] is None or own[1] is None else (own[0], own[1]),
    )


def _limits(values: Floats, count: int, own: float | None) -> Floats:
    """Rising limits, shape (count,), one of which is ``own``; None leaves it out."""
    known = values[values > 0] if (values > 0).any() else np.ones(1)
    low, high = float(np.quantile(known, 0.02)), 1.05 * float(known.max())
    if own is not None:
        low, high = min(low, own / 1.5), max(high, own * 1.5)
    limits = np.geomspace(low, max(high, 1.5 * low), count)
    if own is not None:
        limits[int(np.argmin(np.abs(np.log(limits / own))))] = own
    return limits


def edges_of(limits: Floats) -> list[float]:
    """Between limits the geometric means, and as far beyond the first and the last."""
    middles = np.sqrt(limits[:-1] * limits[1:])
    return [float(limits[0] ** 2 / middles[0]), *middles.tolist(), float(limits[-1] ** 2 / middles[-1])]

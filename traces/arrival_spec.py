"""Arrivals as a word of a command line: "poisson:4", "gamma:4,cv=3", "closed:32,think=1.5"."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from traces import arrivals
from traces.arrivals import ArrivalSource, ClosedLoop, OpenArrivals
from traces.errors import TraceError
from traces.request import Trace
from traces.sessions import SessionLoop

FORMS = (
    "recorded",
    "rescale:RATE",
    "poisson:RATE",
    "gamma:RATE,cv=CV",
    "onoff:RATE,on=SECONDS,off=SECONDS[,periods=exponential]",
    "constant:RATE",
    "spread[:BIN_SECONDS]",
    "closed:USERS[,think=SECONDS][,thinking=constant]",
    "sessions[:[RATE,][think=SECONDS,][thinking=constant]]",
)
"""What :func:`parse_arrivals` takes; RATE in requests/s."""

_NEEDED = {"gamma": ("cv",), "onoff": ("on", "off")}
_CLOSED = ("closed", "sessions")
_OPTIONAL = dict.fromkeys(_CLOSED, ("think",))
_WORDS = {"onoff": "periods", **dict.fromkeys(_CLOSED, "thinking")}
_WITHOUT_VALUE = ("recorded", "spread", "sessions")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalSpec:
    """A parsed form: ``value`` is its rate, users or bin, ``numbers`` and ``word`` what follows the commas."""

    kind: str
    value: float | None = None
    numbers: tuple[tuple[str, float], ...] = ()
    word: str | None = None

    @property
    def closed(self) -> bool:
        """Whether arrivals depend on when requests finish."""
        return self.kind in _CLOSED

    def at_rate(self, rate: float) -> ArrivalSpec:
        """The same process at another mean rate in requests/s; recorded arrivals become rescaled ones."""
        if self.kind in ("closed", "spread"):
            raise TraceError(
                f"arrivals {str(self)!r} have no rate to set; use one of poisson, gamma, onoff, rescale, sessions"
            )
        arrivals.positive("rate", rate, "requests per second, above 0")
        return replace(self, kind="rescale" if self.kind == "recorded" else self.kind, value=rate)

    def apply(self, trace: Trace, seed: int = 0) -> Trace:
        """The trace with these arrivals; TraceError for a closed loop, whose arrivals nobody knows beforehand."""
        if self.closed:
            raise TraceError(
                f"arrivals {str(self)!r} depend on when requests finish, so no trace can hold them; "
                "use them with a command that serves requests, or give an open form such as poisson:4"
            )
        with np.errstate(over="ignore", invalid="ignore"):  # times beyond all bounds are refused by the processes
            return _PROCESSES[self.kind](trace, self, seed)

    def source(self, trace: Trace, seed: int = 0) -> ArrivalSource:
        """What a serving loop pops requests from."""
        if not self.closed:
            return OpenArrivals(self.apply(trace, seed))
        think_s, think = dict(self.numbers).get("think", 0.0), self.word or "exponential"
        if self.kind == "sessions":
            return SessionLoop(trace, think_s, seed, rate=self.value, think=think)
        users = self._required()
        if users != int(users):
            raise TraceError(f"users is {users:g}; give a whole number")
        return ClosedLoop(trace, int(users), think_s, seed, think=think)

    def _required(self) -> float:
        assert self.value is not None
        return self.value

    def _number(self, name: str) -> float:
        return dict(self.numbers)[name]

    def __str__(self) -> str:
        parts = [f"{name}={number:g}" for name, number in self.numbers]
        parts += [f"{_WORDS[self.kind]}={self.word}"] if self.word else []
        value = [] if self.value is None else [f"{self.value:g}"]
        return ":".join([self.kind, ",".join(value + parts)]) if value or parts else self.kind


_PROCESSES: dict[str, Callable[[Trace, ArrivalSpec, int], Trace]] = {
    "recorded": lambda trace, spec, seed: _recorded(trace),
    "rescale": lambda trace, spec, seed: arrivals.rescaled(trace, spec._required()),
    "poisson": lambda trace, spec, seed: arrivals.poisson(trace, spec._required(), seed),
    "gamma": lambda trace, spec, seed: arrivals.gamma(trace, spec._required(), spec._number("cv"), seed),
    "onoff": lambda trace, spec, seed: arrivals.on_off(
        trace,
        spec._required(),
        spec._number("on"),
        spec._number("off"),
        seed,
        periods=spec.word or "constant",
    ),
    "constant": lambda trace, spec, seed: arrivals.constant(trace, spec._required()),
    "spread": lambda trace, spec, seed: arrivals.spread_bins(trace, spec.value, seed),
}


def _recorded(trace: Trace) -> Trace:
    arrivals.recorded(trace)
    return trace


def parse_arrivals(text: str) -> ArrivalSpec:
    """The spec that ``text`` spells, one of FORMS; TraceError says what is wrong and lists them."""
    kind, _, rest = text.strip().partition(":")
    fields = [field.strip() for field in rest.split(",")] if rest.strip() else []
    if kind not in _PROCESSES and kind not in _CLOSED:
        raise _wrong(text, f"no form is called {kind!r}")
    value = None
    if fields and "=" not in fields[0]:
        value = _number(text, fields.pop(0))
    if value is None and kind not in _WITHOUT_VALUE:
        raise _wrong(text, f"{kind} needs a number after the colon")
    if value is not None and kind == "recorded":
        raise _wrong(text, "recorded takes no number")
    numbers, word = _settings(text, kind, fields)
    missing = [name for name in _NEEDED.get(kind, ()) if name not in numbers]
    if missing:
        raise _wrong(text, f"{kind} needs {missing[0]}=")
    spec = ArrivalSpec(kind=kind, value=value, numbers=tuple(numbers.items()), word=word)
    _check(spec)
    return spec


def _settings(text: str, kind: str, fields: list[str]) -> tuple[dict[str, float], str | None]:
    numbers: dict[str, float] = {}
    word = None
    for field in fields:
        name, _, setting = field.partition("=")
        if name == _WORDS.get(kind):
            word = setting
            if word not in ("constant", "exponential"):
                raise _wrong(text, f"{name} is {word!r}; known: constant, exponential")
        elif name in _NEEDED.get(kind, ()) or name in _OPTIONAL.get(kind, ()):
            numbers[name] = _number(text, setting)
        else:
            raise _wrong(text, f"{kind} has no setting {field!r}")
    return numbers, word


def _check(spec: ArrivalSpec) -> None:
    """Refuse a number that no trace could be given, before a trace is read for it."""
    if spec.value is not None:
        name = {"closed": "users", "spread": "bin"}.get(spec.kind, "rate")
        arrivals.positive(name, spec.value, "a number above 0, such as 4")
    for name, number in spec.numbers:
        if name != "think":
            arrivals.positive(name, number, "a number above 0, such as 1.5")
        elif not 0 <= number < math.inf:
            raise TraceError(f"think is {number:g}; give a think time in seconds, 0 or more")


def _number(text: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise _wrong(text, f"{word!r} is no number") from None


def _wrong(text: str, reason: str) -> TraceError:
    return TraceError(f"arrivals {text!r}: {reason}; known forms: {' | '.join(FORMS)}")

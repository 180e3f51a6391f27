"""A policy as the loop asks it: what it raises, and answers of the wrong kind, come back as errors that name it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from policies.api import LINK, Decision, Load, Policy, RequestProgress, Role, Step, View
from sim.instance import PolicyError

ROLES = get_args(Role)

FAULTS = (PolicyError, TypeError, AttributeError)
"""How it is found out that a step asks for what cannot be, where its fields are read; those of the wrong type by a
TypeError or an AttributeError, compiled more of them than uncompiled."""


class Stopped(BaseException):
    """Ends a run between two decisions, where nothing of it is half done."""


class CheckedPolicy:
    """Asks a policy. Every method raises PolicyError where the policy raises or answers nonsense."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        # An answer may be anything until it has been looked at, also for a compiler that believes types.
        self._roles: Callable[[int], object] = policy.roles
        self._lanes: Callable[[Role], object] = policy.lanes
        self._decide: Callable[[View], object] = policy.decide
        self.name = policy.name
        self.needs_truth = policy.needs_truth

    def roles(self, instances: int) -> tuple[Role, ...]:
        """A role for each instance, at least one of which prefills."""
        roles = self._ask("roles", lambda: self._roles(instances))
        if not isinstance(roles, tuple) or len(roles) != instances or not set(roles) <= set(ROLES):
            raise PolicyError(
                f"policy {self.name}: roles returned {roles!r}; it returns one of {', '.join(ROLES)} for each of "
                f"{instances} instances"
            )
        if set(roles) == {"decode"} or ("prefill" in roles and "decode" not in roles):
            raise PolicyError(f"policy {self.name}: with the roles {roles!r} no request can be served to its end")
        return roles

    def lanes(self, role: Role) -> tuple[str, ...]:
        """Distinct lanes, one or two of which use SMs."""
        lanes = self._ask("lanes", lambda: self._lanes(role))
        names = lanes if isinstance(lanes, tuple) and all(isinstance(lane, str) for lane in lanes) else ()
        if len(set(names)) == len(names) and 1 <= len([name for name in names if name != LINK]) <= 2:
            return names
        raise PolicyError(
            f"policy {self.name}: lanes returned {lanes!r}; it returns distinct names, one or two besides {LINK!r}"
        )

    def route(self, request: RequestProgress, loads: Sequence[Load]) -> int:
        """The number of one of the instances offered."""
        chosen = self._ask("router", lambda: self._policy.router.route(request, loads))
        for load in loads:
            if load.instance == chosen:
                return load.instance
        offered = ", ".join(str(load.instance) for load in loads)
        raise PolicyError(f"policy {self.name}: the router chose instance {chosen!r} of {offered}")

    def decide(self, view: View) -> Decision:
        """A decision with a memo that cannot change behind the policy's back."""
        try:
            decision = self._decide(view)
        except (Exception, SystemExit) as error:
            raise self._raised("decide", error) from error
        if not isinstance(decision, Decision):
            raise PolicyError(f"policy {self.name}: decide returned {decision!r}; it returns a Decision")
        answers: tuple[object, ...] = decision
        steps = answers[0]
        if not isinstance(steps, tuple):
            raise PolicyError(f"policy {self.name}: the steps are a {type(steps).__name__}; make them a tuple")
        for step in steps:
            if not isinstance(step, Step):
                raise PolicyError(f"policy {self.name}: a decision holds {step!r}; it holds Steps")
        if type(decision.memo).__hash__ is None:
            raise PolicyError(
                f"policy {self.name}: the memo is a {type(decision.memo).__name__}, which can change; make it a tuple"
            )
        return decision

    def stop(self) -> None:
        """From now on :meth:`decide` raises Stopped; to be called at any moment."""
        self._decide = _stopped

    def refused(self, now_s: float, error: Exception) -> PolicyError:
        """The policy's error for one of FAULTS."""
        wrong = "" if isinstance(error, PolicyError) else "a step holds a value of the wrong type: "
        return PolicyError(f"policy {self.name} at {now_s:.6g} s: {wrong}{error}")

    def _ask(self, what: str, question: Callable[[], object]) -> object:
        try:
            return question()
        except ValueError:
            # A policy's own word on its settings, such as how many instances they are for.
            raise
        except (Exception, SystemExit) as error:
            raise self._raised(what, error) from error

    def _raised(self, what: str, error: BaseException) -> PolicyError:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name} line {place.lineno}"
        return PolicyError(f"policy {self.name}: {what} raised {type(error).__name__}: {error} ({where})")


def _stopped(view: View) -> object:
    raise Stopped

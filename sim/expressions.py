"""Arithmetic and comparisons over a run's settings, as a sweep's file writes them: ``2 * rate_per_gpu <= slo.ttft_s``.

An expression is Python's, cut down to numbers, texts, lists, settings by their dotted names, arithmetic, comparisons,
``and``, ``or``, ``not``, ``in``, ``a if b else c``, and the functions ``min``, ``max``, ``round``, ``ceil``, ``floor``.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from sim.config import shown

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "round": round,
    "ceil": math.ceil,
    "floor": math.floor,
}
_BINARY: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
_UNARY: Mapping[type[ast.AST], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}


class Expression:
    """A parsed expression. Raises ValueError for text that is none."""

    def __init__(self, text: str) -> None:
        self._shown = shown(text)
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
            self._check(self._tree)
        except (SyntaxError, RecursionError, MemoryError):
            raise ValueError(f"{self._shown} is no expression, such as rate_per_gpu <= 8") from None

    def value(self, settings: Mapping[str, Any]) -> Any:
        """What it comes to with ``settings``, by dotted name. Raises ValueError where it cannot be worked out."""
        try:
            return self._value(self._tree, settings)
        except (TypeError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"{self._shown} cannot be worked out: {error}") from None

    def _check(self, node: ast.AST) -> None:
        known = isinstance(node, ast.BoolOp | ast.IfExp | ast.List | ast.Tuple | ast.Compare) or _name(node) is not None
        known |= isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | str | None)
        known |= isinstance(node, ast.BinOp) and type(node.op) in _BINARY
        known |= isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY
        known |= isinstance(node, ast.Call) and not node.keywords and _name(node.func) in FUNCTIONS
        if isinstance(node, ast.Compare):
            known = all(type(one) in _BINARY for one in node.ops)
        if not known:
            part = shown(ast.unparse(node))
            raise ValueError(f"{self._shown}: {part} is beyond what an expression may hold; see docs/files.md")
        if _name(node) is None:
            for part_node in ast.iter_child_nodes(node):
                if isinstance(part_node, ast.expr):
                    self._check(part_node)

    def _value(self, node: ast.expr, settings: Mapping[str, Any]) -> Any:
        name = _name(node)
        if name is not None:
            return self._setting(name, settings)
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.BinOp):
            return _arithmetic(node.op, self._value(node.left, settings), self._value(node.right, settings))
        if isinstance(node, ast.UnaryOp):
            return _UNARY[type(node.op)](self._value(node.operand, settings))
        if isinstance(node, ast.IfExp):
            return self._value(node.body if self._value(node.test, settings) else node.orelse, settings)
        if isinstance(node, ast.BoolOp):
            wanted = isinstance(node.op, ast.Or)
            return next((one for one in self._values(node.values, settings) if bool(one) is wanted), not wanted)
        if isinstance(node, ast.Compare):
            sides = list(self._values([node.left, *node.comparators], settings))
            steps = zip(node.ops, sides, sides[1:], strict=False)
            return all(_BINARY[type(one)](left, right) for one, left, right in steps)
        if isinstance(node, ast.Call):
            return _called(str(_name(node.func)), list(self._values(node.args, settings)))
        assert isinstance(node, ast.List | ast.Tuple)
        return list(self._values(node.elts, settings))

    def _values(self, nodes: list[ast.expr], settings: Mapping[str, Any]) -> Any:
        return (self._value(node, settings) for node in nodes)

    def _setting(self, name: str, settings: Mapping[str, Any]) -> Any:
        if name not in settings:
            raise ValueError(f"{self._shown}: {name} is no setting of this run; known: {', '.join(sorted(settings))}")
        return settings[name]


def _arithmetic(sign: ast.operator, left: Any, right: Any) -> Any:
    """Of numbers alone: a text or a list times a number can be larger than any memory."""
    for side in (left, right):
        if not isinstance(side, Real):
            raise TypeError(f"{shown(side)} is no number")
    return _BINARY[type(sign)](left, right)


def _called(name: str, values: list[Any]) -> Any:
    try:
        return FUNCTIONS[name](*values)
    except ValueError as error:
        raise ArithmeticError(str(error)) from None


def _name(node: ast.AST) -> str | None:
    """The dotted name that a node spells, if it does."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _name(node.value)
        return None if before is None else f"{before}.{node.attr}"
    return None

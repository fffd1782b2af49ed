"""Evaluate an arithmetic expression that a model wrote. The expression is parsed, never executed.

Only numbers, the operators + - * / // % **, parentheses, and the functions and constants below are supported. Integers
are exact, up to MAX_BITS. No step can take long, because no operand can be larger than that.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import Final

from breadcrumbs.runtime.errors import InvalidInput

MAX_LENGTH: Final = 500
MAX_NESTING: Final = 250
"""A sum nests once per term. This allows every sum that fits into MAX_LENGTH."""
MAX_BITS: Final = 4096

Number = int | float

_UNKNOWN = re.compile(r"[^\w\s.,+\-*/%()]", re.ASCII)
_NUMBER_THEN_NAME = re.compile(r"(?<![\w.])(?>(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?)[^\W\d]\w*")

_SIGNS: Final = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-"})  # signs that models use

_CONSTANTS: Final[dict[str, float]] = {"pi": math.pi, "e": math.e, "tau": math.tau}


def evaluate(expression: str) -> Number:
    """Return the value of an expression. Raises InvalidInput with the reason if it has none."""
    if len(expression) > MAX_LENGTH:
        raise InvalidInput(f"the expression is longer than {MAX_LENGTH} characters: compute it in parts")
    expression = " ".join(expression.translate(_SIGNS).split())
    if "^" in expression:
        raise InvalidInput("^ is not supported: write ** for powers")
    if odd := _UNKNOWN.search(expression):
        raise InvalidInput(f"{odd[0]!r} is not supported: {_SUPPORTED}")
    if glued := _NUMBER_THEN_NAME.search(expression):
        raise InvalidInput(f"{glued[0]!r} is not a number: put * between a number and a name")
    try:
        tree = ast.parse(expression, mode="eval")
        value = _value(tree.body, MAX_NESTING)
    except (SyntaxError, RecursionError, MemoryError):
        raise InvalidInput(f"not an arithmetic expression: {_SUPPORTED}") from None
    except ZeroDivisionError:
        raise InvalidInput("division by zero") from None
    except OverflowError:
        raise InvalidInput("the result is too large") from None
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"the expression has no value: {error}") from None
    # 0.1 + 0.2 is 0.3, as on a pocket calculator. Further digits are rounding errors.
    return float(f"{value:.15g}") if isinstance(value, float) else value


def _value(node: ast.expr, levels: int) -> Number:
    if levels == 0:
        raise InvalidInput(f"the expression nests deeper than {MAX_NESTING} levels: compute it in parts")
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            value = _value(operand, levels - 1)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _bounded(_OPERATORS[type(op)](_value(left, levels - 1), _value(right, levels - 1)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*[_value(argument, levels - 1) for argument in arguments]))
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
            raise InvalidInput(f"{name!r} is not supported: {_SUPPORTED}")
    raise InvalidInput(f"not an arithmetic expression: {_SUPPORTED}")


def _bounded(value: object) -> Number:
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise OverflowError
        return value
    if not isinstance(value, float):  # a power of a negative number can be complex
        raise InvalidInput("the result is not a real number")
    if not math.isfinite(value):
        raise OverflowError
    return value


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent * (base.bit_length() - 1) > MAX_BITS:
        raise OverflowError  # before the result is computed
    result: Number = base**exponent
    return result


def _round(value: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > 300:
        raise InvalidInput("the digits of round must be an integer from -300 to 300")
    return round(value, digits) if digits else round(value)


def _with_limit(maximum: int, function: Callable[..., int]) -> Callable[..., int]:
    def bounded(*arguments: Number) -> int:
        if any(abs(argument) > maximum for argument in arguments):
            raise OverflowError
        return function(*arguments)

    return bounded


def _of_arguments(function: Callable[..., Number]) -> Callable[..., Number]:
    def over(*arguments: Number) -> Number:
        return function(arguments)

    return over


_OPERATORS: Final[dict[type[ast.operator], Callable[[Number, Number], object]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}

_FUNCTIONS: Final[dict[str, Callable[..., object]]] = {
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "trunc": math.trunc,
    "round": _round,
    "min": _of_arguments(min),
    "max": _of_arguments(max),
    "sum": _of_arguments(sum),
    "pow": _power,
    "sqrt": math.sqrt,
    "cbrt": math.cbrt,
    "exp": math.exp,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "atan2": math.atan2,
    "sinh": math.sinh,
    "cosh": math.cosh,
    "tanh": math.tanh,
    "degrees": math.degrees,
    "radians": math.radians,
    "hypot": math.hypot,
    "gcd": math.gcd,
    "lcm": math.lcm,
    "factorial": _with_limit(400, math.factorial),
    "comb": _with_limit(1000, math.comb),
    "perm": _with_limit(400, math.perm),
}

_SUPPORTED: Final = (
    f"use numbers, + - * / // % **, parentheses, {', '.join(_CONSTANTS)} and {', '.join(_FUNCTIONS)}"
)

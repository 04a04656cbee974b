r"""Which mathematical expressions are too costly to compute, without computing them; pure.

A few tokens, such as ``9^{9^{9}}`` or ``(10^7)!``, keep a computer algebra system busy for
hours, and a few nested braces its parser. An expression is read here with one pass over its
text, for an upper bound on how many digits its numbers have; symbols count as 1, since powers of
them are not computed.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

MAX_CHARS: Final = 2000
MAX_DEPTH: Final = 10
"""Of brackets of any kind. Each level doubles the time of some parsers of LaTeX."""
MAX_DIGITS: Final = 1_000_000
"""Of a number that would be computed."""
MAX_LITERAL_DIGITS: Final = 500
"""Written out."""
MAX_BINOMIAL_DIGITS: Final = 20_000
MAX_TERMS: Final = 1000
"""Of a sum or product with bounds."""
MAX_EXPANDED_TERMS: Final = 500
"""Of a sum in brackets, to a power."""
MAX_COUNTS: Final = {"=": 60, ",": 300, "&": 200}
"""Of sides of equations, elements of sets, cells of matrices."""

_TOKEN: Final = re.compile(
    r"(?P<number>\d+(?:\.\d*)?|\.\d+)|(?P<command>\\[A-Za-z]+|\\.)|(?P<other>\S)", re.DOTALL
)
_IGNORED: Final = re.compile(
    r"\\(?:left|right|bigg?|Bigg?|[,;:! ]|limits|displaystyle|mathrm|text)\b|~"
)
_THOUSANDS: Final = re.compile(r"(?<=\d)(?:\{,\}|,|\\,)(?=\d{3}(?!\d))")
_OPENING: Final = {"{": "}", "(": ")", "[": "]"}
_CLOSING: Final = frozenset(_OPENING.values())
_REPEATED: Final = frozenset({"\\sum", "\\prod"})
_FRACTIONS: Final = frozenset({"\\frac", "\\dfrac", "\\tfrac", "\\cfrac"})
_BINOMIALS: Final = frozenset({"\\binom", "\\dbinom", "\\tbinom", "\\choose"})
_FACTORIALS: Final = frozenset({"\\Gamma", "\\gamma", "\\factorial"})
_LOG10_2: Final = math.log10(2)


class _TooCostlyError(Exception):
    """The message says what would be."""


def why_too_costly(expression: str) -> str | None:
    """Return why an expression, in LaTeX or plain text, is too costly; None if it is not.

    Total: whatever the text is, it takes time in proportion to its length.
    """
    if len(expression) > MAX_CHARS:
        return f"{len(expression)} characters, at most {MAX_CHARS}"
    for mark, most in MAX_COUNTS.items():
        if expression.count(mark) > most:
            return f'over {most} times "{mark}"'
    if _depth(expression) > MAX_DEPTH:
        return f"brackets nested over {MAX_DEPTH} deep"
    text = _THOUSANDS.sub("", expression.replace("**", "^"))
    try:
        _Reader(_IGNORED.sub(" ", text)).read()
    except _TooCostlyError as exc:
        return str(exc)
    except RecursionError:  # of signs, roots and fractions without brackets
        return "operators nested too deep"
    return None


def _depth(text: str) -> int:
    depth = deepest = 0
    for char in text:
        if char in _OPENING:
            depth += 1
            deepest = max(deepest, depth)
        elif char in _CLOSING:
            depth = max(0, depth - 1)
    return deepest


@dataclass(slots=True)
class _Value:
    """What is known of a part of an expression."""

    log10: float = 0.0
    """At most; at least 0."""
    is_number: bool = False
    """Whether numbers are in it, and so a power of it may be computed."""
    num_terms: int = 1
    """Of a sum in brackets."""
    has_symbols: bool = False
    num_decimals: int = 0
    """Behind the point: what is divided by it can be so much larger."""

    def times(self, other: "_Value") -> "_Value":
        return _Value(
            log10=_checked(self.log10 + other.log10),
            is_number=self.is_number or other.is_number,
            num_terms=max(self.num_terms, other.num_terms),
            has_symbols=self.has_symbols or other.has_symbols,
            num_decimals=self.num_decimals + other.num_decimals,
        )


@dataclass(slots=True)
class _Reader:
    """Reads an expression by recursive descent, to the depth that was checked before."""

    text: str
    _tokens: list[str] = field(init=False)
    _at: int = 0

    def __post_init__(self) -> None:
        self._tokens = list(_tokens(self.text))

    def read(self) -> None:
        while self._at < len(self._tokens):
            self._sum()
            self._at += 1  # past a closing bracket that nothing opened

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        mark = self._peek()
        self._at += 1
        return mark

    def _sum(self) -> _Value:
        """Read up to a closing bracket, or the end."""
        terms = [_Value()]
        divides = False
        while (mark := self._peek()) and mark not in _CLOSING:
            if mark in "+-=<>,;&":
                self._at += 1
                terms.append(_Value())
                divides = False
            elif mark in {"/", "\\div", "\\over"}:
                self._at += 1
                divides = True
            elif mark in "*|" or mark in {"\\cdot", "\\times"}:
                self._at += 1
                divides = False
            else:
                factor = self._power()
                if divides:
                    factor = _Value(
                        log10=float(factor.num_decimals),
                        is_number=factor.is_number,
                        has_symbols=factor.has_symbols,
                    )
                terms[-1] = terms[-1].times(factor)
        largest = max(term.log10 for term in terms)
        return _Value(
            log10=_checked(largest + math.log10(len(terms))),
            is_number=any(term.is_number for term in terms),
            num_terms=sum(1 for term in terms if term.is_number or term.has_symbols) or 1,
            has_symbols=any(term.has_symbols for term in terms),
            num_decimals=max(term.num_decimals for term in terms),
        )

    def _power(self) -> _Value:
        """Read one factor with its exponents, indices and factorials."""
        head = self._peek()
        value = self._atom()
        exponents: list[_Value] = []
        while mark := self._peek():
            if mark == "^":
                self._at += 1
                exponent = self._atom() if self._peek() else _Value()
                exponents.append(self._with_factorials(exponent))
            elif mark == "_":
                self._at += 1
                self._atom()
            elif mark in {"!", "'"}:
                value = self._with_factorials(_raised(value, exponents, head))
                exponents = []
                if mark == "'":
                    self._at += 1
            else:
                break
        return _raised(value, exponents, head)

    def _with_factorials(self, value: _Value) -> _Value:
        while self._peek() == "!":
            self._at += 1
            value = _factorial(value)
        return value

    def _atom(self) -> _Value:  # noqa: PLR0911 - one for each kind
        mark = self._take()
        if mark in _OPENING:
            inner = self._sum()
            self._at += 1
            return inner
        if mark[:1].isdigit() or mark[:1] == ".":
            return _literal(mark)
        if mark in {"-", "+"} and self._peek():  # the sign of an exponent without braces
            return self._power()
        if mark in _FRACTIONS:
            above, below = self._atom(), self._atom()
            return _Value(
                log10=_checked(above.log10 + below.num_decimals),
                is_number=above.is_number or below.is_number,
                has_symbols=above.has_symbols or below.has_symbols,
            )
        if mark in _BINOMIALS:
            return _binomial(self._atom(), self._atom())
        if mark in _FACTORIALS and self._peek() in _OPENING:
            return _factorial(self._atom())
        if mark == "\\sqrt":
            if self._peek() == "[":
                self._atom()
            return self._atom() if self._peek() else _Value()
        if mark.startswith("\\") and self._peek() == "{":
            return self._atom()
        return _Value(has_symbols=mark.isalpha())


def _tokens(text: str) -> Iterator[str]:
    for match in _TOKEN.finditer(text):
        yield match.group()


def _checked(log10: float) -> float:
    if log10 > MAX_DIGITS:
        raise _TooCostlyError(f"a number of over {MAX_DIGITS} digits")
    return log10


def _literal(mark: str) -> _Value:
    whole, _, decimals = mark.partition(".")
    if len(mark) > MAX_LITERAL_DIGITS:
        raise _TooCostlyError(f"a number of {len(mark)} digits written out")
    log10 = math.log10(max(1, int(whole or "0")))
    return _Value(log10=log10, is_number=True, num_decimals=len(decimals))


def _size(value: _Value) -> float:
    """Return at most how large a value is."""
    return 10.0**value.log10 if value.log10 < 300 else math.inf


def _factorial(value: _Value) -> _Value:
    if not value.is_number:
        return value
    size = _size(value)
    return _Value(log10=_checked(size * max(value.log10, _LOG10_2)), is_number=True)


def _binomial(above: _Value, below: _Value) -> _Value:
    size, chosen = _size(above), _size(below)
    log10 = min(size * _LOG10_2, chosen * above.log10)
    if above.is_number and log10 > MAX_BINOMIAL_DIGITS:
        raise _TooCostlyError(f"a binomial coefficient of over {MAX_BINOMIAL_DIGITS} digits")
    return _Value(log10=log10 if above.is_number else 0.0, is_number=above.is_number)


def _raised(base: _Value, exponents: list[_Value], head: str) -> _Value:
    """Return ``base`` to the power of what may itself be powers, the last one first."""
    if not exponents:
        return base
    while len(exponents) > 1:
        last = exponents.pop()
        exponents[-1] = _power_of(exponents[-1], last)
    exponent = exponents[0]
    if head in _REPEATED and exponent.is_number and _size(exponent) > MAX_TERMS:
        raise _TooCostlyError(f"a sum or product of over {MAX_TERMS} terms")
    return _power_of(base, exponent)


def _power_of(base: _Value, exponent: _Value) -> _Value:
    size = _size(exponent) if exponent.is_number else 1.0
    if base.has_symbols and base.num_terms > 1 and size < math.inf:
        num_terms = math.comb(int(min(size, 10_000)) + base.num_terms - 1, base.num_terms - 1)
        if num_terms > MAX_EXPANDED_TERMS:
            raise _TooCostlyError(f"a sum of over {MAX_EXPANDED_TERMS} terms once expanded")
    if not base.is_number:
        return base
    # Of a number below 1 the digits behind the point grow alike.
    log10 = max(base.log10, float(base.num_decimals), _LOG10_2 if base.log10 else 0.0)
    return _Value(
        log10=_checked(log10 * size) if log10 else 0.0,
        is_number=True,
        has_symbols=base.has_symbols,
        num_decimals=base.num_decimals,
    )

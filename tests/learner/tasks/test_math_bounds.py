"""What is too costly to compute, and that honest answers are not."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.tasks.base import RefusedAnswerError
from learner.tasks.math_answers import math_verifier
from learner.tasks.math_bounds import MAX_DEPTH, why_too_costly
from learner.tasks.time_limit import call_within

HONEST = [
    "5",
    "-3.25",
    "1,000,000",
    "1{,}234{,}567",
    "10^{12}",
    "10^{-12}",
    "6.02 \\times 10^{23}",
    "5!",
    "100!",
    "2024!",
    "\\frac{10!}{3!7!}",
    "(n+1)!",
    "n!",
    "2^{10}",
    "2^{2023}",
    "2^{2023}-1",
    "2024^{2024}",
    "2^{1000+24}",
    "2^{2023-2020+1}",
    "2^{\\frac{2023}{2024}}",
    "3^{2^{5}}",
    "2^{2^{4}}+1",
    "x^{2024}",
    "x^{10^{9}}",
    "(x+1)^{100}",
    "(x+y)^{5}",
    "(x+y+z)^{10}",
    "x^{n+1}",
    "e^{x^2}",
    "e^{-\\frac{x^{2}}{2}}",
    "e^{i\\pi}",
    "\\frac{1}{1+\\frac{1}{1+\\frac{1}{1+\\frac{1}{2}}}}",
    "\\frac{\\frac{\\frac{\\frac{1}{2}}{3}}{4}}{5}",
    "\\dfrac{3\\sqrt{3}}{4}",
    "\\sqrt{2+\\sqrt{2+\\sqrt{2}}}",
    "\\sqrt[3]{2}",
    "\\frac{-b\\pm\\sqrt{b^{2}-4ac}}{2a}",
    "\\binom{10}{5}",
    "\\binom{2024}{1012}",
    "\\binom{10^{9}}{2}",
    "\\binom{n}{k}",
    "\\left(\\frac{1}{2},\\frac{3}{4}\\right)",
    "\\{1,2,3,4,5\\}",
    "(-\\infty, 2] \\cup [3, \\infty)",
    "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}",
    "x = 3, y = -2",
    "\\sin^{2}(x) + \\cos^{2}(x) = 1",
    "\\log_{10}(1000)",
    "\\log_{2} 8",
    "101101_{2}",
    "\\sum_{i=1}^{100} i^{2}",
    "\\sum_{k=0}^{\\infty} \\frac{1}{k!}",
    "\\prod_{p} \\frac{1}{1-p^{-s}}",
    "\\int_{0}^{1} x^{2}\\,dx",
    "\\lim_{x \\to 0} \\frac{\\sin x}{x}",
    "45^{\\circ}",
    "90^\\circ",
    "50\\%",
    "\\$12.50",
    "12\\text{ cm}^{2}",
    "f'(x)=3x^{2}",
    "3 + 4*5 - 2**8",
    "(1+2)*(3+4)/7",
    "0.000001",
    "1.05^{30}",
    "1000 \\cdot 1.07^{25}",
    "0.5^{10}",
    "(0.99)^{365}",
    "9" * 101,
    "3.14159265358979323846",
    "|x-3|<5",
    "a_{n}=2^{n}-1",
    "\\text{Alice has } 5 \\text{ apples}",
    "\\overline{AB}",
    "\\frac{2^{101}-2}{3}",
    "\\frac{1}{\\sqrt{1-\\frac{v^{2}}{c^{2}}}}",
    "7^{7^{7}}",
]

COSTLY = [
    "9^{9^{9^{9^9}}}",
    "9^{9^{9}}",
    "9^9^9",
    "9^{9}^{9}",
    "9**9**9",
    "(9^9)^{9^9}",
    "2^{10^{12}}",
    "10^{999999999999}",
    "\\mathrm{9}^{\\mathrm{9}^{\\mathrm{9}^9}}",
    "\\mathbf{9}^{9^{9}}",
    "9^\\mathrm{99999999}",
    "(10^7)!",
    "10000000!",
    "((9!)!)!",
    "9!!!",
    "{9!}!",
    "\\left(10^{7}\\right)!",
    "9^{(9!)!}",
    "9^{\\frac{10^{12}}{3}}",
    "9^{1/0.0000000001}",
    "9^{\\frac{1}{0.0000000001}}",
    "0.1^{10^{9}}",
    "-9^{9^{9}}",
    "1+2\\cdot9^{9^{9}}",
    "\\sqrt{9^{9^{9}}}",
    "\\frac{1}{9^{9^{9}}}",
    "x^{9^{9^{9^{9}}}}",
    "\\binom{10^{9}}{5\\cdot10^{8}}",
    "\\Gamma(10^{8})",
    "\\sum_{i=1}^{10^{10}} i^{i}",
    "\\prod_{i=1}^{99999999} i",
    "\\int_0^{9^{9^9}} x^{x^x} dx",
    "(x+y+z)^{500}",
    "9" * 50_000,
    "=".join(["x"] * 400),
    "\\{" + ",".join(map(str, range(2000))) + "\\}",
    "{" * 3000 + "}" * 3000,
    "\\frac{1}{" * 60 + "2" + "}" * 60,
    "\\sqrt{" * 200 + "2" + "}" * 200,
    "(" * 1500,
    "(x+1)*" * 400 + "1",
    "\\begin{matrix}" + "1&" * 500 + "\\end{matrix}",
    "9^" + "-" * 1500 + "9",
]


@pytest.mark.parametrize("answer", HONEST)
def test_an_honest_answer_is_not_too_costly(answer: str) -> None:
    assert why_too_costly(answer) is None
    assert why_too_costly(f"\\boxed{{{answer}}}") is None


@pytest.mark.parametrize("answer", COSTLY, ids=lambda text: text[:30])
def test_an_answer_that_would_take_ages_is_too_costly(answer: str) -> None:
    assert why_too_costly(answer) is not None
    assert why_too_costly(f"x = {answer}") is not None


@given(st.text(alphabet=string.printable, max_size=300))
def test_any_text_is_judged(text: str) -> None:
    why_too_costly(text)


@given(st.text(alphabet="9^{}()!.,+-/*\\x ", max_size=60))
def test_any_jumble_of_operators_is_judged(text: str) -> None:
    why_too_costly(text)


@given(st.lists(st.sampled_from(["9^{", "\\frac{1}{", "(", "\\sqrt{", "2^{", "("]), max_size=30))
def test_nesting_is_bounded_whatever_it_is_of(parts: list[str]) -> None:
    closing = "".join(")" if part == "(" else "}" for part in reversed(parts))
    text = "".join(parts) + "1" + closing

    if len(parts) > MAX_DEPTH:
        assert why_too_costly(text) is not None


@given(base=st.integers(2, 99), exponent=st.integers(0, 99_999))
def test_a_power_whose_digits_can_be_written_down_is_computed(base: int, exponent: int) -> None:
    assert why_too_costly(f"{base}^{{{exponent}}}") is None


@given(st.integers(2, 10**6), st.integers(7, 10**6), st.integers(8, 100))
def test_a_tower_of_powers_is_never_computed(a: int, b: int, c: int) -> None:
    assert why_too_costly(f"{a}^{{{b}^{{{c}}}}}") is not None


@given(st.integers(1_000_000, 10**30))
def test_the_factorial_of_a_large_number_is_never_computed(number: int) -> None:
    assert why_too_costly(f"{number}!") is not None


@given(
    st.recursive(
        st.integers(0, 999).map(str) | st.sampled_from(["x", "y", "\\pi", "n"]),
        lambda inner: (
            st.tuples(inner, inner).map(lambda ab: f"{ab[0]}+{ab[1]}")
            | st.tuples(inner, inner).map(lambda ab: f"\\frac{{{ab[0]}}}{{{ab[1]}}}")
            | inner.map(lambda a: f"\\sqrt{{{a}}}")
            | inner.map(lambda a: f"({a})")
        ),
        max_leaves=8,
    )
)
def test_sums_fractions_and_roots_of_usual_size_are_not_too_costly(expression: str) -> None:
    if max_depth(expression) <= MAX_DEPTH:
        assert why_too_costly(expression) is None


def max_depth(text: str) -> int:
    depth = deepest = 0
    for char in text:
        depth += (char in "({") - (char in ")}")
        deepest = max(deepest, depth)
    return deepest


@pytest.mark.parametrize("completion", [r"It is \boxed{9^{9^{9}}}.", "$((9!)!)!$", "9^9^9^9"])
def test_what_is_too_costly_is_refused_before_it_is_computed(completion: str) -> None:
    agree = math_verifier()

    with pytest.raises(RefusedAnswerError, match="too costly"):
        call_within(20.0, lambda: agree("5", completion))


def test_what_is_costly_on_the_way_to_an_answer_does_no_harm() -> None:
    agree = math_verifier()

    assert agree("3", r"The last digit of $7^{7^{7^{7}}}$ is \boxed{3}.")
    assert not agree("3", r"The last digit of $7^{7^{7^{7}}}$ is \boxed{4}.")


@pytest.mark.parametrize(
    ("right", "written"),
    [("10^{12}", r"\boxed{1000000000000}"), ("120", r"\boxed{5!}"), ("1/2", "The answer is 1/2.")],
)
def test_answers_are_compared_as_before(right: str, written: str) -> None:
    assert math_verifier()(right, written)

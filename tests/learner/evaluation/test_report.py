"""The tables of an evaluation."""

from learner.evaluation.report import model_by_model

HEAD = ("model", "mean@4", "mean against base")
ROWS = (
    ("base", "0.490 [0.443, 0.540]", ""),
    ("run step 9", "0.930 [0.897, 0.960]", "+0.440 [...]"),
)


def test_what_is_too_wide_for_a_table_is_toldmodel_by_model() -> None:
    assert model_by_model(HEAD, ROWS) == [
        "base",
        "  mean@4             0.490 [0.443, 0.540]",
        "run step 9",
        "  mean@4             0.930 [0.897, 0.960]",
        "  mean against base  +0.440 [...]",
    ]

"""A model that never ends a completion is noticed."""

from learner.training.cut_off import LEAST, CutOffs


def test_that_every_completion_is_cut_is_said_and_again_at_twice_as_many() -> None:
    cut_offs = CutOffs()

    said = [cut_offs.look(num_rollouts=LEAST // 2, truncated_share=1.0) for _ in range(8)]

    assert said == [None, LEAST, None, 2 * LEAST, None, None, None, 4 * LEAST]


def test_one_completion_that_ends_by_itself_is_enough() -> None:
    cut_offs = CutOffs()

    said = [
        cut_offs.look(num_rollouts=LEAST - 1, truncated_share=share)
        for share in (1.0, 0.99, 1.0, 0.99, 1.0, 1.0)
    ]

    assert said == [None, None, None, None, None, 2 * LEAST - 2]

"""How the file descriptors of a node are divided, and what happens when a share is used up."""

from __future__ import annotations

import pytest

from braidmq.base.file_descriptors import FILES_SPARE, TABLES_MAX, Room, plan_files


@pytest.mark.parametrize("files_max", [64, 100, 300, 1024, 4096, 20_000, 1_048_576])
def test_a_plan_never_exceeds_the_descriptors_beyond_the_spare_ones(files_max: int) -> None:
    plan = plan_files(files_max)

    shares = plan.clients + plan.api
    assert shares == 0 or shares + plan.tables + plan.control + FILES_SPARE <= files_max
    assert min(plan) >= 0
    assert 0 < plan.tables <= TABLES_MAX


def test_a_large_limit_is_nearly_all_for_clients_and_a_small_one_leaves_the_log_its_part() -> None:
    assert plan_files(1_048_576).clients > 1_000_000
    assert plan_files(300).clients + plan_files(300).api < 200


def test_a_place_that_is_given_back_can_be_taken_again_and_refusals_are_counted() -> None:
    room = Room(1)

    assert room.take()
    assert not room.take()
    room.give_back()

    assert room.take()
    assert room.refused == 1

"""Check the tiers of tests: what `make test` leaves out is the rest of a matrix, never a whole promise."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from house import ROOT
from tiers import ONLY_EXHAUSTIVE, assign_tiers, only_exhaustive, sampled, values_of

# Tests that only `make test-all` runs, and the test of `make test` that checks the same promise; `::` is in the same file.
EXAMPLES = "tests/e2e/test_examples.py::test_example_runs"
CHOOSE, PROCESSES = "tests/unit/backends/test_choose.py", "tests/unit/training/test_processes.py"
KILLED = "tests/faults/test_processes.py"
SAME_NUMBERS = "tests/contract/test_right_numbers.py::test_processes_change_no_number"
PRECISION = "test_the_precision_of_accelerates_config_file_counts_where_none_is_asked_for"
ALONE = "tests/e2e/test_study.py::test_every_run_is_bit_identical_to_its_run_alone"
STOPPED = "tests/e2e/test_split_models.py::test_a_run_that_was_stopped_ends_as_if_it_never_had"
CHECKED_ELSEWHERE = {
    "tests/e2e/test_course_notes.py": {
        "test_a_pretrained_model_learns_more_than_the_majority": EXAMPLES,
        "test_the_blocks_of_a_note_run": EXAMPLES,
        "test_the_blocks_of_a_note_run_unedited": "tests/e2e/test_run.py::test_a_script_of_another_year_runs_unchanged",
    },
    "tests/e2e/test_notebooks.py": {"test_a_notebook_runs_in_a_kernel_of_jupyter": "::test_the_code_of_a_notebook_runs"},
    "tests/e2e/test_shown_code.py": {
        "test_a_page_can_be_typed": "tests/e2e/test_train_command.py::test_a_banner_says_what_will_happen"
    },
    "tests/faults/test_memory.py": {
        "test_a_hundred_short_trainings_leak_nothing": "::test_many_trainings_need_the_memory_of_one"
    },
    "tests/contract/test_exports.py": {"test_the_lines_for_aotinductor_compile_the_program": "::test_every_task"},
    "tests/contract/test_script_collection.py": {
        "test_at_least_sixty_scripts_find_the_same_or_say_why_not": "::test_a_sample_of_the_scripts_finds_the_same",
    },
    "tests/e2e/test_launchers.py": {
        "test_accelerate_launch_with_a_config_of_two_processes": "::test_torchrun",
        "test_the_precision_of_a_config_is_the_runs": f"{CHOOSE}::{PRECISION}",
        "test_a_config_that_would_not_do_what_it_says_is_refused": f"{CHOOSE}::test_fsdp_of_version_1_is_refused",
        "test_two_machines": "::test_torchrun",
        "test_torchrun_starts_a_run_again_whose_process_was_killed": f"{KILLED}::test_48_one_process_is_killed",
        "test_accelerate_launch_with_a_config_of_fsdp_whose_process_was_killed": STOPPED,
    },
    "tests/e2e/test_seeds.py": {
        "test_a_seed_fails_and_is_resumed_later": "tests/unit/study/test_seeds.py::test_one_fails_and_the_others_continue",
    },
    "tests/e2e/test_split_models.py": {"test_the_weights_of_the_main_process_are_trained": SAME_NUMBERS},
    "tests/e2e/test_script_parts.py": {
        "test_a_resumed_training_in_two_processes_is_bit_identical": "::test_a_resumed_training_is_bit_identical",
    },
    "tests/e2e/test_study.py": {
        "test_a_study_whose_worker_or_all_of_it_is_killed_ends_the_same": "::test_killed_anywhere_it_ends_the_same",
    },
    "tests/e2e/test_study_ray.py": {"test_a_node_is_killed_and_every_run_ends_as_alone": ALONE},
    "tests/faults/test_predictions.py": {
        "test_an_error_of_one_of_two_processes_is_one_message": f"{PROCESSES}::test_one_error_and_its_code",
    },
    "tests/faults/test_processes.py": {
        "test_50_a_signal_to_the_launcher_saves": "::test_50_a_signal_to_one_process_stops_all_at_one_step",
        "test_48_the_launcher_ends_when_a_process_is_killed": f"{PROCESSES}::test_one_error_and_its_code",
        "test_49_an_error_of_all_processes_is_one_message_with_its_exit_code": f"{PROCESSES}::test_one_error_and_its_code",
    },
    "tests/unit/study/test_verification.py": {
        "test_the_run_is_killed_in_the_middle": "::test_all_claims_hold",
        "test_two_processes_have_the_losses_of_one": SAME_NUMBERS,
    },
}


def test_make_test_runs_at_least_one_case_of_every_test(request: pytest.FixtureRequest) -> None:
    """The check sees the tests that this call of pytest collected: all of them in `make test`."""
    known = {f"{path}::{name}" for path, names in CHECKED_ELSEWHERE.items() for name in names}
    assert request.config.stash[ONLY_EXHAUSTIVE] <= known


def test_a_test_that_is_checked_elsewhere_names_a_test() -> None:
    for place, names in CHECKED_ELSEWHERE.items():
        for name in (*(f"::{name}" for name in names), *names.values()):
            path, _, function = name.partition("::")
            assert f"def {function}(" in (ROOT / (path or place)).read_text(encoding="utf-8")


def test_no_test_compares_a_duration() -> None:
    """A busy machine must not make a test fail."""
    clock = re.compile(r"(?:monotonic|perf_counter|time\.time)\(\) - \w+ <")
    found = [
        str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py") if clock.search(path.read_text(encoding="utf-8"))
    ]
    assert not found, "check what happened, not how long it took"


def test_a_sample_covers_as_many_values_as_possible() -> None:
    matrix = [{"family": family, "precision": precision} for family in "abcd" for precision in "xyz"]
    kept = [matrix[position] for position in sorted(sampled(matrix, 4))]
    assert {case["family"] for case in kept} == {*"abcd"}
    assert {case["precision"] for case in kept} == {*"xyz"}
    for number, beginning in ((1, {0}), (2, {0, 1}), (9, {0, 1, 2})):
        assert sampled([{"value": value} for value in "abc"], number) == beginning


@pytest.mark.parametrize("outer", ["a", "b"])
@pytest.mark.parametrize("inner", [1, 2])
def test_the_values_of_stacked_parameters_are_distinguished(inner: int, outer: str, request: pytest.FixtureRequest) -> None:
    assert values_of(request.node) == {"inner": repr(inner), "outer": repr(outer)}


class Case(SimpleNamespace):
    """A collected test case, as far as the tiers look at it."""

    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator) -> None:
        path, _, name = nodeid.partition("::")
        value = int(name.partition("[")[2].strip("]") or 0)
        super().__init__(nodeid=nodeid, path=ROOT / path, callspec=SimpleNamespace(params={"value": value}), marks=[*marks])

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark.mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark)

    def has(self, name: str) -> bool:
        return self.get_closest_marker(name) is not None


def test_a_case_outside_the_sample_is_exhaustive_and_a_test_without_any_other_case_is_found() -> None:
    cases = [Case(f"tests/unit/test_x.py::test_x[{number}]", pytest.mark.sample(2)) for number in range(4)]
    assign_tiers(cases)
    assert [case.has("exhaustive") for case in cases] == [False, False, True, True]
    assert not only_exhaustive(cases)
    cases = [Case("tests/unit/test_x.py::test_x[0]", pytest.mark.exhaustive), Case("tests/unit/test_x.py::test_y")]
    assert only_exhaustive(cases) == {"tests/unit/test_x.py::test_x"}


@pytest.mark.parametrize(("folder", "slow"), [("unit", False), ("architecture", False), ("e2e", True), ("faults", True)])
def test_only_unit_and_architecture_tests_are_fast(folder: str, slow: bool) -> None:
    case = Case(str(Path("tests") / folder / "test_x.py::test_x"))
    assign_tiers([case])
    assert case.has("slow") is slow

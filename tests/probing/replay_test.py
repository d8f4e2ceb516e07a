from __future__ import annotations

import atexit
import dataclasses
import functools
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
from absl.testing import parameterized

from dps_tf.core import UserError
from dps_tf.probing import (
    CURVATURE,
    QUANTITIES,
    Measurer,
    ProgramCache,
    Wanted,
    dataset_of,
    log_spaced,
    read_recorded,
    replay,
)
from dps_tf.store import (
    LocalFiles,
    StateStore,
    SweepLayout,
    close_study,
    read_json,
    write_json,
)
from dps_tf.training import evaluation
from dps_tf.tuning.interruption import Interrupted
from tests.made_up import small_sweeps

FILES = LocalFiles()
DENSE = "blobs-nesterov-none-seed0-b8-s0.0"
PRUNED = "blobs-nesterov-snip-seed0-b8-s0.5"
CELLS = (DENSE, PRUNED)
ERROR, ACCURACY = "validation/classification_error", "validation/accuracy"

TRAINED = ("sweep.sparsities = (0.0, 0.5)", "sweep.sparsity_methods = ('snip',)")
WARM_UP = "workload.fixed = {'label_smoothing': 0.05, 'warmup_steps': 8}"


class LogSpacedTest(parameterized.TestCase):
    @parameterized.parameters(1, 2, 3, 7, 10)
    def test_steps_are_different_ascending_and_as_many_as_there_are(self, times):
        for end in range(2, 300):
            steps = log_spaced(end, times)
            self.assertEqual(steps, sorted(set(steps)))
            self.assertLen(steps, min(times, end - 1))
            self.assertEqual(steps[0], 1)
            if times > 1:
                self.assertEqual(steps[-1], end - 1)

    def test_ratios_are_even_once_whole_numbers_allow_it(self):
        steps = np.array(log_spaced(10_000, 10))
        ratios = steps[4:] / steps[3:-1]
        self.assertLess(ratios.max() / ratios.min(), 1.1)

    def test_trial_of_one_step_is_measured_at_its_only_update(self):
        self.assertEqual(log_spaced(1, 10), [0])


@functools.cache
def swept() -> Path:
    """Returns a sweep of a dense and a pruned cell, trained once for all tests."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    small_sweeps.trained(folder / "sweep", (*TRAINED, WARM_UP))
    return folder / "sweep"


@functools.cache
def compiled() -> ProgramCache:
    """Returns what all tests measure with: compiled once."""
    return ProgramCache()


class Sweep(parameterized.TestCase):
    """Gives each test a copy of the sweep."""

    def setUp(self):
        super().setUp()
        copy = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, copy)
        shutil.copytree(swept(), copy / "sweep")
        self.layout = SweepLayout(str(copy / "sweep"))
        self.said: list[str] = []

    def measurer(self, examples=40, times=4, looks=None, **more):
        wanted = Wanted(examples, times, **(looks or {}))
        given = {"say": self.said.append, "programs": compiled(), **more}
        return Measurer(FILES, self.layout, wanted, **given)

    def study(self, cell=DENSE):
        return read_recorded(FILES, self.layout, cell)


class ReplayTest(Sweep):
    def replayed(self, study, trial, masks=None, looks=None):
        """Returns (the differences that were told, the program)."""
        told: list[str] = []
        dataset = dataset_of(study, None)
        program = compiled().program(study, dataset)
        replay(program, trial, masks, looks or {}, differs=told.append)
        return told, program

    def test_every_trial_repeats_its_record_to_the_bit(self):
        study = self.study()
        for number in range(3):
            trial = study.trial(number)
            self.assertNotEmpty(trial.curve)
            self.assertEqual(self.replayed(study, trial)[0], [])

    def test_looks_see_the_weights_around_their_update(self):
        study = self.study()
        trial = study.trial(study.best_trial())
        seen = {}
        looks = {
            step: lambda before, after, step=step: seen.update({step: (before, after)})
            for step in (0, 1, trial.end - 2, trial.end - 1)
        }
        self.assertEqual(self.replayed(study, trial, looks=looks)[0], [])
        self.assertEqual(set(seen), set(looks))
        for a, b in zip(seen[0][1], seen[1][0], strict=True):
            np.testing.assert_array_equal(a, b)
        state, _ = StateStore(FILES, study.layout.states).load(trial.number)
        self.assertEqual(state.step, trial.end)
        for a, b in zip(seen[trial.end - 1][1], state.arrays, strict=False):
            np.testing.assert_array_equal(a, b)
        self.assertFalse(np.array_equal(seen[0][0][0], seen[0][1][0]))

    @parameterized.parameters("train/loss", "validation/cross_entropy")
    def test_record_that_is_not_repeated_is_told_once(self, column):
        study = self.study()
        trial = study.trial(study.best_trial())
        curve = {
            step: ({**values, column: np.nextafter(values[column], 9.0)}, bound)
            for step, (values, bound) in trial.curve.items()
        }
        told, _ = self.replayed(study, dataclasses.replace(trial, curve=curve))
        self.assertLen(told, 1)
        self.assertIn(f"step {min(curve)}, {column} is", told[0])

    @parameterized.named_parameters(
        ("equal", 0.0, False), ("lower", -0.1, False), ("higher", 0.001, True)
    )
    def test_bound_of_the_record_has_to_hold_and_no_more(self, change, is_told):
        study = self.study()
        trial = study.trial(study.best_trial())
        curve = {
            step: (
                {
                    **values,
                    ERROR: values[ERROR] + change,
                    ACCURACY: values[ACCURACY] - change,
                    "validation/cross_entropy": np.nan,
                },
                True,
            )
            for step, (values, _) in trial.curve.items()
        }
        told, _ = self.replayed(study, dataclasses.replace(trial, curve=curve))
        self.assertEqual(bool(told), is_told)

    def test_trial_that_diverges_now_is_refused(self):
        study = self.study()
        trial = study.trial(study.best_trial())
        wild = dataclasses.replace(trial, point={**trial.point, "learning_rate": 1e30})
        with self.assertRaisesRegex(UserError, "diverged at step"):
            self.replayed(study, wild)

    def test_trial_ends_where_its_record_ends(self):
        study = self.study()
        winner = study.trial(study.best_trial())
        self.assertEqual(winner.end, winner.steps_to_result)
        others = [study.trial(n) for n in range(3) if n != winner.number]
        self.assertEqual([t.end for t in others], [max(t.curve) for t in others])

    def test_unknown_trial_is_refused_with_how_many_there_are(self):
        with self.assertRaisesRegex(UserError, "no trial 3: it has 3"):
            self.study().trial(3)

    def test_other_data_are_refused(self):
        study = self.study()
        study.record["training_inputs"]["content_hash"] = "other"
        with self.assertRaisesRegex(UserError, "is not the one"):
            dataset_of(study, None)


class MeasurerTest(Sweep):
    @parameterized.parameters(*CELLS)
    def test_winner_is_measured_at_every_step_and_quantity_once(self, cell):
        """With masks from the cache of the race."""
        study, scores = self.study(cell), Path(self.layout.scores)
        kept = sorted(file.name for file in scores.iterdir())
        found = self.measurer().measure(cell)
        steps = log_spaced(study.trial(study.best_trial()).end, 4)
        self.assertEqual(set(found["trial"]), {study.best_trial()})
        self.assertCountEqual(
            zip(found["step"], found["quantity"], strict=True),
            [(step, name) for step in steps for name in QUANTITIES],
        )
        self.assertEqual(set(found["examples"]), {40})
        smoothness = found[found["quantity"] == "smoothness"]["value"]
        self.assertTrue((smoothness > 0).all() and np.isfinite(smoothness).all())
        for name, value in study.specification.cell.to_json().items():
            self.assertEqual(set(found[name]), {value})
        self.assertEqual(sorted(file.name for file in scores.iterdir()), kept)
        path = Path(self.layout.cell(cell).measurements)
        before = path.stat().st_mtime_ns
        self.said.clear()
        again = self.measurer().measure(cell)
        self.assertEqual(self.said, [])
        self.assertEqual(path.stat().st_mtime_ns, before)
        pd.testing.assert_frame_equal(again, found)

    def test_other_wishes_replace_what_a_trial_had_and_keep_the_others(self):
        everything = self.measurer(examples=0)
        everything.measure(DENSE, [1])
        self.measurer().measure(DENSE, [0])
        found = self.measurer(times=2).measure(DENSE, [0, 1])
        self.assertEqual(set(found["examples"]), {40})
        self.assertLen(found, 2 * 2 * len(QUANTITIES))
        self.measurer(examples=0, times=2).measure(DENSE, [0])
        both = self.measurer(times=2).measure(DENSE, [1])
        self.assertEqual(set(both["examples"]), {40})

    def test_given_steps_are_looked_at_past_the_goal_too(self):
        study = self.study()
        end = study.trial(study.best_trial()).end
        looks = {"steps": (end + 20, 0, 3), "until": end + 21, "curvature": True}
        found = self.measurer(looks=looks).measure(DENSE)
        self.assertCountEqual(
            zip(found["step"], found["quantity"], strict=True),
            [
                (step, name)
                for step in (0, 3, end + 20)
                for name in QUANTITIES + CURVATURE
            ],
        )
        self.assertTrue(np.isfinite(found[found["quantity"] == "loss"]["value"]).all())
        rate = study.trial(study.best_trial()).point["learning_rate"]
        wide = found.pivot_table(index="step", columns="quantity", values="value")
        np.testing.assert_allclose(
            wide["rate_times_eigenvalue"],
            rate * np.minimum((wide.index + 1) / 8, 1) * wide["largest_eigenvalue"],
            rtol=1e-6,
        )
        # What was measured of the same updates is the same without the rest.
        plain = self.measurer(looks={"steps": (3,)}).measure(DENSE)
        both = plain.merge(found, on=["step", "quantity"], suffixes=("", "_before"))
        self.assertLen(both, len(QUANTITIES))
        np.testing.assert_array_equal(both["value"], both["value_before"])

    def test_step_behind_the_end_is_refused_with_what_to_do(self):
        study = self.study()
        end = study.trial(study.best_trial()).end
        with self.assertRaisesRegex(
            UserError, f"ends at step {end}.*--until={end + 1}"
        ):
            self.measurer(looks={"steps": (end,)}).measure(DENSE)

    def test_changed_record_is_an_error_and_nothing_is_kept(self):
        paths = self.layout.cell(DENSE)
        closed = self.study().closed()
        curves = closed["curves"]
        curves["train/loss"] *= 1 + 1e-15
        close_study(
            FILES,
            paths.root,
            study=closed["studies"].to_dict("records")[0],
            trials=closed["trials"],
            curves=curves,
            work=closed["work"],
        )
        with self.assertRaisesRegex(UserError, "differs at step 5.*not of this code"):
            self.measurer().measure(DENSE)
        self.assertFalse(Path(paths.measurements).exists())
        content = read_json(FILES, paths.study)
        content["environments"][0]["tensorflow"] = "1.0"
        write_json(FILES, paths.study, content)
        with self.assertRaisesRegex(UserError, "tensorflow: recorded '1.0', here"):
            self.measurer().measure(DENSE)

    def test_stop_leaves_what_was_there_and_frees_the_cell(self):
        self.measurer(times=2).measure(DENSE, [0])
        path = Path(self.layout.cell(DENSE).measurements)
        before = path.read_bytes()
        with self.assertRaises(Interrupted):
            self.measurer(stop=lambda: True).measure(DENSE, [0, 1])
        self.assertEqual(path.read_bytes(), before)
        self.assertLen(self.measurer(times=1).measure(DENSE, [1]), len(QUANTITIES))

    def test_torn_file_is_set_aside_and_measured_anew(self):
        first = self.measurer(times=1).measure(DENSE)
        path = Path(self.layout.cell(DENSE).measurements)
        path.write_bytes(path.read_bytes()[:-100])
        again = self.measurer(times=1).measure(DENSE)
        pd.testing.assert_frame_equal(again, first)
        self.assertNotEmpty(list(path.parent.glob("*.damaged-1")))

    def test_cell_that_is_not_finished_or_not_there_is_refused(self):
        Path(self.layout.cell(DENSE).closed).unlink()
        with self.assertRaisesRegex(UserError, "not finished"):
            self.measurer().measure(DENSE)
        with self.assertRaisesRegex(UserError, "did you mean"):
            self.measurer().measure(DENSE + "0")

    @parameterized.parameters((1, 10), (-5, 10), (10, 0))
    def test_meaningless_wishes_are_refused(self, examples, times):
        with self.assertRaisesRegex(UserError, "must be .*at least"):
            Wanted(examples, times)


class OtherStudiesTest(parameterized.TestCase):
    def trained(self, bindings: list[str]) -> SweepLayout:
        """Returns a sweep of its own, which is removed behind the test."""
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        return small_sweeps.trained(folder / "sweep", bindings)

    @mock.patch.object(evaluation, "GOAL_BATCH_SIZE", 9)
    def test_bounds_further_splits_and_a_shared_order_are_repeated(self):
        layout = self.trained(
            [
                "workload.network = 'mlp_batch_norm'",
                "workload.network_arguments = {'widths': (6,)}",
                "workload.order = 'shared'",
                "workload.points = 2",
                "workload.test = 'carved'",
                "sweep.evaluation_mode = 'goal'",
                "sweep.further_splits = {'test': 'ends', 'train': 'always'}",
                "goal.threshold = 0.15",
            ],
        )
        study = read_recorded(FILES, layout, DENSE)
        bounds = [b for n in range(2) for _, b in study.trial(n).curve.values()]
        self.assertTrue(any(bounds))
        given = {"say": lambda said: None, "programs": compiled()}
        measurer = Measurer(FILES, layout, Wanted(20, 2), **given)
        self.assertLen(measurer.measure(DENSE, [0, 1]), 2 * 2 * len(QUANTITIES))
        trial = study.trial(study.best_trial())
        step, (metrics, is_bound) = max(trial.curve.items())
        program = compiled().program(study, dataset_of(study, None))
        for name in ("test/accuracy", "train/accuracy"):
            other, told = {**metrics, name: metrics[name] + 0.5}, []
            curve = {**trial.curve, step: (other, is_bound)}
            changed = dataclasses.replace(trial, curve=curve)
            replay(program, changed, None, {}, differs=told.append)
            self.assertLen(told, 1)
            self.assertIn(f"at step {step}, {name} is", told[0])

    def test_cell_without_a_winner_says_so(self):
        layout = self.trained(["goal.threshold = -1.0", "workload.points = 1"])
        said: list[str] = []
        measurer = Measurer(FILES, layout, Wanted(20, 2), say=said.append)
        self.assertEmpty(measurer.measure(DENSE))
        self.assertIn("no trial reached the goal", said[0])
        self.assertLen(measurer.measure(DENSE, [0]), 2 * len(QUANTITIES))

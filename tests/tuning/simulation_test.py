from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
from absl.testing import parameterized

from dps_tf import models
from dps_tf.analysis.loading import load
from dps_tf.core import Job, NoisyQuadratic, StudyResult, StudySpecification, UserError
from dps_tf.probing import Measurer, Wanted
from dps_tf.store import LocalFiles, SweepLayout
from dps_tf.tuning import simulation
from tests.core.quadratic_search import steps_to_loss
from tests.made_up import small_sweeps

EMA = (
    "workload.optimizer = 'ema'",
    "workload.space = {'learning_rate': ('log', 1e-2, 2.0), "
    "'momentum': ('reverse_log', 0.5, 0.99)}",
)


def closed_form(study: StudySpecification) -> tuple[int, int] | None:
    """Returns K* of a study and its trial, from the model alone."""
    workload, cell = study.workload, study.cell
    model = NoisyQuadratic(**workload.network_arguments)
    found = []
    for number, point in enumerate(workload.draw(cell.seed, workload.points)):
        steps = steps_to_loss(
            model,
            workload.optimizer,
            point["learning_rate"],
            point.get("momentum", 0.0),
            cell.batch_size,
            target=study.goal.threshold,
            maximum_steps=study.rule.last_evaluation,
        )
        if steps is not None:
            found.append((study.evaluations.at_or_after(steps), number))
    return min(found, default=None)


class SimulatedSweepTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.sweep_dir = self.folder / "sweep"

    def run_without_networks(self, sweep):
        with mock.patch.object(models, "build", side_effect=AssertionError):
            return small_sweeps.launched(self.sweep_dir, sweep)

    @parameterized.parameters(
        ("smoke/nqm_preconditioned", ()),
        ("smoke/nqm_sgd", ("workload.points = 12", "sweep.batch_sizes = (7, 4096)")),
        ("smoke/nqm_momentum", ("sweep.seeds = (1, 2)", "sweep.batch_sizes = (64,)")),
        ("smoke/nqm_momentum", EMA),
        (
            "smoke/nqm_sgd",
            ("sweep.search_mode = 'exhaustive'", "sweep.batch_sizes = (64,)"),
        ),
    )
    def test_steps_to_result_of_every_cell_are_those_of_the_closed_form(
        self, name, more
    ):
        sweep = small_sweeps.configured(more, [name])
        outcome = self.run_without_networks(sweep)
        reached = 0
        for study in sweep.studies:
            result: StudyResult = outcome.ran[study.cell.name]
            expected = closed_form(study)
            first = result.finishers[0] if result.finishers else None
            self.assertEqual(first, expected)
            reached += expected is not None
        self.assertGreater(reached, 0)
        again = small_sweeps.launched(self.sweep_dir, sweep)
        self.assertLen(again.finished_before, len(sweep.studies))

    def test_report_reads_the_sweep_like_any_other(self):
        sweep = small_sweeps.configured((), ["smoke/nqm_sgd"])
        self.run_without_networks(sweep)
        tables = load(self.sweep_dir)
        self.assertEqual(tables.problems, ())
        results = tables.results.set_index("batch_size")
        model = NoisyQuadratic(**sweep.studies[0].workload.network_arguments)
        for study in sweep.studies:
            row = results.loc[study.cell.batch_size]
            steps, trial = closed_form(study)
            self.assertEqual(
                (row["steps_to_result"], row["best_trial"]), (steps, trial)
            )
            self.assertEqual(row["bracket_low"], steps - study.evaluations.interval)
            curve = tables.curves[
                (tables.curves["batch_size"] == study.cell.batch_size)
                & (tables.curves["trial"] == trial)
            ]
            losses = model.loss(
                "sgd", row["learning_rate"], 0.0, study.cell.batch_size, curve["step"]
            )
            np.testing.assert_array_equal(curve[simulation.METRIC], losses)
        self.assertEqual(set(tables.studies["evaluation_examples"]), {0})

    def test_simulated_cells_have_nothing_to_measure(self):
        sweep = small_sweeps.configured(
            ("sweep.batch_sizes = (1024,)",), ["smoke/nqm_sgd"]
        )
        self.run_without_networks(sweep)
        said: list[str] = []
        layout = SweepLayout(str(self.sweep_dir))
        measurer = Measurer(LocalFiles(), layout, Wanted(), say=said.append)
        self.assertEmpty(measurer.measure(sweep.studies[0].cell.name))
        self.assertIn("no network was trained", said[0])


class SimulatedRunnerTest(parameterized.TestCase):
    def study(self, *more):
        return small_sweeps.configured(more, ["smoke/nqm_sgd"]).studies[0]

    def test_turns_go_on_from_the_state_of_the_one_before(self):
        study = self.study()
        point = {"learning_rate": 0.5}
        runner = simulation.SimulatedRunner(study)
        (first,) = runner.run(0, [Job(0, point, None, 5)], lambda: False)
        (second,) = runner.run(0, [Job(0, point, first.state, 6)], lambda: False)
        self.assertEqual((first.steps_executed, second.steps_executed), (5, 1))
        fresh = simulation.SimulatedRunner(study)
        (alone,) = fresh.run(0, [Job(0, point, first.state, 6)], lambda: False)
        self.assertEqual(alone.metrics, second.metrics)
        self.assertEqual(alone.state, second.state)

    def test_divergence_is_at_the_first_step_beyond_float64(self):
        study = self.study("evaluation.minimum = 1000")
        runner = simulation.SimulatedRunner(study)
        point = {"learning_rate": 3.0}
        (report,) = runner.run(0, [Job(0, point, None, 1000)], lambda: False)
        self.assertIsNone(report.metrics)
        step = report.diverged_step
        self.assertEqual((report.step, report.state.step), (step, step))
        model = simulation.model_of(study.workload)
        around = model.loss("sgd", 3.0, 0.0, study.cell.batch_size, [step - 1, step])
        np.testing.assert_array_equal(np.isfinite(around), [True, False])

    def test_momentum_has_the_default_of_training(self):
        more = ("workload.space = {'learning_rate': ('log', 1e-2, 1.0)}",)
        study = small_sweeps.configured(more, ["smoke/nqm_momentum"]).studies[0]
        runner = simulation.SimulatedRunner(study)
        losses = [
            runner.run(0, [Job(trial, point, None, 4)], bool)[0].metrics
            for trial, point in enumerate(
                ({"learning_rate": 0.1}, {"learning_rate": 0.1, "momentum": 0.9})
            )
        ]
        self.assertEqual(losses[0], losses[1])

    def test_training_inputs_tell_of_the_model(self):
        one, other = (
            simulation.SimulatedBackend()
            .prepare(self.study(*more))
            .training_inputs["content_hash"]
            for more in ((), ("workload.network_arguments = {'dimensions': 300}",))
        )
        self.assertNotEqual(one, other)

    @parameterized.parameters(
        ("workload.network = 'noisy_qadratic'", "did you mean 'noisy_quadratic'"),
        ("workload.network_arguments = {'bin': 3}", "'bin' is unknown"),
        ("workload.network_arguments = {'bins': 2.5}", "whole number"),
        ("workload.network_arguments = {'bins': 0}", "bins is 0"),
        ("workload.network_arguments = {'dimensions': True}", "whole number"),
        ("workload.dataset_arguments = {'examples': 3}", "takes none"),
        ("workload.optimizer = 'adam'", "'adam' is unknown"),
        ("workload.space = {'momentum': ('linear', 0.1, 0.2)}", "'momentum'"),
        ("workload.optimizer = 'ema'", "needs momentum"),
        ("workload.fixed = {'label_smoothing': 0.1}", "'label_smoothing'"),
        ("workload.learning_rate_schedule = 'linear'", "'constant' only"),
        ("goal.metric = 'validation/accuracy'", "'validation/loss' only"),
        ("sweep.evaluation_mode = 'goal'", "'exact' only"),
    )
    def test_what_cannot_be_simulated_is_refused(self, binding, expected):
        with self.assertRaisesRegex(UserError, expected):
            self.study(binding)

    def test_pruned_cells_are_refused(self):
        with self.assertRaisesRegex(UserError, "sparsity is 0.5"):
            self.study(
                "sweep.sparsities = (0.5,)", "sweep.sparsity_methods = ('snip',)"
            )

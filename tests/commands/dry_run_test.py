"""Does `train --dry_run` find by the front door what would stop a sweep later on?"""

from __future__ import annotations

import tempfile

import pytest
import tensorflow as tf

from dps_tf import sparsity
from dps_tf._keras import keras
from dps_tf.cli.sweep_run import SweepRun
from dps_tf.core import UserError
from dps_tf.models import NETWORKS
from dps_tf.training import TrainingRunner
from dps_tf.tuning.options import Options
from dps_tf.workloads.reading import configure
from tests.launch.dry_runs import dry_run

TINY = ["--gin_file=smoke/quickstart", "--gin_bindings=sweep.batch_sizes = (16,)"]
MISTAKES = {
    "a misspelt metric": (
        "goal.metric = 'validation/clasification_error'",
        "did you mean 'validation/classification_error'",
    ),
    "a metaparameter of the schedule that is missing": (
        "workload.learning_rate_schedule = 'linear'",
        "needs decay_steps",
    ),
    "a batch that is larger than the data": (
        "sweep.batch_sizes = (16, 5000)",
        "batch size 5000 is larger than the training set of digits",
    ),
    "an argument that the network does not have": (
        "workload.network_arguments = {'depth': 3}",
        "network 'mlp' reads nothing named 'depth'",
    ),
    "an argument that the network cannot be built with": (
        "workload.network_arguments = {'widths': ('sixty-four',)}",
        "network 'mlp' with {'widths': ",
    ),
    "data that are not prepared": (
        "workload.dataset = 'mnist'",
        "python -m dps_tf.prepare --dataset=mnist",
    ),
    "an optimizer whose points lack a metaparameter": (
        "workload.space = None\nworkload.points = [{'label_smoothing': 0.1}]",
        "learning_rate",
    ),
    "a negative seed of the split": (
        "workload.split_seed = -1",
        "split_seed is -1; it must be a whole number, at least 0",
    ),
    "a split in the place of a number": (
        "workload.validation_examples = 'given'",
        "validation_examples is 'given'; it must be a whole number",
    ),
    "a sparsity method that is not there and prunes no cell": (
        "sweep.sparsity_methods = ('snap',)",
        "did you mean 'snip'",
    ),
    "a sparsity method that is not there": (
        "sweep.sparsities = (0.5,)\nsweep.sparsity_methods = ('snap',)",
        "did you mean 'snip'",
    ),
}


@pytest.fixture(scope="module", name="told")
def _told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Returns exit code and output by mistake; one process runs all of them."""
    folder = tmp_path_factory.mktemp("dry")
    (folder / "notes").write_text("not a sweep")
    commands = {
        name: [*TINY, *(f"--gin_bindings={line}" for line in bindings.split("\n"))]
        for name, (bindings, _) in MISTAKES.items()
    }
    commands["right"] = [*TINY, "--sweep_dir=new"]
    commands["taken"] = [*TINY, "--sweep_dir=notes/sweep"]
    commands["slots"] = [*TINY, "--slots=-1"]
    commands["streamed"] = [*TINY, "--data_placement=stream", "--sweep_dir=new"]
    answers = dry_run(list(commands.values()), folder, opens_data=True)
    assert [path.name for path in folder.iterdir()] == ["notes"], "nothing is written"
    return dict(zip(commands, answers, strict=True))


@pytest.mark.parametrize("name", MISTAKES)
def test_what_could_not_be_trained_is_one_sentence(told, name):
    code, said = told[name]
    assert code == 2
    [line] = [line for line in said.splitlines() if line.startswith("error: ")]
    assert MISTAKES[name][1] in line
    assert "Traceback" not in said


def test_what_can_be_trained_is_described(told):
    code, said = told["right"]
    assert code == 0, said
    assert "cells: 1" in said
    assert "trials: 4" in said


def test_where_data_will_lie_is_told(told):
    assert told["streamed"][1].splitlines()[-1] == "data: streamed from the host"


def test_a_directory_that_cannot_be_made_is_told(told):
    code, said = told["taken"]
    assert code == 2
    assert "notes is no folder" in said


def test_a_program_of_each_network_is_built_at_its_largest_batch(monkeypatch):
    built = []
    original = NETWORKS["mlp"]

    def noted(input_shape, classes, **arguments):
        built.append(arguments["widths"])
        return original(input_shape, classes, **arguments)

    noted.__module__ = original.__module__  # of one's own, two programs are compared
    monkeypatch.setitem(NETWORKS._entries, "mlp", noted)
    axes = {"workload.network_arguments.widths": [[8], [16]]}
    values = {"sweep.batch_sizes": (16, 32, 64), "sweep.axes": axes}
    sweep = configure("smoke/quickstart", values=values)
    assert "cells: 6" in SweepRun(sweep, Options("")).try_out()
    # One is trained, two are compared, and two are counted: for the memory of states,
    # and for lanes.
    assert sorted(built) == [[8]] * 5 + [[16]] * 5


def test_of_a_network_that_is_pruned_elsewhere_no_dense_trial_is_tried_out(monkeypatch):
    tried = []
    original = TrainingRunner.try_step

    def noted(runner, point):
        tried.append(runner.provenance(0).realised_sparsity)
        original(runner, point)

    monkeypatch.setattr(TrainingRunner, "try_step", noted)
    for sparsities, expected in (((0.0, 0.5), [0.5]), ((0.0,), [0.0])):
        values = {"sweep.sparsities": sparsities, "sweep.sparsity_methods": ("snip",)}
        SweepRun(configure("smoke/quickstart", values=values), Options("")).try_out()
        assert tried == pytest.approx(expected, abs=0.01)
        tried.clear()


def broken_network(monkeypatch, **layer):
    """Registers the network `broken`, whose layer has these methods, for a test."""
    own = type("Own", (keras.layers.Layer,), layer)

    def broken(input_shape, classes):
        inputs = keras.Input(input_shape)
        flat = keras.layers.Flatten()(inputs)
        return keras.Model(inputs, keras.layers.Dense(classes)(own()(flat)))

    monkeypatch.setitem(NETWORKS._entries, "broken", broken)
    monkeypatch.setitem(NETWORKS._reads, "broken", {})


def unseeded(self, shape):
    self.noise = tf.Variable(tf.random.normal(shape[1:]))


def fails_in_a_step(self, inputs, training=False):
    del self
    if training:
        tf.debugging.assert_less(tf.reduce_sum(inputs), -1e9)
    return inputs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ({"build": unseeded, "call": lambda self, x: x + self.noise}, "add_weight"),
        ({"call": fails_in_a_step}, r"no trial could make its first step: .*Invalid"),
    ],
)
def test_what_fails_each_trial_at_its_first_step_fails_a_dry_run(
    monkeypatch, layer, said
):
    broken_network(monkeypatch, **layer)
    values = {
        "sweep.batch_sizes": (16,),
        "workload.network": "broken",
        "workload.network_arguments": {},
    }
    sweep = configure("smoke/quickstart", values=values)
    with pytest.raises(UserError, match=said):
        SweepRun(sweep, Options("")).try_out()


@pytest.mark.slow
def test_a_dry_run_prunes_and_keeps_nothing(tmp_path, tmp_path_factory, monkeypatch):
    pruned = []
    original = sparsity.SPARSITY_METHODS["snip"].prune
    folder = tmp_path_factory.mktemp("scores")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))

    def noted(request, cache, progress):
        pruned.append(request.sparsity)
        return original(request, cache, progress)

    monkeypatch.setattr(
        sparsity.SPARSITY_METHODS["snip"].__class__,
        "prune",
        lambda self, *arguments: noted(*arguments),
    )
    values = {
        "sweep.batch_sizes": (16, 32),
        "sweep.sparsities": (0.0, 0.5, 0.9),
        "sweep.sparsity_methods": ("snip",),
    }
    sweep = configure("smoke/quickstart", values=values)
    SweepRun(sweep, Options(str(tmp_path / "s"))).try_out()
    assert pruned == [0.9] and not list(tmp_path.iterdir())
    assert not list(folder.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "said", "order"),
    [
        (
            sparsity.OneShot(lambda request, _: request.theta[1:]),
            "one array for each",
            (0, 1),
        ),
        (
            sparsity.OneShot(
                lambda request, _: request.loss_gradient(),
                reader=sparsity.BalancedExamples(),
            ),
            "has no argument 'per_class'",
            (1, 0),
        ),
    ],
)
def test_each_method_of_pruning_is_tried(monkeypatch, method, said, order):
    monkeypatch.setitem(sparsity.SPARSITY_METHODS._entries, "own", method)
    monkeypatch.setitem(sparsity.SPARSITY_METHODS._reads, "own", {})
    names = ("snip", "own")
    values = {
        "sweep.batch_sizes": (16,),
        "sweep.sparsities": (0.5,),
        "sweep.sparsity_methods": tuple(names[place] for place in order),
        "workload.network_arguments": {"widths": ()},
    }
    with pytest.raises(UserError, match=said):
        SweepRun(configure("smoke/quickstart", values=values), Options("")).try_out()


def test_a_study_of_other_content_in_the_directory_is_refused(tmp_path):
    sweep = configure("nqm/sgd", values={"sweep.batch_sizes": (64,)})
    assert "cells: 1" in SweepRun(sweep, Options(str(tmp_path / "s"))).try_out()
    assert not (tmp_path / "s").exists()
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "thesis.tex").write_text("")
    with pytest.raises(UserError, match=r"holds thesis.tex and no sweep"):
        SweepRun(sweep, Options(str(tmp_path / "s"))).try_out()


def test_a_folder_that_may_not_be_written_is_told(tmp_path, monkeypatch):
    # Root may write everywhere: what it is told is told to everybody here.
    monkeypatch.setattr("os.access", lambda path, mode: False)
    sweep = configure("nqm/sgd", values={"sweep.batch_sizes": (64,)})
    with pytest.raises(UserError, match="cannot be written by this user"):
        SweepRun(sweep, Options(str(tmp_path / "s"))).try_out()


def test_options_are_checked_too(told):
    code, said = told["slots"]
    assert code == 2
    assert "slots is -1; it must be at least 0" in said

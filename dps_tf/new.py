"""Writes the files of a workload of your own: `python -m dps_tf.new --name=NAME`.

The command writes three files in this folder, which run as they are and can then be
changed: NAME.py registers a data set and a network, NAME.gin asks for K* at four batch
sizes, and NAME_test.py trains a small sweep of them.
"""

from __future__ import annotations

import importlib.util
import keyword
from pathlib import Path

from absl import flags

from dps_tf.cli import flags as common
from dps_tf.cli.command_line import FINISHED, command
from dps_tf.core import UserError

common.section("What is written")
_NAME = flags.DEFINE_string(
    "name", None, "Name of the workload and of its files, like the name of a variable."
)

_MODULE = '''"""The workload NAME: its data set and its network."""

import numpy as np
import tf_keras as keras  # Keras 2; Keras 3 keeps variables of another kind

from dps_tf import register_dataset, register_network
from dps_tf.data import Source


def NAME_data(data_dir, examples=600, noise=0.7):
    """Returns all examples in a fixed order; the package splits and shuffles them.

    `data_dir` is the folder of --data_dir, or None. Other arguments are bound by
    workload.dataset_arguments.
    """
    generator = np.random.default_rng(7)
    labels = np.arange(examples) % 3
    centers = generator.normal(size=(3, 8))
    inputs = centers[labels] + noise * generator.normal(size=(examples, 8))
    # float32 [examples, ...], or int32 [examples, length] for tokens.
    return Source(
        inputs.astype(np.float32), labels, classes=3, validation_examples=200
    )


def NAME_network(input_shape, classes, width=32):
    """Returns a functional model whose outputs are logits, without a softmax.

    `width` is bound by workload.network_arguments.
    """
    inputs = keras.Input(input_shape)
    hidden = keras.layers.Dense(width, activation="relu")(inputs)
    return keras.Model(inputs, keras.layers.Dense(classes)(hidden))


register_dataset("NAME_data", NAME_data)
register_network("NAME_network", NAME_network)
'''

_GIN = """# How many steps does NAME need to reach its goal, at each batch size?
#
# python -m dps_tf.train --import=NAME --gin_file=NAME.gin \\
#     --sweep_dir=sweeps/NAME
# python -m dps_tf.report --sweep_dir=sweeps/NAME
#
# With --dry_run the first command shows what would be run, and what cannot be.

workload.name = 'NAME'
workload.dataset = 'NAME_data'
workload.dataset_arguments = {'noise': 0.7}
workload.network = 'NAME_network'
workload.network_arguments = {'width': 32}
workload.optimizer = 'sgd'

# Metaparameters that every cell tunes: a scale and the ends of the range.
workload.space = {'learning_rate': ('log', 1e-3, 1.0)}
# Number of points in each cell, and most steps that each may take.
workload.points = 8
workload.step_budget = 2000

# Trials are evaluated after every 32 examples, and at most after every step.
workload.evaluation = @evaluation()
evaluation.examples = 32

# Other metrics are 'validation/cross_entropy' and 'validation/accuracy' (maximized).
workload.goal = @goal()
goal.metric = 'validation/classification_error'
goal.threshold = 0.1

sweep.workloads = @workload()
sweep.batch_sizes = (8, 32, 128, 400)
# Only the best trial counts: the others may stop when it has won.
sweep.finishers = 1
# With pruned networks too:
# sweep.sparsities = (0.0, 0.9)
# sweep.sparsity_methods = ('snip',)
"""

_TEST = '''"""Tests that the workload NAME trains: `python -m pytest NAME_test.py`."""

from pathlib import Path

import dps_tf
import NAME


def test_the_data_have_a_row_for_each_label():
    source = NAME.NAME_data(None)
    assert len(source.inputs) == len(source.labels)
    assert set(source.labels) == set(range(source.classes))


def test_a_small_sweep_reaches_its_goal(tmp_path):
    gin_file = Path(__file__).with_name("NAME.gin")
    small = {"sweep.batch_sizes": (8, 128), "workload.points": 4}
    sweep = dps_tf.sweep(str(gin_file), values=small)
    results = dps_tf.run(sweep, tmp_path, slots=1).results
    steps = results.set_index("batch_size")["steps_to_result"]
    assert steps.notna().all()
    # Larger batches need no more steps.
    assert steps[128] <= steps[8]
'''


def files_of_workload(name: str) -> dict[str, str]:
    """Returns the texts of the files of a new workload, by the name of the file."""
    texts = {f"{name}.py": _MODULE, f"{name}.gin": _GIN, f"{name}_test.py": _TEST}
    return {file: text.replace("NAME", name) for file, text in texts.items()}


@command
def main() -> int:
    """Writes the files of the workload that the flag names; returns 0."""
    common.require(_NAME)
    name = _NAME.value
    if not (name.isidentifier() and name.isascii()) or keyword.iskeyword(name):
        raise UserError(
            f"--name={name} is no name of a Python module: use letters, digits and _."
        )
    files = files_of_workload(name)
    taken = [file for file in files if Path(file).exists()]
    if taken:
        raise UserError(f"{taken[0]} exists already: choose another --name.")
    if importlib.util.find_spec(name) is not None:
        raise UserError(
            f"--name={name} is an installed module, which {name}.py would hide: "
            "choose another --name."
        )
    for file, text in files.items():
        Path(file).write_text(text, encoding="utf-8")
    train = f"--import={name} --gin_file={name}.gin --sweep_dir=sweeps/{name}"
    print(f"written: {', '.join(files)}\n  python -m dps_tf.train {train}")
    return FINISHED


if __name__ == "__main__":
    main()

"""Steps per second of all trials: ours, a plain loop's, Keras `fit`'s; and of masks.

Targets (two processors): at least 0.9 of the best plain loop at batch sizes 64 and 512
and 0.8 at 8; at least 2.8, 1.28 and 1.12 times Keras `fit` with its defaults at 8, 64
and 512; less than 2 % of a turn outside of slices; masks for less than 3 % of a step;
with dropout and augmented images at least 0.9 of the steps without.
"""

from __future__ import annotations

from typing import Any

from tests.benchmarks import problem, processes

_LOOPS = ("loop_2_threads", "loop_4_threads", "loop_4_unrolled")
_OF_CEILING = {8: 0.8, 64: 0.9, 512: 0.9}
_OF_KERAS = {8: 2.8, 64: 1.28, 512: 1.12}
_MASKED_LOOP = "loop_masked"
_FIT, _SILENT_FIT = "keras_fit", "keras_fit_silent"
_ALL = (
    *("engine", "engine_masked", "engine_random"),
    *(*_LOOPS, _MASKED_LOOP, _FIT, _SILENT_FIT),
)


def run(batch_size: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Returns one row of the table."""
    rounds = processes.interleaved(_ALL, batch_size, repeats, seconds)
    steps = {name: processes.median(rounds, name) for name in _ALL}
    ceiling = max(_LOOPS, key=lambda name: steps[name])
    flop = batch_size * problem.FLOP_PER_EXAMPLE
    return {
        "batch_size": batch_size,
        "engine_steps_per_second": steps["engine"],
        "engine_gflops": steps["engine"] * flop / 1e9,
        "ceiling": ceiling,
        "ceiling_steps_per_second": steps[ceiling],
        "of_ceiling": processes.ratio(rounds, "engine", ceiling),
        "of_ceiling_target": _OF_CEILING.get(batch_size),
        "keras_fit_steps_per_second": steps[_FIT],
        "of_keras_fit": processes.ratio(rounds, "engine", _FIT),
        "of_keras_fit_target": _OF_KERAS.get(batch_size),
        "of_silent_keras_fit": processes.ratio(rounds, "engine", _SILENT_FIT),
        "outside_slices": processes.median(rounds, "engine", "outside_slices"),
        "pruned_to_dense": processes.ratio(rounds, "engine_masked", "engine"),
        "random_to_plain": processes.ratio(rounds, "engine_random", "engine"),
        "masked_to_plain_loop": processes.ratio(rounds, _MASKED_LOOP, "loop_2_threads"),
        "rounds": rounds,
    }

"""A Keras callback that finds the first step at which a model meets a goal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import EvaluationSchedule, Goal, GoalWatch, UserError
from dps_tf.data import Examples
from dps_tf.objectives import build, merge
from dps_tf.training.device_data import BATCH_SIZE
from dps_tf.training.evaluation import Evaluation, outputs_of


class StepsToResult(keras.callbacks.Callback):
    """Evaluates the whole validation split every N steps and stops at the goal.

    It works in any Keras program. The outputs of the model must be those that the
    objective takes, for example logits. The step number continues over epochs and over
    calls of `fit`. The curve equals that of the compiled slice for the same batches.

    Example, with a model and data of the user's own:

        goal = Goal("validation/classification_error", 0.1)
        steps = StepsToResult(inputs, labels, goal, 50)
        model.fit(dataset, callbacks=[steps])

    Args:
        inputs: validation inputs [n, ...].
        labels: validation labels of the kind that the objective takes, for example
            integers [n] or [n, length].
        goal: the goal that stops training.
        interval: steps between evaluations; `steps_to_result` is a multiple of it.
        step_budget: number of steps after which training stops without having met the
            goal; None leaves that to `fit`.
        evaluation_batch_size: examples per evaluation batch; no part of the result.
        objective: name of the registered objective that defines the metrics.
        objective_arguments: arguments of the objective, by name.

    Raises:
        UserError: the objective lacks the goal's metric, or the labels do not match.

    Attributes:
        curve: one dict per evaluation: `step` and the metric columns.
        diverged_step: first step whose loss was not finite, or None.
    """

    def __init__(  # noqa: PLR0913 - keywords are what a user's program says
        self,
        inputs: np.ndarray,
        labels: np.ndarray,
        goal: Goal,
        interval: int,
        *,
        step_budget: int | None = None,
        evaluation_batch_size: int = BATCH_SIZE,
        objective: str = "softmax_cross_entropy",
        objective_arguments: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        self._objective = build(objective, objective_arguments)
        columns = self._objective.columns("validation")
        if goal.metric not in columns:
            raise UserError(
                f"goal metric {goal.metric!r} is none of {', '.join(columns)}."
            )
        if len(inputs) != len(labels) or len(labels) == 0:
            raise UserError(
                f"validation has {len(inputs)} inputs and {len(labels)} labels: give "
                "one label per input, at least one."
            )
        self.goal = goal
        self.schedule = EvaluationSchedule(interval)
        self.step_budget = step_budget
        labels = self._objective.checked_labels(labels, "the callback")
        self._examples = Examples(np.asarray(inputs), labels)
        self._batch_size = evaluation_batch_size
        self._step = 0
        self._seen = 0
        self._loss_sum = 0.0
        self.curve: list[dict[str, float]] = []
        self._watch = GoalWatch(goal)
        self.diverged_step: int | None = None

    @property
    def steps_to_result(self) -> int | None:
        """First evaluated step that met the goal, or None."""
        return self._watch.finish

    @property
    def bracket(self) -> tuple[int, int] | None:
        """The steps (last evaluation before the goal, first that met it], or None."""
        if self.steps_to_result is None:
            return None
        return self.schedule.previous(self.steps_to_result), self.steps_to_result

    @property
    def outcome(self) -> str:
        """`complete`, `incomplete` (so far), or `infeasible`."""
        if self.steps_to_result is not None:
            return "complete"
        return "incomplete" if self.diverged_step is None else "infeasible"

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuses a model that Keras calls back for several steps at once."""
        counter = getattr(self.model, "_steps_per_execution", None)
        steps = 1 if counter is None else int(tf.convert_to_tensor(counter))
        if steps != 1:
            raise UserError(
                f"the model is compiled with steps_per_execution={steps}: use 1, "
                "because StepsToResult has to see every step."
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Restarts the sum of losses, because Keras restarts its mean in each epoch."""
        self._seen = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts a step, evaluates at the interval, and stops training at the goal."""
        self._step += 1
        loss = self._batch_loss((logs or {}).get("loss", 0.0))
        if not math.isfinite(loss):
            self._diverge()
        elif self._step % self.schedule.interval == 0:
            self._evaluate(loss)
        if self.step_budget is not None and self._step >= self.step_budget:
            self.model.stop_training = True

    def _batch_loss(self, mean: float) -> float:
        """Returns this batch's loss from Keras's running mean over the epoch."""
        # Keras's mean is float32: after n batches the relative error is about n 1e-7.
        previous = self._loss_sum if self._seen else 0.0
        self._seen += 1
        self._loss_sum = float(mean) * self._seen
        return self._loss_sum - previous

    def _diverge(self) -> None:
        if self.diverged_step is None:
            self.diverged_step = self._step
        self.model.stop_training = True

    def _evaluate(self, loss: float) -> None:
        result = self.evaluate()
        metrics = result.metrics
        self.curve.append({"step": self._step, **metrics, "train/loss": loss})
        value = metrics[self.goal.metric] if result.is_finite else math.nan
        is_met = self._watch.add(self._step, value)
        if not result.is_finite:
            self._diverge()
        elif is_met:
            self.model.stop_training = True

    def evaluate(self) -> Evaluation:
        """Returns the exact metrics of the model over the validation split."""
        batches = []
        for start in range(0, len(self._examples.labels), self._batch_size):
            part = slice(start, start + self._batch_size)
            sums = self._sums(
                tf.constant(self._examples.inputs[part]),
                tf.constant(self._examples.labels[part]),
            )
            batches.append(tf.nest.map_structure(np.asarray, sums))
        merged = merge(batches)
        metrics = self._objective.values("validation", merged)
        return Evaluation(metrics, float(merged["loss"]))

    def set_model(self, model: keras.Model) -> None:
        """Compiles the evaluation of a new model; Keras calls this in every `fit`."""
        if model is self.model:
            return
        super().set_model(model)

        @tf.function(autograph=False)
        def sums(inputs: tf.Tensor, labels: tf.Tensor) -> Any:
            valid = tf.ones(tf.shape(labels)[:1], tf.bool)
            return self._objective.sums(labels, outputs_of(model, inputs), valid)

        self._sums = sums

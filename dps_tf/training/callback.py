"""A Keras callback that finds the first step at which a model meets a goal."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import (
    EvaluationSchedule,
    Goal,
    GoalWatch,
    UserError,
    check_type,
    error_cause,
    on_one_line,
    whole,
)
from dps_tf.data import Examples
from dps_tf.data.arrays import STORED_KINDS, check_kind, read_rows
from dps_tf.models import check_link, check_values, nodes_of
from dps_tf.objectives import build, merge
from dps_tf.training.device_data import BATCH_SIZE
from dps_tf.training.evaluation import Evaluation


class StepsToResult(keras.callbacks.Callback):
    """Evaluates the whole validation split every N steps and stops at the goal.

    It works in any program of Keras 3 or tf_keras. The model's outputs are what the
    objective takes, for example logits. A step is an update by the model's optimizer;
    its number continues over epochs and calls of `fit`. The compiled slice gives the
    same curve for the same batches.

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
        UserError: a number or goal of another kind, a goal's metric that the objective
            lacks, or labels that do not match. In `fit`: inputs or outputs that do not
            match, updates that cannot be counted or were made outside of `fit`, layers
            that an evaluation changes, or another model than before.

    Attributes:
        curve: one dict per evaluation: `step`, the metric columns, and `train/loss`,
            the loss of the step's last batch. It is NaN without a metric `loss`, or
            where a callback that comes first has reset that metric.
        diverged_step: first step whose loss, or first evaluated one whose weights, were
            not finite, or None.
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
        check_type("goal", goal, Goal)
        columns = self._objective.columns("validation")
        if goal.metric not in columns:
            raise UserError(
                f"goal metric {goal.metric!r} is none of {', '.join(columns)}."
            )
        inputs, labels = _array("inputs", inputs), _array("labels", labels)
        if len(inputs) != len(labels) or len(labels) == 0:
            raise UserError(
                f"validation has {len(inputs)} inputs and {len(labels)} labels: give "
                "one array of inputs, at least one, and a label for each."
            )
        self.goal = goal
        self.schedule = EvaluationSchedule(whole("interval", interval))
        budgeted = step_budget is not None
        self.step_budget = whole("step_budget", step_budget) if budgeted else None
        check_kind("inputs", inputs, STORED_KINDS.replace("c", ""))
        check_kind("labels", labels, "biuf")
        rows, inputs, labels = map(np.asarray, (range(len(labels)), inputs, labels))
        self._objective.checked_labels(labels[:1], "the callback")
        if inputs.dtype.kind == "f":
            inputs = read_rows(inputs, rows, None, "inputs")
        labels = read_rows(labels, rows, None, "labels")
        labels = self._objective.checked_labels(labels, "the callback")
        self._examples = Examples(inputs, labels)
        self._batch_size = whole("evaluation_batch_size", evaluation_batch_size)
        self._step = 0
        self._first = 0
        self._optimizer: Any = None
        self._made: dict[Any, int] = {}  # updates by optimizers of earlier fits
        self._sums: Any = None
        self._masks = False
        self._before = (0.0, 0.0)
        self._scale = 0.0
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

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuses copies, whose curves nobody would see."""
        raise UserError(
            "StepsToResult cannot be copied, as keras-tuner's search does with its "
            "callbacks: make one in HyperModel.fit (or in the worker), for model.fit."
        )

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuses a model whose updates cannot be seen one by one."""
        model = self.model
        counter = getattr(model, "_steps_per_execution", None)  # tf_keras
        counter = getattr(model, "steps_per_execution", counter)  # Keras 3
        steps = 1 if counter is None else counter  # Keras 3 knows "auto", too
        if not isinstance(steps, str):
            steps = int(tf.convert_to_tensor(steps))
        if steps != 1:
            raise UserError(
                f"the model is compiled with steps_per_execution={steps!r}: use 1, "
                "because StepsToResult has to see every step."
            )
        made = _number(self._updates_by().iterations)
        if self._optimizer is None:
            self._first = made
            if made:
                print(
                    f"note: the optimizer has made {made} updates before, and "
                    "StepsToResult counts from here on: add them if its weights come "
                    "from an earlier part of this run."
                )
        elif model.optimizer is not self._optimizer:
            self._made[self._optimizer] = self._first + self._step
            self._first = self._made.get(model.optimizer, 0) - self._step
        self._optimizer = model.optimizer
        if self.outcome != "incomplete":
            print(
                f"note: this StepsToResult was {self.outcome} before this fit, and "
                "stays so: make a new one for another run."
            )
        if made - self._first != self._step:
            raise UserError(
                f"the optimizer has made {made - self._first} updates, and "
                f"StepsToResult has seen {self._step}: give it to every fit of the "
                "model, which it has to see, and do not set the iterations back."
            )
        if model.built:  # what does not match is said before any training
            self._sums.get_concrete_function(*self._batch(0))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Notes the sums of Keras's mean loss, which others may have reset."""
        self._before = self._loss_sums()
        self._scale = self._loss_scale()[0]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts an update, evaluates at the interval, and stops at the goal."""
        before = self._step
        scale, counter = self._loss_scale()
        if counter == 0 and scale <= self._scale:
            self._first += 1  # tf_keras counts an update that it has left out
        self._step = _number(self.model.optimizer.iterations) - self._first
        mean = float((logs or {}).get("loss", 0.0))
        if not math.isfinite(mean):
            self._diverge(before + 1)
        if self._step == before:
            return  # gradients of several batches are accumulated for one update
        if self._step != before + 1:
            raise UserError(
                f"the optimizer made {self._step - before} updates in one batch: make "
                "one, because StepsToResult has to see every step, and list a callback "
                "that restores the optimizer before it; do not set its iterations back."
            )
        most = self.step_budget or self._step
        is_due = self._step <= most and self._step % self.schedule.interval == 0
        if self.diverged_step is None and is_due:
            self._evaluate(self._batch_loss(mean))
        # Without the sums before a batch, the loss of that batch is not known.
        self._before = (math.nan, math.nan)
        if self.step_budget is not None and self._step >= most:
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        """Refuses a training loop that never updates by the model's optimizer."""
        if self._step == 0 and self.diverged_step is None:
            raise UserError(
                f"the optimizer of model {self.model.name!r} made no update in fit: "
                "StepsToResult counts its iterations."
            )

    def _batch_loss(self, mean: float) -> float:
        """Returns the loss of the last batch, from Keras's mean before and after it."""
        total, count = self._loss_sums()
        if not (
            count > self._before[1] and math.isclose(total / count, mean, rel_tol=1e-5)
        ):
            return math.nan
        return (total - self._before[0]) / (count - self._before[1])

    def _loss_scale(self) -> tuple[float, int]:
        """Returns (scale, steps since it has changed) of tf_keras; (0, -1) for none."""
        counter = getattr(self._updates_by(), "dynamic_counter", None)
        if counter is None:
            return 0.0, -1
        return _number(self.model.optimizer.loss_scale), _number(counter)

    def _loss_sums(self) -> tuple[float, float]:
        """Returns (sum of losses, examples) of Keras's mean so far; (0, 0) for none."""
        for metric in self._watched().metrics:
            if metric.name == "loss" and hasattr(metric, "total"):
                return _number(metric.total), _number(metric.count)
        return 0.0, 0.0

    def _diverge(self, step: int) -> None:
        if self.diverged_step is None:
            self.diverged_step = step
        self.model.stop_training = True

    def _evaluate(self, loss: float) -> None:
        result = self.evaluate()
        metrics = result.metrics
        self.curve.append({"step": self._step, **metrics, "train/loss": loss})
        # A ReLU may hide from the loss that a weight is not finite.
        is_finite = result.is_finite and all(
            np.all(tf.math.is_finite(weight)) for weight in self.model.trainable_weights
        )
        value = metrics[self.goal.metric] if is_finite else math.nan
        is_met = self._watch.add(self._step, value)
        if not is_finite:
            self._diverge(self._step)
        elif is_met:
            self.model.stop_training = True

    def evaluate(self) -> Evaluation:
        """Returns the exact metrics of the model over the validation split."""
        model, batches = self._watched(), []
        self._sums.get_concrete_function(*self._batch(0))
        # A mask of tfmot would stay in the weights, and change the next one.
        held = [(w, tf.identity(w)) for w in model.trainable_weights if self._masks]
        for start in range(0, len(self._examples.labels), self._batch_size):
            batch = self._batch(start)
            # In a graph also where a program runs all functions eagerly.
            try:
                sums, outputs = self._sums.get_concrete_function(*batch)(*batch)
            except tf.errors.InvalidArgumentError as error:
                cause = error_cause(f"{type(error).__name__}: {error}")
                raise UserError(
                    f"model {model.name!r} cannot be evaluated: {cause}."
                ) from error
            if start == 0:
                check_values(model.name, outputs, self._objective.link)
            batches.append(tf.nest.map_structure(np.asarray, sums))
        for weight, value in held:
            weight.assign(value)
        merged = merge(batches)
        metrics = self._objective.values("validation", merged)
        return Evaluation(metrics, float(merged["loss"]))

    def _watched(self) -> Any:
        """Returns the model; UserError without one."""
        if self.model is None:
            raise UserError(
                "the callback has no model yet: call fit with it, or set_model(model)."
            )
        return self.model

    def _updates_by(self) -> Any:
        """Returns the optimizer of the model; UserError without one."""
        optimizer = getattr(self._watched(), "optimizer", None)
        if optimizer is None:
            raise UserError(
                f"model {self.model.name!r} has no optimizer whose updates can be "
                "counted: compile it with one, which makes them."
            )
        return optimizer

    def _batch(self, start: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns inputs and labels of the evaluation batch from an example on."""
        part = slice(start, start + self._batch_size)
        inputs, labels = self._examples.inputs[part], self._examples.labels[part]
        return tf.constant(inputs), tf.constant(labels)

    def set_model(self, model: keras.Model) -> None:
        """Compiles the evaluation of the model; Keras calls this in every `fit`."""
        if model is self.model:
            return
        if self._sums is not None:
            raise UserError(
                f"the callback has watched model {self.model.name!r}, whose curve it "
                "holds: make a new StepsToResult for each model."
            )
        is_of_keras3 = any(x.__module__.startswith("keras.") for x in type(model).mro())
        backend = sys.modules["keras"].backend.backend() if is_of_keras3 else ""
        if backend not in ("", "tensorflow"):
            raise UserError(
                f"model {model.name!r} computes by {backend}, and StepsToResult "
                "evaluates by TensorFlow: set KERAS_BACKEND=tensorflow before Python "
                "starts."
            )
        if not tf.executing_eagerly():
            raise UserError(
                "StepsToResult reads numbers while fit runs, which a graph does not "
                "show: call fit outside of it, without disable_eager_execution()."
            )
        super().set_model(model)

        @tf.function(autograph=False)
        def sums(inputs: tf.Tensor, labels: tf.Tensor) -> Any:
            try:
                outputs = tf.nest.flatten(model(inputs, training=False))
            except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
                raise UserError(
                    f"model {model.name!r} does not take validation inputs of shape "
                    f"{list(inputs.shape[1:])}, {inputs.dtype.name}: "
                    f"{on_one_line(error)}."
                ) from error
            if len(outputs) != 1:
                raise UserError(
                    f"model {model.name!r} has {len(outputs)} outputs, and an "
                    "objective takes one: give it one output."
                )
            if getattr(outputs[0], "_keras_mask", None) is not None:
                raise UserError(
                    f"model {model.name!r} masks positions of its outputs, and an "
                    "evaluation counts every label: leave out mask_zero=True, and "
                    "layers that mask."
                )
            graph = tf.compat.v1.get_default_graph()
            assigns = [x.name for x in nodes_of(graph) if x.op.startswith("Assign")]
            self._masks = "prune_low_magnitude" in str(assigns)
            if not all("prune_low_magnitude" in name for name in assigns):
                raise UserError(
                    f"evaluating model {model.name!r} changes its state, and so the "
                    "training: leave out stateful=True, and layers that count."
                )
            check_link(model.name, outputs[0], self._objective.link)
            outputs = tf.cast(outputs[0], tf.float32)
            every = self._examples.labels
            self._objective.check_outputs(every, outputs.shape, "the callback")
            valid = tf.ones(tf.shape(labels)[:1], tf.bool)
            return self._objective.sums(labels, outputs, valid), outputs

        self._sums = sums


def _array(name: str, values: Any) -> Any:
    """Returns an array [n, ...]; UserError for what cannot be one."""
    try:
        array = values if isinstance(values, np.ndarray) else np.asarray(values)
    except (TypeError, ValueError):  # rows of unequal length
        array = np.empty(())
    if array.ndim == 0:
        raise UserError(
            f"validation {name} are a {type(values).__name__}, and no array with a row "
            "for each example: give one array of inputs, and one of labels."
        )
    return array


def _number(variable: Any) -> Any:
    """Returns the value of a variable of Keras, which a strategy may mirror."""
    return tf.convert_to_tensor(variable).numpy().item()

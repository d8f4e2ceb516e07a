"""One step of a trial as a pure function, and the loop of many.

Masks, metaparameters, random draws, moving averages and the update are arguments and
results: no step reads or writes anything else.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import UserError
from dps_tf.data import Transform
from dps_tf.models import StepDraws, given, varying_averages
from dps_tf.objectives import Objective, penalty
from dps_tf.optim import Optimizer
from dps_tf.sparsity import trainable_positions
from dps_tf.training import replicas as of_replica
from dps_tf.training.replicas import Replicas

if TYPE_CHECKING:
    from dps_tf.sparsity.tfmot import Gradual
    from dps_tf.training.local_workers import LocalWorkers

_NUMBERS = itertools.count()

Examples = tuple[tf.Tensor, tf.Tensor]


class State(NamedTuple):
    """The state of a trial: tensors, in the order of a saved state."""

    step: tf.Tensor  # int64 [], number of updates made
    weights: list[tf.Tensor]  # in the order of the network's weights
    slots: list[tf.Tensor]  # in the order of `Optimizer.flat`
    evaluation: list[tf.Tensor]  # what evaluations remember
    workers: list[tf.Tensor]  # of local SGD, see `local_workers`
    masks: list[tf.Tensor]  # of pruning during training, see `sparsity.tfmot`


class Trial(NamedTuple):
    """What decides the steps of a trial, beside its state and examples."""

    point: Mapping[str, tf.Tensor]  # metaparameters by name, float32 []
    masks: Sequence[tf.Tensor]  # bool, one per trained variable
    is_pruned: Any  # bool []; in lanes True, and the masks of a dense trial are ones
    seed: tf.Tensor  # int64 []
    runs: Any = None  # bool [lanes], whether a trial of a lane goes on; see `lanes`
    waits: Any = None  # bool [lanes], whether a lane has a trial that does not

    def masked(self, arrays: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns arrays of the trained variables, with zeros at pruned entries."""
        return self.if_pruned(
            lambda: [
                array * tf.cast(mask, array.dtype)
                for array, mask in zip(arrays, self.masks, strict=True)
            ],
            lambda: list(arrays),
        )

    def if_pruned(self, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        """Returns yes() for a pruned trial, and no() for a dense one."""
        return yes() if self.is_pruned is True else tf.cond(self.is_pruned, yes, no)


@dataclass(frozen=True)
class Step:
    """One update: step(state, batch, trial) -> (state, loss before the update).

    Attributes:
        network: made by `models.functional`.
        optimizer: updates the trained weights.
        objective: its loss is minimized.
        transform: applied to the examples of each step, if any.
        gradual: the rule that prunes during training, if any.
        replicas: the replicas that share each batch.
        share: examples of a replica, or of a worker of local SGD. None leaves it open,
            for one replica and a network that draws nothing.
        communicates: whether replicas share gradients, which workers do not.
        is_called: whether the gradient is a call in the loop of steps. oneDNN computes
            the gradient of a maximum over windows only if it visits the maximum first,
            and the order of a loop's operations is open. Without it a step takes up to
            half as long again; a call takes 0.1 to 0.2 ms.
    """

    network: keras.Model
    optimizer: Optimizer
    objective: Objective
    transform: Transform | None
    gradual: Gradual | None
    replicas: Replicas
    share: int | None
    communicates: bool = True
    is_called: bool = False

    def __call__(
        self,
        state: State,
        batch: Callable[[], Examples],
        trial: Trial,
        worker: tf.Tensor | None = None,
    ) -> tuple[State, tf.Tensor]:
        """Makes one update in a replica; `worker`: number of one of local SGD."""
        examples, state = batch(), self._pruned(state)
        number = of_replica.number() if worker is None else worker
        place = (trial.seed, state.step, number)
        if self.transform is not None:
            examples = self.transform(*examples, self._draws(*place))
        gradient = self.replicas.part(self._gradient)
        if self.is_called:
            gradient = self.replicas.called(gradient)
        loss, gradients, weights = gradient(
            state.weights, trial.point, place, *examples, *self._weight(examples[1])
        )
        gradients = trial.masked(gradients)
        loss, gradients, weights = self._shared(loss, gradients, weights)
        trained = [weights[i] for i in self.places]
        before = self.optimizer.named(state.slots, self.variables)
        trained, after = self.optimizer.update(
            gradients, before, trained, trial.point, state.step
        )
        if not self.optimizer.rule.elementwise:
            trained = trial.masked(trained)
        for i, weight in zip(self.places, trained, strict=True):
            weights[i] = weight
        slots = self.optimizer.flat(after)
        return state._replace(step=state.step + 1, weights=weights, slots=slots), loss

    def _pruned(self, state: State) -> State:
        if self.gradual is None:
            return state
        masks = self.gradual.moved(state.masks, state.weights, state.step)
        return state._replace(
            weights=self.gradual.masked(state.weights, masks), masks=masks
        )

    @functools.cached_property
    def variables(self) -> list[tf.Variable]:
        """The trained variables, whose forms and names decide the slots."""
        return list(self.network.trainable_variables)

    @functools.cached_property
    def places(self) -> tuple[int, ...]:
        """Where each trained variable stands in the network's weights."""
        return trainable_positions(self.network)

    @property
    def _sharing(self) -> int:
        """The number of replicas that share a batch; a worker has one of its own."""
        return self.replicas.count if self.communicates else 1

    def _draws(self, seed: tf.Tensor, step: tf.Tensor, number: tf.Tensor) -> StepDraws:
        share = self.share or 0
        return StepDraws(seed, step, number * share, share)

    def _weight(self, labels: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns (sum of the position weights of a batch,); () without weights."""
        if self.objective.weights is None:
            return ()
        total = tf.reduce_sum(self.objective.weights(labels))
        return (of_replica.summed(total) if self._sharing > 1 else total,)

    def _gradient(
        self,
        weights: Sequence[tf.Tensor],
        point: Mapping[str, tf.Tensor],
        place: tuple[tf.Tensor, tf.Tensor, tf.Tensor],
        inputs: tf.Tensor,
        labels: tf.Tensor,
        *weight: tf.Tensor,
    ) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        """Returns (share of the loss, gradients, weights with new moving averages)."""
        # The count is a constant where every position counts once: exact, and cheaper.
        share = tf.shape(labels)[0] if self.share is None else self.share
        every = share * self._sharing * labels.shape[1:].num_elements()
        (positions,) = weight or (every,)
        trained = [weights[i] for i in self.places]
        with (
            self._draws(*place).active(),
            given(self.network, weights) as after,
            tf.GradientTape() as tape,
        ):
            tape.watch(trained)
            outputs = tf.cast(self.network(inputs, training=True), tf.float32)
            # The sum is divided by the whole batch, so that shares of replicas add up.
            loss = self.objective.batch_loss(labels, outputs, point, positions)
            added = penalty(self.network, point)
            if added is not None:
                loss += added / self._sharing
            after_call = after()
        gradients = tape.gradient(loss, trained)
        unused = [
            variable.name
            for variable, gradient in zip(self.variables, gradients, strict=True)
            if gradient is None
        ]
        if unused:
            raise UserError(
                f"the loss has no gradient for {', '.join(unused[:3])}: use it, with "
                "operations that can be differentiated, or make it not trainable."
            )
        return loss, [tf.convert_to_tensor(g) for g in gradients], after_call

    def _shared(
        self, loss: tf.Tensor, gradients: list[tf.Tensor], weights: list[tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        """Returns sums over the replicas, and the means of moving averages."""
        if self._sharing == 1:
            return loss, gradients, weights
        loss, *gradients = of_replica.summed([loss, *gradients])
        # After every step, so that a state holds one value of each average and later
        # steps do not depend on when the state was read.
        averages = varying_averages(self.network)
        if averages:
            own = [weights[i] for i in averages]
            context = tf.distribute.get_replica_context()
            means = context.all_reduce(tf.distribute.ReduceOp.MEAN, own)
            for i, mean in zip(averages, means, strict=True):
                weights[i] = mean
        return loss, gradients, weights

    def evaluated(self, state: State, trial: Trial) -> list[tf.Tensor]:
        """Returns the weights that a trial is evaluated with: averages, pruned."""
        if not self.optimizer.averages_weights and self.gradual is None:
            return state.weights
        weights = list(state.weights)
        slots = self.optimizer.named(state.slots, self.variables)
        trained = [weights[i] for i in self.places]
        averages = self.optimizer.evaluated(slots, trained, trial.point, state.step)
        averages = trial.masked(averages)
        for i, average in zip(self.places, averages, strict=True):
            weights[i] = average
        if self.gradual is not None:
            weights = self.gradual.masked(weights, state.masks)
        return weights

    def is_sound(self, state: State, trial: Trial) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns whether weights are finite, and whether pruned ones are 0.

        Both are bool [], or [lanes] of lanes: their rules would make many operations of
        each. A ReLU, a maximum or a normalization may hide from the loss that a weight
        is not finite.
        """
        sides = [*trial.seed.shape]

        def every(arrays: Iterable[tf.Tensor]) -> tf.Tensor:
            flat = [tf.reshape(array, [*sides, -1]) for array in arrays]
            return tf.reduce_all([tf.reduce_all(row, -1) for row in flat], 0)

        def kept() -> tf.Tensor:
            pairs = zip(self.places, trial.masks, strict=True)
            return every(m | tf.equal(state.weights[i], 0) for i, m in pairs)

        floats = [weight for weight in state.weights if weight.dtype.is_floating]
        is_sparse = trial.if_pruned(kept, lambda: tf.ones(sides, tf.bool))
        return every(map(tf.math.is_finite, floats)), is_sparse


class Loop:
    """Many steps of a trial in one graph, ended by a loss that is not finite."""

    def __init__(self, step: Step | LocalWorkers, replicas: Replicas, batches: Any):
        """`batches`: the training data, which give each step its batch."""
        self._step = step
        self._replicas = replicas
        self._batches = batches
        # TensorFlow turns AddN into temporary variables. All functions of its graphs
        # that run at once share the names of these, so each loop has its own scope.
        self._scope = f"slice_{next(_NUMBERS)}"

    def __call__(
        self, state: State, trial: Trial, steps: tf.Tensor, values: Sequence[Any]
    ) -> tuple[State, tf.Tensor, tf.Tensor]:
        """Returns (state, steps made, loss of the last step before its update).

        `values`: the values of a piece of the batches, then the values that they hold.
        """
        states, trials = self._replicas.spread(state), self._replicas.spread(trial)
        run = self._replicas.run
        if self._replicas.loops_inside:

            def inside(own: Any, *values: Any) -> Any:
                return self._many([own[0]], [own[1]], steps, values, _here)

            own = list(zip(states, trials, strict=True))
            states, done, loss = run(inside, own, *values)[0]
        else:
            states, done, loss = self._many(states, trials, steps, values, run)
        return states[0], done, loss

    def _many(
        self,
        states: list[State],
        trials: list[Trial],
        steps: tf.Tensor,
        values: Sequence[Any],
        run: Callable[..., list[Any]],
    ) -> tuple[list[State], tf.Tensor, tf.Tensor]:
        """Runs the loop; `run` calls a function in the replicas, as of `Replicas`."""

        def goes_on(done: tf.Tensor, loss: tf.Tensor, states: Any) -> tf.Tensor:
            del states
            return tf.logical_and(done < steps, tf.math.is_finite(loss))

        def body(done: tf.Tensor, loss: tf.Tensor, states: list[State]) -> Any:
            del loss

            def one(own: tuple[State, Trial], *values: Any) -> tuple[State, tf.Tensor]:
                batch = functools.partial(self._batches.batch, done, *values)
                with tf.name_scope(self._scope):
                    return self._step(own[0], batch, own[1])

            made = run(one, list(zip(states, trials, strict=True)), *values)
            return done + 1, made[0][1], [state for state, _ in made]

        done, loss, states = tf.while_loop(
            goes_on,
            body,
            (tf.constant(0), tf.constant(0.0), states),
            parallel_iterations=1,
        )
        shown = getattr(self._step, "shown", None)
        if shown is not None:
            states = run(shown, list(zip(states, trials, strict=True)))
        return states, done, loss


def _here(function: Callable[..., Any], own: Sequence[Any], *values: Any) -> list[Any]:
    """Calls a function in the replica that the caller is in."""
    return [function(own[0], *values)]

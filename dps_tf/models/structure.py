"""The structure of a network: its hash, and checks of its form."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import dis
import functools
import hashlib
import inspect
import json
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import LIBRARIES, UserError, is_own_module

_KEEPING = {"Cast", "EnsureShape", "ExpandDims", "Identity", "Reshape"}
_KEEPING |= {"Squeeze", "StopGradient", "Transpose"}
"""Operations of TensorFlow that keep the values of their first input."""
_UNUSED = ("train_step", "compute_loss", "make_train_function")
"""Methods of a Keras model that train it, and that no trial calls."""


def structure_hash(network: keras.Model) -> str:
    """Returns 64 hexadecimal digits that change with the structure of a network.

    The hash includes the layers in order, their inputs and configurations (sizes,
    activations, initializers, regularizers, precision), the shapes and types of all
    weights, and constants in operations on tensors. For layers and functions outside of
    the libraries it includes their source without comments, docstrings and layout, the
    constants that they read by name, also as attributes of modules, classes and objects
    (`args.alpha`), and the functions that they call.

    The hash does not include names of layers, values of weights, library code, and
    values that a function reads while it runs (files, the environment).
    """
    text = json.dumps(_Structure().of_model(network), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def code_hash(part: Any) -> str:
    """Returns 64 hexadecimal digits that change with the code of a part of a workload.

    The part is a function, an object, or a dataclass or list of such. The hash includes
    what that of `structure_hash` does. It is '' where all code is of the libraries.
    """
    structure = _Structure()
    text = json.dumps(structure.of_value(part), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest() if structure.functions else ""


class _Structure:
    """Turns a network into JSON values; layers are numbered by their place in it.

    `functions` numbers the functions outside of the libraries in the order in which
    they were met.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self.functions: dict[Callable[..., Any], int] = {}
        self._read: set[str] = set()  # attributes that own functions read
        self._open: set[int] = set()  # objects whose attributes are being looked at

    def of_model(self, model: keras.Model) -> Any:
        for layer in model.layers:
            self._names.setdefault(layer.name, f"layer {len(self._names)}")
        return {
            "class": self._of_class(type(model)),
            "layers": [self._of_layer(layer) for layer in model.layers],
            "outputs": self.of_value(getattr(model, "output_names", None)),
        }

    def _of_layer(self, layer: keras.layers.Layer) -> Any:
        common = {
            "class": self._of_class(type(layer)),
            "weights": [[list(w.shape), w.dtype.name] for w in layer.weights],
            "trainable": layer.trainable,
            "nodes": [
                [self._names.get(node.layer.name) for node in nodes.parent_nodes]
                + [self.of_value(nodes.call_args), self.of_value(nodes.call_kwargs)]
                for nodes in layer.inbound_nodes
            ],
        }
        if isinstance(layer, keras.Model):
            return {**common, "model": self.of_model(layer)}
        if isinstance(layer, keras.layers.Lambda):
            # Its configuration holds compiled code, with paths and line numbers.
            parts = layer.function, layer.arguments
            return {**common, "function": self.of_value(parts)}
        config = {"config": self._of_config(layer)}
        if not _is_library(type(layer)):
            return self._with_attributes({**common, **config}, layer)
        own = {name: x for name, x in vars(layer).items() if _is_own(x)}
        return {**common, **config, **({"held": self.of_value(own)} if own else {})}

    def _of_config(self, value: Any) -> Any:
        try:
            config = dict(value.get_config())
        except NotImplementedError:
            return None
        config.pop("name", None)
        return self.of_value(config)

    def _of_class(self, kind: type) -> Any:
        """Returns the name of a class and, outside of libraries, its methods."""
        name = f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"
        if _is_library(kind):
            return name
        methods = {
            key: self._of_function(method)
            for key, value in vars(kind).items()
            for method in [getattr(value, "__func__", getattr(value, "fget", value))]
            if inspect.isfunction(method)
        }
        bases = [self._of_class(base) for base in kind.__bases__]
        return self._with_attributes([kind.__qualname__, methods, bases], kind)

    def _with_attributes(self, described: Any, value: Any) -> Any:
        """Returns a description, with the attributes that own functions read, if any.

        An object that holds itself ends there.
        """
        names = self._read & getattr(value, "__dict__", {}).keys()
        if not names or id(value) in self._open:
            return described
        self._open.add(id(value))
        held = {name: self.of_value(vars(value)[name]) for name in sorted(names)}
        self._open.remove(id(value))
        return [described, held]

    def of_value(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, str):
            return self._names.get(value, value)
        if isinstance(value, float):
            return repr(value)
        if isinstance(value, Mapping):
            config = value.get("config") if "class_name" in value else None
            if isinstance(config, Mapping) and "name" in config:  # a wrapped layer
                self._names.setdefault(config["name"], f"layer {len(self._names)}")
            return {str(key): self.of_value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.of_value(item) for item in value]
        if isinstance(value, tf.DType | np.dtype):
            return value.name
        if isinstance(value, tf.TensorShape):
            return str(value)
        return self._of_object(value)

    def _of_object(self, value: Any) -> Any:
        if _is_symbolic(value):
            return ["tensor", str(value.shape), value.dtype.name]
        if isinstance(value, np.ndarray | np.generic | tf.Tensor) and not (
            tf.is_symbolic_tensor(value)
        ):
            array = np.asarray(value)
            digest = hashlib.sha256(array.tobytes()).hexdigest()
            return ["array", list(array.shape), array.dtype.name, digest]
        if inspect.ismethod(value):
            return [self.of_value(value.__func__), self.of_value(value.__self__)]
        value = getattr(value, "python_function", value)  # of a tf.function
        if inspect.isfunction(value):
            return self._of_function(value)
        if isinstance(value, type):
            return self._of_class(value)
        return self._of_instance(value)

    def _of_instance(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, functools.partial):
            return self.of_value([value.func, value.args, value.keywords])
        if hasattr(value, "get_config"):
            described = [self._of_class(kind), self._of_config(value)]
            return self._with_attributes(described, value if _is_own(value) else None)
        if dataclasses.is_dataclass(value):
            held = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return [self._of_class(kind), self.of_value(held)]
        if inspect.ismodule(value):
            is_own = is_own_module(value.__name__)
            return self._with_attributes("module", value if is_own else None)
        if hasattr(value, "__qualname__") or _is_library(kind):
            return getattr(value, "__qualname__", kind.__qualname__)
        return self._with_attributes(self._of_class(kind), value)

    def _of_function(self, function: Callable[..., Any]) -> Any:
        name = f"{function.__module__}.{function.__qualname__}"
        if _is_library(function):
            own = _wrapped(function)
            return [name, self.of_value(own)] if own else name
        if function in self.functions:
            return [name, self.functions[function]]
        self.functions[function] = len(self.functions)
        codes, held = [*_codes_in(function.__code__)], function.__globals__
        if is_own_module(str(function.__module__)):
            self._read.update(*(code.co_names for code in codes))
        done = [x for code in codes for x in dis.get_instructions(code)]
        read = {x.argval for x in done if x.opname == "LOAD_GLOBAL"}
        names = {name: held[name] for name in read & held.keys()}
        cells = zip(codes[0].co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            with contextlib.suppress(ValueError):  # it has no value yet
                names[name] = cell.cell_contents
        return [
            _source(function),
            self.of_value(function.__defaults__),
            self.of_value(function.__kwdefaults__),
            {name: self.of_value(value) for name, value in sorted(names.items())},
        ]


def _is_symbolic(value: Any) -> bool:
    try:
        return bool(keras.backend.is_keras_tensor(value))
    except ValueError:  # it is no tensor at all
        return False


def _is_own(value: Any) -> bool:
    kind = value if inspect.isfunction(value) else type(value)
    return not _is_library(kind) and is_own_module(str(kind.__module__))


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yields compiled code, and that of functions and lambdas inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes_in(constant)


def _is_library(value: Any) -> bool:
    return str(value.__module__).partition(".")[0] in {*LIBRARIES, "builtins"}


def _wrapped(function: Callable[..., Any]) -> list[Any]:
    """Returns the functions outside of libraries that a library's function holds."""
    held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return [x for x in held if inspect.isfunction(x) and not _is_library(x)]


def _source(function: Callable[..., Any]) -> str:
    """Returns a function's source without comments and layout, or its compiled form."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return _compiled(function.__code__)
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a lambda in the middle of a longer expression
        return " ".join(text.split())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _compiled(code: types.CodeType) -> str:
    """Returns compiled code as text that is the same in every process."""
    constants = [
        _compiled(value) if isinstance(value, types.CodeType) else repr(value)
        for value in code.co_consts
    ]
    return repr((code.co_code, constants, code.co_names))


def check_functional(
    name: str, model: object, input_shape: Sequence[int | None]
) -> None:
    """Raises UserError unless the builder returned a model that can be trained.

    That is a functional model of tf_keras with one output and weights of float32, for
    inputs of a shape, None for any length.
    """
    if not isinstance(model, keras.Model):
        kind = f"{type(model).__module__}.{type(model).__qualname__}"
        raise UserError(
            f"network {name!r} is a {kind}; its builder must return a model of "
            "tf_keras (import tf_keras as keras), as Keras 3 keeps variables of "
            "another kind."
        )
    if not model.inputs or not model.outputs:
        raise UserError(
            f"network {name!r} is a model whose layers are not known before it is "
            "called; its builder must return a functional model: keras.Model(inputs, "
            "outputs), or keras.Sequential that begins with keras.Input."
        )
    kinds = {w.dtype.name for w in model.trainable_weights} - {"float32"}
    is_limited = any(getattr(w, "constraint", None) for w in model.trainable_weights)
    recurrent = [x for x in model.submodules if isinstance(x, keras.layers.RNN)]
    own = [n for n in _UNUSED if getattr(type(model), n) is not getattr(keras.Model, n)]
    given, wanted = (tuple(s) for s in (input_shape, model.inputs[0].shape[1:]))
    fits = tf.TensorShape(wanted).is_compatible_with(given)
    held = model._nested_outputs
    for problem, remedy in (
        (len(model.inputs) > 1 and f"has {len(model.inputs)} inputs", "take one"),
        (not fits and f"takes inputs of {wanted}, and the data have {given}", "fit it"),
        (len(model.outputs) > 1 and f"has {len(model.outputs)} outputs", "return one"),
        (tf.nest.is_nested(held) and f"returns a {type(held).__name__}", "return one"),
        (not model.trainable_weights and "has no weights to train", "add a layer"),
        (is_limited and "constrains weights, which no step does", "leave that out"),
        (own and f"has a {own[0]} of its own, which no trial calls", "leave that out"),
        (any(x.stateful for x in recurrent) and "is stateful", "leave that out"),
        (kinds and f"has weights of {', '.join(kinds)}", "make its layers float32"),
    ):
        if problem:
            raise UserError(f"network {name!r} {problem}: {remedy}.")


_FAR, _NEAR = 1e5, 1e-3
"""Inputs so far from 0 bring each sigmoid, by whatever operations, so near 0 or 1."""


def nodes_of(graph: tf.Graph) -> list[Any]:
    """Returns the operations of a graph, as messages, those of its functions too."""
    described = graph.as_graph_def()
    nodes = [*described.node]
    for function in described.library.function:
        nodes += function.node_def
    return nodes


def check_logits(model: keras.Model, link: str) -> set[str]:
    """Returns the types of a network's operations; UserError if it ends in `link`."""
    given = [tf.TensorSpec(x.shape, x.dtype) for x in model.inputs]
    traced = tf.function(lambda x: model(x, training=False), autograph=False)
    concrete = traced.get_concrete_function(given[0])
    if link:
        shape = [n or 8 for n in given[0].shape]
        drawn = np.random.default_rng(0).normal(size=shape)
        is_float = given[0].dtype.is_floating
        inputs = tf.cast(drawn if is_float else np.zeros(shape), given[0].dtype)
        check_link(model.name, concrete.graph.outputs[0], link)
        check_values(model.name, concrete(inputs), link)
        if is_float and link == "sigmoid":
            far = np.asarray(concrete(_FAR * inputs), np.float64)
            is_end = (np.abs(far) < _NEAR) | (np.abs(far - 1) < _NEAR)
            if is_end.all() and far.max() > 0.5:
                raise _refusal(model.name, link)
    return {node.op for node in nodes_of(concrete.graph)}


def check_link(name: str, outputs: tf.Tensor, link: str) -> None:
    """Raises UserError if the outputs of a network in a graph are those of `link`.

    Operations tell, whatever layers, nested models or functions made them.
    """
    operation = outputs.op
    while operation.type in _KEEPING:
        operation = operation.inputs[0].op
    if link and operation.type.lower() == link:
        raise _refusal(name, link)


def check_values(name: str, outputs: Any, link: str) -> None:
    """Raises UserError if some outputs are probabilities, and `link` makes such."""
    values = np.asarray(outputs, np.float64)
    adds_up = values.min() >= 0 and np.allclose(values.sum(-1), 1.0, atol=1e-2)
    if link == "softmax" and adds_up:
        raise _refusal(name, link)


def _refusal(name: str, link: str) -> UserError:
    return UserError(
        f"network {name!r} ends in {link}, and the objective applies {link} itself: "
        "leave it out, so that the outputs are logits."
    )

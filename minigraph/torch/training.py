"""A training step of a PyTorch model: forward, loss, backward and optimizer in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Annotated, Any

import torch

import minigraph as mg
from minigraph.arguments import Count, FilePath, checked, instance_of
from minigraph.compiler.trace import OPTIONS
from minigraph.errors import GraphError
from minigraph.graph import FLOATS, Array, Node, Parameter
from minigraph.inspect.profile import Profile
from minigraph.inspect.report import Report
from minigraph.ops import astype
from minigraph.optim.accumulation import Accumulation
from minigraph.optim.optimizer import clipped, gradients
from minigraph.platform import forks
from minigraph.runtime.function import CompiledFunction
from minigraph.torch import memory
from minigraph.torch.batch import Batches
from minigraph.torch.capture import capture
from minigraph.torch.interpret import interpret
from minigraph.torch.optimizer import SharedState, TorchOptimizer, needs_closure
from minigraph.torch.watch import Watch

WHAT = "training_step"
DEFAULTS = {"graph_opt_level": 3}
MAX_KEPT_GRAPHS = 4  # graphs of a step, at most: for training, evaluation, and frozen layers
UNSUPPORTED_MODULES = (torch.jit.ScriptModule, torch.nn.parallel.DistributedDataParallel)
REASON = "pass the module that it was made from"
Loss = Callable[..., torch.Tensor]
MODEL = instance_of(torch.nn.Module, "a torch.nn.Module")
LOSS = instance_of(Callable, "a function or an nn.Module")
OPTIMIZER = instance_of(torch.optim.Optimizer, "one of torch.optim")
KEYWORDS = instance_of(Mapping, "a dict of the model's arguments")


class _Loss(torch.nn.Module):  # type: ignore[misc]
    """The loss of a model as a module of (inputs, target)."""

    def __init__(self, model: torch.nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        if isinstance(loss, FunctionType):  # torch records the lines of functions of this name only
            code = loss.__code__.replace(co_name="forward")
            parts = loss.__globals__, loss.__name__, loss.__defaults__, loss.__closure__
            copied = FunctionType(code, *parts)
            copied.__kwdefaults__ = loss.__kwdefaults__
            loss = copied
        self.loss = loss

    def forward(self, batch: Sequence[Any], named: Mapping[str, Any]) -> torch.Tensor:
        *inputs, target = batch
        return self.loss(self.model(*inputs, **named), target)


@dataclass
class _Compiled:
    """The functions of a step in one mode.

    function  of the batch; it returns the loss, and the gradients for torch's optimizer
    apply     update after several calls of `function`, from the gradients in `sums`
    trained   tensors whose gradients these functions return, if torch's own step runs
    moves     number of memory replacements at the time of binding
    """

    function: Any
    apply: Any
    sums: Accumulation | None
    trained: Sequence[torch.Tensor] | None
    moves: int


class TrainingStep:
    """The result of `training_step`: called with a batch, it returns the loss, a 0-d tensor."""

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        batch: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        clip: tuple[float | None, float | None],
        accumulate: int,
        dynamic: Any,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self._clip, self._accumulate = clip, accumulate
        self._device = memory.device_of(model)
        self._graph = mg.comp_graph(memory.device_name(self._device), {**DEFAULTS, **options})
        self._seed = options.get("seed", torch.initial_seed() % 2**64)
        self._module = _Loss(model, loss)
        self._module.training = model.training
        self._batches = Batches(WHAT, model, self._device, batch, kwargs, dynamic)
        self._shared = memory.SharedParameters(self._device)
        self._state = SharedState(optimizer, self._shared)
        self._check()
        self._watch = Watch(self._module, "model")
        self._compiled: dict[Any, _Compiled] = {}
        self._current: _Compiled
        self._key: Any = None
        self._lock = forks.reentrant_lock()
        self._choose()

    # ------------------------------------------------------------ a call

    def __call__(self, *batch: Any, **kwargs: Any) -> torch.Tensor:
        """Make a step: change parameters, buffers and the optimizer's state; return the loss."""
        with self._lock, memory.in_order(self._device):
            arrays = self._batches.arrays(batch, kwargs)
            current = self._ready()
            results = current.function(*arrays)
            self._finish(current, results[1:])
            return memory.tensor_of(results[0])

    def _finish(self, current: _Compiled, grads: Sequence[Array]) -> None:
        if current.sums is not None:
            if current.sums.weight < self._accumulate:
                return
            grads = current.apply()
        if current.trained is not None:
            self.optimizer.zero_grad()  # else parameters frozen meanwhile would keep gradients
            for tensor, grad in zip(current.trained, grads, strict=True):
                tensor.grad = memory.from_real(memory.tensor_of(grad), tensor.dtype)
            self.optimizer.step()
        # Schedulers warn if no step of the optimizer precedes theirs.
        self.optimizer._opt_called = True

    def profile(self, *batch: Any, calls: int = 5, **kwargs: Any) -> Profile:
        """Run `calls` calls kernel by kernel, and return the median time of each kernel.

        Parameters change as in one call; with torch's own optimizer, only buffers change.
        """
        with self._lock, memory.in_order(self._device):
            arrays = self._batches.arrays(batch, kwargs)
            current = self._ready()
            profile = current.function.profile(*arrays, calls=calls)
            if current.sums is not None:
                self._finish(current, ())
            return profile

    def report(self) -> Report:
        """Return a report on the function of the latest call; `print` shows it."""
        return self.function.report()

    def to_html(self, path: FilePath, beside: Any = ()) -> None:
        """Write a page to look inside, with torch's module names."""
        self.function.to_html(path, beside)

    @property
    def function(self) -> Any:
        """The compiled function of the latest call: it takes and returns arrays."""
        return self._current.function

    @property
    def calls(self) -> int:
        """The number of calls so far, the step counter of dropout; set it to resume a training."""
        return self.function.calls

    @calls.setter
    def calls(self, value: int) -> None:
        self.function.calls = value

    def __repr__(self) -> str:
        return f"<training step of {type(self.model).__name__} by {type(self.optimizer).__name__}>"

    def __reduce_ex__(self, protocol: object) -> Any:
        raise GraphError("a training step cannot be copied or pickled; make another one")

    # ------------------------------------------------------------ before a call

    def _ready(self) -> _Compiled:
        """Return the functions for the present modes, bound to the present memory."""
        if buffers := self._watch.replaced():
            for old, new in buffers:
                if old in self._shared:
                    self._shared.replace(old, new)
            self._watch.accept()
        self._shared.refresh()
        current = self._choose()
        self._state.refresh()
        if current.moves != self._shared.moves:
            current.function.bind()
            if current.apply is not None:
                current.apply.bind()
            current.moves = self._shared.moves
        if current.sums is not None and current.sums.weight >= self._accumulate:
            self._finish(current, ())  # which an interrupt has prevented
        return current

    def _choose(self) -> _Compiled:
        """Return the functions for the present modes, compiled if they are not in the cache."""
        kind = self._device.type
        autocast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
        key = self._watch.modes(), self._state.key(), autocast
        if key != self._key:
            sums = self._key and self._current.sums
            if sums and sums.weight:
                raise GraphError(
                    f"a mode, requires_grad or a group of the optimizer was changed after "
                    f"{sums.weight:g} of {self._accumulate} calls that make one step"
                )
            compiled = self._compiled.pop(key, None) or self._compile()
            self._compiled[key] = compiled
            if len(self._compiled) > MAX_KEPT_GRAPHS:
                del self._compiled[next(iter(self._compiled))]
            if self._key is not None:
                compiled.function.calls = self._current.function.calls
            self._current, self._key = compiled, key
        return self._current

    # ------------------------------------------------------------ compiling

    def _check(self) -> None:
        """Raise GraphError for a model or an optimizer that cannot be used."""
        for path, module in self._module.named_modules():
            is_compiled = hasattr(module, "_orig_mod")  # by torch.compile
            if isinstance(module, UNSUPPORTED_MODULES) or is_compiled:
                name = path.removeprefix("model").removeprefix(".") or "the model"
                raise GraphError(f"{WHAT}: {name} is a {type(module).__name__}: {REASON}")
        named = [*self._module.named_parameters(), *self._module.named_buffers()]
        for name, tensor in named:
            if torch.nn.parameter.is_lazy(tensor):
                raise GraphError(
                    f"{WHAT}: {name.removeprefix('model.')} has no shape yet: call the model once"
                )
            memory.check_supported(tensor, name.removeprefix("model."), self._device)
        memory.check_apart((name.removeprefix("model."), tensor) for name, tensor in named)
        if needs_closure(self.optimizer):
            raise GraphError(
                f"{WHAT}: {type(self.optimizer).__name__} computes the loss several times a step, "
                "by a closure, which a compiled step cannot call"
            )

    def _compile(self) -> _Compiled:
        """Return functions for the present modes of modules and parameters."""
        self._module.training = self.model.training
        batches = self._batches
        with torch.enable_grad():
            sizes = batches.dynamic_shapes(self._module)
            program = capture(WHAT, self._module, batches.example, sizes, prefix="model")
        self._check_constants(program.constants)
        state = self._shared.share_module(self._module, program.constants, "model.")
        inputs = batches.inputs()
        result = interpret(WHAT, program, inputs, state, "model")
        loss = result.outputs
        if not isinstance(loss, Node) or loss.shape or loss.dtype not in FLOATS:
            kind = loss.spec if isinstance(loss, Node) else f"a {type(loss).__name__}"
            raise GraphError(f"{WHAT}: the loss is {kind}; it must be one number, such as a mean")
        changes = {state[name]: value for name, value in result.changes.items()}
        return self._functions(inputs, loss, changes)

    def _functions(
        self, inputs: Sequence[Node], loss: Node, changes: Mapping[Parameter, Node]
    ) -> _Compiled:
        tensors = [p for group in self.optimizer.param_groups for p in group["params"]]
        trained = [self._shared[p] for p in tensors if p in self._shared and p.requires_grad]
        grads = gradients(WHAT, loss, trained)
        updates: dict[Parameter, Node] = dict(changes)
        apply = sums = None
        if self._accumulate > 1:
            sums = Accumulation([*grads])
            updates |= sums.add(loss)
            results, step_updates = self._step(sums.mean)
            apply = self._make([], results, {**step_updates, **sums.clear()})
            results = []
        else:
            results, step_updates = self._step(grads)
            updates |= step_updates
        function = self._make(inputs, [loss, *results], updates)
        with_gradient = [p for p in tensors if p in self._shared and self._shared[p] in grads]
        returned = None if self._state.is_shared else with_gradient
        return _Compiled(function, apply, sums, returned, self._shared.moves)

    def _step(self, grads: Mapping[Parameter, Node]) -> tuple[list[Node], Mapping[Parameter, Node]]:
        """Return the gradients for torch's own optimizer, and the updates of ours."""
        norm, value = self._clip
        if self._state.is_shared:
            optimizer = TorchOptimizer(self._state, grads)
            return [], optimizer.minimize(grads=grads, clip_norm=norm, clip_value=value)
        clipped_grads = clipped(WHAT, grads, norm, value)
        return [astype(g, p.dtype) for p, g in clipped_grads.items()], {}

    def _make(
        self, inputs: Sequence[Node], results: Sequence[Node], updates: Mapping[Parameter, Node]
    ) -> CompiledFunction:
        function = self._graph.compile(inputs, results, updates)
        function.seed = self._seed
        return function

    def _check_constants(self, constants: Mapping[str, Any]) -> None:
        """Raise GraphError if a trained tensor belongs to no module."""
        trained = {p.data_ptr() for group in self.optimizer.param_groups for p in group["params"]}
        for tensor in filter(memory.is_float, constants.values()):
            if tensor.numel() and tensor.data_ptr() in trained:
                raise GraphError(
                    f"{WHAT}: the loss uses a parameter of shape {tuple(tensor.shape)} that the "
                    "optimizer has, but no module: make the loss an nn.Module that has it"
                )


@checked
def training_step(
    model: Annotated[torch.nn.Module, MODEL],
    loss: Annotated[Loss, LOSS],
    optimizer: Annotated[torch.optim.Optimizer, OPTIMIZER],
    batch: Sequence[Any],
    kwargs: Annotated[Mapping[str, Any], KEYWORDS] | None = None,
    *,
    options: Annotated[Mapping[str, Any], OPTIONS] | None = None,
    clip_grad_norm: float | None = None,
    clip_grad_value: float | None = None,
    accumulate: Count = 1,
    dynamic: Any = False,
) -> TrainingStep:
    """Return a function of a batch that runs a whole training step and returns the loss.

    model            of PyTorch, on the CPU or on CUDA, which `torch.export` can trace
    loss             a function or an `nn.Module`; the loss is the single number
                     `loss(model(*batch[:-1], **kwargs), batch[-1])`
    optimizer        of `torch.optim`.  SGD, Adam, AdamW, RMSprop and Adagrad are part of the native
                     call.  For others, for subclasses, and for optimizers with hooks, the gradients
                     are written to `.grad` and the optimizer's own `step()` runs
    batch            an example, whose shapes and dtypes all batches have.  Items are tensors, or
                     tuples, lists, dicts and registered dataclasses of tensors, and of numbers,
                     strings and None, which become constants of the step
    kwargs           example keyword arguments of the model; a call is then
                     `step(*batch, **kwargs)`
    options          of `mg.comp_graph`; the default level is 3
    clip_grad_norm   limit of the norm of all gradients together, as for
                     `torch.nn.utils.clip_grad_norm_`
    clip_grad_value  limit of each element of a gradient, applied first
    accumulate       number of calls of a step: the last call changes the parameters, by the mean of
                     all gradients.  Each call returns its own loss
    dynamic          True: the first size of all tensors of a batch may differ between calls.  Or a
                     dict of these sizes for each tensor, `[{0: "batch", 1: "time"}, {0: "batch"}]`,
                     with names, whose ranges the model tells, or `torch.export.Dim`s.  The first
                     call with a size compiles; such sizes are 2 or more in the example

    The model, its buffers and the optimizer's state stay PyTorch's, and are up to date after each
    call.  Changes between calls take effect: values, loaded state dicts, `train()` and `eval()`,
    `requires_grad`, the numbers of `optimizer.param_groups`.  Learning rates, betas, momentum and
    weight decay are read at each call, so schedulers compile nothing; a change of the graph
    compiles.  A replaced parameter or module is an error.

    Tensors that are not contiguous (`channels_last`) or not aligned to 64 bytes are moved to other
    memory.  `.grad` stays None, unless PyTorch's own `step()` runs.  Dropout draws from
    minigraph's generator, which is seeded by `torch.initial_seed()` (or the option `seed`) and
    counts the calls.  The Python code of the model and of its forward hooks runs when a graph is
    traced, not at each call.

    Raises GraphError for a model that cannot be traced or has no gradient, and for unsupported
    operators, with the lines that call them.

    >>> model, x, y = torch.nn.Linear(3, 1), torch.ones(4, 3), torch.full((4, 1), 9.0)
    >>> adam = torch.optim.Adam(model.parameters(), lr=0.1)
    >>> step = training_step(model, torch.nn.functional.mse_loss, adam, (x, y))
    >>> losses = [step(x, y) for _ in range(10)]
    >>> bool(losses[9] < losses[0])
    True
    """
    numbers = (clip_grad_norm, clip_grad_value)
    return TrainingStep(
        model, loss, optimizer, batch, kwargs or {}, options or {}, numbers, accumulate, dynamic
    )

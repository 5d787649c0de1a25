"""Parameters of minigraph in the memory of PyTorch's tensors, on the CPU or on a GPU."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from minigraph import options
from minigraph.devices.factory import open_backend
from minigraph.errors import DeviceError, DTypeError, GraphError, ShapeError
from minigraph.graph import ALIGNMENT, Array, Parameter, Spec, State, run_exclusively
from minigraph.nn.module import ModuleState
from minigraph.program import Backend
from minigraph.torch.operators import DTYPES

CPU = torch.device("cpu")

# The state of each shared tensor, so that calls of all functions that use the tensor lock the same
# state.  Its keys are compared by identity, because == of tensors compares elements.
_states: MutableMapping[torch.Tensor, State] = WeakTensorKeyDictionary()


class SharedParameters:
    """One parameter for each tensor, in the tensor's memory.

    A tensor that is not contiguous, or not aligned, is moved to other memory; it stays the same
    object with the same value.

    device  of all tensors
    moves   how often memory has been replaced: functions compiled before must be bound again
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.moves = 0
        self._by_id: dict[int, Parameter] = {}
        self._tensors: list[torch.Tensor] = []  # of modules: those that `refresh` checks
        self._addresses: list[int] = []
        self._sizes: list[int] = []

    def __contains__(self, tensor: object) -> bool:
        return id(tensor) in self._by_id

    def __getitem__(self, tensor: torch.Tensor) -> Parameter:
        return self._by_id[id(tensor)]

    def share_module(
        self, module: torch.nn.Module, constants: Mapping[str, Any], prefix: str = ""
    ) -> dict[str, Parameter]:
        """Return parameters for all tensors that a module's graph reads, by their names in it.

        constants  of the graph: floats among them, which may change, are shared as well
        prefix     of names, which the names of parameters omit
        """
        parameters = {}
        for name, tensor in module.named_parameters(remove_duplicate=False):
            parameters[name] = self._watched(tensor, name.removeprefix(prefix), Parameter)
            parameters[name].trainable = tensor.requires_grad
        for name, tensor in module.named_buffers(remove_duplicate=False):
            parameters[name] = self._watched(tensor, name.removeprefix(prefix))
        for name, constant in constants.items():  # tensors that are in no state dict
            if name not in parameters and is_float(constant):
                parameters[name] = self._watched(constant, name)
        return parameters

    def _watched(
        self, tensor: torch.Tensor, name: str, kind: type[Parameter] = ModuleState
    ) -> Parameter:
        if tensor not in self:
            self.share(tensor, name, kind)
            self._tensors.append(tensor)
            self._addresses.append(tensor.data_ptr())
            self._sizes.append(tensor.numel())
        return self[tensor]

    def share(
        self, tensor: torch.Tensor, name: str, kind: type[Parameter] = Parameter
    ) -> Parameter:
        """Return the parameter of a tensor, which is made the first time."""
        if tensor not in self:
            parameter = kind.sharing(self._state(tensor, name), name, trainable=False)
            self._by_id[id(tensor)] = parameter
        return self[tensor]

    def replace(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """Move the parameter of one tensor to the memory of another."""
        parameter = self[old]
        self._move(parameter, new)
        _states[new] = parameter.state
        self._by_id[id(new)] = self._by_id.pop(id(old))
        for i, tensor in enumerate(self._tensors):
            if tensor is old:
                self._tensors[i], self._addresses[i] = new, new.data_ptr()

    def refresh(self) -> None:
        """Use the present memory of the modules' tensors; raise an error if a spec has changed.

        A tensor may also view the same memory with other strides, as after `p.data = p.data.t()`.
        """
        if (
            [*map(address, self._tensors)] == self._addresses
            and [*map(_size, self._tensors)] == self._sizes
            and all(map(_is_contiguous, self._tensors))
        ):
            return
        check_apart((self[tensor].name, tensor) for tensor in self._tensors)
        for i, tensor in enumerate(self._tensors):
            same = as_real(tensor.detach()).shape == self[tensor].shape and tensor.is_contiguous()
            if not same or tensor.data_ptr() != self._addresses[i]:
                self._move(self[tensor], tensor)
                self._addresses[i] = tensor.data_ptr()

    def _move(self, parameter: Parameter, tensor: torch.Tensor) -> None:
        check_supported(tensor, parameter.name, self.device)
        spec = _spec(tensor)
        if spec != parameter.spec:
            error = ShapeError if spec.shape != parameter.shape else DTypeError
            raise error(
                f"{parameter.name} was {parameter.spec} when the step was made and is {spec} now: "
                "make the step again"
            )
        _share(parameter.state, tensor)
        self.moves += 1

    def _state(self, tensor: torch.Tensor, name: str) -> State:
        """Return the state of a tensor, which all its parameters share."""
        check_supported(tensor, name, self.device)
        state = _states.get(tensor)
        if state is None:
            state = State(_spec(tensor))
            _states[tensor] = state
        _share(state, tensor)
        return state


address = torch.Tensor.data_ptr
_size = torch.Tensor.numel
_is_contiguous = torch.Tensor.is_contiguous


def is_float(value: Any) -> bool:
    """Return whether a value is a tensor of floats."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def device_of(module: torch.nn.Module) -> torch.device:
    """Return the device of a module's first parameter or buffer; without one, the CPU."""
    return next((x.device for x in (*module.parameters(), *module.buffers())), CPU)


def device_name(device: torch.device) -> str:
    """Return minigraph's name of a PyTorch device; raise DeviceError for an unsupported one."""
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(f"models must be on the CPU or on CUDA, not on {device}")
    return "cpu" if device.type == "cpu" else f"cuda:{device.index or 0}"


@functools.cache
def backend_of(device: torch.device) -> Backend:
    """Return the backend that shares the memory of a device."""
    return open_backend(device_name(device), options.resolve({}))


def in_order(device: torch.device) -> AbstractContextManager[Any]:
    """Run the block after PyTorch's present work on a device and before its later work."""
    if device.type == "cpu":
        return contextlib.nullcontext()
    return backend_of(device).ordered(torch.cuda.current_stream(device).cuda_stream)


def check_supported(tensor: torch.Tensor, name: str, device: torch.device) -> None:
    """Raise GraphError if a tensor cannot be used by a function for a device."""
    if tensor.layout is not torch.strided:
        raise GraphError(f"{name} is a tensor of {tensor.layout}; only dense ones are supported")
    if tensor.device != device:
        raise DeviceError(f"{name} is on {tensor.device}, and the model on {device}")
    if tensor.dtype.to_real() not in DTYPES:
        raise DTypeError(f"{name} is of {tensor.dtype}, which is not supported")


def check_apart(named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raise GraphError if two different tensors have memory in common."""
    extents = []
    for name, tensor in {id(tensor): (name, tensor) for name, tensor in named}.values():
        if tensor.numel():
            last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            start = tensor.data_ptr()
            extents.append((start, start + (last + 1) * tensor.element_size(), name))
    extents.sort()
    for (_, end, first), (start, _, second) in pairwise(extents):
        if start < end:
            raise GraphError(
                f"{first} and {second} are two tensors in the same memory; weights that are tied "
                "are one nn.Parameter (a.weight = b.weight)"
            )


def array_of(tensor: torch.Tensor) -> Array:
    """Return an array in the memory of a tensor without a gradient: NumPy's, on a GPU CuPy's.

    On a GPU it is a copy if the tensor is not contiguous.
    """
    if tensor.dtype is torch.bfloat16:
        return array_of(tensor.view(torch.int16)).view(DTYPES[torch.bfloat16])
    if tensor.is_cpu:
        return tensor.numpy(force=True)  # also of negated views and of zero tensors
    array = backend_of(tensor.device).array(tensor)
    assert array is not None, "the tensor is on the device"
    return array


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of complex numbers as pairs along a last axis; other tensors as they are."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def from_real(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a view of pairs as complex numbers if `dtype` is complex: the inverse of `as_real`."""
    return torch.view_as_complex(tensor) if dtype.is_complex else tensor


def _spec(tensor: torch.Tensor) -> Spec:
    return Spec(tuple(as_real(tensor.detach()).shape), DTYPES[tensor.dtype.to_real()])


def tensor_of(array: Array) -> torch.Tensor:
    """Return a tensor in the memory of an array."""
    if array.dtype == DTYPES[torch.bfloat16]:
        return tensor_of(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)


def _share(state: State, tensor: torch.Tensor) -> None:
    """Let a state use a tensor's memory."""
    memory, device = _memory(tensor), tensor.device

    def share() -> None:
        if device.type == "cpu":
            state.share_host_memory(memory)
        else:
            state.share_device_memory(device_name(device), backend_of(device).replica(memory))

    run_exclusively([state], share, changes=True)


def _memory(tensor: torch.Tensor) -> Array:
    """Return a tensor's memory; move the tensor if kernels could not read it."""
    plain = tensor.detach()
    if not plain.is_contiguous() or (plain.numel() and plain.data_ptr() % ALIGNMENT):
        tensor.data = plain = plain.clone(memory_format=torch.contiguous_format)
    return array_of(as_real(plain))

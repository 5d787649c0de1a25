"""A device with a cuDNN that has plans, computed in NumPy."""

import ctypes
import dataclasses

import numpy as np
import pytest

pytest.importorskip("cudnn")
pytest.importorskip("cupy")
import cudnn

from minigraph.devices.cuda import cudnn_kernel, cudnn_plan
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights


@dataclasses.dataclass
class Engine:
    number: int
    notes: tuple = ()
    workspace: int = 0
    works: bool = True
    mode: str = "A"
    knobs: dict = dataclasses.field(default_factory=dict)

    @property
    def choice(self):
        return self.number, {cudnn.knob_type.__members__[k]: v for k, v in self.knobs.items()}


ENGINES = (
    Engine(1, ("TENSOR_CORE",), knobs={"TILE_SIZE": 2}),
    Engine(1, ("TENSOR_CORE",), knobs={"TILE_SIZE": 3}),
    Engine(2, ("NONDETERMINISTIC",)),
    Engine(3, workspace=1000),
    Engine(4, ("DOWN_CONVERT_INPUTS",)),
    Engine(8, ("WINOGRAD_TILE_13x13",)),
    Engine(5, works=False),
    Engine(6, knobs={"NOT_SET": 1}),  # a knob that the frontend does not know
    Engine(20_400),  # one of the frontend's own
    Engine(7),
)


class Device:
    """Stands in for the frontend's graphs on a device that has some engines; NumPy computes."""

    def __init__(self, engines, problem):
        self.engines = engines
        self.problem = problem
        self.listed = []
        self.barred = set()
        self.built = []

    def validate(self):
        """Nothing is wrong."""

    build_operation_graph = validate

    def create_execution_plans(self, modes):
        for mode in modes:
            self.listed += [engine for engine in self.engines if engine.mode == mode.name]

    def create_execution_plan(self, number, knobs):
        engines = [e for e in self.engines if e.choice == (number, knobs)]
        if not engines:
            raise RuntimeError("no such\nengine")
        self.listed += engines

    def get_execution_plan_count(self):
        return len(self.listed)

    def get_engine_and_knobs_at_index(self, index):
        return self.listed[index].choice

    def deselect_numeric_notes(self, notes):
        assert self.listed, "the frontend forgets what is left out before there are plans"
        self.barred |= {note.name for note in notes}

    deselect_behavior_notes = deselect_numeric_notes

    def check_support(self):
        if all(self.barred.intersection(engine.notes) for engine in self.listed):
            raise cudnn.cudnnGraphNotSupportedError("nothing is left")

    def build_plan_at_index(self, index):
        engine = self.listed[index]
        if self.barred.intersection(engine.notes) or not engine.works:
            raise RuntimeError("deselected, or not to be had")
        self.built.append(engine.number)

    def get_workspace_size_plan_at_index(self, index):
        return self.listed[index].workspace

    def execute_plan_at_index(self, addresses, workspace, index, handle):
        assert self.listed[index].number in self.built
        assert workspace % cudnn_kernel.ALIGNMENT == 0
        tensors = (*self.problem.inputs, self.problem.output)
        *inputs, output = (
            host_array(addresses[uid], tensor, np.dtype(tensor.dtype))
            for uid, tensor in enumerate(tensors, 1)
        )
        output[...] = computed(self.problem, *(x.astype(np.float64) for x in inputs))


def host_array(address, tensor, dtype):
    memory = (ctypes.c_char * tensor.nbytes).from_address(address)
    steps = [step * dtype.itemsize for step in tensor.strides]
    return np.ndarray(tensor.shape, dtype, memory, 0, steps)


def computed(problem, first, second, *rest):
    conv = Conv2d(problem.stride, problem.padding, problem.dilation)
    match problem.kind:
        case "fprop":
            conv = dataclasses.replace(conv, groups=first.shape[1] // second.shape[1])
            y = conv.forward(first, second)
        case "dgrad":
            conv = dataclasses.replace(conv, groups=problem.output.shape[1] // second.shape[1])
            y = Conv2dBackwardData(conv, problem.output.shape).forward(first, second)
        case _:
            conv = dataclasses.replace(conv, groups=second.shape[1] // problem.output.shape[1])
            y = Conv2dBackwardWeights(conv, problem.output.shape).forward(first, second)
    for added in rest:
        y = y + added
    return np.maximum(y, 0) if problem.relu else y


def settable(monkeypatch):
    """Let plans be those of this device; return a function that sets its engines."""
    engines = []

    def fake(problem, handle=None):
        return Device(engines, problem)

    monkeypatch.setattr(cudnn_plan, "build", fake)

    def have(*replacement):
        engines[:] = replacement
        return fake

    return have

"""The order of the parts of the package, and of the parts of its subpackages.

A part imports only itself and parts from the lists before its own.  `test_layers.py` compares the
imports with this order; the table of parts in docs/architecture.md is made from it.
"""

LAYERS = {
    "minigraph": [
        ["errors", "version"],
        ["platform"],
        ["symbolic"],
        ["arguments"],
        ["options"],
        ["distributed"],
        ["graph"],
        ["ops"],
        ["autodiff", "cache"],
        ["jit", "autotune"],
        ["passes"],
        ["program"],
        ["devices"],
        ["compiler"],
        ["inspect"],
        ["runtime"],
        ["debug"],
        ["graph_compiler"],
        ["serialization"],
        ["graph_file"],
        # From here on the package is used as its users use it.
        ["nn", "optim", "data"],
        ["training"],
        ["onnx", "torch"],
        ["bench"],
        ["cli"],
    ],
    "minigraph.graph": [
        ["location", "spec"],
        ["unsupported"],
        ["node", "state"],
        ["leaves"],
        ["graph"],
        ["loop"],
        ["sizing"],
    ],
    "minigraph.cache": [
        ["counters", "machine"],
        ["database"],
        ["file", "store"],
    ],
    "minigraph.jit": [
        ["source", "emitter", "macros", "small_float", "fused", "domain"],
        ["expression"],
        ["loops"],
        ["pattern"],
        ["kernel"],
        ["c"],
        ["cuda", "halide"],
    ],
    "minigraph.autotune": [
        ["measurement"],
        ["candidate"],
        ["data"],
        ["tuner"],
        ["session"],
    ],
    "minigraph.passes": [
        ["notes"],
        ["rewrite"],
        ["library", "layout", "kernels", "overlap"],
        ["levels"],
    ],
    "minigraph.program": [
        ["steps"],
        ["device", "memory"],
        ["choices", "lower"],
        ["recomputation"],
    ],
    "minigraph.devices": [
        ["kernel_cache", "problem"],
        ["cost", "parts"],
        ["host"],
        ["reference"],
        ["cpu", "cuda"],
        ["factory"],
    ],
    "minigraph.distributed": [
        ["ending"],
        ["world"],
    ],
    "minigraph.optim": [
        ["rule"],
        ["optimizer"],
        ["accumulation", "algorithms", "average", "schedules"],
    ],
    "minigraph.platform": [
        ["forks", "launcher", "messages", "records", "signals", "toolchain"],
        ["regular_file"],
        ["trust"],
    ],
    "minigraph.inspect": [
        ["roofline"],
        ["record"],
        ["comparison", "dot", "history", "page", "report"],
        ["profile"],
        ["describe"],
    ],
    "minigraph.runtime": [
        ["cache_file", "inputs"],
        ["function"],
        ["any_size", "view"],
    ],
    "minigraph.debug": [
        ["rounding"],
        ["check_finite", "fault_localization"],
        ["verify"],
    ],
    "minigraph.compiler": [
        ["trace"],
        ["agreement"],
        ["pipeline"],
    ],
    "minigraph.serialization": [
        ["tensor_file", "torch_file"],
        ["arrays"],
    ],
    "minigraph.graph_file": [
        ["writing"],
        ["reading"],
    ],
    "minigraph.onnx": [
        ["tensors"],
        ["values", "writer"],
        ["exports"],
        ["operators", "save"],
        ["interpret"],
        ["model"],
        ["command"],
    ],
}

"""The order of the parts of the package, and of the parts of its subpackages.

A part imports only itself and parts from the lists before its own.  `test_layers.py` compares the
imports with this order; the table of parts in docs/architecture.md is made from it.
"""

LAYERS = {
    "minigraph": [
        ["errors", "torch_hints", "version"],
        ["platform"],
        ["symbolic"],
        ["arguments"],
        ["options"],
        ["messages"],
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
        ["tensor_file", "torch_file"],
        ["graph_file", "serialization"],
        # From here on the package is used as its users use it.
        ["nn", "optim", "data"],
        ["interchange", "training"],
        ["onnx", "torch"],
        ["bench"],
        ["cli"],
    ],
    "minigraph.graph": [
        ["dtypes", "listing", "location"],
        ["spec"],
        ["unsupported"],
        ["node", "state"],
        ["builder"],
        ["leaves"],
        ["graph"],
        ["loop", "pickling"],
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
        ["product"],
        ["c"],
        ["cuda"],
    ],
    "minigraph.autotune": [
        ["checking", "measurement"],
        ["candidate"],
        ["data", "policy", "prediction"],
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
        ["device", "memory", "schedule"],
        ["choices", "lower", "recomputation"],
    ],
    "minigraph.devices": [
        ["kernel_cache", "pages", "problem"],
        ["cost", "parts"],
        ["host"],
        ["reference"],
        ["cpu", "cuda"],
        ["factory"],
    ],
    "minigraph.distributed": [
        ["board", "ending"],
        ["world"],
    ],
    "minigraph.optim": [
        ["rule"],
        ["parameter_group"],
        ["optimizer"],
        ["accumulation", "algorithms", "average", "schedules"],
    ],
    "minigraph.platform": [
        ["forks", "launcher", "records", "regular_file", "signals", "toolchain"],
        ["text_file", "trust"],
    ],
    "minigraph.inspect": [
        ["roofline"],
        ["record"],
        ["comparison", "dot", "history", "page", "report", "trace"],
        ["profile"],
        ["describe"],
    ],
    "minigraph.runtime": [
        ["cache_file", "calls", "inputs"],
        ["function"],
        ["any_size", "view"],
    ],
    "minigraph.debug": [
        ["rounding"],
        ["check_finite", "fault_localization"],
        ["verify"],
    ],
    "minigraph.compiler": [
        ["arguments", "context"],
        ["trace"],
        ["agreement"],
        ["pipeline"],
    ],
    "minigraph.graph_file": [
        ["record"],
        ["reading", "writing"],
    ],
    "minigraph.onnx": [
        ["exports", "tensorrt"],
        ["save"],
    ],
    "minigraph.onnx.exports": [
        ["writer"],
        ["structural"],
        ["elementwise"],
    ],
}

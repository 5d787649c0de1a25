"""The order of the parts of the package, and of the parts of its subpackages.

A part imports only itself and parts from the lists before its own.  `test_layers.py` compares the
imports with this order; the table of parts in docs/architecture.md is made from it.
"""

LAYERS = {
    "minigraph": [
        ["errors", "forks", "habits", "records", "regular_file", "signals", "version"],
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
        ["function"],
        ["serialization"],
        # From here on the package is used as its users use it.
        ["nn", "optim", "data"],
        ["evaluation", "bench"],
        ["training"],
        ["cli"],
    ],
    "minigraph.graph": [
        ["dtypes", "location", "picture"],
        ["spec"],
        ["node", "state"],
        ["builder", "copy"],
        ["leaves"],
        ["graph"],
        ["loop"],
        ["sizing"],
    ],
    "minigraph.cache": [
        ["counters", "entry", "machine", "trust"],
        ["temporary"],
        ["folder"],
        ["binaries", "measurements", "file"],
    ],
    "minigraph.jit": [
        ["source", "emitter", "macros", "small_float", "fused", "domain"],
        ["expression"],
        ["loops"],
        ["pattern"],
        ["kernel"],
        ["c"],
        ["cuda"],
    ],
    "minigraph.autotune": [
        ["measurement"],
        ["candidate"],
        ["data", "policy"],
        ["trial"],
        ["tuner"],
        ["session"],
        ["online"],
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
        ["host", "kernel_cache", "parts", "problem"],
        ["reference"],
        ["cpu", "cuda"],
        ["factory"],
    ],
    "minigraph.distributed": [
        ["board", "ending"],
        ["world"],
    ],
    "minigraph.optim": [
        ["optimizer"],
        ["accumulation", "adagrad", "adam", "average", "lion", "rmsprop", "schedules", "sgd"],
    ],
    "minigraph.function": [
        ["bound", "recompiling", "stage", "trace", "work"],
        ["report"],
        [
            "profile",
            "dot",
            "fingerprint",
            "noise",
            "cache_file",
            "choosing",
            "given",
            "left_out",
            "task",
        ],
        ["description"],
        ["page", "comparison"],
        ["agreement", "function"],
        ["any_size", "finite", "verify", "watching"],
        ["compile", "looking"],
    ],
    "minigraph.function.description": [
        ["record"],
        ["history"],
        ["describe"],
    ],
}

"""What people try who know PyTorch, and what serves here: for errors that say it in one line."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import NoReturn

COMPILED_FOR = 'functions are compiled for a device, mg.comp_graph(device="cuda")'
MINIMIZE = "minimize(loss) of an optimizer gives updates, which `compile` takes"

OF_EXPRESSIONS = {
    **dict.fromkeys(
        ("item", "numpy", "tolist", "eval", "value"),
        "an expression has no value before a call; "
        "compile it, mg.comp_graph().compile(inputs, outputs), and call that",
    ),
    **dict.fromkeys(
        ("backward", "grad", "requires_grad", "requires_grad_"),
        "mg.grad(loss, [...]) gives gradients as expressions, and optim's minimize(loss) updates",
    ),
    **dict.fromkeys(
        ("to", "cuda", "cpu", "device"),
        f"{COMPILED_FOR}; x.astype(dtype) converts elements",
    ),
    **dict.fromkeys(
        ("float", "double", "half", "bfloat16", "int", "long", "bool"),
        'x.astype("float32") converts elements, and so for other dtypes',
    ),
    "contiguous": "expressions have no layout in memory; leave it out",
    "clone": "expressions never change; leave it out",
    "data": "p.numpy() gives the value of a parameter, and p.assign(value) sets it",
    "dim": "x.ndim is the number of axes",
    "numel": "x.size is the number of elements",
    "repeat": "ops.tile(x, counts) repeats x as a whole, ops.repeat(x, n, axis) each element",
    **dict.fromkeys(("expand", "expand_as"), "ops.broadcast_to(x, shape) repeats x to a shape"),
    **dict.fromkeys(
        ("t", "mT", "adjoint"), "x.T turns a matrix, ops.matrix_transpose(x) stacks of them"
    ),
    "ravel": "x.flatten() has one axis",
    "type": 'x.dtype is the type of the elements, and x.astype("float32") converts them',
    "type_as": "x.astype(y.dtype) converts elements",
    "unflatten": "x.reshape(shape) gives another shape",
    **dict.fromkeys(
        ("new_zeros", "new_ones", "new_full"), "ops.zeros(shape, x.dtype) and the like"
    ),
    **dict.fromkeys(
        ("retain_grad", "register_hook", "grad_fn", "is_leaf"),
        "mg.grad(loss, [x]) gives the gradient by any expression x, which `compile` returns",
    ),
}

OF_MODULES = {
    **dict.fromkeys(
        ("to", "cuda", "cpu"), f"{COMPILED_FOR}; parameters go where the functions run"
    ),
    **dict.fromkeys(
        ("float", "double", "half", "bfloat16"),
        'layers are made in a dtype, nn.Linear(4, 2, dtype="float64")',
    ),
    **dict.fromkeys(
        ("add_module", "register_module", "register_parameter"),
        "attributes register themselves; setattr(module, name, part)",
    ),
    **dict.fromkeys(
        ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"),
        "the result of each layer is an expression, which `compile` returns beside the others; "
        "mg.grad(loss, [x]) is its gradient",
    ),
    **dict.fromkeys(
        ("get_parameter", "get_buffer"), "dict(net.named_parameters())[name], named_buffers() so"
    ),
    "compile": "cg = mg.comp_graph(); cg.compile(inputs, net(x)) compiles a function",
    "zero_grad": f"gradients are expressions, so there is nothing to clear; {MINIMIZE}",
}

OF_OPTIMIZERS = {
    "step": f"{MINIMIZE}: each call of the compiled function is a step",
    "zero_grad": f"gradients are expressions, so there is nothing to clear; {MINIMIZE}",
    "learning_rate": "optimizer.lr is the learning rate",
    "param_groups": "optimizer.lr is the learning rate, which takes effect at the next call",
    "add_param_group": "an optimizer is made with all its groups; make another",
    "state": "state_dict() gives copies of the state",
}

OF_FUNCTIONS = {
    "explain": "print(step.report()); its section(name) has the details",
    "summary": "print(step.report()) says what it computes, print(net) has the layers",
    "run": "step(x) runs it",
    **dict.fromkeys(
        ("train", "eval", "requires_grad_"),
        "a function stays what it was compiled to; write the expression after net.train() or "
        "net.eval(), and compile another",
    ),
    **dict.fromkeys(
        ("parameters", "state_dict", "load_state_dict"),
        "parameters belong to modules, net.parameters(); step.calls is the function's own count",
    ),
    **dict.fromkeys(("to", "cuda", "cpu"), COMPILED_FOR),
    **dict.fromkeys(("loss", "outputs", "results"), "a call returns them: loss = step(x, y)"),
    **dict.fromkeys(
        ("kernels", "stops", "passes", "algorithms", "memory", "ops"),
        "step.report() has it, as in step.report().kernels",
    ),
    **dict.fromkeys(
        ("graph", "nodes", "source", "code", "ir"),
        'step.report().section("steps") lists what runs, and step.report().kernels have their '
        "source; step.to_html(path) shows the graph after each pass",
    ),
}

OF_COMP_GRAPHS = {
    **dict.fromkeys(
        ("function", "build", "trace", "jit", "run"),
        "compile(inputs, outputs, updates) makes a function, which is called",
    ),
    "set_options": "set_option(name, value), one at a time",
    "get_options": "options has all of them, with their values",
    **dict.fromkeys(("to", "cuda", "cpu"), COMPILED_FOR),
}

CTC = "ops.scan over time, of ops.logaddexp, sums over all paths"
WINDOWS = "ops.stack([x[..., i : i + h, j : j + w] for i in rows for j in columns]) has all windows"

OF_LAYERS = {
    "functional": "functions of expressions are in minigraph.ops: ops.relu(x)",
    "utils": "minimize(loss, clip_norm=1.0) of an optimizer clips gradients",
    "DataParallel": "minimize(loss, reduce=mg.distributed.world()) trains in several processes",
    "SyncBatchNorm": "nn.BatchNorm2d(channels, synchronize=mg.distributed.world())",
    **dict.fromkeys(
        ("Transformer", "TransformerDecoder", "TransformerDecoderLayer"),
        "nn.TransformerEncoder, and nn.MultiheadAttention, which takes query, key and value",
    ),
    "ConvTranspose1d": "nn.ConvTranspose2d of images that are one pixel high",
    "CTCLoss": CTC,
    "Dropout1d": "nn.Dropout2d(p)(x[..., None])[..., 0]",
    "EmbeddingBag": "nn.Embedding(n, width)(indices).mean(axis=-2)",
    "Unfold": WINDOWS,
    **dict.fromkeys(
        ("ParameterList", "ParameterDict"),
        "assign each parameter to an attribute; setattr(module, name, nn.Parameter(value))",
    ),
    "GLU": "first, second = ops.split(x, 2, axis); first * ops.sigmoid(second)",
    "Hardtanh": "ops.clip(x, -1, 1)",
    "LogSigmoid": "-ops.softplus(-x)",
    "Softmin": "ops.softmax(-x, axis)",
    "Softsign": "x / (1 + abs(x))",
    "Softmax2d": "nn.Softmax(1)",
    **dict.fromkeys(
        ("Conv3d", "MaxPool3d", "AvgPool3d", "BatchNorm3d", "ConvTranspose3d", "Dropout3d"),
        "images have two axes, and sequences one; there is nothing for volumes",
    ),
    "CosineSimilarity": "ops.cosine_similarity(x1, x2, axis)",
    "PairwiseDistance": "ops.norm(x1 - x2, axis=-1)",
    **dict.fromkeys(
        ("TripletMarginLoss", "MarginRankingLoss", "HingeEmbeddingLoss", "MultiMarginLoss"),
        "a margin is ops.relu(nearer - farther + margin).mean()",
    ),
    "GaussianNLLLoss": "0.5 * (ops.log(var) + ops.square(x - mean) / var).mean()",
    "PoissonNLLLoss": "(ops.exp(x) - target * x).mean()",
}

OF_OPTIM = {
    "lr_scheduler": "optim.schedules has schedules, such as cosine(adam, T_max=10), "
    "whose step() sets adam.lr",
    "swa_utils": "optim.EMA(parameters, decay) averages weights",
    **dict.fromkeys(
        ("LBFGS", "Adadelta", "Adafactor", "Adamax", "ASGD", "NAdam", "RAdam", "Rprop", "Muon"),
        "mg.grad gives gradients, of which updates={p: new value} of `compile` makes any method",
    ),
    "SparseAdam": "gradients are dense; optim.Adam takes them",
}

OF_SCHEDULES = {
    "StepLR": "it is optim.schedules.step",
    "MultiStepLR": "it is optim.schedules.multi_step",
    "ExponentialLR": "it is optim.schedules.exponential",
    "CosineAnnealingLR": "it is optim.schedules.cosine",
    "LinearLR": "it is optim.schedules.warmup",
    "SequentialLR": "optim.schedules.warmup(adam, steps, after=another)",
    "OneCycleLR": "it is optim.schedules.one_cycle",
    "ReduceLROnPlateau": "it is optim.schedules.plateau",
    "ChainedScheduler": "call the step() of each schedule; their changes of the rate multiply",
    **dict.fromkeys(
        (
            "LambdaLR",
            "MultiplicativeLR",
            "ConstantLR",
            "PolynomialLR",
            "CyclicLR",
            "CosineAnnealingWarmRestarts",
        ),
        "setting adam.lr between calls makes any schedule, and compiles nothing",
    ),
}

ARRAYS = (
    "functions take NumPy arrays, mg.input(name, shape) stands for one, "
    "and mg.Parameter(value) is trained"
)
GRADIENTS = (
    "gradients are only computed where mg.grad or minimize(loss) asks for them; leave it out"
)
UNKNOWN_NUMBER = (
    "how many there are depends on the values, and shapes do not; "
    "ops.where(mask, x, 0) keeps the shape"
)

SEGMENTS = "ops.zeros(shape).index_add(0, segments, x) adds up rows by segment"
LARGEST = (
    "ops.where((segments == ops.arange(n)[:, None])[..., None], x, -np.inf).max(axis=1) has the "
    "maxima of rows by segment"
)

LOOPS = "ops.scan loops over an axis, or `length` times; nn.LSTM, nn.GRU and nn.RNN are layers"

OF_OPS = {
    "bmm": "ops.matmul multiplies stacks of matrices, too",
    **dict.fromkeys(("tensor", "from_numpy", "as_tensor"), ARRAYS),
    **dict.fromkeys(("no_grad", "set_grad_enabled"), GRADIENTS),
    **dict.fromkeys(
        ("cat", "concatenate", "hstack", "vstack", "append"), "ops.concat joins arrays"
    ),
    **dict.fromkeys(("chunk", "tensor_split"), "ops.split(x, sections, axis) gives equal parts"),
    "unbind": "ops.unstack(x, axis) takes x apart",
    **dict.fromkeys(("clamp", "hardtanh"), "ops.clip keeps elements within bounds"),
    **dict.fromkeys(("mm", "mv"), "ops.matmul multiplies matrices"),
    **dict.fromkeys(("dot", "inner"), "ops.vecdot multiplies vectors"),
    **dict.fromkeys(("addmm", "baddbmm"), "a + x @ y"),
    "mul": "ops.multiply, or x * y",
    **dict.fromkeys(("div", "true_divide"), "ops.divide, or x / y"),
    "power": "ops.pow, or x ** y",
    "absolute": "ops.abs, or abs(x)",
    **dict.fromkeys(("arcsin", "arccos", "arctan", "arctan2"), "ops.asin, acos, atan, atan2"),
    "eq": "ops.equal, or x == y",
    "ne": "ops.not_equal, or x != y",
    "lt": "ops.less, or x < y",
    "le": "ops.less_equal, or x <= y",
    "gt": "ops.greater, or x > y",
    "ge": "ops.greater_equal, or x >= y",
    "amax": "it is ops.max",
    "amin": "it is ops.min",
    "lerp": "x + weight * (y - x)",
    **dict.fromkeys(
        ("median", "quantile"), "ops.sort(x, axis), and of that the element at its place"
    ),
    **dict.fromkeys(
        ("cdist", "pairwise_distance"), "ops.norm(x[:, None] - y, axis=-1) gives distances"
    ),
    **dict.fromkeys(("masked_fill", "nan_to_num"), "ops.where(mask, value, x) replaces elements"),
    **dict.fromkeys(("masked_select", "nonzero", "argwhere", "unique"), UNKNOWN_NUMBER),
    "bincount": "ops.one_hot(x, n).sum(axis=0) counts n values",
    **dict.fromkeys(("segment_sum", "scatter_sum"), SEGMENTS),
    **dict.fromkeys(("scatter_reduce", "segment_max", "scatter_max"), f"{SEGMENTS}; {LARGEST}"),
    "isin": "(x[..., None] == values).any(axis=-1)",
    "ctc_loss": CTC,
    "unfold": WINDOWS,
    "grid_sample": "x[:, :, rows, columns] takes pixels, for whole numbers rows and columns",
    "checkpoint": "the option graph_opt.memory_limit has computed again what memory does not hold",
    **dict.fromkeys(
        ("linalg", "inverse", "inv", "solve", "svd", "cholesky", "fft"),
        "ops multiply matrices and do not factor them; np.linalg and np.fft do, before a call",
    ),
    **dict.fromkeys(("nan", "inf", "pi", "e"), "np.nan, np.inf, np.pi and np.e are Python numbers"),
    **dict.fromkeys(("index_select", "embedding"), "ops.take(x, indices, axis) takes rows"),
    **dict.fromkeys(("index_fill", "index_copy"), "ops.index_put(x, indices, values) writes rows"),
    "take_along_dim": "it is ops.take_along_axis",
    "movedim": "it is ops.moveaxis",
    "repeat_interleave": "it is ops.repeat",
    **dict.fromkeys(("diag", "diagonal"), "x[range(n), range(n)], and x * ops.eye(n)"),
    "meshgrid": "ops.expand_dims makes arrays that broadcast against each other",
    "rand": "ops.random_uniform(shape) draws numbers in each call",
    **dict.fromkeys(
        ("randn", "normal", "randn_like"), "ops.random_normal(shape) draws numbers in each call"
    ),
    "randint": "ops.floor(ops.random_uniform(shape, low, high)).astype(dtype)",
    "randperm": "ops.argsort(ops.random_uniform((n,)))",
    "bernoulli": "ops.random_uniform(shape) < p",
    "multinomial": "ops.argmax(logits - ops.log(-ops.log(ops.random_uniform(logits.shape))), -1)",
    "empty": "ops.zeros(shape)",
    **dict.fromkeys(("conv1d", "max_pool1d", "avg_pool1d"), "its layer, nn.Conv1d and so on"),
    "pixel_shuffle": "nn.PixelShuffle(factor)(x)",
    "dropout2d": "nn.Dropout2d(p)(x)",
    "upsample": "it is ops.interpolate",
    "instance_norm": "ops.group_norm(x, channels), or nn.InstanceNorm2d",
    "glu": "first, second = ops.split(x, 2, axis); first * ops.sigmoid(second)",
    "logsigmoid": "-ops.softplus(-x)",
    "softmin": "ops.softmax(-x, axis)",
    "softsign": "x / (1 + abs(x))",
    "triplet_margin_loss": "ops.relu(nearer - farther + margin).mean()",
    "permute": "ops.permute_dims changes the order of axes",
    "sub": "ops.subtract, or x - y",
    "transpose": "ops.swapaxes(x, 0, 1) exchanges two axes, ops.permute_dims orders all",
    "unsqueeze": "ops.expand_dims adds an axis",
    "view": "ops.reshape gives another shape",
    "detach": "it is ops.stop_gradient",
    "grad": "mg.grad(loss, [...]) gives gradients as expressions",
    "cond": "ops.where(condition, x, y) takes elements of both",
    **dict.fromkeys(("while_loop", "fori_loop", "lstm", "gru", "rnn"), LOOPS),
    "vmap": "ops take axes in front of those that they compute along",
}

OF_PACKAGE = {
    **OF_OPS,
    **dict.fromkeys(("tensor", "Tensor", "array", "from_numpy", "as_tensor"), ARRAYS),
    **dict.fromkeys(("no_grad", "inference_mode", "enable_grad"), GRADIENTS),
    **dict.fromkeys(
        ("autocast", "amp"), 'mg.comp_graph(options={"amp": "bfloat16"}) computes in bfloat16'
    ),
    **dict.fromkeys(
        ("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool", "long"),
        'types are named by texts, "float32", or NumPy\'s, np.float32',
    ),
    **dict.fromkeys(
        ("set_default_dtype", "get_default_dtype"),
        'layers and inputs take their own, nn.Linear(4, 2, dtype="float64")',
    ),
    "set_num_threads": 'mg.comp_graph(options={"num_threads": 2})',
    "device": COMPILED_FOR,
    **dict.fromkeys(
        ("export", "onnx"),
        "mg.save(path, net) keeps the weights; the program that makes the graph is kept as it is",
    ),
    "autograd": "mg.grad(loss, [...]) gives gradients as expressions",
    "compile": "cg = mg.comp_graph(); cg.compile(inputs, outputs, updates) compiles a function",
    "cuda": COMPILED_FOR,
    "load_state_dict": "net.load_state_dict(mg.load(path)) sets the weights of a file",
    "set_option": "cg = mg.comp_graph(); cg.set_option(name, value)",
    **dict.fromkeys(
        ("manual_seed", "seed"),
        'nn.manual_seed(seed) is for layers, cg.set_option("seed", seed) for functions',
    ),
}

FROM_ARRAYS = "nothing is downloaded; DataLoader takes arrays, such as those of np.load"

OF_DATA = {
    "TensorDataset": "DataLoader((images, labels)) takes arrays as they are",
    **dict.fromkeys(
        ("IterableDataset", "ConcatDataset", "ChainDataset"),
        "DataLoader takes any iterable, or a function that returns one for each epoch",
    ),
    **dict.fromkeys(
        ("Subset", "random_split"),
        "DataLoader takes a list, [dataset[i] for i in indices], and arrays, images[indices]",
    ),
    **dict.fromkeys(
        ("Sampler", "RandomSampler", "BatchSampler", "WeightedRandomSampler", "SequentialSampler"),
        "DataLoader takes shuffle=True, or a function that returns the examples of an epoch",
    ),
    "DistributedSampler": "DataLoader(dataset, shard=mg.distributed.world())",
    "collate": "default_collate stacks examples",
    **dict.fromkeys(("MNIST", "FashionMNIST", "CIFAR100", "SVHN", "ImageNet"), FROM_ARRAYS),
    **dict.fromkeys(
        ("transforms", "Compose"), "transform=f of a DataLoader, for any function f of an example"
    ),
}

OF_DEVICES = {
    "gpu": 'an NVIDIA GPU is "cuda"',
    "mps": "Apple's GPUs are not supported",
    "xpu": "Intel's GPUs are not supported",
}


def of_module(
    module: str, hints: Mapping[str, str], *others: ModuleType
) -> Callable[[str], NoReturn]:
    """Return the `__getattr__` of a module, which answers to names that the module has not.

    others  modules that may have them
    """
    elsewhere = {
        name: f"it is {other.__name__.rpartition('.')[2]}.{name}"
        for other in others
        for name in other.__all__
    }

    def find(name: str) -> NoReturn:
        raise missing(module, name, {**elsewhere, **hints}, sys.modules[module])

    return find


def of_expression(name: str, expression: object, functions: Iterable[str]) -> AttributeError:
    """Return the error for an attribute that an expression has not.

    functions  the names of `minigraph.ops`
    """
    if name.startswith("_"):  # of a protocol, which is asked for often
        return missing("an expression", name, {}, expression)
    of_functions = {each: f"it is the function ops.{each}" for each in functions}
    known = {**of_functions, **OF_OPS, **OF_EXPRESSIONS}
    plain = name.removesuffix("_")
    if plain != name and name not in known:
        new = known.get(plain, "`updates` of `compile` gives parameters new values")
        if hasattr(type(expression), plain):
            new = f"x.{plain}(...) gives a new one"
        known[name] = f"expressions never change; {new}"
    return missing("an expression", name, known, expression)


def missing(what: str, name: str, hints: Mapping[str, str], owner: object) -> AttributeError:
    """Return the error for an attribute that `what` has not, with what serves instead."""
    instead = hints.get(name)
    text = (
        f"{what} has no {name}: {instead}" if instead else f"{what} has no attribute {name!r:.99}"
    )
    if not instead and not name.startswith("_"):
        known = getattr(owner, "__all__", None) or object.__dir__(owner)
        public = [each for each in known if not each.startswith("_")]
        nearest = difflib.get_close_matches(name, public, n=1, cutoff=0.75)
        text += f"; the nearest is {nearest[0]}" if nearest else ""
    return AttributeError(text, name=name, obj=owner)

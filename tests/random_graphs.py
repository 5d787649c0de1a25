"""Random graphs, each made from a seed as the text of a program that builds it.

A graph grows line by line: a template of TEMPLATES is filled in with values that fit, executed, and
kept unless shapes or dtypes turn out not to fit.  `str(graph)` is the whole program, which builds
the same graph anywhere and prints what every level makes of it.
"""

import functools
import inspect
import random

import numpy as np
from random_lines import DOMAINS, NUMBERS, RARE_NUMBERS, TEMPLATES

import minigraph as mg
from minigraph import ops
from minigraph.ops.elementwise import kind

LENGTHS, LARGEST = (1, 2, 3, 4, 7, 33), 700  # of axes; elements of a value


def draw(shape, dtype, values, seed):
    """Random numbers: "real", on a "grid" of halves, or "special", those that go wrong first."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if "int" in dtype:
        return rng.integers(-4 if dtype[0] == "i" else 0, 5, shape).astype(dtype)
    x = rng.normal(size=shape) * 2
    if values == "grid":
        x = np.round(x) / 2
    if values == "special":
        rare = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30, 1e30, -1e30, 1e-42]
        x = np.where(rng.random(shape) < 0.4, rng.choice(rare, shape), x)
    with np.errstate(over="ignore"):
        return x.astype(dtype)


class RandomGraph:
    """The random graph number `seed`.

    dtype                             of its floats, else float32 in most graphs
    more                              templates besides TEMPLATES, with weights
    lengths, largest                  of axes; how many elements a value may have
    inputs, outputs, updates, arrays  as `compile` and the compiled function take them
    """

    def __init__(self, seed, dtype=None, more=(), lengths=LENGTHS, largest=LARGEST):
        self.seed, self.largest = seed, largest
        self.templates = [*TEMPLATES, *more]
        self.random = random.Random(seed)
        self.lines = []
        self.scope = {"np": np, "mg": mg, "ops": ops, "draw": draw}
        self.names = []  # of the values
        self.tame = self.random.random() < 0.4  # operands stay where ops are defined
        self.values = (
            "real" if self.tame else self.random.choice(("real", "grid", "special", "special"))
        )
        lengths = lengths if self.random.random() < 0.95 else (0, 1, 2)
        self.lengths = self.random.choices(self.random.sample(lengths, 2), k=3)
        drawn = self.random.choices(("float32", "float64", "float16"), (44, 4, 1))[0]
        self.float = dtype or drawn
        self.grow()
        self.finish()

    def __str__(self):
        """The program."""
        head = ["import numpy as np\n", "import minigraph as mg", "from minigraph import ops\n\n"]
        return "\n".join([*head, inspect.getsource(draw), "", *self.lines, "", REPORT])

    # ------------------------------------------------------------ lines

    def execute(self, line):
        exec(compile(line, f"random graph {self.seed}", "exec"), self.scope)
        self.lines.append(line)

    def let(self, name, expression):
        """Append a line that gives an expression a name; return the name."""
        self.execute(f"{name} = {expression}")
        self.names.append(name)
        return name

    def grow(self):
        for i in range(self.random.choice((1, 2, 2, 3))):
            dtype = self.random.choices((self.float, "int32", "bool"), (14, 1, 1))[0]
            dtype = dtype if i else self.float
            self.let(f"x{i}", f'mg.input("x{i}_{self.seed}", {self.some_shape()}, "{dtype}")')
        weights, groups = zip(*self.templates, strict=True)
        for _ in range(self.random.choice((4, 8, 14, 22))):
            self.try_line(self.random.choice(self.random.choices(groups, weights)[0]))

    def try_line(self, template):
        """Append the filled-in template, unless something does not fit."""
        before = len(self.lines), len(self.names)
        try:
            expression = template.format_map(Blanks(self, template))
            name = self.let(f"v{len(self.lines)}", expression)
            fits = not self.scope[name].is_bundle and self.scope[name].size <= self.largest
        except (mg.GraphError, LookupError):
            fits = False
        if not fits:
            del self.lines[before[0] :], self.names[before[1] :]

    def finish(self):
        """Choose outputs and updates, and draw the arrays."""
        read = {x for name in self.names for x in self.node(name).inputs}
        ends = [name for name in self.names if self.node(name) not in read]
        outputs = self.random.sample(ends, min(len(ends), 5))
        outputs += self.random.sample(
            self.names, self.random.choice((0, 0, 1, 2)) % len(self.names)
        )
        if self.random.random() < 0.05:
            outputs.append(self.random.choice(("2.5", outputs[0])))
        updates = self.update() if self.random.random() < 0.3 else {}
        self.execute(f"inputs = [{', '.join(x for x in self.names if x[0] == 'x')}]")
        self.execute(f"outputs = [{', '.join(outputs)}]")
        self.execute(f"updates = {{{', '.join(f'{k}: {v}' for k, v in updates.items())}}}")
        self.execute(
            f'arrays = [draw(x.shape, str(x.dtype), "{self.values}", {self.seed} + i)'
            " for i, x in enumerate(inputs)]"
        )
        for name in ("inputs", "outputs", "updates", "arrays"):
            setattr(self, name, self.scope[name])

    def update(self):
        """Append the lines of an optimizer's step; return parameters with their new values."""
        value = self.pick("f")
        p, mean, square = (self.parameter(self.node(value).shape) for _ in range(3))
        n = len(self.lines)
        if self.random.random() < 0.4:
            new = self.let(f"v{n}", f"{p} * 0.9 + {value} * 0.1")
            return {p: new} if self.random.random() < 0.5 else {p: new, mean: p}
        self.let(f"v{n}", f"{mean} * 0.9 + {value} * 0.1")
        self.let(f"v{n + 1}", f"ops.square({square}) * 0.99 + {value} * {value} * 0.01")
        self.let(f"v{n + 2}", f"v{n} / (ops.sqrt(v{n + 1}) * 1.5 + 1e-3) * -0.1 + {p}")
        return {mean: f"v{n}", square: f"v{n + 1}", p: f"v{n + 2}"}

    # ------------------------------------------------------------ what fits

    def node(self, name):
        return self.scope[name]

    def pick(self, kinds, fits=lambda node: True, default=None):
        """The name of a value, rather a new one, or of what `default` makes where none fits."""
        nodes = [x for x in self.names if kind(self.node(x).dtype) in kinds and fits(self.node(x))]
        if default and self.random.random() < 0.2 / (len(nodes) + 0.2):
            return default()
        if not nodes:
            raise LookupError(kinds)
        return nodes[max(self.random.randrange(len(nodes)), self.random.randrange(len(nodes)))]

    def some_shape(self):
        """The graph's axes: all, or without leading ones, or with some of length 1."""
        if self.random.random() < 0.3:
            return tuple(self.lengths)
        kept = (1 if self.random.random() < 0.3 else n for n in self.lengths)
        return tuple(kept)[self.random.choice((0, 0, 1, 1, 2, 3)) :]

    def parameter(self, shape, dtype=None, values=None):
        """Append a new parameter."""
        name, seed = f"w{len(self.lines)}", self.random.randrange(10**6)
        array = f'draw({tuple(shape)}, "{dtype or self.float}", "{values or self.values}", {seed})'
        return self.let(name, f'mg.Parameter({array}, "{name}")')


class Blanks(dict):
    """The values for a template's blanks; a digit at a blank's end asks for a different value."""

    def __init__(self, graph, template):
        super().__init__()
        self.graph = graph
        self.random = graph.random
        self.domain = graph.tame and DOMAINS.get(template.partition("(")[0].removeprefix("ops."))
        self.width = self.random.choice((1, 3, 4))  # of what a layer makes

    def __missing__(self, key):
        self[key] = text = str(getattr(self, key.rstrip("23"))())
        return text

    @functools.cached_property
    def first(self):
        """The name of the value that {a} stands for."""
        return self.graph.pick("f")

    @property
    def node(self):
        return self.graph.scope[self.first]

    def inside(self, name):
        return f"ops.clip({name}, {self.domain[0]}, {self.domain[1]})" if self.domain else name

    def like(self, fits):
        """The name of a value with the dtype of {a}."""
        return self.graph.pick("f", lambda node: node.dtype == self.node.dtype and fits(node))

    # ------------------------------------------------------------ values

    def a(self):
        return self.inside(self.first)

    def b(self):
        return self.inside(self.like(lambda node: broadcasts(node.shape, self.node.shape)))

    c = d = b

    def s(self):
        return self.like(lambda node: node.shape == self.node.shape)

    def i(self):
        return self.graph.pick("iu", default=self.new_integers)

    def new_integers(self):
        return self.graph.parameter(self.graph.some_shape(), self.random.choice(("int32", "uint8")))

    j = i

    def p(self):
        return self.graph.pick("b", default=lambda: f"({self.graph.pick('f')} > 0)")

    q = p

    def x(self):
        """What a gradient may be asked for."""
        names = [n for n in self.graph.names if n[0] in "xw"]
        return self.random.choice(names)

    def y(self):
        """A float that a gradient may be asked for, the same throughout the line."""
        names = [x for x in self.graph.names if x[0] in "xw"]
        names = [x for x in names if kind(self.graph.node(x).dtype) == "f"]
        return self.random.choice(names)

    def u(self):
        """The name of a value of any dtype that broadcasts with {a}."""
        return self.graph.pick("fiub", lambda node: broadcasts(node.shape, self.node.shape))

    def bit(self):
        return self.random.choice((0, 1))

    def small(self):
        return repr(self.random.choice(("float16", "bfloat16", "float64")))

    def n(self):
        rare = not self.graph.tame and self.random.random() < 0.15
        return self.random.choice(RARE_NUMBERS if rare else NUMBERS)

    m = n

    # ------------------------------------------------------------ arguments that fit {a}

    def axis(self):
        return self.random.choice(range(-self.node.ndim, self.node.ndim))

    def axes(self):
        axes = range(self.node.ndim)
        some = tuple(self.random.sample(axes, self.random.randint(0, len(axes))))
        return self.random.choice((None, some, *axes))

    def not_channel(self):
        return tuple(axis for axis in range(self.node.ndim) if axis != 1)

    def order(self):
        return tuple(self.random.sample(range(self.node.ndim), self.node.ndim))

    def swapped(self):
        *rest, y, x = range(max(self.node.ndim, 2))
        return (*rest, x, y)

    def shape(self):
        old = list(self.node.shape)
        at = self.random.randint(0, len(old))
        one = [*old[:at], 1, *old[at:]]
        return tuple(self.random.choice(([-1], [-1, 1], [*reversed(old)], one, [-1, *old[2:]])))

    def rows(self):
        if not self.node.size:
            raise LookupError
        return "np.array([0, -1, 0])"

    def wide(self):
        lead = (2,) * self.random.randint(0, 1)
        return (*lead, *(3 if n == 1 else n for n in self.node.shape))

    def index(self):
        items = [":", ":", "::2", "::-1", "1:", ":-1", "0", "-1"]
        return ", ".join(self.random.choice(items) for _ in self.node.shape) or "..."

    def relation(self):
        return self.random.choice(("<", "<=", ">", ">=", "==", "!="))

    def reduce(self):
        return self.random.choice(("sum", "sum", "mean", "max", "min", "prod"))

    def power(self):
        return self.random.choice((2, 2, -1, 0.5, 0, 1, 3, -2, -0.5))

    def number_type(self):
        return repr(self.graph.float)

    # ------------------------------------------------------------ layers

    def matrix(self):
        return self.graph.parameter((*self.node.shape[-1:], self.width))

    def bias(self):
        return self.graph.parameter((self.width,))

    channels = bias

    def image(self):
        return f"{self.first}.reshape((1, *{self.first}.shape))"

    def kernel(self):
        # Infinity times padding is NaN to NumPy, while other kernels pass over the padding.
        return self.graph.parameter((self.width, *self.node.shape[:1], 3, 3), values="real")

    def labels(self):
        if self.node.ndim != 2 or not self.node.size:
            raise LookupError
        count, classes = self.node.shape
        return f"np.arange({count}) % {classes}"


def broadcasts(*shapes):
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        return False
    return True


REPORT = """
for level in range(4):
    old = [p.numpy() for p in updates]
    graph = mg.comp_graph("reference", {"graph_opt_level": level})
    results = graph.compile(inputs, outputs, updates)(*arrays)
    print(level, *results, *(p.numpy() for p in updates), sep="\\n")
    for p, value in zip(updates, old):
        p.assign(value)
"""

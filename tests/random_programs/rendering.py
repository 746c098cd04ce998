"""Programs as Python source: a script that a person can run as it is."""

from __future__ import annotations

from typing import Any

from tests.random_programs.draws import SPELLINGS
from tests.random_programs.grammar import (
    Block,
    Call,
    Conditional,
    Draw,
    For,
    Gradient,
    If,
    InnerScope,
    Loop,
    Program,
    SetSeed,
    With,
    walk,
)

HEADER = """\
import keras
import tensorflow as tf
import tf_keras

from tests.random_programs.ways import compare, image, mix, numbers, rounded

v1 = tf.compat.v1"""


def source(program: Program) -> str:
    """Return the source of a module with `make_tf1` and `make_port`: each returns the program, given both tools."""
    tf1, port = (_Source(tf1=is_tf1).make(program) for is_tf1 in (True, False))
    if tf1 == port:
        makes = [f"def make_tf1(tool, other):\n{tf1}", "make_port = make_tf1\n"]
    else:
        makes = [f"def make_tf1(tool, other):\n{tf1}", f"def make_port(tool, other):\n{port}"]
    return "\n\n".join([HEADER, *makes])


def script(program: Program, way: str) -> str:
    """Return a script that runs a program in a session and in one other way."""
    footer = f'compare(make_tf1, make_port, runs={program.runs}, mode="{program.mode}", way="{way}")'
    return f"{source(program)}\n{footer}\n"


class _Source:
    """Lines of source, and the numbers that names and op seeds get."""

    def __init__(self, tf1: bool):
        self.tf1 = tf1
        self.definitions: list[str] = []
        self.count = 0
        self.op_seed = 0
        self.is_converted = False  # whether the line is in an `if` or `for` that AutoGraph converts

    def number(self) -> int:
        self.count += 1
        return self.count

    def next_op_seed(self) -> int:
        self.op_seed += 1000
        return self.op_seed

    def make(self, program: Program) -> str:
        body = []
        for statement in program.body:
            body += [*self.statement(statement, "tool"), "outputs.append(x)"]
        lines = [*self.definitions, "def program(x):", "    outputs = []", *_indented(body), "    return outputs"]
        return "\n".join(_indented([*lines, "", "return program"])) + "\n"

    def define(self, name: str, block: Block, tool: str, decorators: tuple[str, ...] = (), before: list[str] = [],  # noqa: B006
               parameters: str = "x") -> str:  # fmt: skip
        """Define a function of x at the top, and return its name."""
        name = f"{name}_{self.number()}"
        lines = [*before, *self.outside(block, tool)]
        self.definitions += [*decorators, f"def {name}({parameters}):", *_indented(lines), "    return x", ""]
        return name

    def converted(self, block: Block, tool: str) -> list[str]:
        """Render a block in an `if` or `for` that AutoGraph converts."""
        before, self.is_converted = self.is_converted, True
        lines = self.block(block, tool)
        self.is_converted = before
        return lines

    def outside(self, block: Block, tool: str) -> list[str]:
        """Render the body of a function."""
        before, self.is_converted = self.is_converted, False
        lines = self.block(block, tool)
        self.is_converted = before
        return lines

    def block(self, block: Block, tool: str) -> list[str]:
        return [line for statement in block for line in self.statement(statement, tool)] or ["pass"]

    def statement(self, statement: Any, tool: str) -> list[str]:
        return getattr(self, f"_{type(statement).__name__.lower()}")(statement, tool)

    def _draw(self, draw: Draw, tool: str) -> list[str]:
        spelling = SPELLINGS[draw.name]
        values = {
            "n": self.number(),
            "dtype": draw.dtype,
            "shape": list(draw.shape),
            "seed": ", seed=7" if draw.seed else "",
            "seed_only": "seed=7" if draw.seed else "",
            "seed_of_kernel": ", kernel_initializer=keras.initializers.GlorotUniform(7)" if draw.seed else "",
        }
        setup = spelling.setup if self.tf1 else spelling.port_setup
        expression = spelling.tf1 if self.tf1 else spelling.port or spelling.tf1
        self.definitions += setup.format(**values).splitlines()
        return [f"x = mix(x, {expression.format(**values)})"]

    def _setseed(self, statement: SetSeed, tool: str) -> list[str]:
        match statement.of:
            case "operation_seed":
                return [self.setting(tool)]
            case "the next operation_seed":
                return [self.setting(tool, f"{tool}.operation_seed + 50")]
        return ["tf.random.set_seed(5)"]

    def setting(self, tool: str, value: str = "") -> str:
        """Return a line that sets a tool's op seed, by default to one that nothing else is set to."""
        value = value or str(self.next_op_seed())
        if self.is_converted:  # AutoGraph would assign a tensor
            return f'setattr({tool}, "operation_seed", {value})'
        return f"{tool}.operation_seed = {value}"

    def _conditional(self, statement: Conditional, tool: str) -> list[str]:
        setting = statement.sets_seeds
        tools = _tools(statement, tool)

        def seeds() -> list[str]:
            return [self.setting(name) for name in tools if setting]

        branches = []
        for branch in statement.branches:
            before, self.is_converted = self.is_converted, False
            name = self.define("branch", branch, tool, before=seeds())
            self.is_converted = before
            branches.append(f"lambda: {name}(x)")
        first, second, *_ = branches
        match statement.kind:
            case "cond" | "v1.cond":
                call = f"{'tf' if statement.kind == 'cond' else 'v1'}.cond({statement.predicate}, {first}, {second})"
            case "case":
                call = f"v1.case([({statement.predicate}, {first}), (x > 0.3, {second})], default={branches[2]})"
            case "exclusive case":
                pairs = f"({statement.predicate}, {first}), (tf.logical_not({statement.predicate}), {second})"
                call = f"tf.case([{pairs}], exclusive=True)"
            case "switch_case":
                call = f"tf.switch_case(tf.cast(x * 4.0, tf.int32) % 3, [{', '.join(branches)}])"
        return [f"x = {call}", *seeds()]

    def _if(self, statement: If, tool: str) -> list[str]:
        then, other = (self.converted(branch, tool) for branch in statement.branches)
        return [
            f"if {statement.predicate}:",
            *_indented(then),
            "else:",
            *_indented(other),
        ]

    def _loop(self, statement: Loop, tool: str) -> list[str]:
        n = statement.iterations
        body = self.define("body", statement.body, tool)
        elements = f"tf.linspace(x, x / 2, {n})" if n else "tf.zeros([0], tf.float64)"
        match statement.kind:
            case "while_loop":
                loop = f"tf.while_loop(lambda i, x: i < {n}, lambda i, x: (i + 1, {body}(x)), (0, x))[1]"
            case "while_loop that draws in its condition":
                loop = f"tf.while_loop(lambda i, x: tf.random.uniform([]) + tf.cast(i, tf.float32) < {n}, "
                loop += f"lambda i, x: (i + 1, {body}(x)), (0, x))[1]"
            case "vectorized_map":
                loop = f"mix(x, tf.vectorized_map(lambda e: {body}(e), {elements}))"
            case "dataset":
                dataset = f"tf.data.Dataset.range({n}).map(lambda i: {body}(tf.cast(i, tf.float64)))"
                loop = f"{dataset}.reduce(x, mix)"
            case "map_fn":
                loop = f"mix(x, tf.map_fn(lambda e: {body}(e), {elements}))"
            case "foldl" | "foldr":
                loop = f"tf.{statement.kind}(lambda x, e: {body}(x + e), {elements}, x)"
            case "scan":
                loop = f"mix(x, tf.scan(lambda x, e: {body}(x + e), {elements}, x))"
        # Eager code does not execute the body of a loop without iterations, whose ops take op seeds in a graph.
        return [f"x = {loop}", *(self.setting(name) for name in _tools(statement, tool) if not n)]

    def _for(self, statement: For, tool: str) -> list[str]:
        if statement.over == "range":
            return [f"for _ in range({statement.iterations}):", *_indented(self.block(statement.body, tool))]
        lines = self.converted(statement.body, tool)
        if statement.over == "tf.range with break":
            lines += ["if x > 0.7:", "    break", "x = mix(x, tf.random.uniform([]))"]
        return [f"for _ in tf.range({statement.iterations}):", *_indented(lines)]

    def _call(self, statement: Call, tool: str) -> list[str]:
        body, function = statement.body, "@tf.function"
        match statement.kind:
            case "tf.function":
                return [f"x = {self.define('function', body, tool, (function,))}(x)"]
            case "python":
                return [f"x = {self.define('function', body, tool)}(x)"]
            case "method":
                name = f"Model_{self.number()}"
                lines = self.outside(body, tool)
                self.definitions += [f"class {name}:", "    def call(self, x):", *_indented(_indented(lines)),
                                     "        return x", ""]  # fmt: skip
                return [f"x = {name}().call(x)"]
            case "recursive python" | "recursive tf.function":
                name = f"recursive_{self.number()}"
                lines = ["if depth == 0:", "    return x", *self.outside(body, tool), f"return {name}(x, depth - 1)"]
                self.definitions += [function] * (statement.kind == "recursive tf.function")
                self.definitions += [f"def {name}(x, depth):", *_indented(lines), ""]
                return [f"x = {name}(x, 2)"]
            case "retraced for shapes":
                name = self.define("function", body, tool, (function,), ["x = mix(x, e)"], "x, e")
                return [f"x = {name}(x, tf.ones([2]))", f"x = {name}(x, tf.ones([3]))"]
            case "retraced for dtypes":
                name = self.define("function", body, tool, (function,), ["x = mix(x, e)"], "x, e")
                return [f"x = {name}(x, tf.constant(2))", f"x = {name}(x, tf.constant(2.0))"]
            case "retraced for python arguments":
                name = self.define("function", body, tool, (function,), ["x = x + k"], "x, k")
                return [f"x = {name}(x, 1)", f"x = {name}(x, 2)"]
            case "input_signature":
                decorator = "@tf.function(input_signature=[tf.TensorSpec([], tf.float64), tf.TensorSpec([None])])"
                name = self.define("function", body, tool, (decorator,), ["x = mix(x, e)"], "x, e")
                return [f"x = {name}(x, tf.ones([2]))", f"x = {name}(x, tf.ones([3]))"]
            case "called twice":
                name = self.define("function", body, tool, (function,))
                return [f"x = {name}(x)", f"x = {name}(x)"]
            case "concrete":
                name = self.define("function", body, tool, (function,))
                return [f"x = {name}.get_concrete_function(tf.TensorSpec([], tf.float64))(x)"]
            case "autograph=False":
                return [f"x = {self.define('function', body, tool, ('@tf.function(autograph=False)',))}(x)"]
            case "recompute_grad":
                return [f"x = tf.recompute_grad({self.define('function', body, tool)})(x)"]
            case "custom_gradient":
                gradient = ["def gradient(upstream):", "    return mix(upstream, tf.random.uniform([2]))"]
                name = f"custom_{self.number()}"
                lines = [*self.outside(body, tool), "", *gradient, "", "return x, gradient"]
                self.definitions += ["@tf.custom_gradient", f"def {name}(x):", *_indented(lines), ""]
                return [f"x = {name}(x)"]
            case "jit_compile":
                jit = function if self.tf1 else "@tf.function(jit_compile=True)"
                return [f"x = {self.define('function', body, tool, (jit,))}(x)"]
        raise AssertionError(statement.kind)

    def _innerscope(self, statement: InnerScope, tool: str) -> list[str]:
        inner = "other" if statement.tool == "other" else "tool"
        return [f"with {inner}.scope():", *_indented(self.block(statement.body, inner))]

    def _with(self, statement: With, tool: str) -> list[str]:
        if statement.context == "tf.init_scope()":  # x is a tensor of the function that is being built
            body = self.define("lifted", statement.body, tool)
            return ["with tf.init_scope():", f"    y = {body}(tf.constant(0.5, tf.float64))", "x = mix(x, y)"]
        return [f"with {statement.context}:", *_indented(self.block(statement.body, tool))]

    def _gradient(self, statement: Gradient, tool: str) -> list[str]:
        forward = f"{self.define('forward', statement.body, tool)}(x) * x"
        if self.tf1:
            return [f"y = {forward}", "x = mix(x, rounded(tf.gradients(y, x)[0]))"]
        return [
            f"with tf.GradientTape({'persistent=True' * (statement.kind == 'persistent tape')}) as tape:",
            "    tape.watch(x)",
            f"    y = {forward}",
            "x = mix(x, rounded(tape.gradient(y, x)))",
        ]


def _tools(statement: Any, tool: str) -> list[str]:
    """Return the names of the tools that draws in a statement may take op seeds of."""
    scopes = [inner.tool for inner in walk((statement,)) if isinstance(inner, InnerScope)]
    return sorted({tool, *("other" if scope == "other" else "tool" for scope in scopes)})


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" if line else "" for line in lines]

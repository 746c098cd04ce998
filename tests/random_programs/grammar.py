"""Random programs: trees of draws, control flow, functions, scopes and gradients, and a strategy that makes them.

A block is a sequence of statements. Each statement changes `x`, a float64 scalar, by what it draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import hypothesis.strategies as st

from tests.random_programs.draws import CLOSE, EXACT, REFUSED, SPELLINGS, UNCONTROLLED, Spelling

DEPTH = 4
MODES = ("constant", "num_random_ops")
PREDICATES = ("x > 0.6", "x < 0.6", "tf.constant(True)", "tf.constant(False)")
SHAPES = ((2,), (), (2, 1), (1, 2, 1))
LOOPS = ("while_loop", "map_fn", "foldl", "foldr", "scan")
LOOPS_REFUSED_BY_XLA = ("while_loop that draws in its condition",)
LOOPS_OF_ONE_RUN = ("vectorized_map", "dataset")  # steps would trace the body again, or start the dataset again
BRANCHES = {"cond": 2, "case": 3, "switch_case": 3, "v1.cond": 2, "exclusive case": 2}  # of each kind of conditional
PYTHON = ("python", "method", "recursive python", "custom_gradient", "recompute_grad")
NOT_CONVERTED = ("autograph=False", "custom_gradient", "recompute_grad")  # by AutoGraph
CALLED_ONCE = ("tf.function", "python", "method", "autograph=False", "concrete", "jit_compile", "custom_gradient")
FUNCTIONS = (
    *CALLED_ONCE,
    "recursive python",
    "recursive tf.function",
    "retraced for shapes",
    "retraced for dtypes",
    "retraced for python arguments",
    "input_signature",
    "called twice",
    "recompute_grad",
)
BLOCKS = (
    "tf.name_scope('n')",
    "v1.variable_scope('v')",
    "tf.device('/CPU:0')",
    "tf.control_dependencies([x])",
    "v1.name_scope('m')",
    "tf.init_scope()",
)
GRADIENTS = ("tape", "persistent tape")


@dataclass(frozen=True)
class Draw:
    """A draw from a random op."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    seed: bool

    @property
    def spelling(self) -> Spelling:
        return SPELLINGS[self.name]


@dataclass(frozen=True)
class Conditional:
    """A `tf.cond`, `tf.case` or `tf.switch_case`; the number of its branches depends on its kind.

    With `sets_seeds`, each branch begins with an op seed of its own, and so does the code after the conditional.
    """

    kind: str
    predicate: str
    branches: tuple[Block, ...]
    sets_seeds: bool


@dataclass(frozen=True)
class If:
    """A Python `if` on a tensor, for AutoGraph."""

    predicate: str
    branches: tuple[Block, ...]


@dataclass(frozen=True)
class Loop:
    """A loop of TensorFlow; a `map_fn` has as many elements as it has iterations."""

    kind: str
    iterations: int
    body: Block


@dataclass(frozen=True)
class For:
    """A Python `for`, over `tf.range` for AutoGraph, or over `range`."""

    over: str
    iterations: int
    body: Block


@dataclass(frozen=True)
class Call:
    """A call, or several, of a function."""

    kind: str
    body: Block


@dataclass(frozen=True)
class InnerScope:
    """A scope of the same tool or of the other one."""

    tool: str
    body: Block


@dataclass(frozen=True)
class With:
    """A block of TensorFlow's, such as a name scope."""

    context: str
    body: Block


@dataclass(frozen=True)
class Gradient:
    """A gradient through the draws of a block."""

    kind: str
    body: Block


@dataclass(frozen=True)
class SetSeed:
    """An assignment to `operation_seed`, or a call of `tf.random.set_seed`."""

    of: str


Statement = Draw | Conditional | If | Loop | For | Call | InnerScope | With | Gradient | SetSeed
Block = tuple[Any, ...]


@dataclass(frozen=True)
class Program:
    """A program, the mode of its tools, how many times it runs, and whether XLA compiles it, too."""

    body: Block
    mode: str
    runs: int
    in_xla: bool


def blocks_of(statement: Any) -> tuple[Block, ...]:
    """Return the blocks in a statement."""
    found = []
    for field in fields(statement):
        value = getattr(statement, field.name)
        if field.name == "branches":
            found += value
        elif field.name == "body":
            found.append(value)
    return tuple(found)


def walk(block: Block, into_functions: bool = True) -> Iterator[Any]:
    """Yield all statements of a block, the outer ones first."""
    for statement in block:
        yield statement
        if not into_functions and isinstance(statement, Call) and statement.kind not in PYTHON:
            continue
        for inner in blocks_of(statement):
            yield from walk(inner, into_functions)


def draws_of(block: Block) -> list[Draw]:
    """Return the draws in a block."""
    return [statement for statement in walk(block) if isinstance(statement, Draw)]


def signature(program: Program) -> str:
    """Return the constructs of a program in one line."""
    return f"{program.mode}, {program.runs} runs: {_signature(program.body)}"


def _signature(block: Block) -> str:
    return ", ".join(_title(s) + "".join(f"({_signature(inner)})" for inner in blocks_of(s)) for s in block)


def _title(statement: Any) -> str:
    match statement:
        case Draw(name=name):
            return name
        case SetSeed(of=of):
            return f"set {of}"
        case InnerScope(tool=tool):
            return f"{tool}.scope"
        case With(context=context):
            return context
        case If():
            return "if"
        case For(over=over):
            return f"for {over}"
        case _:
            return statement.kind


# --- The strategy -------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where a block is: what may stand in it depends on that."""

    budget: list[int]  # how many statements the program may still have
    depth: int = DEPTH
    runs: int = 1
    in_autograph: bool = False  # AutoGraph converts the code, in whatever way the program runs
    in_flow: bool = False  # in a loop, in a branch, or in code that is executed several times
    in_loop: bool = False
    copies: int = 1  # how many times a graph holds the code
    may_be_refused: bool = True  # by XLA

    def inner(self, **changes: Any) -> Place:
        return self._replace(depth=self.depth - 1, **changes)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Make programs."""
    runs = draw(st.sampled_from((1, 1, 2, 3)))
    in_xla = draw(st.sampled_from((False, False, True)))
    may_be_refused = not in_xla or draw(st.integers(0, 5)) == 5  # a refused program shows nothing else
    place = Place([draw(st.sampled_from((3, 5, 7, 9, 2)))], runs=runs, may_be_refused=may_be_refused)
    body = []
    while place.budget[0] > 0:
        body.append(draw(statements(place)))
    return Program(tuple(body), draw(st.sampled_from(MODES)), runs, in_xla)


@st.composite
def blocks(draw: st.DrawFn, place: Place, empty: bool = False) -> Block:
    """Make blocks."""
    length = draw(st.integers(0 if empty else 1, 3 if place.depth == DEPTH else 2))
    return tuple(draw(statements(place)) for i in range(length) if not i or place.budget[0] > 0)


@st.composite
def draws(draw: st.DrawFn, place: Place) -> Draw:
    """Make draws, many of them from the most usual ops."""
    names = [
        name
        for name, spelling in SPELLINGS.items()
        if not (spelling.creates and place.in_flow) and (place.may_be_refused or spelling.xla in (EXACT, CLOSE))
    ]
    name = draw(st.one_of(st.sampled_from(names[:5]), st.sampled_from(names), st.sampled_from(names)))
    return Draw(name, draw(st.sampled_from(SPELLINGS[name].dtypes)), draw(st.sampled_from(SHAPES)), draw(st.booleans()))


COMPOUND = ("call", "loop", "conditional", "with", "scope", "gradient", "for", "call", "loop", "conditional")


@st.composite
def statements(draw: st.DrawFn, place: Place) -> Any:
    """Make statements."""
    place.budget[0] -= 1
    kinds = ["draw", "draw", "draw", "draw", "set"]
    if place.depth and place.budget[0] > 0:
        kinds += [*COMPOUND, *["if", "for range"] * place.in_autograph]
    flow = place.inner(in_flow=True)
    match draw(st.sampled_from(kinds)):
        case "draw":
            return draw(draws(place))
        case "conditional":
            kind = draw(st.sampled_from(sorted(BRANCHES)))
            branches = tuple(draw(blocks(flow, empty=True)) for _ in range(BRANCHES[kind]))
            sets_seeds = place.copies == 1 and draw(st.booleans())
            return Conditional(kind, draw(st.sampled_from(PREDICATES)), branches, sets_seeds)
        case "if":
            branches = (draw(blocks(flow)), draw(blocks(flow, empty=True)))
            return If(draw(st.sampled_from(PREDICATES)), branches)
        case "loop":
            kinds = LOOPS
            if place.may_be_refused:
                kinds += LOOPS_REFUSED_BY_XLA
                kinds += LOOPS_OF_ONE_RUN if place.runs == 1 and not place.in_loop else ()
            kind = draw(st.sampled_from(kinds))
            may_be_empty = place.copies == 1 and kind in ("while_loop", "foldl", "foldr")
            iterations = draw(st.sampled_from((2, 3, 1, 0) if may_be_empty else (2, 3, 1)))
            return Loop(kind, iterations, draw(blocks(flow._replace(in_loop=True))))
        case "for":
            return For("range", 2, draw(blocks(flow._replace(copies=place.copies * 2))))
        case "for range":
            over = draw(st.sampled_from(("tf.range", "tf.range with break")))
            return For(over, draw(st.sampled_from((2, 1, 0))), draw(blocks(flow._replace(in_loop=True))))
        case "call":
            kind = draw(st.sampled_from(FUNCTIONS if place.copies < 4 else CALLED_ONCE))
            inner = place.inner(
                in_autograph=kind not in NOT_CONVERTED and (place.in_autograph or kind not in PYTHON),
                in_flow=place.in_flow or kind not in ("tf.function", "python", "method"),
                copies=place.copies * (1 if kind in CALLED_ONCE else 2),
            )
            return Call(kind, draw(blocks(inner)))
        case "scope":
            tool = draw(st.sampled_from(("same", "other")))
            return InnerScope(tool, draw(blocks(place.inner())))
        case "with":
            contexts = BLOCKS if place.runs == 1 and not place.in_flow else BLOCKS[:-1]
            return With(draw(st.sampled_from(contexts)), draw(blocks(place.inner())))
        case "gradient":
            return Gradient(draw(st.sampled_from(GRADIENTS)), draw(blocks(flow)))
        case "set":
            of = ["tf.random.set_seed"]
            if place.copies == 1:
                of += ["operation_seed", "operation_seed"]
            elif not place.in_loop:
                of += ["the next operation_seed"]
            return SetSeed(draw(st.sampled_from(of)))


# --- What the documentation promises -------------------------------------------------------------------------

WAYS = ("eager", "function", "concrete", "xla")


def not_promised(program: Program, way: str) -> str:
    """Return why a way need not draw what the session draws, or "" if the documentation promises that it does."""
    if way == "xla" and not program.in_xla:
        return "XLA was not drawn for the program"
    if any(draw.spelling.xla == UNCONTROLLED for body in _compiled(program, way) for draw in draws_of(body)):
        return "no scope controls stateless ops"
    # What init_scope lifts out of a function is executed eagerly, too.
    lifted = [s.body for s in walk(program.body) if isinstance(s, With) and s.context == "tf.init_scope()"]
    eager = [program.body] if way == "eager" else lifted
    if any(draw.name == "tf_keras.layers.LSTM" for body in eager for draw in draws_of(body)):
        return "the session draws an LSTM's masks in each iteration of a loop of TensorFlow 2"
    flow = (Loop, Conditional, If, For)
    gradients = [s for s in walk(program.body) if isinstance(s, Gradient)]
    is_function = way in ("function", "concrete")
    if is_function and any(s.kind == "persistent tape" and _draws_in_gradients(s.body, flow) for s in gradients):
        return "a function builds the gradient of control flow several times for a persistent tape"
    gradients = [s for body in eager for s in walk(body) if isinstance(s, Gradient)]
    if any(_draws_in_gradients(s.body, (Loop, Conditional)) for s in gradients):
        return "eager code executes the gradient of a loop or of one branch as ops of its own"
    if _shares_a_concrete_function(program.body, 1):
        return "the calls of a ConcreteFunction share op seeds"
    for body in eager:
        if any(_shifts_op_seeds(s, program.mode) for s in walk(body, into_functions=False)):
            return "eager code executes one branch, and nothing sets the op seed after it"
        if _calls_again(body, 1):
            return "eager code calls a tf.function twice"
    return ""


def _shifts_op_seeds(statement: Any, mode: str) -> bool:
    """Whether eager code executes a part of a statement only, and so leaves a different op seed than a graph."""
    if not isinstance(statement, Conditional) or statement.sets_seeds:
        return False
    inner = walk(sum(statement.branches, ()))
    return any((_draws(s) and mode == "num_random_ops") or _sets_seeds(s) for s in inner)


def _draws(statement: Any) -> bool:
    """Whether a statement is rendered with a draw of its own."""
    match statement:
        case Draw() | Call(kind="custom_gradient") | For(over="tf.range with break"):
            return True
        case Loop(kind="while_loop that draws in its condition"):
            return True
    return False


def _sets_seeds(statement: Any) -> bool:
    match statement:
        case SetSeed(of=of):
            return of != "tf.random.set_seed"
        case Conditional(sets_seeds=sets_seeds):
            return sets_seeds
        case Loop(iterations=iterations):
            return not iterations
    return False


def _takes_op_seeds(block: Block) -> bool:
    return any(_draws(s) or _sets_seeds(s) for s in walk(block))


def _calls_again(block: Block, times: int) -> bool:
    """Whether eager code calls a `tf.function` again, with the same arguments and in no loop of TensorFlow's."""
    for statement in block:
        inner = times
        if isinstance(statement, For):
            inner *= statement.iterations
        elif isinstance(statement, Call):
            if statement.kind in PYTHON:
                inner *= 1 if statement.kind in CALLED_ONCE else 2
            else:
                is_called_again = inner > 1 or statement.kind in ("called twice", "input_signature")
                if is_called_again and _takes_op_seeds(statement.body):
                    return True
                continue  # the functions in it are called while it is traced
        if any(_calls_again(body, inner) for body in blocks_of(statement)):
            return True
    return False


def _draws_in_gradients(block: Block, flow: tuple[type, ...], in_flow: bool = False) -> bool:
    """Whether the gradient of a loop, or of other control flow, in a block draws."""
    for statement in block:
        inside = in_flow or isinstance(statement, flow)
        match statement:
            case Call(kind="custom_gradient") if inside:
                return True
            case Call(kind="recompute_grad", body=body) if inside and any(map(_draws, walk(body))):
                return True
        if any(_draws_in_gradients(inner, flow, inside) for inner in blocks_of(statement)):
            return True
    return False


def _shares_a_concrete_function(block: Block, times: int) -> bool:
    """Whether a ConcreteFunction that draws is called at several places of a graph."""
    for statement in block:
        inner = times
        if isinstance(statement, For) and statement.over == "range":
            inner *= statement.iterations
        elif isinstance(statement, Call):
            if statement.kind == "concrete" and times > 1 and _takes_op_seeds(statement.body):
                return True
            inner *= 1 if statement.kind in CALLED_ONCE else 2
        if any(_shares_a_concrete_function(body, inner) for body in blocks_of(statement)):
            return True
    return False


def _compiled(program: Program, way: str) -> list[Block]:
    """Return the parts of a program that XLA compiles."""
    functions = [s.body for s in walk(program.body) if isinstance(s, Call) and s.kind == "jit_compile"]
    return [program.body, *functions] if way == "xla" else functions


def announced(program: Program, way: str) -> dict[str, str]:
    """Return the errors that the documentation announces for a program that runs in a way, each with the reason."""
    errors = {}
    statements = [*walk(program.body)]
    if way == "eager" and program.runs > 1 and any(map(_calls_in_a_branch, walk(program.body, into_functions=False))):
        errors["StepMismatchError"] = "a tf.function is called for the first time in a later step"
    compiled = _compiled(program, way)
    for body in compiled:
        if any(draw.spelling.xla == REFUSED for draw in draws_of(body)):
            errors["ScopeError"] = "XLA has no kernel that draws the numbers"
        if any(isinstance(s, Call) and s.kind == "concrete" and any(map(_draws, walk(s.body))) for s in walk(body)):
            errors["ScopeError"] = "XLA cannot trace a ConcreteFunction again"
        if any(isinstance(s, Loop) and s.kind == "while_loop that draws in its condition" for s in walk(body)):
            errors["ScopeError"] = "no op can count runs in the condition of a loop in XLA"
        if any(
            isinstance(s, Loop) and s.kind == "vectorized_map" and any(map(_draws, walk(s.body))) for s in walk(body)
        ):
            errors["ScopeError"] = "no op can count runs in a vectorized_map in XLA"
    vectorized = [s.body for s in statements if isinstance(s, Loop) and s.kind == "vectorized_map"]
    calls = [s for body in vectorized for s in walk(body) if isinstance(s, Call) and s.kind == "jit_compile"]
    if any(_draws(s) for call in calls for s in walk(call.body)):
        errors["ScopeError"] = "no op can count runs in a compiled function in a vectorized_map"
    flow = (Loop, Conditional, If, For)
    if compiled and any(isinstance(s, Gradient) and _draws_in_gradients(s.body, flow) for s in statements):
        errors["ScopeError"] = "no op can count runs in the gradient of a loop or conditional in XLA"
    return errors


def _calls_in_a_branch(statement: Any) -> bool:
    calls = [s for s in walk((statement,)) if isinstance(s, Call) and s.kind not in PYTHON]
    return isinstance(statement, Conditional) and any(_draws(s) for call in calls for s in walk(call.body))


def tolerance(program: Program, way: str) -> float:
    """Return how far numbers may be from the session's: by more than 0 only where XLA computes normals or sums."""
    close = any(draw.spelling.xla == CLOSE for draw in draws_of(program.body))
    return 2e-5 if close and _compiled(program, way) else 0.0

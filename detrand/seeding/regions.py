"""Op nodes and regions: an op seed belongs to an op node of the program, a run to an execution of that op node.

A TF1 graph has each random op once, however often it runs. Eager code executes lines instead, and asks for a seed each
time. Which requests are the same op follows from the part of the program that is executed: a step, a loop's body, a
branch. Such a part is a `Region`. Its first `Execution` notes the op nodes of its random ops, in order; in every later
execution, the i-th op is the i-th op node again, one run later.

Regions are nested as the program is: `ControlFlow` stands for a loop or a conditional in a region, whose parts run any
number of times each time the region does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from detrand.errors import StepMismatchError
from detrand.seeding.callsite import Site

_NEVER = -1  # no op seed
_REPEATS = "A graph runs the same random ops each time."
_OUTSIDE = "Move what only some steps draw out of the step, or into a step with a different name: tool.step(name=...)."
_BEFORE = (
    "Draw initial values before the first step, or in a function that is passed to tf.Variable; break, continue and "
    "return may leave a step only after its last random op."
)
_BRANCH = "Use tf.cond for what only some executions draw."


OpSeeds = tuple[int, int | None]  # the next one, and the one that must not be taken


class OpSeedSource(Protocol):
    """What gives op seeds to op nodes: a stream."""

    mode: str
    operation_seed: int
    op_seeds: OpSeeds


Assigned = dict[OpSeedSource, OpSeeds]  # as before the program set them


def restore_op_seeds(assigned: Assigned) -> None:
    """Give streams the op seeds that they had before the program set them."""
    for stream, op_seeds in assigned.items():
        stream.op_seeds = op_seeds


class OpNode:
    """A random op's position in a program, and how far its numbers have been drawn."""

    draws = True  # a region or control flow may draw nothing

    def __init__(self, op_seed: int, site: Site):
        self.op_seed = op_seed
        self.site = site  # the line of user code that was there first
        self.run = 0  # how often it has been executed
        # Where its next run starts: the low 64 bits of Philox's counter. An execution moves it on by what it reserves,
        # which is not proportional to the run if batches have several sizes.
        self.counter = 0
        self.op_type: str | None = None  # None until it has been executed, empty where no op followed
        self.dtype = ""
        self.kept: Any = None  # what an adapter keeps to draw the op node's next runs

    def __str__(self) -> str:
        return _described(self.op_type or "", self.dtype, self.site)


def _described(op_type: str, dtype: str, site: Site) -> str:
    if not op_type:
        return f"nothing (an op seed was taken at {site}, and no op followed)"
    return f"{op_type} of {dtype} at {site}" if dtype else f"{op_type} at {site}"


class Kind(NamedTuple):
    """A kind of control flow, and the names of its parts."""

    name: str
    parts: tuple[str, ...] = ()
    is_trace: bool = False  # whether its ops are put into a graph that is made anew each time, and starts at run 0


LOOP = Kind("tf.while_loop", ("condition", "body"))
CONDITIONAL = Kind("tf.cond", ("true branch", "false branch"))
SWITCH = Kind("tf.switch_case")
THREAD = Kind("thread", ("work",))
DATASET_FUNCTION = Kind("tf.data function", ("trace",), is_trace=True)


class Region:
    """A part of a program that is executed as a whole, again and again.

    Args:
      noun: what an execution of it is called.
      of: which one it is, for messages.
      starts_at: the op seed of its first op node in a graph, for each stream, if its first execution comes after others
        of the program have been executed. `_NEVER` if another op node has that op seed.
    """

    def __init__(self, noun: str, of: str, starts_at: Mapping[OpSeedSource, int] | None = None):
        self.entries: list[OpNode | ControlFlow] = []  # in order
        self.executions = 0  # how many have begun
        self.is_known = False  # whether an execution has come to its end: what is not noted by then is not part of it
        self.starts_at = dict(starts_at or {})
        self.assigned: Mapping[OpSeedSource, OpSeeds] = {}  # as the first execution began
        self._noun, self._of = noun, of

    @property
    def draws(self) -> bool:
        """Whether it has op nodes, in control flow or outside."""
        return any(entry.draws for entry in self.entries)

    def name(self, number: int) -> str:
        """Return the name of an execution."""
        return f"{self._noun} {number}{self._of}"


class ControlFlow:
    """A loop, a conditional or the like in a region: parts that run any number of times each time the region does."""

    def __init__(self, kind: Kind, site: Site):
        self.kind = kind
        self.site = site
        # What each stream took after the parts that are known; None during the first pass.
        self.op_seeds_after: Mapping[OpSeedSource, int] | None = None
        self._parts: dict[int, Region] = {}

    @property
    def draws(self) -> bool:
        """Whether its parts have op nodes."""
        return any(part.draws for part in self._parts.values())

    def part(self, index: int) -> Region:
        """Return a part: a new region the first time that the part is executed."""
        if index not in self._parts:
            starts_at = self.op_seeds_after
            if starts_at is not None and any(other > index and self._parts[other].entries for other in self._parts):
                starts_at = dict.fromkeys(starts_at, _NEVER)  # a graph has the parts in order
            name = self.kind.parts[index] if self.kind.parts else f"branch {index}"
            of = f" of the {name} of the {self.kind.name} at {self.site}"
            self._parts[index] = Region("execution", of, starts_at)
        return self._parts[index]


class Pass:
    """One pass through control flow, which may or may not be known to the execution around it, if there is any."""

    def __init__(self, kind: Kind, site: Site, outer: Execution | None):
        self.kind = kind
        self.site = site
        self.outer = outer
        self._flow = ControlFlow(kind, site) if outer is None else outer.find_flow(kind, site)

    def execution(self, part: int) -> Execution:
        """Begin an execution of a part."""
        return Execution(None if self._flow is None else self._flow.part(part), self, part)

    def flow(self) -> ControlFlow | None:
        """Return the control flow, now that it has a random op; None if the region knows none here."""
        if self._flow is None and self.outer is not None:
            self._flow = self.outer.find_flow(self.kind, None)
        return self._flow

    def noted_more(self) -> None:
        """Note that a part has become known."""
        if self._flow is not None:
            self._flow.op_seeds_after = None

    def end(self, op_seeds: Mapping[OpSeedSource, int]) -> None:
        """End the pass; the next op of each stream takes one of `op_seeds`."""
        if self._flow is None and self.outer is not None:
            self.outer.passed_unknown += (self.kind,)
        elif self._flow is not None and self._flow.op_seeds_after is None:
            self._flow.op_seeds_after = op_seeds


class Execution:
    """One execution of a region.

    Args:
      region: the region; None if it is found only when a random op is executed.
      within: the pass through the control flow that the region is a part of, if any.
      part: which part.
    """

    open = True  # until it ends
    number = 0  # among the executions of the region
    is_repetition = False  # whether an execution of the region has come to its end before
    # The kinds of control flow that drew nothing, so that it is not known which one it was.
    passed_unknown: tuple[Kind, ...] = ()
    _passed: tuple[ControlFlow, ...] = ()
    _threads: tuple[Execution, ...] = ()
    _position = 0  # among the entries of the region
    _count = 0  # nodes so far
    _stray: OpNode | None = None
    _region: Region | None = None
    _within: Pass | None = None
    _part = 0
    is_trace = False  # see `Kind`

    def __init__(self, region: Region | None, within: Pass | None = None, part: int = 0):
        self.assigned: Assigned = {}
        if within is not None:
            self.is_trace, self._within, self._part = within.kind.is_trace, within, part
        if region is not None:
            self._bind(region)

    def __str__(self) -> str:
        if self._region is not None:
            return self._region.name(self.number)
        return f"the {self._within.kind.name} at {self._within.site}" if self._within else ""

    def _bind(self, region: Region) -> Region:
        self._region = region
        self.number, self.is_repetition = region.executions, region.is_known
        region.executions += 1
        if region.assigned:
            self._take_op_seeds_of(region)
        return region

    def _take_op_seeds_of(self, region: Region) -> None:
        """Start with the op seeds of the first execution, for the ops of a branch that comes later."""
        for stream, op_seeds in region.assigned.items():
            if stream.mode == "constant" and stream not in self.assigned:
                self.assigned[stream], stream.op_seeds = stream.op_seeds, op_seeds

    def _known_region(self) -> Region | None:
        if self._region is None and self._within is not None:
            flow = self._within.flow()
            return None if flow is None else self._bind(flow.part(self._part))
        return self._region

    def find(self, site: Site) -> OpNode | None:
        """Return the op node that comes next, if it is noted; its op is about to be executed.

        Control flow before it has not been executed this time. In a trace it is the next op node of the same line, for
        a later trace may lack ops of the first.
        """
        region = self._region or self._known_region()
        if region is None:
            return None
        entries, position = region.entries, self._position
        while position < len(entries):
            entry = entries[position]
            position += 1
            if type(entry) is OpNode and (not self.is_trace or entry.site == site):
                self._position = position
                self._count += 1
                return entry
        return None

    @property
    def notes_nodes(self) -> bool:
        """Whether an op node that is not known is a new one, rather than one too many."""
        region = self._known_region()
        return region is not None and not region.is_known

    def note(self, node: OpNode) -> OpNode:
        """Note an op node that is not known, and return it; one too many is an error once its op is known."""
        if not self.notes_nodes:
            self._stray = node
            return node
        assert self._region is not None
        self._region.entries.append(node)
        self._position = len(self._region.entries)
        self._count += 1
        return node

    def find_flow(self, kind: Kind, site: Site | None) -> ControlFlow | None:
        """Return the control flow of a kind that comes next: known, or noted now; None if there is none here.

        If `site` is None, known control flow of any line will do.
        """
        region = self._known_region()
        if region is None:
            return None
        for position in range(self._position, len(region.entries)):
            entry = region.entries[position]
            if isinstance(entry, OpNode):
                return None
            if entry.kind is kind and site in (None, entry.site):
                self._position = position + 1
                self._passed += (entry,)
                return entry
        if region.is_known or site is None:
            return None
        flow = ControlFlow(kind, site)
        region.entries.append(flow)
        self._position = len(region.entries)
        self._passed += (flow,)
        return flow

    def thread(self, site: Site) -> Execution:
        """Return the execution for a thread that is about to be started."""
        within = Pass(THREAD, site, self)
        within.flow()
        execution = within.execution(0)
        self._threads += (execution,)
        return execution

    def check_start(self, stream: OpSeedSource, site: Site) -> None:
        """Raise an error if an op node that is about to be noted would not take the op seed that a graph gives it.

        An op seed that the program assigns in the execution is the graph's.
        """
        execution: Execution | None = self
        while execution is not None:
            region, op_seed = execution._known_region(), stream.operation_seed
            desired = None if region is None else region.starts_at.pop(stream, None)
            if desired not in (None, op_seed) and stream not in execution.assigned:
                raise StepMismatchError(
                    f"{execution} draws at {site}, which the program's first pass did not execute. A graph gives that "
                    f"op its op seed in the first pass: not {op_seed}, which comes next now. Set tool.operation_seed "
                    'so that each op takes the op seed of the graph\'s op, or use mode="constant".'
                )
            execution = execution._within.outer if execution._within is not None else None

    def executed(self, node: OpNode, op_type: str, dtype: str, site: Site) -> None:
        """Note which op was executed at an op node.

        Raises:
          StepMismatchError: if it is a different op than before, or one too many.
        """
        if node is self._stray:
            raise self._mismatch(_described(op_type, dtype, site), self._count, None)
        if node.op_type is None:
            node.op_type, node.dtype = op_type, dtype
        elif (node.op_type, node.dtype) != (op_type, dtype):
            raise self._mismatch(_described(op_type, dtype, site), self._count - 1, node)
        if not self.is_trace:
            node.run += 1

    def traced(self, site: Site) -> None:
        """Raise an error if an op is put into a graph of its own after the first execution has ended."""
        if not self.notes_nodes:
            raise StepMismatchError(
                f"{self} traces a random op at {site}. The new graph counts its runs from 0, and would repeat numbers "
                "that were drawn before. Trace each function once, in the first step: make it before the steps, with "
                "an input_signature that has None for the dimensions that differ between steps; or run it eagerly. "
                "Eager code traces a tf.vectorized_map in each call: call it in such a function."
            )

    def end(self) -> None:
        """End the execution after its last op.

        Raises:
          StepMismatchError: if ops of the region have not been executed.
        """
        self.close()
        for thread in self._threads:
            thread.end()
        region = self._region
        if region is None or (region.is_known and (self.is_trace or self._count == len(region.entries))):
            return  # each entry is an op node that has been executed, or needs none
        missing = self._next_node()
        if missing is not None:
            raise self._missing(f"before its random op {self._count} (from 0), where {region.name(0)} drew {missing}")
        for flow in self._left_out(region):
            raise self._missing(f"without the {flow.kind.name} at {flow.site}, in which {region.name(0)} drew")
        if not region.is_known:
            region.is_known, region.assigned = True, self.assigned
            if self._within is not None:
                self._within.noted_more()

    def close(self) -> None:
        """End the execution, wherever it is; what a repetition assigned to an `operation_seed` is undone."""
        for thread in self._threads:
            thread.close()
        if self.is_repetition and self.assigned:
            restore_op_seeds(self.assigned)
        self.open = False

    def _next_node(self) -> OpNode | None:
        entries = self._region.entries if self._region is not None else []
        return next((entry for entry in entries[self._position :] if isinstance(entry, OpNode)), None)

    def _left_out(self, region: Region) -> Iterator[ControlFlow]:
        passed_unknown = [*self.passed_unknown]
        for flow in region.entries:
            if isinstance(flow, OpNode) or flow.kind.is_trace or flow in self._passed or not flow.draws:
                continue
            if flow.kind in passed_unknown:
                passed_unknown.remove(flow.kind)
            else:
                yield flow

    def _missing(self, what: str) -> StepMismatchError:
        return StepMismatchError(f"{self} ended {what}. {_REPEATS} {_BEFORE if self._within is None else _BRANCH}")

    def _mismatch(self, drawn: str, position: int, noted: OpNode | None) -> StepMismatchError:
        region = self._region
        if region is None:  # in control flow that is not known here
            assert self._within is not None and self._within.outer is not None
            outer = self._within.outer
            return outer._mismatch(f"{drawn}, in a {self._within.kind.name},", outer._count, outer._next_node())
        nodes = [entry for entry in region.entries if isinstance(entry, OpNode)]
        if noted is not None:
            first = f"where {region.name(0)} drew {noted}"
        elif nodes:
            first = f"after {nodes[-1]}, the last random op of {region.name(0)}"
        else:
            first = f"where {region.name(0)} drew nothing"
        remedy = _OUTSIDE if self._within is None else _BRANCH
        return StepMismatchError(
            f"{self} draws {drawn} as its random op {position} (from 0), {first}. {_REPEATS} {remedy}"
        )

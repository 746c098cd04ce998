"""Places and runs: an op seed belongs to a node in the program, a run to an execution of that node.

A TF1 graph has each random op once, however often it runs. Eager code executes lines instead, and asks anew each time.
What a graph would have once is known by the part of the program that it is in: a step, a loop's body, a branch. Such
a part is a `Region`. Its first execution notes the nodes of its random ops, in order; in every later one the
i-th op is the i-th node again, one run later.

Regions are nested as the program is: in a region, `ControlFlow` stands for a loop or a conditional, whose parts run any
number of times each time the region does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from detrand.errors import StepMismatchError
from detrand.seeding.callsite import Site

_NEVER = -1  # no op seed
_REPEATS = "a graph runs the same random ops each time."
_OUTSIDE = "Keep what only some steps draw out of the step, or in a step of another name: tool.step(name=...)."
_BEFORE = (
    "Draw initial values before the first step, or in a function that is passed to tf.Variable; let break, continue "
    "and return leave a step after its last random op."
)
_BRANCH = "Let tf.cond decide what only some executions draw."


class OpNode:
    """A random op's node in a program, and how far its numbers have been drawn.

    Attributes:
      op_seed: the op seed that belongs to it.
      site: the line of user code that was there first.
      run: how often it has been executed.
      counter: where its next run starts: the low 64 bits of Philox's counter, which an execution moves on by as much as
        it reserves. With batches of several sizes that is not proportional to the run.
      op_type: TensorFlow's name of the op; None until it has been executed, empty where no op followed.
      dtype: name of the dtype of what it draws; empty if unknown.
      kept: whatever an adapter keeps to draw the node's next runs.
    """

    __slots__ = ("counter", "dtype", "kept", "op_seed", "op_type", "run", "site")

    def __init__(self, op_seed: int, site: Site):
        self.op_seed = op_seed
        self.site = site
        self.run = 0
        self.counter = 0
        self.op_type: str | None = None
        self.dtype = ""
        self.kept: Any = None

    def __str__(self) -> str:
        return _described(self.op_type or "", self.dtype, self.site)


def _described(op_type: str, dtype: str, site: Site) -> str:
    if not op_type:
        return f"nothing from the op seed that it took at {site}"
    return f"{op_type} of {dtype} at {site}" if dtype else f"{op_type} at {site}"


class Kind(NamedTuple):
    """A kind of control flow.

    Attributes:
      name: what the user knows it by.
      parts: what its parts are called.
      is_trace: whether ops in it are put into a graph that is made anew each time, and starts at run 0.
    """

    name: str
    parts: tuple[str, ...] = ()
    is_trace: bool = False

    def label(self, part: int, site: Site) -> str:
        """Returns what to call an execution of a part, with ``{}`` for its number."""
        name = self.parts[part] if part < len(self.parts) else f"branch {part}"
        return f"execution {{}} of the {name} of the {self.name} at {site}"


LOOP = Kind("tf.while_loop", ("condition", "body"))
CONDITIONAL = Kind("tf.cond", ("true branch", "false branch"))
SWITCH = Kind("tf.switch_case")
THREAD = Kind("thread", ("work",))
DATASET_FUNCTION = Kind("tf.data function", ("trace",), is_trace=True)


class Region:
    """A part of a program that is executed as a whole, again and again.

    Args:
      label: what to call an execution of it, with ``{}`` for its number.
      starts_at: the op seed that its first node has in a graph, where the first execution comes late: after others of
        the program have been executed. `_NEVER` if another node has it.

    Attributes:
      entries: its nodes and the control flow in it, in order.
      executions: how many executions have begun.
      is_known: whether one has come to its end: what is not noted by then is no part of it.
    """

    def __init__(self, label: str, starts_at: int | None = None):
        self.label = label
        self.entries: list[OpNode | ControlFlow] = []
        self.executions = 0
        self.is_known = False
        self.starts_at = starts_at

    @property
    def draws(self) -> bool:
        """Whether there are nodes in it, or in the control flow in it."""
        return any(isinstance(entry, OpNode) or entry.draws for entry in self.entries)

    def execution(self) -> Execution:
        """Begins an execution."""
        return Execution(self, None, 0)

    def name(self, number: int) -> str:
        """Returns what to call an execution."""
        return self.label.replace("{}", str(number), 1)


class ControlFlow:
    """A loop, a conditional or the like in a region: parts that run any number of times each time the region does.

    Attributes:
      kind: what it is.
      site: the line of user code that it is at.
      op_seed_after: the op seed that came after those of the parts that are known; None during the first pass.
    """

    def __init__(self, kind: Kind, site: Site):
        self.kind = kind
        self.site = site
        self.op_seed_after: int | None = None
        self._parts: dict[int, Region] = {}

    @property
    def draws(self) -> bool:
        """Whether there are nodes in it."""
        return any(part.draws for part in self._parts.values())

    def part(self, index: int) -> Region:
        """Returns a part, which is a new region the first time that it is executed."""
        region = self._parts.get(index)
        if region is None:
            starts_at = self.op_seed_after
            if starts_at is not None and any(other > index and self._parts[other].entries for other in self._parts):
                starts_at = _NEVER  # a graph has the parts in order
            region = self._parts[index] = Region(self.kind.label(index, self.site), starts_at)
        return region


class Pass:
    """One pass through control flow, which begins with finding out whether the region knows it.

    Args:
      kind: what it is.
      site: the line of user code that it is at.
      outer: the execution that it is in; None if it is in no region.
    """

    def __init__(self, kind: Kind, site: Site, outer: Execution | None):
        self.kind = kind
        self.site = site
        self.outer = outer
        self._flow = ControlFlow(kind, site) if outer is None else outer.find_flow(kind, site)

    def execution(self, part: int) -> Execution:
        """Begins an execution of a part."""
        return Execution(None if self._flow is None else self._flow.part(part), self, part)

    def flow(self) -> ControlFlow | None:
        """Returns the control flow, now that a random op is in it; None if the region knows none here."""
        if self._flow is None and self.outer is not None:
            self._flow = self.outer.find_flow(self.kind, None)
        return self._flow

    def noted_more(self) -> None:
        """Tells that a part has become known."""
        if self._flow is not None:
            self._flow.op_seed_after = None

    def end(self, op_seed: int) -> None:
        """Ends it.

        Args:
          op_seed: the one that the next op of the stream takes.
        """
        if self._flow is None and self.outer is not None:
            self.outer.passed_unknown(self.kind)
        elif self._flow is not None and self._flow.op_seed_after is None:
            self._flow.op_seed_after = op_seed


class Execution:
    """One execution of a region.

    Args:
      region: the region; None if it shows only when a random op is executed.
      within: the control flow that the region is a part of, if any.
      part: which one.

    Attributes:
      open: whether it goes on.
      is_trace: whether its ops are put into a graph that is made anew each time.
    """

    def __init__(self, region: Region | None, within: Pass | None, part: int):
        self.open = True
        self.is_trace = within is not None and within.kind.is_trace
        self.number = 0  # among the executions of the region
        self._within = within
        self._part = part
        self._position = 0  # among the entries of the region
        self._count = 0  # nodes so far
        self._passed: list[ControlFlow] = []
        self._passed_unknown: list[Kind] = []
        self._threads: list[Execution] = []
        self._stray: OpNode | None = None
        self._region: Region | None = None
        if region is not None:
            self._bind(region)

    def __str__(self) -> str:
        if self._region is not None:
            return self._region.name(self.number)
        return f"the {self._within.kind.name} at {self._within.site}" if self._within else ""

    def _bind(self, region: Region) -> Region:
        self._region = region
        self.number = region.executions
        region.executions += 1
        return region

    def _known_region(self) -> Region | None:
        if self._region is None and self._within is not None:
            flow = self._within.flow()
            return None if flow is None else self._bind(flow.part(self._part))
        return self._region

    def find(self, site: Site) -> OpNode | None:
        """Returns the node that comes next, if it is noted; its op is about to be executed.

        Control flow before it has not been executed this time. In a trace it is the next node of the same line:
        not all that was in the first trace is in the later ones.
        """
        region = self._region or self._known_region()
        if region is None:
            return None
        entries, position = region.entries, self._position
        while position < len(entries):
            entry = entries[position]
            position += 1
            if type(entry) is OpNode and (not self.is_trace or entry.site is site):
                self._position = position
                self._count += 1
                return entry
        return None

    def upcoming(self, most: int) -> list[OpNode]:
        """Returns the nodes that are noted after the last one."""
        entries = self._region.entries if self._region is not None else []
        return [entry for entry in entries[self._position : self._position + most] if isinstance(entry, OpNode)]

    @property
    def notes_nodes(self) -> bool:
        """Whether a node that is not known is a new one."""
        region = self._known_region()
        return region is not None and not region.is_known

    def note(self, node: OpNode) -> OpNode:
        """Notes a new node, and returns it."""
        assert self._region is not None
        self._region.entries.append(node)
        self._region.starts_at = None
        self._position = len(self._region.entries)
        self._count += 1
        return node

    def note_stray(self, node: OpNode) -> OpNode:
        """Notes a node that is none of the region's, an error as soon as it is known what is there; returns it."""
        self._stray = node
        return node

    def find_flow(self, kind: Kind, site: Site | None) -> ControlFlow | None:
        """Returns the control flow that comes next, or one that is noted now.

        Args:
          kind: what it is.
          site: the line of user code that it is at; None accepts any line.
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
                self._passed.append(entry)
                return entry
        if region.is_known or site is None:
            return None
        flow = ControlFlow(kind, site)
        region.entries.append(flow)
        self._position = len(region.entries)
        self._passed.append(flow)
        return flow

    def passed_unknown(self, kind: Kind) -> None:
        """Tells that control flow has been executed of which it is not known which it was: nothing was drawn in it."""
        self._passed_unknown.append(kind)

    def thread(self, site: Site) -> Execution:
        """Returns the execution that a thread which is about to start is to be in."""
        within = Pass(THREAD, site, self)
        within.flow()
        execution = within.execution(0)
        self._threads.append(execution)
        return execution

    def check_start(self, op_seed: int, site: Site) -> None:
        """Checks that a node which is about to be noted takes the op seed that a graph gives it.

        Raises:
          StepMismatchError: if other ops have taken op seeds between the first pass through the control flow, in which
            this part of it was not executed, and this one.
        """
        region = self._known_region()
        if region is None or region.starts_at in (None, op_seed):
            return
        raise StepMismatchError(
            f"{self} draws, at {site}, what was not drawn when the program first came here. A graph gave that op its "
            f"op seed then, which is not {op_seed}, the one that comes next. Set tool.operation_seed so that each op "
            'takes what the op of the graph took, or use mode="constant".'
        )

    def executed(self, node: OpNode, op_type: str, dtype: str, site: Site) -> None:
        """Tells which op was executed at a node.

        Raises:
          StepMismatchError: if it is another one than before, or none was to come.
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
        """Tells that an op is put into a graph of its own, whose kernels count their runs by themselves.

        Raises:
          StepMismatchError: if the first execution is over: new kernels would begin at run 0.
        """
        if not self.notes_nodes:
            raise StepMismatchError(
                f"{self} traces a random op at {site}. The new graph counts its runs from 0, and would repeat numbers "
                "that were drawn before. Trace each function once, in the first step: make it before the steps, with "
                "an input_signature that has None for the dimensions that differ between steps; or run it eagerly."
            )

    def end(self) -> None:
        """Ends it, all of its ops having been executed.

        Raises:
          StepMismatchError: if some have not.
        """
        self.close()
        for thread in self._threads:
            thread.end()
        region = self._region
        if region is None or (region.is_known and self.is_trace):
            return
        missing = self._next_node()
        if missing is not None:
            raise self._missing(f"where {region.name(0)} drew {missing} as its random op {self._count} (from 0)")
        for flow in self._left_out(region):
            raise self._missing(f"without the {flow.kind.name} at {flow.site}, in which {region.name(0)} drew")
        if not region.is_known:
            region.is_known = True
            if self._within is not None:
                self._within.noted_more()

    def _left_out(self, region: Region) -> Iterator[ControlFlow]:
        for flow in region.entries:
            if isinstance(flow, OpNode) or flow.kind.is_trace or flow in self._passed or not flow.draws:
                continue
            if flow.kind in self._passed_unknown:
                self._passed_unknown.remove(flow.kind)
            else:
                yield flow

    def _missing(self, what: str) -> StepMismatchError:
        return StepMismatchError(f"{self} ended {what}; {_REPEATS} {_BEFORE if self._within is None else _BRANCH}")

    def close(self) -> None:
        """Ends it wherever it is."""
        self.open = False
        for thread in self._threads:
            thread.close()

    def _mismatch(self, drawn: str, position: int, noted: OpNode | None) -> StepMismatchError:
        region = self._region
        if region is None:  # in control flow that is not known here
            assert self._within is not None and self._within.outer is not None
            outer = self._within.outer
            return outer._mismatch(f"{drawn}, in a {self._within.kind.name},", outer._count, outer._next_node())
        if noted is not None:
            first = f"where {region.name(0)} drew {noted}"
        else:
            nodes = [entry for entry in region.entries if isinstance(entry, OpNode)]
            first = f"after {nodes[-1]}, the last of {region.name(0)}" if nodes else f"where {region.name(0)} drew none"
        remedy = _OUTSIDE if self._within is None else _BRANCH
        return StepMismatchError(
            f"{self} draws {drawn} as its random op {position} (from 0), {first}; {_REPEATS} {remedy}"
        )

    def _next_node(self) -> OpNode | None:
        entries = self._region.entries if self._region is not None else []
        return next((entry for entry in entries[self._position :] if isinstance(entry, OpNode)), None)

"""Op nodes, regions and control flow; no framework takes part."""

import pytest

from detrand.changes import Changes
from detrand.errors import StepMismatchError
from detrand.seeding import cursors
from detrand.seeding.callsite import Site
from detrand.seeding.cursors import Step
from detrand.seeding.regions import CONDITIONAL, LOOP, SWITCH, ControlFlow, Execution, OpNode, Region
from detrand.seeding.streams import Stream
from tests.seeding.test_cursors import Governing, drawn

HERE = Site("model.py", 1)


@pytest.fixture(params=["num_random_ops"])
def cursor(request):
    with Changes() as changes:
        cursors.enter(Stream(3, request.param), changes)
        yield Governing()


@pytest.mark.parametrize(
    ("op_type", "dtype", "described"),
    [
        ("RandomUniform", "float32", "RandomUniform of float32 at model.py:1"),
        ("RandomUniform", "", "RandomUniform at model.py:1"),
        ("", "", "nothing (an op seed was taken at model.py:1, and no op followed)"),
    ],
)
def test_an_op_node_is_described_by_what_was_executed(op_type, dtype, described):
    node = OpNode(0, HERE)
    node.op_type, node.dtype = op_type, dtype
    assert str(node) == described


def test_control_flow_of_a_different_kind_on_the_same_line_is_not_taken():
    region = Region("step", "")
    first = Execution(region)
    flows = [first.find_flow(kind, HERE) for kind in (LOOP, CONDITIONAL)]
    first.end()
    second = Execution(region)
    assert second.find_flow(CONDITIONAL, HERE) is flows[1]
    assert second.find_flow(CONDITIONAL, HERE) is None  # none is noted once the region is known


class TestParts:
    """The op seeds of parts that are executed for the first time in a later pass."""

    def branch(self, cursor, index, draw=drawn):
        with cursor.control_flow(SWITCH) as run:
            return run(index, draw, cursor)

    def test_parts_that_come_last_in_the_graph_take_the_next_op_seeds(self, cursor):
        for index in range(3):
            with Step(cursor.stream, "train"):
                assert self.branch(cursor, index) == (index, 0)

    def test_a_part_before_ops_that_are_known_is_refused(self, cursor):
        with Step(cursor.stream, "train"):
            self.branch(cursor, 0)
            drawn(cursor)
        message = r"^execution 0 of the branch 1 of the tf\.switch_case at .*, which the program's first pass did not"
        with pytest.raises(StepMismatchError, match=message), Step(cursor.stream, "train"):
            self.branch(cursor, 1)

    @pytest.mark.parametrize("cursor", ["constant"], indirect=True)
    def test_in_constant_mode_every_part_is_accepted(self, cursor):
        for index in range(2):
            with Step(cursor.stream, "train"):
                assert self.branch(cursor, index) == (0, 0)
                drawn(cursor)

    def test_a_part_before_one_that_draws_has_no_op_seed(self):
        flow, stream = ControlFlow(SWITCH, HERE), Stream(3, "num_random_ops")
        flow.part(1)
        flow.part(3).entries.append(OpNode(0, HERE))
        flow.op_seeds_after = {stream: 1}
        starts = {index: flow.part(index).starts_at[stream] for index in (0, 2, 4)}
        assert starts[0] == starts[2] != 1
        assert starts[4] == 1
        assert flow.part(4) is flow.part(4)

    def test_a_part_before_one_that_draws_nothing_starts_after_the_pass(self):
        flow, stream = ControlFlow(SWITCH, HERE), Stream(3, "num_random_ops")
        flow.part(1)
        flow.op_seeds_after = {stream: 1}
        assert flow.part(0).starts_at == {stream: 1}


class TestThreads:
    def test_a_thread_that_draws_less_than_in_the_first_step_is_refused(self, cursor):
        def step(draws):
            with Step(cursor.stream, "train"):
                own = cursor.for_child_thread()
                for _ in range(draws):
                    drawn(own)

        step(2)
        with pytest.raises(StepMismatchError, match=r"^execution 1 of the work of the thread at .* ended before its"):
            step(1)

    def test_an_op_that_described_nothing_before_an_initializer_has_run(self, cursor):
        for run in range(2):
            with Step(cursor.stream, "train"):
                cursor.next_seeds()  # as a dropout of rate 0 does, after which no op follows
                assert cursor.node.run == run
                with cursor.initializing():
                    assert cursor.phase == "init"
                    drawn(cursor)
                assert cursor.phase == "compute"

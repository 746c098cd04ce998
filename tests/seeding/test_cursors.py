"""The op seeds and runs that cursors decide; no framework takes part."""

import concurrent.futures
import itertools
import subprocess
import sys
import threading

import pytest

from detrand.changes import Changes
from detrand.errors import ScopeError, StepMismatchError
from detrand.seeding import cursors, regions
from detrand.seeding.callsite import Site
from detrand.seeding.cursors import Cursor, Step
from detrand.seeding.streams import RandomOp, Stream


def taken(cursor, count):
    return [cursor.next_seeds()[1] for _ in range(count)]


def test_importing_cursors_loads_no_framework():
    code = "import sys, detrand.seeding.cursors; assert not {'tensorflow', 'keras', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


class TestCursor:
    @pytest.mark.parametrize(
        ("seed", "op_seed", "expected"), [(42, 0, (42, 0)), (0, 5, (0, 5)), (0, 0, (0, 2**31 - 1))]
    )
    def test_seeds_are_never_both_zero(self, seed, op_seed, expected):
        stream = Stream(seed, "constant")
        stream.operation_seed = op_seed
        assert Cursor(stream).next_seeds() == expected

    def test_draws_of_initializers_have_phase_init(self):
        cursor = Cursor(Stream(3, "num_random_ops"))
        with cursor.initializing():
            cursor.next_seeds()
            with cursor.initializing():
                cursor.next_seeds()
            cursor.next_seeds()
        cursor.next_seeds()
        assert [op.phase for op in cursor.stream.random_ops] == ["init"] * 3 + ["compute"]

    def test_the_init_phase_ends_with_an_exception(self):
        cursor = Cursor(Stream(3, "num_random_ops"))
        with pytest.raises(KeyError), cursor.initializing():
            raise KeyError
        cursor.next_seeds()
        assert cursor.stream.random_ops[0].phase == "compute"

    def test_shape_inference_takes_nothing(self):
        cursor = Cursor(Stream(3, "num_random_ops"))
        executed = False
        with cursor.shape_inference(lambda: executed):
            assert taken(cursor, 2) == [0, 0]
            executed = True
            assert taken(cursor, 2) == [0, 1]
        executed = False
        assert taken(cursor, 1) == [2]
        assert len(cursor.stream.random_ops) == 3

    def test_a_cursor_describes_its_last_record_once(self):
        cursor = Cursor(Stream(3, "num_random_ops"))
        taken(cursor, 2)
        cursor.describe_last("RandomUniform", (), "float32")
        cursor.describe_last("Multinomial", (), "int64")
        assert [op.op_type for op in cursor.stream.random_ops] == ["", "RandomUniform"]

    def test_an_op_without_a_record_describes_no_other(self):
        cursor = Cursor(Stream(3, "num_random_ops"))
        taken(cursor, 1)  # no op follows, as with a dropout of rate 0
        with cursor.shape_inference(lambda: False):
            taken(cursor, 1)
            cursor.describe_last("RandomUniform", (), "float32")
        assert [op.op_type for op in cursor.stream.random_ops] == [""]

    def test_ops_that_are_given_one_op_seed_are_executed_as_runs_of_one_op_node(self):
        stream = Stream(3, "num_random_ops")
        stream.give_next([4, 6, 4, 4])
        cursor, nodes = Cursor(stream), []
        for executes in (True, True, True, False):
            op_seed = cursor.next_seeds(lambda executes=executes: executes)[1]
            nodes.append((op_seed, cursor.node))
        (_, node), *others = nodes
        assert others == [(6, None), (4, node), (4, None)]
        assert node.op_seed == 4
        assert taken(cursor, 1) == [7]

    def test_an_op_is_recorded_with_the_seed_that_it_has_outside_of_scopes(self):
        stream = Stream(3, "num_random_ops")
        with Changes() as changes:
            cursor = cursors.enter(stream, changes)
            with cursor.drawing_from((7, None)):
                taken(cursor, 1)
            with Step(cursor.stream, "train"), cursors.current().drawing_from((7, None)):
                taken(cursors.current(), 1)
            taken(cursor, 1)
            cursor.next_seeds(own_seed=(5, 0))
        assert [op.own_seed for op in stream.random_ops] == [(7, None), (7, None), None, (5, 0)]

    def test_a_draw_that_no_stream_decides_is_recorded_unless_only_shapes_are_inferred(self):
        cursor = Cursor(Stream(3, "num_random_ops"))
        drawn = Site("model.py", 7), "np.random.normal", (2,), "float64"
        cursor.record_uncontrolled(*drawn)
        with cursor.shape_inference(lambda: False):
            cursor.record_uncontrolled(*drawn)
        expected = RandomOp(0, None, 0, "np.random.normal", (2,), "float64", "compute", "model.py:7")
        assert cursor.stream.random_ops == (expected,)
        assert taken(cursor, 1) == [0]


def asked(cursor):
    """Ask for seeds as an adapter does, which is not a line of the program."""
    return cursor.next_seeds()[1]


def draw_a(cursor):
    return asked(cursor)


def draw_b(cursor):
    return asked(cursor)


class TestTraces:
    @pytest.fixture
    def cursor(self):
        return Cursor(Stream(3, "num_random_ops"))

    def test_second_trace_takes_the_seeds_of_the_first(self, cursor):
        with cursor.first_trace() as trace:
            first = [draw_a(cursor), draw_b(cursor)]
        with cursor.second_trace(trace):
            second = [draw_a(cursor), draw_b(cursor)]
        assert first == second == [0, 1]
        assert draw_a(cursor) == 2
        assert len(cursor.stream.random_ops) == 3

    def test_an_op_that_does_not_come_again_is_passed_over(self, cursor):
        with cursor.first_trace() as trace:
            with cursor.initializing():
                draw_a(cursor)
            first = draw_b(cursor)
        with cursor.second_trace(trace):
            assert draw_b(cursor) == first == 1

    def test_a_new_op_in_the_second_trace_takes_a_new_seed(self, cursor):
        with cursor.first_trace() as trace:
            first = draw_b(cursor)
        with cursor.second_trace(trace):
            assert draw_a(cursor) == 1
            assert draw_b(cursor) == first == 0

    def test_a_loop_takes_the_op_seeds_of_a_trace_in_order(self, cursor):
        with cursor.first_trace() as trace:
            first = [draw_a(cursor) for _ in range(3)]
        with cursor.second_trace(trace):
            assert [draw_a(cursor) for _ in range(3)] == first

    def test_a_trace_ends_after_an_exception_too(self, cursor):
        with cursor.first_trace() as trace:
            draw_a(cursor)
        with pytest.raises(KeyError), cursor.second_trace(trace):
            raise KeyError
        assert draw_a(cursor) == 1

    def test_a_function_inside_keeps_its_own_op_seeds(self, cursor):
        with cursor.first_trace():
            draw_a(cursor)
            with cursor.first_trace() as trace:
                inner = draw_a(cursor)
            with cursor.second_trace(trace):
                assert draw_a(cursor) == inner == 1
            assert draw_a(cursor) == 2

    def test_a_function_inside_that_is_made_anew_takes_the_seeds_of_the_one_before(self, cursor):
        def program():
            draw_b(cursor)
            with cursor.first_trace(comes_again=True) as inner:
                first = draw_a(cursor)
            with cursor.second_trace(inner):
                assert draw_a(cursor) == first
            return first, draw_b(cursor)

        with cursor.first_trace() as trace:
            assert program() == (1, 2)
        with cursor.second_trace(trace):
            assert program() == (1, 2)
        assert draw_a(cursor) == 3

    def test_a_trace_leaves_out_a_function_inside_that_keeps_its_own(self, cursor):
        with cursor.first_trace() as trace:
            with cursor.first_trace(comes_again=False):
                draw_a(cursor)
            draw_b(cursor)
        with cursor.second_trace(trace):
            assert (draw_a(cursor), draw_b(cursor)) == (2, 1)

    def test_a_function_inside_that_keeps_its_trace_takes_seeds_of_its_own(self, cursor):
        with cursor.first_trace() as trace:
            draw_a(cursor)
        with cursor.second_trace(trace), cursor.first_trace(comes_again=False):
            assert draw_a(cursor) == 1


def in_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


class TestThreads:
    @pytest.fixture
    def cursor(self):
        with Changes() as changes:
            yield cursors.enter(Stream(3, "num_random_ops"), changes)

    def test_nothing_governs_at_first(self):
        assert cursors.current() is None

    def test_the_innermost_cursor_governs(self, cursor):
        with Changes() as changes:
            inner = cursors.enter(Stream(4, "constant"), changes)
            assert cursors.current() is inner
        assert cursors.current() is cursor

    def test_cursors_may_be_left_out_of_order(self, cursor):
        inner, innermost = Changes(), Changes()
        cursors.enter(Stream(4, "constant"), inner)
        governing = cursors.enter(Stream(5, "constant"), innermost)
        inner.undo()
        assert cursors.current() is governing
        innermost.undo()
        assert cursors.current() is cursor

    @pytest.mark.parametrize("error", [(None, None, None), (ValueError, ValueError(), None)], ids=["returns", "raises"])
    def test_a_step_governs_no_longer_once_it_is_left(self, error, cursor):
        step = Step(cursor.stream, "train")
        step.__enter__()
        step.__exit__(*error)
        assert cursors.current() is cursor

    def test_a_step_that_is_left_before_a_scope_inside_does_not_govern_after_it(self, cursor):
        inner, step = Changes(), Step(cursor.stream, "train")
        step.__enter__()
        governing = cursors.enter(Stream(5, "constant"), inner)
        step.__exit__(None, None, None)
        assert cursors.current() is governing
        inner.undo()
        assert cursors.current() is cursor

    def test_another_thread_is_not_governed(self, cursor):
        assert in_thread(cursors.current) is None

    def test_a_child_has_a_cursor_of_its_own_in_the_parents_stream(self, cursor):
        own = cursor.for_child_thread()

        def run():
            with cursors.governing_thread(own):
                return cursors.current()

        assert in_thread(run) is own
        assert own is not cursor
        assert own.stream is cursor.stream

    def test_a_child_is_governed_no_longer_than_its_parent(self):
        with Changes() as changes:
            own = cursors.enter(Stream(3, "constant"), changes).for_child_thread()

        def run():
            with cursors.governing_thread(own):
                return cursors.current()

        assert in_thread(run) is None

    def test_a_cursor_left_in_another_thread_is_an_error(self):
        with Changes() as changes:
            cursor = cursors.enter(Stream(3, "constant"), changes)
            cursor.leave("a scope")

            def leave():
                with pytest.raises(
                    ScopeError, match="left in a different thread from the one that entered it; enter and leave"
                ):
                    cursor.leave("a scope")
                changes.undo()

            in_thread(leave)
            assert cursors.current() is None

    def test_many_threads_count_one_stream_without_gaps(self):
        stream = Stream(3, "num_random_ops")
        results = []

        def run():
            with Changes() as changes:
                results.extend(taken(cursors.enter(stream, changes), 500))

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == list(range(2000))
        assert [op.op_seed for op in stream.random_ops] == list(range(2000))


class Governing:
    """Whichever cursor governs the calling thread."""

    def __getattr__(self, name):
        return getattr(cursors.current(), name)


@pytest.fixture
def cursor():
    with Changes() as changes:
        cursors.enter(Stream(3, "num_random_ops"), changes)
        yield Governing()


def drawn(cursor, op_type="RandomUniform", dtype="float32", executes=lambda: True):
    """Take seeds as an op does, describe the op, and return its op seed and run."""
    _, op_seed = cursor.next_seeds(executes)
    run = 0 if cursor.node is None else cursor.node.run
    cursor.describe_last(op_type, (2,), dtype)
    return op_seed, run


class TestSteps:
    def test_steps_of_each_name_are_numbered(self, cursor):
        numbers = []
        for name in ("train", "train", "eval", "train"):
            with Step(cursor.stream, name) as number:
                numbers.append(number)
        assert numbers == [0, 1, 0, 2]

    def test_later_steps_are_later_runs_of_the_same_op_nodes(self, cursor):
        runs = []
        for _ in range(3):
            with Step(cursor.stream, "train"):
                runs += [drawn(cursor), drawn(cursor)]
        assert runs == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
        assert [(op.op_seed, op.run) for op in cursor.stream.random_ops] == runs
        assert {op.phase for op in cursor.stream.random_ops} == {"compute"}
        assert {op.caller.partition(":")[0] for op in cursor.stream.random_ops} == {__file__}
        assert drawn(cursor) == (2, 0)

    def test_a_step_is_left_if_an_interrupt_arrives_while_it_is(self, cursor, monkeypatch):
        outer, leave = cursors.current(), cursors._cursors.leave

        def interrupted(left):
            monkeypatch.setattr(cursors._cursors, "leave", leave)
            raise KeyboardInterrupt

        monkeypatch.setattr(cursors._cursors, "leave", interrupted)
        with pytest.raises(KeyboardInterrupt) as interrupt, Step(cursor.stream, "train"):
            pass
        assert cursors.current() is outer and interrupt.value  # which refers to the frames of the step
        with Step(cursor.stream, "train") as number:
            assert number == 1

    def test_an_op_outside_steps_has_no_op_node(self, cursor):
        cursor.next_seeds()
        assert cursor.node is None
        assert not cursor.in_region
        with Step(cursor.stream, "train"):
            assert cursor.in_region
            cursor.next_seeds()
            assert cursor.node is not None
        assert not cursor.in_region

    def test_initialization_is_not_part_of_a_step(self, cursor):
        for k in range(3):
            with Step(cursor.stream, "train"):
                assert drawn(cursor)[1] == k
                with cursor.initializing():
                    assert not cursor.in_region
                    assert drawn(cursor) == (k + 1, 0)

    def test_an_op_with_seeds_of_its_own_has_an_op_node_where_it_may_be_executed_again(self, cursor):
        def node(executes):
            return cursor.node_of((5, 6), lambda: executes)

        assert node(executes=True) is None
        for k in range(2):
            with Step(cursor.stream, "train"):
                assert node(executes=False) is None
                first = node(executes=True)
                assert (first.op_seed, first.run) == (6, k)
                with cursor.control_flow(regions.DATASET_FUNCTION) as run, cursor.first_trace():
                    assert run(0, node, executes=True) is None
                with cursor.control_flow(regions.DATASET_FUNCTION) as run:
                    assert run(0, node, executes=True) is None
        assert cursor.stream.random_ops == ()

    def test_an_op_node_keeps_its_counter(self, cursor):
        for k in range(2):
            with Step(cursor.stream, "train"):
                cursor.next_seeds()
                node = cursor.node
                assert node.counter == 100 * k
                cursor.describe_last("RandomUniform", (2,), "float32")
                node.counter += 100

    def test_traced_ops_take_op_seeds_in_order_and_are_no_op_nodes(self, cursor):
        for k in range(2):
            with Step(cursor.stream, "train"):
                assert drawn(cursor) == (0, k)
                if k == 0:
                    assert drawn(cursor, executes=lambda: False) == (1, 0)
                assert drawn(cursor) == (2, k)

    def test_an_op_that_is_traced_in_a_later_step_is_refused(self, cursor):
        with Step(cursor.stream, "train"):
            pass
        with pytest.raises(StepMismatchError, match=r"^step 1 traces a random op at"), Step(cursor.stream, "train"):
            drawn(cursor, executes=lambda: False)

    def test_a_thread_draws_anew_only_in_the_step_that_started_it(self, cursor):
        with Step(cursor.stream, "train"):
            own = cursor.for_child_thread()
            drawn(own)
        with pytest.raises(StepMismatchError, match=r"^a thread or task that was started in step 0 draws"):
            drawn(own)

    def test_a_thread_that_outlives_its_loop_takes_op_seeds_of_its_own_in_the_step(self, cursor):
        def body():
            return cursor.for_child_thread(), drawn(cursor)

        with Step(cursor.stream, "train"):
            with cursor.control_flow(regions.LOOP) as run:
                own, first = run(1, body)
            assert [first, drawn(own), drawn(own)] == [(0, 0), (1, 0), (2, 0)]

    def test_steps_in_a_thread_pool_are_counted(self, cursor):
        stream = cursor.stream

        # Each name is a program of its own, which a thread of its own may run.
        def run(name):
            results = []
            with Changes() as changes:
                cursors.enter(stream, changes)
                for _ in range(50):
                    with Step(cursor.stream, name):
                        results.append([drawn(cursor) for _ in range(5)])
            return results

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            programs = list(pool.map(run, "abcd"))
        op_seeds = [[op_seed for op_seed, _ in steps[0]] for steps in programs]
        assert sorted(itertools.chain(*op_seeds)) == list(range(20))
        for steps, own in zip(programs, op_seeds, strict=True):
            assert steps == [[(op_seed, run) for op_seed in own] for run in range(50)]


class TestControlFlow:
    def loop(self, cursor, times, *draws):
        seen = []
        with cursor.control_flow(regions.LOOP) as run:
            for _ in range(times):
                run(0, lambda: None)
                run(1, lambda: seen.extend(draw(cursor) for draw in draws))
            run(0, lambda: None)
        return seen

    def test_each_iteration_is_a_run(self, cursor):
        assert self.loop(cursor, 3, drawn) == [(0, 0), (0, 1), (0, 2)]
        assert not cursor.in_region

    def test_each_execution_out_of_steps_is_a_loop_of_its_own(self, cursor):
        assert self.loop(cursor, 2, drawn) == [(0, 0), (0, 1)]
        assert self.loop(cursor, 2, drawn) == [(1, 0), (1, 1)]

    def test_runs_go_on_from_step_to_step(self, cursor):
        runs = []
        for times in (2, 0, 3):
            with Step(cursor.stream, "train"):
                runs += [*self.loop(cursor, times, drawn), drawn(cursor)]
        assert runs == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (0, 4), (1, 2)]

    def test_a_loop_in_a_trace_is_no_part_of_the_step_around_it(self, cursor):
        with Step(cursor.stream, "train"):
            with cursor.first_trace():
                self.loop(cursor, 1, drawn)
            drawn(cursor)
        with Step(cursor.stream, "train"):
            assert drawn(cursor) == (1, 1)

    def test_an_op_that_is_traced_anew_in_each_step_starts_at_run_0(self, cursor):
        for _ in range(2):
            with Step(cursor.stream, "train"), cursor.control_flow(regions.DATASET_FUNCTION) as run:
                op_seeds = run(0, lambda: (cursor.next_seeds(lambda: False)[1], cursor.node))
            assert op_seeds == (0, None)

    def test_an_exception_ends_the_loop(self, cursor):
        def fail(cursor):
            raise KeyError

        with pytest.raises(KeyError):
            self.loop(cursor, 1, drawn, fail)
        assert not cursor.in_region
        assert drawn(cursor) == (1, 0)

    def test_control_flow_that_draws_nothing_need_not_come_again(self, cursor):
        runs = []
        for times in (1, 0, 1):
            with Step(cursor.stream, "train"):
                for _ in range(times):
                    with cursor.control_flow(regions.LOOP) as run:
                        run(1, lambda: None)
                runs += [*self.loop(cursor, 1, drawn), drawn(cursor)]
        assert runs == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]

    def test_two_loops_on_one_line_of_which_one_has_no_iteration(self, cursor):
        runs = []
        for first, second in ((1, 1), (0, 1), (1, 0), (0, 0)):
            with Step(cursor.stream, "train"):
                for times in (first, second):
                    runs += self.loop(cursor, times, drawn)
        assert runs == [(0, 0), (1, 0), (1, 1), (0, 1)]

    def test_a_loop_that_is_called_from_another_line(self, cursor):
        runs = []
        with Step(cursor.stream, "train"), cursor.control_flow(regions.LOOP) as run:
            runs.append(run(1, drawn, cursor))
        for times in (1, 0, 2):
            with Step(cursor.stream, "train"), cursor.control_flow(regions.LOOP) as run:
                runs += [run(1, drawn, cursor) for _ in range(times)]
        assert runs == [(0, 0), (0, 1), (0, 2), (0, 3)]

    def test_a_missing_loop_is_refused(self, cursor):
        with Step(cursor.stream, "train"):
            drawn(cursor)
            self.loop(cursor, 1, drawn)
            drawn(cursor)
        message = r"^step 1 ended without the tf.while_loop at \S+:\d+, in which step 0 drew\. A graph runs the same"
        with pytest.raises(StepMismatchError, match=message), Step(cursor.stream, "train"):
            drawn(cursor)
            drawn(cursor)

    def test_an_iteration_that_lacks_its_inner_loop_is_refused(self, cursor):
        with cursor.control_flow(regions.LOOP) as run:
            run(1, self.loop, cursor, 1, drawn)
            run(1, self.loop, cursor, 0, drawn)
            message = (
                r"^execution 2 of the body of the tf.while_loop at .* ended without the tf.while_loop at .* Use tf.cond"
            )
            with pytest.raises(StepMismatchError, match=message):
                run(1, lambda: None)

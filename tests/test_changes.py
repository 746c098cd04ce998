"""Changes: undone in reverse order, once, also after errors and interrupts, and never over what a block around did."""

import gc
import itertools
import threading
import types
from functools import partial

import pytest

from detrand.changes import Changes, attribute_set, locked
from tests.support.interrupts import called_at, interrupted_at


@pytest.fixture
def owner():
    return types.SimpleNamespace(value=0)


class TestUndo:
    def test_changes_are_undone_in_reverse_order_and_once(self):
        seen, changes = [], Changes()
        with changes:
            changes.on_undo(seen.append, 1)
            changes.on_undo(seen.append, 2)
        changes.undo()
        assert seen == [2, 1]

    def test_the_first_error_is_raised_after_the_rest_is_undone(self):
        def fail(error):
            raise error

        seen, changes = [], Changes()
        changes.on_undo(seen.append, 1)
        changes.on_undo(fail, KeyError("second"))
        changes.on_undo(fail, KeyError("first"))
        with pytest.raises(KeyError, match="first"):
            changes.undo()
        assert seen == [1]

    def test_what_nothing_refers_to_is_undone(self, owner):
        changes = Changes()
        changes.set(owner, "value", 1)
        assert owner.value == 1
        del changes
        assert owner.value == 0

    def test_what_the_garbage_collector_undoes_at_any_line_of_a_block_inside(self, owner):
        def change():
            with attribute_set(owner, "value", 2), attribute_set(owner, "value", 3):
                assert owner.value == 3

        for line in itertools.count():
            lost = Changes()
            lost.set(owner, "value", 1)
            is_undone = called_at(line, change, partial(lost.undo, is_late=True))
            lost.undo(is_late=True)
            assert owner.value == 0, line
            if not is_undone:
                break

    def test_an_interrupt_at_any_line_is_undone(self, owner):
        def change():
            with attribute_set(owner, "value", 1), attribute_set(owner, "value", 2), attribute_set(owner, "other", 3):
                pass

        owner.other = 0
        gc.freeze()  # or each collection would look at all that the tests before have left
        try:
            for line in itertools.count():
                is_interrupted = interrupted_at(line, change, KeyboardInterrupt)
                gc.collect()
                assert vars(owner) == {"value": 0, "other": 0}, line
                if not is_interrupted:
                    break
        finally:
            gc.unfreeze()
        assert line > 40


class TestNestedBlocks:
    def test_an_undo_that_comes_after_that_of_the_block_around_does_nothing(self, owner):
        outer, inner = Changes(), Changes()
        outer.set(owner, "value", 1)
        inner.set(owner, "value", 2)
        outer.undo()
        assert owner.value == 0
        owner.value = 3
        inner.undo()
        assert owner.value == 3

    def test_an_undo_that_is_delayed_leaves_what_other_code_has_put_there(self, owner):
        changes = Changes()
        changes.set(owner, "value", 1)
        owner.value = 2
        del changes
        assert owner.value == 2

    @pytest.mark.parametrize("value", ["", "a"])
    def test_an_undo_that_is_delayed_leaves_an_equal_str_that_other_code_has_put_there(self, owner, value):
        changes = Changes()
        changes.set(owner, "value", value)
        assert owner.value == value
        owner.value = value
        del changes
        assert owner.value == value

    def test_an_undo_that_is_delayed_leaves_a_block_that_has_been_entered_since(self, owner):
        delayed = Changes()
        delayed.set(owner, "value", 1)
        with attribute_set(owner, "value", 2):
            del delayed
            assert owner.value == 2
        assert owner.value == 0

    def test_undos_that_are_delayed_may_come_in_any_order(self, owner):
        for first in (0, 1, 2):
            delayed = [Changes() for _ in range(3)]
            for value, changes in enumerate(delayed, start=1):
                changes.set(owner, "value", value)
            del changes
            del delayed[first]
            assert owner.value == (2 if first == 2 else 3)
            delayed.clear()
            assert owner.value == 0

    def test_an_undo_in_time_replaces_what_other_code_has_left(self, owner):
        with attribute_set(owner, "value", 1):
            owner.value = 2
        assert owner.value == 0

    def test_blocks_of_several_threads_are_undone_on_their_own(self, owner):
        seen = []
        outer, inner = Changes(), Changes()
        outer.restore("state", lambda: "outer", seen.append)
        thread = threading.Thread(target=lambda: inner.restore("state", lambda: "inner", seen.append))
        thread.start()
        thread.join()
        outer.undo()
        inner.undo()
        assert seen == ["outer", "inner"]


class TestLocked:
    def test_an_interrupt_at_any_line_leaves_no_lock_held(self):
        def call():
            locked(lock, Changes)

        for line in itertools.count():
            lock = threading.Lock()
            is_interrupted = interrupted_at(line, call, KeyboardInterrupt)
            assert not lock.locked(), line
            if not is_interrupted:
                break
        assert line > 1

"""Patches: their targets are checked, and they are undone in any order, after errors too."""

import importlib
import itertools
import pkgutil
import sys
import types

import pytest

from detrand import _patching
from detrand._patching.patches import Patches, Shared, Target
from detrand._patching.random_ops import RANDOM_OPS, RAW_OP_MODULES
from detrand.changes import Changes
from detrand.errors import PatchError
from tests.support.keras3_process import is_installed


@pytest.fixture
def module(monkeypatch):
    module = types.ModuleType("patched_module")

    def double(x):
        """Doubles."""
        return 2 * x

    class Doubler:
        def double(self, x):
            return 2 * x

    class Child(Doubler):
        pass

    module.double, module.Doubler, module.Child = double, Doubler, Child
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


DOUBLE = Target("patched_module", "double", ("x",))


def plus(number):
    return lambda original: lambda x: original(x) + number


def all_targets():
    names = {info.name for info in pkgutil.iter_modules(_patching.__path__)}
    if not is_installed("jax"):
        names.remove("jax_draws")
    modules = [importlib.import_module(f"detrand._patching.{name}") for name in sorted(names)]
    targets = {}  # a module may import a target of another module
    for value in itertools.chain.from_iterable(vars(module).values() for module in modules):
        if isinstance(value, Target):
            targets[str(value)] = value
        elif isinstance(value, tuple | dict):
            items = value.values() if isinstance(value, dict) else value
            targets |= {str(item): item for item in items if isinstance(item, Target)}
    missing = [name for name in ("flax", "jax", "torch") if not is_installed(name)]
    yield from (target for target in targets.values() if not set(missing) & set(target.module.split(".")))
    for raw_ops in RAW_OP_MODULES:
        yield from (Target(raw_ops, op_type, ()) for op_type in RANDOM_OPS)


class TestTarget:
    @pytest.mark.parametrize("target", [pytest.param(target, id=str(target)) for target in all_targets()])
    def test_every_target_is_in_this_tensorflow_and_keras(self, target):
        assert callable(target.checked()) or isinstance(target.checked(), staticmethod | classmethod)

    def test_the_text_of_a_target_is_its_dotted_name(self):
        assert str(DOUBLE) == "patched_module.double"

    @pytest.mark.parametrize(
        "target",
        [
            pytest.param(Target("patched_module", "halve", ("x",)), id="function"),
            pytest.param(Target("no_such_module", "double", ("x",)), id="module"),
            pytest.param(Target("patched_module", "Halver.double", ("self", "x")), id="class"),
            pytest.param(Target("tensorflow", "random", ("shape",)), id="not a function"),
        ],
    )
    def test_a_function_that_tensorflow_lacks_raises_patch_error(self, module, target):
        message = rf"detrand replaces {target}, but tensorflow \d.* has no such function"
        with pytest.raises(PatchError, match=message):
            target.checked()

    def test_a_function_with_other_parameters_raises_patch_error(self, module):
        module.double = lambda y, x: None
        message = (
            r"detrand replaces patched_module\.double and expects its parameters to begin with \(x\), "
            r"but in tensorflow \d.* they are \(y, x\)\. Install a release"
        )
        with pytest.raises(PatchError, match=message):
            DOUBLE.checked()

    def test_further_parameters_do_not_matter(self, module):
        module.double = lambda x, y=0: None
        assert DOUBLE.checked() is module.double

    def test_a_foreign_patch_is_called_through(self, module):
        module.double = lambda *args, **kwargs: None
        assert DOUBLE.checked() is module.double


class TestPatches:
    def test_a_function_is_replaced_and_undo_restores_it(self, module):
        original, patches = module.double, Patches()
        patches.replace(DOUBLE, plus(1))
        assert module.double(3) == 7
        assert module.double.__doc__ == "Doubles."
        patches.undo()
        assert module.double is original

    def test_a_method_is_replaced_and_undo_restores_it(self, module):
        original, patches = module.Doubler.double, Patches()
        target = Target("patched_module", "Doubler.double", ("self", "x"))
        patches.replace(target, lambda original: lambda self, x: original(self, x) + 1)
        assert module.Child().double(3) == 7
        patches.undo()
        assert module.Doubler.double is original

    def test_an_inherited_method_is_not_left_on_the_child(self, module):
        patches = Patches()
        target = Target("patched_module", "Child.double", ("self", "x"))
        patches.replace(target, lambda original: lambda self, x: original(self, x) + 1)
        assert (module.Child().double(3), module.Doubler().double(3)) == (7, 6)
        patches.undo()
        assert "double" not in vars(module.Child)

    def test_a_refused_target_is_unchanged(self, module):
        original = module.double
        with pytest.raises(PatchError):
            Patches().replace(Target("patched_module", "double", ("y",)), plus(1))
        assert module.double is original

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)], ids=str)
    def test_patches_are_undone_in_any_order(self, module, order):
        original = module.double
        several = [Patches() for _ in range(3)]
        for number, patches in zip((1, 10, 100), several, strict=True):
            patches.replace(DOUBLE, plus(number))
        left = 111
        for position in order:
            assert module.double(3) == 6 + left
            several[position].undo()
            left -= 10**position
        assert module.double is original

    def test_a_patch_of_the_users_own_stays(self, module):
        original, patches = module.double, Patches()
        patches.replace(DOUBLE, plus(1))
        patched = module.double
        module.double = users = lambda x: patched(x) * 100
        patches.undo()
        assert module.double is users
        module.double = original

    def test_an_attribute_is_set_and_undo_restores_it(self, module):
        patches = Patches()
        patches.set(module, "double", 1)
        patches.set(module, "missing", 2)
        original = vars(module)["double"]
        assert (original, module.missing) == (1, 2)
        patches.undo()
        assert callable(module.double)
        assert not hasattr(module, "missing")

    def test_an_attribute_that_the_user_has_set_since_then_stays(self, module):
        patches = Patches()
        patches.set_all(module, {"first": 1, "second": 2})
        module.first = "the user's"
        patches.undo()
        assert module.first == "the user's"
        assert not hasattr(module, "second")

    def test_a_patch_under_the_users_own_leaves_nothing_behind(self, module):
        original, patches = module.double, Patches()
        patches.replace(DOUBLE, plus(1))
        patched, module.double = module.double, lambda x: 0
        patches.undo()
        module.double = patched
        patches.replace(DOUBLE, plus(10))
        assert module.double(3) == 16
        patches.undo()
        assert module.double is original

    def test_the_parameters_of_each_target_are_checked(self, module):
        patches = Patches()
        patches.replace(DOUBLE, plus(1))
        with pytest.raises(PatchError, match=r"to begin with \(x, y\)"):
            patches.replace(Target("patched_module", "double", ("x", "y")), plus(1))
        patches.undo()


class TestWhenImported:
    NAME = "detrand_imported_later"

    @pytest.fixture
    def importable(self, tmp_path, monkeypatch):
        (tmp_path / f"{self.NAME}.py").write_text("value = 1\n")
        monkeypatch.syspath_prepend(tmp_path)
        yield
        sys.modules.pop(self.NAME, None)

    def test_a_loaded_module_is_patched_at_once(self, module):
        seen = []
        Patches().when_imported("patched_module", seen.append)
        assert len(seen) == 1

    def test_a_module_is_patched_as_soon_as_it_is_imported(self, importable):
        patches, seen = Patches(), []
        before = list(sys.meta_path)
        for _ in range(2):
            patches.when_imported(self.NAME, lambda patches: seen.append(sys.modules[self.NAME].value))
        assert not seen
        __import__(self.NAME)
        assert seen == [1, 1]
        assert sys.meta_path == before

    def test_a_module_that_is_imported_after_undo_is_not_patched(self, importable):
        patches, seen = Patches(), []
        before = list(sys.meta_path)
        patches.when_imported(self.NAME, seen.append)
        patches.undo()
        assert sys.meta_path == before
        __import__(self.NAME)
        assert not seen


class TestShared:
    def test_patches_are_installed_once_and_undone_by_the_last_scope(self, module):
        original, installed = module.double, []

        def install(patches):
            installed.append(1)
            patches.replace(DOUBLE, plus(1))

        shared = Shared(install)
        with shared.installed():
            with shared.installed():
                assert module.double(3) == 7
            assert module.double(3) == 7
        assert module.double is original
        assert installed == [1]

    def test_patches_are_installed_again_in_each_scope(self, module):
        def install(patches):
            patches.replace(DOUBLE, plus(1))
            patches.set(module, "answer", 42)

        shared, original = Shared(install), module.double
        for _ in range(3):
            with shared.installed():
                assert (module.double(3), module.answer) == (7, 42)
            assert module.double is original and not hasattr(module, "answer")

    def test_patches_are_installed_anew_if_somebody_has_replaced_the_function(self, module):
        shared = Shared(lambda patches: patches.replace(DOUBLE, plus(1)))
        with shared.installed():
            assert module.double(3) == 7
        module.double = elses = lambda x: 10 * x
        with shared.installed():
            assert module.double(3) == 31
        assert module.double is elses

    @pytest.mark.parametrize("first", [0, 1])
    def test_two_sets_that_are_installed_again_are_undone_in_any_order(self, module, first):
        original = module.double
        several = [Shared(lambda patches, i=i: patches.replace(DOUBLE, plus(i))) for i in (1, 10)]
        for _ in range(3):
            users = [Changes(), Changes()]
            for shared, changes in zip(several, users, strict=True):
                shared.install(changes)
            assert module.double(3) == 17
            users[first].undo()
            assert module.double(3) == (16, 7)[first]
            users[1 - first].undo()
            assert module.double is original

    def test_everything_is_undone_if_installing_fails_half_way(self, module):
        original = module.double

        def install(patches):
            patches.replace(DOUBLE, plus(1))
            patches.replace(Target("patched_module", "missing", ()), plus(1))

        shared = Shared(install)
        for _ in range(2):
            with pytest.raises(PatchError), shared.installed():
                raise AssertionError("not reached")
            assert module.double is original

    def test_patches_are_undone_after_an_exception(self, module):
        original = module.double
        shared = Shared(lambda patches: patches.replace(DOUBLE, plus(1)))
        with pytest.raises(KeyError), shared.installed():
            raise KeyError
        assert module.double is original

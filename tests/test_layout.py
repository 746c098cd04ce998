"""The layout of `detrand/`: the floors that imports run down, and the words that names are made of.

``python -m tests.test_layout`` prints the floors, the folders and their sizes.
"""

import ast
import re
from pathlib import Path

import detrand

ROOT = Path(__file__).parents[1]
PACKAGE = Path(detrand.__file__).parent

# From top to bottom. A module imports modules of its own floor and of the floors below. A name stands for a module, or
# for all modules of a package that have no line of their own.
FLOORS = [
    ["__main__", "testing", "pytest_plugin"],
    ["report"],
    ["drafts"],
    ["validation.validate"],
    ["validation.checks"],
    ["validation.outcomes"],
    ["validation.runner"],
    ["validation.golden"],
    ["validation.reference"],
    ["validation.diagnosis"],
    ["validation.training", "validation.probe"],
    ["validation.noise"],
    ["validation.audit"],
    ["validation.programs"],
    ["validation.frameworks"],
    ["validation.report", "validation.results", "validation.event_files"],
    [
        "validation.migration",
        "validation.migration_files",
        "validation.batches",
        "validation.precision",
    ],
    ["validation.noise.floor", "validation.tolerances"],
    ["checkpoints"],
    ["steps"],
    ["random_op_diff"],
    ["random_tool"],
    ["adapters"],
    ["shim"],
    ["variables"],
    ["comparison"],
    ["seeding"],
    ["philox"],
    ["_patching"],
    ["scopes", "files", "packages", "changes", "arguments", "errors", "remedies"],
]
MOST_MODULES = 13  # in one folder, besides __init__

# What works where TensorFlow is not installed: these modules import nothing of HEAVY when they are imported, nor does
# what they import then. Their functions may import it where it is needed.
WITHOUT_TENSORFLOW = [
    *("__main__", "testing", "pytest_plugin", "validation", "steps", "random_op_diff", "random_tool"),
    *("report.annotations", "report.charts", "report.html", "report.json", "report.junit", "report.markdown"),
    *("report.symptoms", "checkpoints.graph_files", "checkpoints.graph_definitions", "checkpoints.pairing"),
    "checkpoints.upstream",
    *("adapters.modules", "adapters.uncontrolled", "adapters.counter_draws", "adapters.keras_draws"),
    *("adapters.keras3", "adapters.keras3_arrays", "adapters.keras3_jax", "variables"),
    *("comparison", "seeding", "philox"),
    *("_patching.patches", "_patching.random_ops", "_patching.torch", "_patching.flax", "_patching.jax_draws"),
    *("_patching.keras", "_patching.keras3_random", "_patching.optimizers", "_patching.variables"),
    *FLOORS[-1],
]
HEAVY = {"tensorflow", "tf_keras", "keras", "rich"}

# Words that the glossary has replaced, and what it says.
REPLACED = {
    "tf2": "port",
    "parting": "divergence",
    "ours": "tf1 or port",
    "theirs": "tf1 or port",
    "tf1_side": "reference",
    "same_numbers": "compare_outcomes",
    "ways_of_computing": "variants",
    "own_weights": "distinct_weights",
    "whole_variable": "joined_variable",
    "whole_variables": "joined_variables",
    "mend": "fix",
    "setting": "hyperparameter or run_config",
    "settings": "hyperparameters or run_configs",
    "tell": "report",
    "tells": "reports",
    "told": "reported",
    "lets": "allows",
    "alone": "only",
    "otherwise": "differently",
}


def module_name(path):
    """Return the name of a file of the package: ``seeding.streams``, ``seeding`` for its ``__init__``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(source) for name, source in SOURCES.items()}
MODULES = sorted(name for name in SOURCES if not (PACKAGE / name.replace(".", "/")).is_dir())
PACKAGES = sorted(SOURCES.keys() - set(MODULES))


def imported_modules(name):
    """Return the modules of detrand that a module imports, wherever in it, and the line of each first import."""
    found = {}
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"detrand/{name} line {node.lineno}: imports in detrand are absolute"
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            package, _, rest = target.partition(".")
            if package == "detrand":
                module = rest if rest in SOURCES else rest.rpartition(".")[0]
                if module != name:
                    found.setdefault(module, node.lineno)
    return found


GRAPH = {name: imported_modules(name) for name in SOURCES if name}  # not detrand/__init__, which loads names lazily


def floor_of(name):
    """Return the number of a module's floor, 0 for the top one; a package stands where its lowest module does."""
    floors = {entry: number for number, floor in enumerate(FLOORS) for entry in floor}
    while name and name not in floors:
        if below := [number for entry, number in floors.items() if entry.startswith(f"{name}.")]:
            return max(below)
        name = name.rpartition(".")[0]
    assert name, "a module has no floor: add it to FLOORS"
    return floors[name]


def circle_through(name):
    """Return the modules of a circle of imports that starts and ends at `name`, or None."""
    paths, seen = [[name]], set()
    for path in paths:
        for module in GRAPH.get(path[-1], ()):
            if module == name:
                return [*path, name]
            if module not in seen:
                seen.add(module)
                paths.append([*path, module])
    return None


def imported_at_once(name):
    """Return what is imported when a module is: by the statements outside of its functions."""
    statements, found = list(TREES[name].body), []
    for node in statements:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif (
            not isinstance(node, ast.FunctionDef) and getattr(getattr(node, "test", None), "id", "") != "TYPE_CHECKING"
        ):
            statements += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return found


def imports_of_heavy_packages():
    """Return how the modules of WITHOUT_TENSORFLOW import one of the packages that they must not."""
    names = [name for name in SOURCES if any(f"{name}.".startswith(f"{each}.") for each in WITHOUT_TENSORFLOW)]
    paths, seen, found = [[name] for name in names], set(names), []
    for path in paths:
        for target in imported_at_once(path[-1]):
            package, _, rest = target.partition(".")
            module = rest if rest in SOURCES else rest.rpartition(".")[0]
            if package in HEAVY:
                found.append(" imports ".join([*path, package]))
            elif package == "detrand" and module not in seen:
                seen.add(module)
                paths.append([*path, module])
    return found


def identifiers(tree):
    """Yield each name in a module and its line: of variables, attributes, arguments, functions and modules."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            text = getattr(node, field, None)
            if isinstance(text, str):
                yield text, getattr(node, "lineno", 0)


def words_in(identifier):
    """Return an identifier's words, of camel case or of snake case, between underscores: ``_tf2_side_``."""
    return f"_{re.sub(r'(?<=[a-z0-9])(?=[A-Z])|[.]', '_', identifier).lower()}_"


def imports_up():
    return [
        f"detrand.{name} line {line} imports detrand.{module}, which is on a floor above"
        for name, imported in GRAPH.items()
        for module, line in imported.items()
        if module and floor_of(module) < floor_of(name)
    ]


def circles():
    found = {frozenset(circle): circle for name in GRAPH if (circle := circle_through(name))}
    return [" imports ".join(circle) for circle in found.values()]


def star_imports():
    return [
        f"detrand.{name} line {node.lineno}"
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
    ]


def large_folders():
    sizes = {package: sum(name.rpartition(".")[0] == package for name in MODULES) for package in PACKAGES}
    return [f"detrand.{name} has {size} modules" for name, size in sizes.items() if size > MOST_MODULES]


def modules_without_docstring():
    return [f"detrand.{name}" for name, tree in TREES.items() if not ast.get_docstring(tree)]


def modules_missing_from_their_package():
    """Return the modules that the docstring of their package does not name, and so a reader of it does not find."""
    return [
        f"detrand.{name}"
        for name in SOURCES
        if name and f"`{name.rpartition('.')[2]}`" not in (ast.get_docstring(TREES[name.rpartition(".")[0]]))
    ]


def replaced_words():
    return [
        f"detrand.{name} line {line}: {identifier}; use {word!r}"
        for name, tree in TREES.items()
        for identifier, line in sorted({(name, 0), *identifiers(tree)})
        for replaced, word in REPLACED.items()
        if f"_{replaced}_" in words_in(identifier)
    ]


# Of the words that are replaced in identifiers, those that no text needs.
_NOT_IN_TEXT = ("tell", "tells", "told", "lets", "mend", "parting")


def replaced_words_in_text():
    """Return the lines of the package and of the documentation that have a word which REPLACED replaces."""
    texts = {f"detrand.{name}": source for name, source in SOURCES.items()}
    texts |= {path.name: path.read_text() for path in [*(ROOT / "docs").glob("*.rst"), *ROOT.glob("*.rst")]}
    return [
        f"{name} line {number}: {found[0]}; use {REPLACED[found[0].lower()]!r}"
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        for found in re.finditer(rf"\b({'|'.join(_NOT_IN_TEXT)})\b", line, re.IGNORECASE)
    ]


def repeated_public_names():
    """Return the public names that detrand/__init__.pyi imports more than once, or that detrand/__init__.py names."""
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    imported = [alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    in_source = {node.value for node in ast.walk(TREES[""]) if isinstance(node, ast.Constant)}
    return [name for name in imported if imported.count(name) > 1 or name in in_source]


# The field of a node that holds a name; of a constant, which may be the name of a fixture, its value.
NAMED_BY = {ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg", ast.keyword: "arg", ast.Constant: "value"}


def names_in(node):
    """Return the names that a function refers to, and "assert" for whatever asserts."""
    names = set()
    for child in ast.walk(node):
        if field := NAMED_BY.get(type(child)):
            names.add(str(getattr(child, field)))
        exit_status = isinstance(child, ast.keyword) and child.arg == "check" and getattr(child.value, "value", False)
        if exit_status or isinstance(child, ast.Assert):
            names.add("assert")
    return {"assert" if name.startswith("assert_") else name for name in names}


def unasserted_tests():
    """Return the tests that assert nothing, by themselves or by a function or a fixture that they use."""
    trees = {path: ast.parse(path.read_text()) for path in (ROOT / "tests").rglob("*.py")}
    functions = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    helpers = [(node.name, names_in(node)) for node in functions if not node.name.startswith("test_")]
    asserting, found = set(), {"assert", "raises", "warns", "fail"}
    while found != asserting:
        asserting = found
        found = asserting | ({name for name, _ in helpers} - {name for name, used in helpers if not used & asserting})
    return [
        f"{path.relative_to(ROOT)} line {node.lineno}: {node.name}"
        for path, tree in trees.items()
        for scope in ast.walk(tree)
        if isinstance(scope, (ast.Module, ast.ClassDef)) and path.stem.startswith("test_")
        for node in scope.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if not any(names_in(part) & asserting for part in (node, *getattr(scope, "decorator_list", ())))
    ]


def folders_of_tests_without_package():
    """Return the folders of tests/ that mirror no package."""
    own = {"conformance", "sound_migrations", "faults", "interrupts", "random_programs"}
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    return [f"tests/{folder}" for folder in folders if folder.name not in own and not (PACKAGE / folder).is_dir()]


_WORDS = {"title", "confirmed", "summary", "details", "remedy"}  # fields that hold text for people
_OF_TEXT = {"startswith", "endswith", "match", "fullmatch", "search", "partition", "rpartition", "index"}


def is_words(node):
    """Return whether an expression is a text for people, by its name."""
    return (isinstance(node, ast.Attribute) and node.attr in _WORDS) or (
        isinstance(node, ast.Name) and node.id in _WORDS
    )


def decisions_by_words():
    """Return the lines of validation and of the reports that look into the words of a finding or of a check.

    In validation, no function takes a title: what is decided by the title is decided where the title is made. A class
    may hold it.
    """
    found = []
    for name in MODULES:
        for node in ast.walk(TREES[name]) if name.startswith(("validation", "report")) else ():
            looked_into = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _OF_TEXT:
                looked_into = [part for each in (node.func.value, *node.args) for part in ast.walk(each)]
            elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
                looked_into = node.comparators
            elif isinstance(node, ast.Call) and name.startswith("validation"):
                function = ast.unparse(node.func).rpartition(".")[2]
                is_class, titles = (
                    function[0].isupper(),
                    [each for each in node.args if isinstance(each, ast.Attribute)],
                )
                looked_into = [] if is_class else [each for each in titles if each.attr == "title"]
            if any(map(is_words, looked_into)):
                found.append(f"{name}:{node.lineno}")
    return found


def titles_without_remedy():
    """Return the lines of validation that make a finding of the title of a cause, without its remedy."""
    found = []
    for name in MODULES:
        for node in ast.walk(TREES[name]) if name.startswith("validation") else ():
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("Finding", "replace")
            ):
                given = {each.arg: each.value for each in node.keywords}
                titles = [each for each in (*node.args, given.get("title")) if isinstance(each, ast.Attribute)]
                if any(each.attr == "title" for each in titles) and "remedy" not in given:
                    found.append(f"{name}:{node.lineno}")
    return found


def test_imports_run_down():
    assert not imports_up()


def test_imports_run_in_no_circle():
    assert not circles()


def test_what_works_without_tensorflow_imports_nothing_of_it():
    assert not imports_of_heavy_packages()


def test_nothing_is_imported_through_a_star():
    assert not star_imports()


def test_folders_are_small_enough_to_read():
    assert not large_folders()


def test_every_module_says_what_it_is():
    assert not modules_without_docstring()


def test_every_package_lists_its_modules():
    assert not modules_missing_from_their_package()


def test_names_are_made_of_the_glossarys_words():
    assert not replaced_words()


def test_texts_are_made_of_the_glossarys_words():
    assert not replaced_words_in_text()


def test_public_names_are_listed_once():
    assert not repeated_public_names()


def test_tests_mirror_the_package():
    assert not folders_of_tests_without_package()


def test_every_test_asserts():
    assert not unasserted_tests()


def test_no_decision_depends_on_the_words_of_a_finding():
    assert not decisions_by_words()


def test_a_finding_has_the_remedy_of_its_cause():
    assert not titles_without_remedy()


RULES = [
    imports_up,
    circles,
    imports_of_heavy_packages,
    star_imports,
    large_folders,
    modules_without_docstring,
    modules_missing_from_their_package,
    replaced_words,
    replaced_words_in_text,
    repeated_public_names,
    folders_of_tests_without_package,
    unasserted_tests,
    decisions_by_words,
    titles_without_remedy,
]


def lines_of(names):
    return sum(SOURCES[name].count("\n") for name in names)


def print_layout():
    """Print the floors with what stands on each, the folders, and what breaks a rule."""
    print("Floors, from top to bottom; imports run down only:\n")
    for number, floor in enumerate(FLOORS):
        there = [name for name in MODULES if name and floor_of(name) == number]
        print(f"{lines_of(there):6} lines {len(there):4} modules  {', '.join(floor)}")
    print("\nFolders:\n")
    for package in PACKAGES:
        there = [name for name in MODULES if name.rpartition(".")[0] == package]
        folder = "/".join(["detrand", *package.split(".")]).rstrip("/")
        print(f"{lines_of([package, *there]):6} lines {len(there):4} modules  {folder}/")
    print(f"{lines_of(SOURCES):6} lines {len(MODULES):4} modules  in all")
    for rule in RULES:
        for broken in rule():
            print(f"\n{rule.__name__}: {broken}", end="")


if __name__ == "__main__":
    print_layout()

"""The benchmarks run and say what they should; how fast anything is, is not asserted."""

import contextlib
import dataclasses
import gc
import json
import math
import socket
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import tensorflow as tf

import detrand
from benchmarks import __main__ as command_line
from benchmarks import devices, memory, page, plot, tables, workloads
from benchmarks.cases import Case, Group, Workload
from benchmarks.results import Result, Row, Run
from benchmarks.timing import Effort, Spread, time_in_turns

ROOT = Path(__file__).parents[1]
KERAS3_CASES = ["plain TensorFlow", "detrand constant", "detrand num_random_ops"]
SEEDING_CASES = [*KERAS3_CASES, "tf.random.set_seed", "official constant", "official num_random_ops"]
SHIM_CASES = ["official, tf_keras layer", "detrand, tf_keras layer", "detrand, Keras 3 layer"]
PROGRAMS = [
    *("uniform", "uniform_million", "normal", "truncated_normal", "parameterized_truncated_normal", "integers"),
    *("gamma", "poisson", "categorical", "shuffle", "dropout", "training_step"),
]
RECORDER_CASES = ["no recorder", "detrand, 3 scalars"]
NETWORKS = ["get_variable", "v1_layers", "resnet_v2"]
DRAWS = [
    *("uniform_float32", "uniform_range", "uniform_float64", "uniform_bfloat16", "uniform_float16"),
    *("dropout_mask", "randint", "normal", "truncated_normal", "gamma"),
]
FEW_PROGRAMS = ["uniform", "poisson", "training_step"]
REFUSED_IN_XLA = ("gamma", "poisson", "parameterized_truncated_normal")
GROUPS = {
    "seeding/eager": (PROGRAMS, SEEDING_CASES),
    "seeding/step": (FEW_PROGRAMS, SEEDING_CASES),
    "seeding/scope": (["uniform", "training_step"], SEEDING_CASES),
    "seeding/graph_building": (FEW_PROGRAMS, SEEDING_CASES),
    "seeding/session": (FEW_PROGRAMS, SEEDING_CASES),
    "seeding/tf.function": (FEW_PROGRAMS, SEEDING_CASES),
    "seeding/xla": ([name for name in PROGRAMS if name not in REFUSED_IN_XLA], SEEDING_CASES),
    "seeding/keras3": (["dropout_layer", "gaussian_noise_layer", "new_dense_layer"], KERAS3_CASES),
    "philox": (DRAWS, ["NumPy Philox", "detrand.philox"]),
    "shim/first_call": (NETWORKS, SHIM_CASES),
    "shim/later_call": (NETWORKS, SHIM_CASES),
    "shim/tf.function": (NETWORKS, ["no shim", *SHIM_CASES]),
    "recorder/eager": (["training_step", "classifier"], RECORDER_CASES),
    "recorder/tf.function": (["training_step", "classifier"], RECORDER_CASES),
}
CASES = {f"{group}/{program}": cases for group, (programs, cases) in GROUPS.items() for program in programs}
FEW = ["seeding/eager/uniform", "seeding/tf.function/poisson", "philox/randint", "shim/tf.function/get_variable"]


@pytest.fixture(autouse=True)
def imports_stay_out_of_the_garbage_collections():
    """Freeze what is imported again, as conftest.py did: each benchmark ends that."""
    yield
    gc.freeze()


@pytest.fixture(scope="module", params=[FEW, pytest.param([*CASES], marks=pytest.mark.slow)], ids=["few", "all"])
def names(request):
    """The names of the workloads that are run, in one run for all tests."""
    return request.param


@pytest.fixture(scope="module")
def groups(names):
    return workloads.chosen(names)


@pytest.fixture(scope="module")
def run(names, tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmarks")
    files = [f"--json={folder / 'results.json'}", f"--plot={folder / 'plot.svg'}", f"--rst={folder / 'page.rst'}"]
    command = [sys.executable, "-m", "benchmarks", "--quick", "--device=cpu", *files, *names]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stdout + done.stderr
    return folder, done.stdout


@pytest.fixture(scope="module")
def results(run):
    return json.loads((run[0] / "results.json").read_text())


@pytest.mark.slow
def test_cases_are_measured_in_turns(results, names):
    found = {result["workload"]: [row["case"] for row in result["rows"]] for result in results["results"]}
    assert list(found) == names
    assert found == {name: CASES[name] for name in names}


@pytest.mark.slow
def test_spreads_are_ordered_and_finite(results):
    for result in results["results"]:
        assert result["error"] is None
        for row in result["rows"]:
            for spread in (row["seconds"], row["ratio"]):
                assert 0 < spread["lower_quartile"] <= spread["median"] <= spread["upper_quartile"] < math.inf


@pytest.mark.slow
def test_ops_are_counted_in_functions(results):
    for result in results["results"]:
        is_function = result["workload"].startswith("shim/tf.function/")
        for row in result["rows"]:
            assert isinstance(row["ops"], int) if is_function else row["ops"] is None


def test_says_what_was_measured_where_and_when(results):
    assert results["quick"] is True
    assert results["clock"] == "processor time"
    assert results["started"].endswith(" UTC")
    assert list(results["machine"]) == (
        ["device", "processor", "cores", "system", "Python", "detrand", "tensorflow", "keras", "tf-keras", "numpy"]
    )
    assert results["machine"]["device"] == "CPU"
    assert all(results["machine"].values())


def test_the_terminal_shows_every_workload(run, groups, names):
    shown = run[1]
    for group in groups:
        assert f"{group.title.replace('``', '')}: processor time of a call" in shown
    for program in {name.rpartition("/")[2] for name in names}:
        assert f" {program} " in shown
    assert "ratio to itself" in shown
    assert "ops in the graph" in shown
    assert "\x1b" not in shown  # neither colours nor a progress line where nobody watches


def test_the_plot_shows_every_workload(run, names):
    texts = {element.text for element in ElementTree.parse(run[0] / "plot.svg").iter() if element.text}
    assert texts >= {name.rpartition("/")[2] for name in names}
    assert texts >= {case for name in names for case in CASES[name]}


def test_the_page_shows_every_workload(run, groups):
    text = (run[0] / "page.rst").read_text()
    for group in groups:
        assert f"\n{group.title}: {group.workloads[-1].program}  " in text
        assert f"\n{group.title}\n    {group.about[:20]}" in text
    assert "\nprocessor " in text
    assert "\n.. image:: plot.svg\n" in text
    assert "This run was made with ``--quick``." in text
    assert socket.gethostname() not in text
    assert str(ROOT) not in text
    assert str(run[0]) not in text


def test_the_documentation_shows_a_whole_run():
    text = (ROOT / "docs" / "benchmarks.rst").read_text()
    for group in workloads.GROUPS:
        assert group.title in text
    assert "--quick" not in text
    assert "did not run" not in text


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], list(CASES)),
        (["seeding"], [name for name in CASES if name.startswith("seeding/")]),
        (["shim/later_call"], [f"shim/later_call/{network}" for network in NETWORKS]),
        (["shim/later_call/resnet_v2", "seeding/eager/gamma"], ["seeding/eager/gamma", "shim/later_call/resnet_v2"]),
    ],
    ids=["all", "several groups", "group", "workloads"],
)
def test_workloads_are_chosen_by_name(names, expected):
    groups = workloads.chosen(names)
    assert [workload.name for group in groups for workload in group.workloads] == expected
    assert all(workload.name == f"{group.name}/{workload.program}" for group in groups for workload in group.workloads)


@pytest.mark.parametrize("name", ["seed", "seeding/", "shim/later_call/v1_layers/x", ""])
def test_an_unknown_workload_is_refused(name):
    with pytest.raises(ValueError, match=rf"(?s)no workload {name!r}\. .*\n  shim/later_call/ get_variable v1_layers "):
        workloads.chosen(["seeding", name])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seeding", "shin"], "there is no workload 'shin'. Pass names from this list, or their "),
        (["--device=tpu"], "--device tpu: TensorFlow finds no TPU on this machine, only: "),
        (["--plot=plot.pdf"], "--plot plot.pdf: the name must end in .svg or .png\n"),
        (["--json=/no/such/file.json"], "/no/such/file.json: the folder /no/such does not exist\n"),
    ],
    ids=["workload", "device", "plot", "folder"],
)
def test_a_wrong_argument_is_refused(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    with pytest.raises(SystemExit) as exit_status:
        command_line.main()
    assert exit_status.value.code == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"python -m benchmarks: error: {message}")
    assert not captured.out


def test_a_plot_without_matplotlib_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        ValueError, match=r"--plot needs matplotlib, which is not installed\. Run: pip install '\.\[bench\]'"
    ):
        plot.check(Path("plot.svg"))


@pytest.mark.parametrize(
    ("there", "chosen"), [("CPU", "cpu"), ("CPU GPU", "gpu"), ("CPU GPU TPU", "tpu")], ids=lambda value: value
)
def test_the_fastest_device_is_the_default(there, chosen, monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] if kind in there.split() else [])
    for kind in devices.KINDS:
        monkeypatch.setattr(devices, f"_{kind}", lambda kind=kind: kind)
    assert devices.choose() == chosen
    assert devices.choose("cpu") == "cpu"


def test_ratios_are_taken_beside_the_baseline():
    """A clock that the calls put forward, ever slower: each call takes its share of the time that one takes now."""
    clock, log = FakeClock(), []

    def case(name, share):
        @contextlib.contextmanager
        def scope():
            log.append(name)
            yield
            log.append("left")

        def call():
            assert log[-1] == name
            clock.seconds += share * 1.1 ** (len(log) / 100)

        return Case(name, call, scope)

    cases = [case("baseline", 1), case("slow", 3)]
    baseline, slow = time_in_turns(cases, Effort(rounds=20, block_seconds=12), clock=clock)
    assert len(baseline.seconds) == len(slow.seconds) == 20
    assert slow.seconds[-1] > 1.1 * slow.seconds[0]
    assert all(2.9 < ratio < 3.1 for ratio in slow.ratios)
    assert all(0.97 < ratio < 1.03 for ratio in baseline.ratios)
    in_turns = [name for name in log if name != "left"][2:]  # the first two are to see how long a call takes
    assert in_turns == ["baseline", "baseline", "baseline", "slow", "baseline", "baseline", "slow", "baseline"] * 10


@pytest.mark.parametrize(
    ("calls", "block_seconds", "expected"), [(None, 12.0, 4), (None, 0.0, 1), (2, 12.0, 2), (None, 1.0, 1)]
)
def test_a_block_has_as_many_calls_as_fit(calls, block_seconds, expected):
    clock, readings = FakeClock(), []

    def call():
        clock.seconds += 3

    def read():
        readings.append(clock.seconds)
        return clock.seconds

    (timing,) = time_in_turns([Case("case", call)], Effort(rounds=1, block_seconds=block_seconds), calls, read)
    assert readings[-1] - readings[-2] == 3 * expected
    assert timing.seconds == [3]


class FakeClock:
    seconds = 0.0

    def __call__(self):
        return self.seconds


@pytest.mark.slow
def test_memory_of_kept_kernels_is_measured():
    workload = workloads.chosen(["seeding/eager/uniform"])[0].workloads[0]
    cases = {case.name: dataclasses.replace(case, memory_calls=500) for case in workload.cases()}
    names = ["plain TensorFlow", "official num_random_ops"]
    plain, official = memory.growths(workload.name, [cases[name] for name in names])
    assert official > plain + 5_000_000


def test_memory_is_measured_of_one_workload():
    uniform, normal = (workloads.chosen([f"seeding/eager/{name}"])[0].workloads[0] for name in ("uniform", "normal"))
    assert [case.memory_calls for case in uniform.cases()] == [100_000] * 3 + [10_000] * 3
    assert memory.growths(normal.name, normal.cases()) == [None] * len(SEEDING_CASES)


def test_a_workload_that_does_not_run_is_shown(monkeypatch, capsys, tmp_path, caplog):
    def broken():
        raise RuntimeError("no kernel\nfor it")

    caplog.set_level("ERROR", "tensorflow")  # main() sets it; this puts it back
    sound = [Case("plain", lambda: sum(range(10_000))), Case("detrand", lambda: sum(range(10_000)))]
    toys = Workload("toy/sound", lambda: sound), Workload("toy/broken", broken)
    monkeypatch.setattr(workloads, "GROUPS", (Group("toy", "Toys", "A call plays.", toys),))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "--device=cpu", f"--rst={tmp_path / 'page.rst'}"])
    assert command_line.main() == 1
    shown = capsys.readouterr().out
    assert "\n  sound  " in shown
    assert "\ntoy/broken did not run: RuntimeError: no kernel for it\n" in shown
    written = (tmp_path / "page.rst").read_text()
    assert "\nToys: sound  plain, " in written
    assert "\n``toy/broken`` did not run::\n\n    RuntimeError: no kernel for it\n" in written


def test_tables_show_times_ratios_growth_and_ops():
    group = Group("toy", "Toys", "A call plays.", ())
    rows = (
        Row("plain", Spread(1e-5, 2e-5, 3e-5), Spread(0.985, 1.0, 1.015), 1_000_000, 100_000, 73),
        Row("detrand", Spread(1e-5, 2e-5, 3e-5), Spread(9.994, 12.34, 1234.5), 2_345_678, 100_000, 1073),
    )
    times, growth, ops = tables.of_group(group, [Result("toy/uniform", rows)], "time")
    assert times.headings == ("program", "plain", "ratio to itself", "detrand")
    assert times.lines == (("uniform", "20.0 us", "1.00 (0.98-1.01)", "12.3 (9.99-1,234)"),)
    assert growth.lines == (("uniform", "1.0 MB in 100,000 calls", "2.3 MB in 100,000 calls"),)
    assert ops.lines == (("uniform", "73", "1,073"),)


def test_the_page_of_a_whole_run_has_all_parts(tmp_path):
    group = Group("toy", "Toys", "A call plays.", ())
    baseline = Row("plain", Spread(1.0, 2.0, 3.0), Spread(1.0, 1.0, 1.0), None, 0, None)
    others = [
        Row(f"{case} {mode}", Spread(1.0, 2.0, 3.0), Spread(ratio - 0.5, ratio, ratio + 1), 2_345_678, 100, None)
        for mode, ratios in (("constant", (7.0, 8.0)), ("num_random_ops", (1.5, 2.5)))
        for case, ratio in zip(("detrand", "official"), ratios, strict=True)
    ]
    slow = Row("detrand num_random_ops", Spread(1.0, 2.0, 3.0), Spread(3.0, 4.0, 5.0), None, 0, None)
    results = [Result("toy/normal", (baseline, slow)), Result("toy/uniform", (baseline, *others))]
    run = Run(False, "processor time", {"device": "CPU"}, "2026-01-02 03:04 UTC", results)
    page.write(tmp_path / "page.rst", run, [group], None)
    written = (tmp_path / "page.rst").read_text()
    before, _, after = written.partition("How it is measured\n------------------\n\n")
    assert before == (
        "Benchmarks\n==========\n\n"
        "Processor time of a call\n------------------------\n\n"
        "=============  ===============  =======  ========  ===============\n"
        "measured       baseline         detrand  official  detrand at most\n"
        "=============  ===============  =======  ========  ===============\n"
        "Toys: uniform  plain, 2,000 ms  1.50     2.50      4.00 (normal)\n"
        "=============  ===============  =======  ========  ===============\n\n"
        "Growth in memory\n----------------\n\n"
        "=======  =======================  =====================\n"
        "program  case                     growth of the process\n"
        "=======  =======================  =====================\n"
        "uniform  detrand constant         2.3 MB in 100 calls\n"
        "uniform  official constant        2.3 MB in 100 calls\n"
        "uniform  detrand num_random_ops   2.3 MB in 100 calls\n"
        "uniform  official num_random_ops  2.3 MB in 100 calls\n"
        "=======  =======================  =====================\n\n"
    )
    assert after.partition("with quartiles; ``--json FILE`` writes all numbers.\n\n")[2] == (
        "What a call does\n----------------\n\nToys\n    A call plays.\n\n"
        "The machine\n-----------\n\n"
        "========  ====================\n"
        "measured  2026-01-02 03:04 UTC\n"
        "device    CPU\n"
        "========  ====================\n"
    )


def test_the_page_begins_with_the_cost_of_a_training_step(tmp_path):
    spread = Spread(1.0, 2.0, 3.0)
    baseline = Row("plain TensorFlow", spread, Spread(1.0, 1.0, 1.0), None, 0, None)
    rows = (baseline, Row("detrand constant", spread, spread, None, 0, None))
    ratios = {"seeding/eager": 1.25, "seeding/session": 0.999, "seeding/step": 7.0}
    results = [
        Result(
            f"{group}/training_step", (*rows, Row("detrand num_random_ops", spread, Spread(0, ratio, 9), None, 0, None))
        )
        for group, ratio in ratios.items()
    ]
    results += [Result("seeding/xla/training_step", error="not built"), Result("seeding/tf.function/uniform", rows)]
    run = Run(False, "processor time", {}, "2026-01-02 03:04 UTC", results)
    page.write(tmp_path / "page.rst", run, [], None)
    headline = (tmp_path / "page.rst").read_text().split("\n\n")[1]
    assert headline.replace("\n", " ") == (
        "Compared with plain TensorFlow, a training step that draws the session's numbers takes 1.25 times as long "
        "eagerly and 1.00 in a ``Session``."
    )


@pytest.mark.slow_except("get_variable", "v1_layers")
@pytest.mark.parametrize("network", NETWORKS)
def test_functions_execute_the_ops_that_they_have_without_a_shim(network):
    (group,) = workloads.chosen([f"shim/tf.function/{network}"])
    without, *others = (described(case.graph) for case in group.workloads[0].cases())
    assert len(without) > 50
    for ops in others:
        assert ops == without


def described(graph):
    """Every op by its type, the outputs that it takes, and the types and shapes of its own."""
    ops = graph.get_operations()
    positions = {op.name: position for position, op in enumerate(ops)}
    return [
        (
            op.type,
            [(positions[tensor.op.name], tensor.value_index) for tensor in op.inputs],
            [(tensor.dtype, str(tensor.shape)) for tensor in op.outputs],
        )
        for op in ops
    ]


@pytest.mark.parametrize("network", NETWORKS)
def test_variables_are_created_only_in_the_first_call(network):
    """The official shim gives an unnamed scope a new name, and so new variables, in each call."""
    first, later = (
        workloads.chosen([f"shim/{which}_call/{network}"])[0].workloads[0].cases() for which in ("first", "later")
    )
    for case in first:
        with case.scope(), pytest.raises(detrand.errors.VariableCreationError), detrand.assert_no_variable_creations():
            case.call()
    for case in later:
        with case.scope(), detrand.assert_no_variable_creations():
            case.call()


@pytest.mark.parametrize("way", ["eager", "tf.function"])
def test_the_recorder_records_each_step(way, monkeypatch):
    recorders, real = [], detrand.StepRecorder
    monkeypatch.setattr(detrand, "StepRecorder", lambda: recorders.append(real()) or recorders[0])
    without, recording = workloads.chosen([f"recorder/{way}/training_step"])[0].workloads[0].cases()
    for case in (without, recording):
        with case.scope():
            losses = [float(case.call()) for _ in range(3)]
    (recorder,) = recorders
    assert recorder.steps == (0, 1, 2)
    assert [float(recorder[step]["loss"]) for step in range(3)] == losses
    assert list(recorder[0]) == ["learning_rate", "loss", "metrics"]

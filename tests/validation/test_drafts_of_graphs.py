"""Migration files that `detrand init` writes for a graph in a file, and graphs in the folder of such a file."""

import pytest
import tensorflow as tf

from detrand.__main__ import COULD_NOT_RUN, PASSED, main
from detrand.validation.migration_files import load_migrations
from tests.support.graph_files import CONVERTED, build, freeze, trained

v1 = tf.compat.v1
pytestmark = pytest.mark.filterwarnings(CONVERTED)
PORT = "        raise NotImplementedError"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write all kinds of graphs into a folder of the working directory."""
    (tmp_path / "graphs").mkdir()
    with tf.Graph().as_default(), v1.Session() as session:
        outputs = build(use_resource=False)
        trained(session)
        (tmp_path / "graphs" / "frozen.pb").write_bytes(freeze(session).SerializeToString())
        images = session.graph.get_tensor_by_name("images:0")
        v1.saved_model.simple_save(session, str(tmp_path / "graphs" / "saved"), {"x": images}, {"logits": outputs})
        v1.train.Saver().save(session, str(tmp_path / "graphs" / "model.ckpt"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("graph", "outputs", "to_do"),
    [
        ("frozen.pb", '"outputs:0"', "write the port in it"),
        ("saved", '"outputs:0"', "write the port in it"),
        ("model.ckpt.meta", '["..."]', "name the outputs and write the port in it"),
    ],
)
def test_a_draft_for_a_graph_names_its_inputs_outputs_and_feeds(folder, graph, outputs, to_do, capsys):
    assert main(["init", "graphs/net.py", "--from", f"graphs/{graph}"]) == PASSED
    assert f"graphs/net.py: written; {to_do}, and run detrand validate graphs/net.py" in capsys.readouterr().out
    text = (folder / "graphs" / "net.py").read_text()
    assert f'    "{graph}",\n    inputs=["images"],\n    outputs={outputs},' in text
    assert '    feeds={"keep_prob": lambda training: 0.5 if training else 1.0},\n)\n\n\nclass Port(' in text
    assert "\n\n\nmigration = " in text and "\n\n\n\n" not in text
    assert "images = rng.normal(size=(2, 6, 6, 2)).astype(np.float32)\n" in text


def test_a_draft_for_a_graph_with_labels_says_to_leave_them_out(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        images, labels = (v1.placeholder(tf.float32, [None, 3], name=name) for name in ("images", "labels"))
        outputs = v1.get_variable("w", ()) * images
        v1.train.AdamOptimizer().minimize(v1.losses.mean_squared_error(labels, outputs))
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    assert main(["init", str(tmp_path / "net.py"), "--from", str(tmp_path / "model.ckpt.meta")]) == PASSED
    assert '    inputs=["images", "labels"],  # leave out labels\n' in (tmp_path / "net.py").read_text()


@pytest.mark.slow
def test_a_draft_with_a_port_passes_as_it_is(folder, capsys):
    port = "tests.support.graph_files:make_port"
    assert main(["init", "graphs/net.py", "--from", "graphs/frozen.pb", "--port", port]) == PASSED
    assert "graphs/net.py: written; now run" in capsys.readouterr().out
    assert "import keras" not in (text := (folder / "graphs" / "net.py").read_text()) and "name_map" not in text
    assert "\nfrom tests.support.graph_files import make_port\n" in text and "\n)\n\nmigration = " in text
    assert main(["validate", "graphs/net.py"]) == PASSED
    left_out = "left out: initializers-match, regularizers-match (a frozen graph has none)"
    assert f"frozen passed: all 6 checks passed; {left_out}\n" in capsys.readouterr().out
    assert main(["validate", "graphs/net.py", "-q", "--check", "variables-match"]) == PASSED
    assert capsys.readouterr().out == "frozen passed: the only check passed\n"


def test_a_graph_is_looked_up_in_the_folder_of_its_migration_first(folder):
    file = folder / "graphs" / "net.py"
    file.write_text(
        "import detrand\nmigration = detrand.Migration(tf1='saved', port=lambda: lambda x, training: x, inputs=[1.0])\n"
    )
    (migration,) = load_migrations("graphs/net.py")
    assert migration.tf1.path == folder / "graphs" / "saved" or str(migration.tf1.path) == "graphs/saved"
    assert str(migration.checkpoint).endswith("graphs/saved/variables/variables")


def test_a_file_that_is_no_graph_is_no_source_of_a_draft(folder, capsys):
    (folder / "text.pb").write_text("no graph")
    assert main(["init", "--from", "text.pb"]) == COULD_NOT_RUN
    assert "text.pb cannot be read as a TF1 graph" in capsys.readouterr().err

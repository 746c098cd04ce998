"""The suite of sound ports and of ports with three faults is complete; a few of its ports are run."""

import inspect

import pytest

import detrand
from tests.faults.sound import sound_ports
from tests.faults.triples import triples


def test_sixty_sound_ports_and_fifteen_triples() -> None:
    assert len(sound_ports()) >= 60
    assert len(list(triples())) == 15


@pytest.mark.parametrize("triple", list(triples()), ids=lambda triple: triple.name)
def test_each_fault_has_a_line_of_its_own(triple) -> None:
    lines = inspect.getsource(inspect.getmodule(triple.make)).splitlines()
    assert len(set(triple.lines)) == 3
    assert all(f"# FAULT {number}" in lines[line - 1] for number, line in enumerate(triple.lines, 1))


@pytest.mark.parametrize("name", ["generator", "heads_in_a_dict", "subclassed_optimizer", "einsum_attention"])
def test_a_sound_port_passes(name) -> None:
    assert detrand.validate(sound_ports()[name]()).ok


@pytest.mark.parametrize(
    "triple", [t for t in triples() if t.name in ("two_heads", "discriminator")], ids=lambda t: t.name
)
def test_a_triple_fails_only_with_its_faults(triple) -> None:
    assert not detrand.validate(triple.make(True)).ok
    assert detrand.validate(triple.make(False)).ok

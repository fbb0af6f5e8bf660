"""What a search refuses, with a fix."""

import pytest

import namedmesh as nm
from namedmesh.search.search import parse_bytes, search
from tests.search.models import trace_step

WRONG = {
    "no devices": (dict(devices=0), "devices=0 is not a count"),
    "one device": (dict(devices=1), "nothing to split over 1 device"),
    "target": (dict(target="tpu-v9"), "no hardware"),
    "memory": (dict(memory="much"), "not a number of bytes"),
    "pinned dimension": (dict(pin="rows:data"), "maps dimension 'rows'"),
    "pinned axes": (dict(pin="batch:a+b, hidden:c+d"), "4 axes are pinned"),
    "choices of a program": (dict(remat=["none"]), "can be chosen only where"),
    "plans": (dict(plans=0), "plans"),
    "no memory": (dict(memory="0 GiB"), "not a number of bytes"),
    "verify": (dict(verify=-1), "verify"),
    "verify in words": (dict(verify="all"), "verify"),
    "processes": (dict(processes=-1), "processes"),
    "no processes": (dict(processes=0), "processes"),
    "all pinned whole": (dict(pin=dict(batch=[], model=[], hidden=[])), "can be split over 4"),
    "a slice of millions": (dict(devices=2**31), "up to 262,144 cores"),
}


@pytest.mark.parametrize("name", WRONG)
def test_arguments(name):
    changes, message = WRONG[name]
    given = {"program": trace_step(), "devices": 4, "target": "tpu-v3", "progress": False}
    with pytest.raises(nm.NamedMeshError, match=message) as error:
        search(**{**given, **changes})
    assert error.value.fix


FUNCTIONS = {
    "text": (lambda remat: trace_step(remat), {"remat": "none"}, "not a list of values"),
    "empty": (lambda remat: trace_step(remat), {"remat": []}, "not a list of values"),
    "no program": (lambda: 3, {}, "returned a int"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    function, choices, message = FUNCTIONS[name]
    with pytest.raises(nm.NamedMeshError, match=message):
        search(function, 4, "tpu-v3", progress=False, **choices)


def test_what_is_not_a_program():
    with pytest.raises(nm.NamedMeshError, match="not a Program"):
        search("train", 4, "tpu-v3")  # type: ignore[arg-type]
    plan = nm.plan(trace_step(), nm.Mesh(data=4), "batch:data")
    with pytest.raises(nm.NamedMeshError, match="is a Plan, not a Program") as error:
        search(plan, 4, "tpu-v3")  # type: ignore[arg-type]
    assert len(str(error.value)) < 400


def test_no_values_to_try_are_left_out():
    with pytest.raises(nm.NamedMeshError, match="not a list") as error:
        search(trace_step, 4, "tpu-v3", remat=[])
    assert error.value.fix == "leave remat out"


@pytest.mark.parametrize("shape", [None, []], ids=["empty", "scalar"])
def test_a_program_with_nothing_to_split(shape):
    specs = {} if shape is None else {"x": nm.spec(shape)}
    program = nm.trace(lambda **inputs: [one * 2.0 for one in inputs.values()], **specs)
    with pytest.raises(nm.NamedMeshError, match="no dimension of <lambda> can be split") as error:
        search(program, 4, "tpu-v3")
    assert "dimensions: none" in str(error.value)


@pytest.mark.parametrize(
    "text, size", [("16GiB", 2**34), ("1.5 KiB", 1536), (1000, 1000), ("2 gb", 2e9)]
)
def test_bytes(text, size):
    assert parse_bytes(text) == size

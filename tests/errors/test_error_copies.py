"""Errors travel: between processes, through copies, and out of threads."""

import concurrent.futures
import copy
import multiprocessing
import pickle

import pytest

import namedmesh as nm

B = nm.Dimension("batch", 4)


class OwnError(nm.NamedMeshError):
    """An error of somebody who builds on ours."""


def errors():
    for function in (
        lambda: nm.Dimension("a", 0),
        lambda: nm.trace(lambda x: nm.sum(x, over=nm.Dimension("other", 3)), nm.spec([B])),
    ):
        with pytest.raises(nm.NamedMeshError) as caught:
            function()
        yield caught.value
    yield OwnError("a problem", "a detail", fix="a fix")


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))]
)
def test_an_error_survives_a_copy(duplicate):
    for error in errors():
        again = duplicate(error)
        assert type(again) is type(error) and str(again) == str(error)
        assert (again.problem, again.details, again.fix) == (
            error.problem,
            error.details,
            error.fix,
        )
        assert again.source == error.source


def fail(size):
    return nm.Dimension("batch", size)


def test_an_error_comes_back_from_another_process():
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        with pytest.raises(nm.NamedMeshError, match="dimension batch has size 0"):
            pool.submit(fail, 0).result()


def test_threads_trace_side_by_side():
    def trace_many(number):
        M = nm.Dimension("model", number + 1)

        def function(x):
            return nm.sum(nm.exp(x) * nm.param(f"w{number}", [M])) + nm.grad(nm.sum(x * x), x)

        programs = [nm.trace(function, x=nm.spec([M])) for _ in range(20)]
        return {str(program) for program in programs}, list(programs[0].variables)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(trace_many, range(8)))
    for number, (texts, variables) in enumerate(results):
        assert variables == [f"w{number}"] and len(texts) == 1
        assert f"model={number + 1}" in next(iter(texts))

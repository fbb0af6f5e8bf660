"""Ops of a user's own that choose how they are planned, as those of namedmesh do."""

from __future__ import annotations

import numpy as np

import namedmesh as nm
from namedmesh.ir.op import Body, LoopSpec
from namedmesh.ir.trace import trace_body

B, M = nm.dims("batch=8 model=4")
MESH = nm.Mesh(data=4)


class Gathered(nm.Op):
    """A tensor whose dimensions are whole on every device."""

    elementwise = True
    states_place = True

    def results(self):
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context, x):
        return context.tf.identity(x)

    def plan(self, rules, times):
        rules.place_move(self, times, take=(), give=self.inputs[0].shape.names)


class Repeated(nm.Op):
    """A loop that carries one tensor, a number of times that the planner does not know."""

    control = True
    test: Body
    body: Body

    @property
    def bodies(self):
        return self.test, self.body

    @property
    def loop(self):
        return LoopSpec(self.body, 1, test=self.test)

    def results(self):
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context, start, *captured):
        test, body = captured[: len(self.test.captures)], captured[len(self.test.captures) :]
        return context.while_loop(
            lambda x: context.run(self.test, [x, *test])[0],
            lambda x: context.run(self.body, [x, *body]),
            [start],
        )

    def plan(self, rules, times):
        rules.place_loop(self, times)


def test_an_op_of_ones_own_states_where_its_result_is():
    program = nm.trace(lambda x: Gathered((x,)).output, x=nm.spec([B, M]))
    plan = nm.plan(program, MESH, "batch:data")
    assert plan.count("AllGather") == 1
    assert plan.shardings[program.outputs[0]].mapping == {}


def test_a_loop_of_ones_own_is_planned_and_run_as_while_loop_is():
    def own(x, w):
        specs = [(x.shape, x.dtype, "x")]
        test, _ = trace_body(lambda x: nm.sum(x) < 1000, specs)
        body, _ = trace_body(lambda x: x * w, specs)
        return Repeated((x, *test.captured, *body.captured), test, body).output

    def ours(x, w):
        return nm.while_loop(lambda x: nm.sum(x) < 1000, lambda x: x * w, x)

    specs = {"x": nm.spec([B, M]), "w": nm.spec([M])}
    plans = [nm.plan(nm.trace(f, **specs), MESH, "batch:data") for f in (own, ours)]
    found = [[(one.kind, one.bytes, one.open_ended) for one in p.collectives] for p in plans]
    assert found[0] == found[1] == [("AllReduce", 4, True)]
    values = np.ones((8, 4), np.float32), np.array([1, 2, 3, 4], np.float32)
    results = [nm.Step(plan)(None, *values)[1] for plan in plans]
    np.testing.assert_array_equal(np.asarray(results[0]), np.asarray(results[1]))

"""Cross entropy of logits that are made chunk by chunk."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.aot import compile_for
from namedmesh.layers import chunked_cross_entropy
from tests.checks import uniform

B, S, M, V = nm.dims("batch=4 seq=16 model=8 vocab=24")
OPTIONS = {"smoothing": 0.1, "z_loss": 1e-2}


def step(chunks, sizes=(B, S, M, V), **options):
    b, s, m, v = sizes

    def run(h, targets):
        score = lambda h: nm.einsum([h, nm.param("w", [m, v], nm.normal_init(1.0))], over=m)
        where = {"over": s, "chunks": chunks, **options}
        loss, more = chunked_cross_entropy(score, h, targets, v, **where)
        mean = nm.mean(loss + more)
        return {"loss": loss, "more": more, "d_w": nm.grad(mean)["w"]}

    return nm.trace(run, h=nm.spec([b, s, m]), targets=nm.spec([b, s], "int32"))


def by_numpy(h, w, targets):
    """The same by float64: the loss, its z-loss and the gradient of the mean by the weights."""
    share, other = 0.9, 0.1 / (V.size - 1)
    logits = h.astype(np.float64) @ w
    normaliser = np.log(np.exp(logits).sum(-1))
    wanted = np.where(np.arange(V.size) == targets[..., None], share, other)
    entropy = share * np.log(share) + 0.1 * np.log(other)
    loss = normaliser - (wanted * logits).sum(-1) + entropy
    share_of = np.exp(logits - normaliser[..., None])
    d_logits = (share_of * (1 + 2e-2 * normaliser[..., None]) - wanted) / loss.size
    return loss, 1e-2 * normaliser**2, np.einsum("bsm,bsv->mv", h, d_logits)


@pytest.mark.parametrize("chunks", [1, 2, 16])
@pytest.mark.parametrize("layout", ["batch:data", "seq:data", "batch:data, vocab:tensor"])
def test_every_chunk_is_as_by_numpy(chunks, layout):
    mesh = nm.Mesh(data=2, tensor=2)
    compiled = nm.compile(step(chunks, **OPTIONS), mesh=mesh, layout=layout, strict=True)
    h, targets = uniform(0, 4, 16, 8), np.random.default_rng(1).integers(0, 24, [4, 16], "int32")
    state = compiled.init(0)
    _, found = compiled(state, h=h, targets=targets)
    found = compiled.fetch(found)
    expected = by_numpy(h, np.asarray(state["w"]), targets)
    for name, value in zip(("loss", "more", "d_w"), expected, strict=True):
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("layout", ["batch:data", "seq:data"])
def test_gradients_are_added_up_once(layout):
    plans = [
        nm.plan(step(chunks), nm.Mesh(data=2), layout, params="model:data") for chunks in (1, 4)
    ]
    whole, chunked = ([(one.kind, one.times, one.elements) for one in p.collectives] for p in plans)
    assert whole == chunked and whole


def test_logits_of_one_chunk_are_in_memory():
    sizes = nm.dims("batch=8 seq=64 model=16 vocab=4096")
    mesh, logits = nm.Mesh(data=2), 4 * 64 * 4096 * 4
    exported = [nm.export(step(chunks, sizes), mesh, "batch:data") for chunks in (1, 8)]
    whole, chunked = (compile_for(one, "cpu:2").peak_bytes or 0 for one in exported)
    assert whole > logits > chunked > 0


def test_chunks_divide_the_dimension():
    with pytest.raises(nm.NamedMeshError, match="3 chunks of seq=16"):
        step(3)


@pytest.mark.filterwarnings("error")
def test_shards_are_chunked_where_they_are():
    assert nm.plan(step(4), nm.Mesh(data=2), "seq:data").count("AllGather") == 0

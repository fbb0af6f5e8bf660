"""A mixture-of-experts layer in names: trained for three steps on eight virtual CPU devices."""

import numpy as np

import namedmesh as nm

G, S, E, C, M, H = nm.dims("group=8 seq=16 expert=4 capacity=8 model=32 hidden=64")


def experts(x):  # x: [group, seq, model]
    wg = nm.param("wg", [M, E], whole=[E])
    wi = nm.param("wi", [E, M, H], nm.fan_in_init(M))
    wo = nm.param("wo", [E, H, M], nm.fan_in_init(H))
    gates = nm.softmax(nm.einsum([x, wg], [G, S, E]), over=E)
    chosen = nm.one_hot(nm.argmax(gates, E), E)  # GSE
    place = nm.sum(nm.cumsum(chosen, S, exclusive=True) * chosen, over=E)  # GS
    dispatch = nm.einsum([chosen, nm.one_hot(nm.cast(place, "int32"), C)], [G, S, E, C])
    xe = nm.reshard(nm.einsum([dispatch, x], [E, G, C, M]), E)  # group -> expert
    h = nm.relu(nm.einsum([xe, wi], [E, G, C, H]))
    ye = nm.reshard(nm.einsum([h, wo], [E, G, C, M]), G)  # and back
    return nm.einsum([dispatch, gates, ye], [G, S, M])


def train_step(x, y):
    loss = nm.mean(nm.square(experts(x) - y))
    grads = nm.grad(loss)
    for name, weight in nm.parameters().items():
        nm.assign(weight, weight - grads[name] * 0.5)
    return loss


mesh, layout = nm.Mesh(data=2, expert=4), "group:data+expert, expert:expert"
step = nm.compile(train_step, nm.spec([G, S, M]), nm.spec([G, S, M]), mesh=mesh, layout=layout)
print(step.plan.communication)
print(step.audit)

x, y = np.random.default_rng(0).normal(size=(2, 8, 16, 32)).astype(np.float32)
state = step.init(seed=0)
for _ in range(3):
    state, loss = step(state, x, y)
    print(f"loss {loss:.3f}")

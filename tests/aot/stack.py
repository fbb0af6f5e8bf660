"""A small stack of layers that is trained."""

import namedmesh as nm

B, M, H, L = nm.dims("batch=16 model=8 hidden=32 layer=4")


def train(x):
    def layer(h, _):
        w, v = nm.param("w", [M, H]), nm.param("v", [H, M])
        return nm.einsum([nm.relu(nm.einsum([h, w], [B, H])), v], [B, M]), None

    y, _ = nm.scan(layer, x, over=L, stack=True, remat="full")
    loss = nm.mean(nm.square(y))
    for name, grad in nm.grad(loss).items():
        slot = nm.state(f"slots/{name}", grad.shape, of=nm.parameters()[name])
        nm.assign(slot, slot * 0.9 + grad)
        nm.assign(nm.parameters()[name], nm.parameters()[name] - slot * 0.1)
    return loss

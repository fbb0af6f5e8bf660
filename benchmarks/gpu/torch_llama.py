"""Decoder-only models in PyTorch, compiled: what namedmesh is measured against, beside JAX.

They have the arithmetic of examples/llm. Weights are float32 and are cast where they are used, the
forward pass and the loss are one graph, of which torch.compile makes the backward pass too, and
tokens reach experts by gathers, forward and backward. The project does not need torch: nothing
imports this file but what measures it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as F  # pyright: ignore[reportMissingImports]

from benchmarks.gpu.kernels import Launch
from benchmarks.gpu.llama import (
    BETA1,
    BETA2,
    CLIP_NORM,
    EPSILON,
    Llama,
    LlamaWeight,
    describe_weights,
    learning_rate,
    rotary_angles,
)
from benchmarks.gpu.models import make_batch
from benchmarks.gpu.runner import Runner

TUNED = "max-autotune-no-cudagraphs"


def load_torch(model: Llama, kind: str) -> Runner:
    """Compile a model with one kind of attention, `cudnn` or `flash`; `-tuned` also autotunes."""
    attention, _, tuned = kind.partition("-")
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    if on_gpu:  # an attention that cannot be had is an error, not another one
        torch.backends.cuda.enable_cudnn_sdp(attention == "cudnn")
        torch.backends.cuda.enable_flash_sdp(attention == "flash")
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_math_sdp(False)
    torch.set_float32_matmul_precision("high")  # of the router, as XLA multiplies float32
    weights = init_weights(model, device)
    numpy_batch = make_batch(model)
    batch = [torch.from_numpy(numpy_batch[name]).long().to(device) for name in numpy_batch]
    loss = torch.compile(make_loss(model, device), mode=TUNED if tuned else None, fullgraph=True)
    leaves = list_leaves(weights)

    start = time.perf_counter()
    loss(weights, *batch).backward()  # without an update: the weights stay the first ones
    _wait(device)
    compile_seconds = time.perf_counter() - start
    for leaf in leaves:
        leaf.grad = None
    step = make_step(leaves)

    def run() -> tuple[dict[str, Any], None]:
        return step(lambda: loss(weights, *batch)), None

    def measure_peak() -> int | None:
        return torch.cuda.max_memory_allocated() if on_gpu else None

    return Runner(
        run,
        wait=lambda _: _wait(device),
        text=lambda: "",
        read_kernels=lambda steps: read_kernels(run, steps),
        peak_bytes=measure_peak,
        trace_seconds=0.0,
        compile_seconds=compile_seconds,
        planned_bytes=None,
        parameters=sum(leaf.numel() for leaf in leaves),
        device=("gpu", torch.cuda.get_device_name()) if on_gpu else ("cpu", "cpu"),
        version=("torch", torch.__version__),
    )


def make_step(leaves: list[Any]) -> Callable[..., dict[str, Any]]:
    """Return the train step of weights: it takes what computes the loss, and returns metrics."""
    rate = learning_rate(0)
    options = {"betas": (BETA1, BETA2), "eps": EPSILON, "weight_decay": 0.0, "fused": True}
    optimizer: Any = torch.optim.AdamW(leaves, lr=rate, **options)
    steps = 0

    def step(compute: Callable[[], Any]) -> dict[str, Any]:
        nonlocal steps
        value = compute()
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(leaves, CLIP_NORM, foreach=True)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps += 1
        return {"loss": value.detach(), "grad_norm": norm}

    return step


def init_weights(model: Llama, device: Any, seed: int = 0) -> dict[str, Any]:
    """Make the first weights."""
    generator = torch.Generator(device).manual_seed(seed)

    def draw(weight: LlamaWeight) -> Any:
        array = torch.ones(weight.shape, device=device)
        if weight.deviation is not None:
            array.normal_(0.0, weight.deviation, generator=generator)
        return array.requires_grad_()

    names = describe_weights(model)
    layers = [{name: draw(one) for name, one in layer.items()} for layer in names.pop("layers")]
    return {"layers": layers, **{name: draw(one) for name, one in names.items()}}


def list_leaves(weights: dict[str, Any]) -> list[Any]:
    """Return all weights."""
    others = [one for name, one in weights.items() if name != "layers"]
    return [*others, *(one for layer in weights["layers"] for one in layer.values())]


def make_loss(model: Llama, device: Any) -> Callable[..., Any]:
    """Return the loss as a function of weights, inputs and targets, to be compiled."""
    dtype = getattr(torch, model.dtype)
    angles = torch.from_numpy(rotary_angles(model)).to(device)
    cosines, sines = angles.cos()[:, None], angles.sin()[:, None]  # S1K of either half

    def norm(x: Any, scale: Any) -> Any:
        wide = x.float()
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + model.epsilon)
        return (wide * inverse * scale).to(x.dtype)

    def rotate(x: Any) -> Any:
        first, second = x.float().chunk(2, -1)
        y = [first * cosines - second * sines, second * cosines + first * sines]
        return torch.cat(y, -1).to(x.dtype)

    def attend(p: dict[str, Any], x: Any) -> Any:
        def project(name: str) -> Any:
            y = x @ p[f"attention/{name}"].to(dtype)
            return y.view(model.rows, model.length, -1, model.key)  # GSNK

        q, k, v = rotate(project("wq")), rotate(project("wk")), project("wv")
        y = F.scaled_dot_product_attention(
            *(one.transpose(1, 2) for one in (q, k, v)), is_causal=True, enable_gqa=True
        )
        y = y.transpose(1, 2).reshape(model.rows, model.length, -1)
        return y @ p["attention/wo"].to(dtype)

    def feed_forward(p: dict[str, Any], x: Any) -> Any:
        y = F.silu(x @ p["network/wi"].to(dtype)) * (x @ p["network/wi_gate"].to(dtype))
        return y @ p["network/wo"].to(dtype)

    def mix_experts(p: dict[str, Any], x: Any) -> tuple[Any, Any]:
        token, place, weight, aux = route(p["network/wg"], x, model.capacity)
        xe = Dispatch.apply(x.reshape(model.tokens, -1), token, place)
        xe = xe.view(model.experts, -1, model.model)
        y = F.silu(xe.bmm(p["network/wi"].to(dtype))) * xe.bmm(p["network/wi_gate"].to(dtype))
        ye = y.bmm(p["network/wo"].to(dtype)).view(-1, model.model)
        return Combine.apply(ye, weight, token, place).view(x.shape), aux

    def compute_loss(weights: dict[str, Any], inputs: Any, targets: Any) -> Any:
        # Rows are cast after the lookup, so that their gradients add up in float32.
        h, aux = F.embedding(inputs, weights["embedding"]).to(dtype), 0.0
        for p in weights["layers"]:
            h = h + attend(p, norm(h, p["attention/norm_scale"]))
            x = norm(h, p["network/norm_scale"])
            if model.experts:
                y, loss = mix_experts(p, x)
                h, aux = h + y, aux + loss * (model.experts**2 * model.aux_weight)
            else:
                h = h + feed_forward(p, x)
        table = weights["embedding" if model.tied else "output"].to(dtype)
        logits = norm(h, weights["final_scale"]) @ table.t()
        return F.cross_entropy(logits.view(-1, model.vocab).float(), targets.view(-1)) + aux

    return compute_loss


def route(wg: Any, x: Any, capacity: int) -> tuple[Any, Any, Any, Any]:
    """Choose two experts for each token; as benchmarks.gpu.jax_experts.route.

    Returns:
        The token at each place, that is E G C of them, the places and the weights of each choice,
        (GS, 2), and the auxiliary loss.
    """
    (G, S, _), E, C = x.shape, wg.shape[-1], capacity
    gates = torch.softmax(x.float() @ wg, -1)  # GSE
    numbers = torch.arange(E, device=x.device)
    first = gates.argmax(-1)
    mask1 = first[..., None] == numbers
    second = gates.masked_fill(mask1, -1.0).argmax(-1)
    mask2 = second[..., None] == numbers
    gate1, gate2 = (torch.where(mask, gates, 0.0).sum(-1) for mask in (mask1, mask2))  # GS
    total = gate1 + gate2 + 1e-9
    count1, count2 = mask1.int(), mask2.int()
    # First choices of a whole row come before its second choices.
    earlier1 = count1.cumsum(1) - count1
    earlier2 = count2.cumsum(1) - count2 + count1.sum(1, keepdim=True)
    places = [(earlier1 * count1).sum(-1), (earlier2 * count2).sum(-1)]
    served = torch.stack([place < C for place in places], -1)
    weight = torch.stack([gate1 / total, gate2 / total], -1) * served
    aux = (mask1.float().mean(1) * gates.mean(1)).mean()

    expert, within = torch.stack([first, second], -1), torch.stack(places, -1)
    row = torch.arange(G, device=x.device)[:, None, None]
    # Experts are outermost, so that dispatch writes what the batched product reads.
    place = torch.where(served, (expert * G + row) * C + within, E * G * C).view(G * S, 2)
    number = torch.arange(G * S, device=x.device)[:, None].expand(-1, 2)
    token = torch.full((E * G * C + 1,), G * S, device=x.device)
    token = token.scatter(0, place.reshape(-1), number.reshape(-1))[:-1]
    return token, place, weight.view(G * S, 2), aux


def _take_rows(x: Any, index: Any) -> Any:
    """Gather rows; zeros where the index is past the end."""
    inside = (index < len(x))[:, None]
    return torch.where(inside, x[index.clamp(max=len(x) - 1)], 0.0)


class Dispatch(torch.autograd.Function):
    """Copy tokens (GS, M) to their places (EGC, M); the derivative gathers too."""

    @staticmethod
    def forward(ctx: Any, x: Any, token: Any, place: Any) -> Any:
        """Gather tokens."""
        ctx.save_for_backward(place)
        return _take_rows(x, token)

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Any:  # pyright: ignore
        """Add up the gradients of a token's two places."""
        (place,) = ctx.saved_tensors
        first, second = (_take_rows(cotangent, place[:, i]).float() for i in (0, 1))
        return (first + second).to(cotangent.dtype), None, None


class Combine(torch.autograd.Function):
    """Add up what experts return (EGC, M) for each token's choices (GS, M), with their weights."""

    @staticmethod
    def forward(ctx: Any, y: Any, weight: Any, token: Any, place: Any) -> Any:
        """Gather what experts return."""
        ctx.save_for_backward(y, weight, token, place)
        first, second = (_take_rows(y, place[:, i]).float() * weight[:, i, None] for i in (0, 1))
        return (first + second).to(y.dtype)

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Any:  # pyright: ignore
        """Gather the tokens' gradients."""
        y, weight, token, place = ctx.saved_tensors
        by_place = weight.new_zeros(len(y) + 1)
        by_place = by_place.scatter(0, place.reshape(-1), weight.reshape(-1))[:-1]
        dy = _take_rows(cotangent, token).float() * by_place[:, None]
        wide = cotangent.float()
        dweight = [(_take_rows(y, place[:, i]).float() * wide).sum(-1) for i in (0, 1)]
        return dy.to(y.dtype), torch.stack(dweight, -1), None, None


def read_kernels(run: Callable[[], Any], steps: int) -> Iterator[Launch]:
    """Run some steps under torch's profiler and read the kernels."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as trace:
        for _ in range(steps):
            run()
        torch.cuda.synchronize()
    for event in trace.events() or ():
        # What torch annotates has a #: ranges around kernels, and not kernels.
        if event.device_type.name == "CUDA" and "#" not in event.name:
            start, end = event.time_range.start * 1e3, event.time_range.end * 1e3
            yield Launch(event.name, "", start, end)


def _wait(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()

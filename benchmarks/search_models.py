"""Models that searches are tried on besides stacks of layers: each of other ops and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import namedmesh as nm
from examples.llm.architecture import Architecture
from examples.llm.model import LanguageModel
from examples.llm.settings import Settings
from namedmesh.layers import (
    Adam,
    Heads,
    Sample,
    Sgd,
    binary_cross_entropy,
    causal_mask,
    cross_entropy,
    decode,
    dense,
    embedding,
    expert_capacity,
    feed_forward,
    moe,
    rms_norm,
    self_attention,
    top_k_gating,
)


@dataclass(frozen=True)
class Recommender:
    """Two towers over embedding tables, whose rows do not divide.

    Attributes:
        batch: The number of examples.
        rows: The rows of each table.
        history: The items that a user has seen, a bag.
        width: The columns of each table.
        hidden: The width of the towers.
    """

    batch: int
    rows: dict[str, int]
    history: int = 50
    width: int = 64
    hidden: int = 1024

    def trace(self) -> nm.Program:
        """Trace a train step; tables are named after what they describe."""
        B, H, D, K, J = nm.dims(
            f"batch={self.batch} history={self.history} width={self.width} "
            f"hidden={self.hidden} joined={64}"
        )
        tables = {name: nm.Dimension(name, size) for name, size in self.rows.items()}
        of_items = [name for name in tables if name.startswith(("item", "category"))]

        def look_up(name: str, ids: nm.Tensor) -> nm.Tensor:
            table = nm.param(f"table_{name}", [tables[name], D], nm.normal_init(0.01))
            return nm.gather(table, ids, tables[name])

        def tower(name: str, parts: list[nm.Tensor]) -> nm.Tensor:
            with nm.scope(name):
                x = nm.concat(parts, D.name)
                wide = x.shape.named(D.name)
                assert wide is not None
                y = nm.relu(dense(x, [wide], [K], name="first", bias=True))
                return dense(y, [K], [J], name="second", bias=True)

        def train(ids: dict[str, nm.Tensor], seen: nm.Tensor, clicked: nm.Tensor) -> nm.Tensor:
            rows = {name: look_up(name, one) for name, one in ids.items()}
            bag = nm.mean(look_up("item", seen), over=H)
            user = tower("user_tower", [bag, *(rows[n] for n in rows if n not in of_items)])
            item = tower("item_tower", [rows[name] for name in of_items])
            scores = nm.sum(user * item, over=J)
            loss = nm.mean(binary_cross_entropy(scores, clicked))
            Sgd(0.1).apply(nm.grad(loss))
            return loss

        ids = {name: nm.spec([B], "int32") for name in tables}
        return nm.trace(train, ids=ids, seen=nm.spec([B, H], "int32"), clicked=nm.spec([B]))


def trace_graph(nodes: int, edges: int, features: int, layers: int = 3) -> nm.Program:
    """Trace a train step of a graph network: messages along edges, added up at nodes."""
    N, E, F, C = nm.dims(f"node={nodes} edge={edges} feature={features} class=47")
    F2 = nm.Dimension("message", features)

    def train(x: nm.Tensor, source: nm.Tensor, target: nm.Tensor, label: nm.Tensor) -> nm.Tensor:
        for i in range(layers):
            with nm.scope(f"layer{i}"):
                sent = nm.gather(x, source, N)  # EF
                message = nm.relu(dense(sent, [F], [F2], name="message"))
                received = nm.scatter_add(message, target, N)  # N, message
                own = dense(x, [F], [F2], name="own")
                x = nm.rename(nm.relu(own + received), F2, F)
        logits = dense(x, [F], [C], name="classes")
        loss = nm.mean(cross_entropy(logits, label, C)[0])
        Adam(1e-3).apply(nm.grad(loss))
        return loss

    edge = nm.spec([E], "int32")
    return nm.trace(train, x=nm.spec([N, F]), source=edge, target=edge, label=nm.spec([N], "int32"))


@dataclass(frozen=True)
class Hybrid:
    """Layers of a gated linear recurrence, attention and experts, one after the other."""

    batch: int
    length: int = 2048
    model: int = 1024
    width: int = 2048
    heads: int = 16
    experts: int = 16
    hidden: int = 2048
    vocab: int = 32_000
    layers: int = 4
    dtype: str = "bfloat16"

    def trace(self) -> nm.Program:
        """Trace a train step."""
        B, S, M, W, E, H, V, L = nm.dims(
            f"batch={self.batch} seq={self.length} model={self.model} width={self.width} "
            f"expert={self.experts} hidden={self.hidden} vocab={self.vocab} layer={self.layers}"
        )
        N, K = nm.dims(f"heads={self.heads} key={self.model // self.heads}")
        heads, C = Heads(M, N, K), expert_capacity(S, E, 2.0)

        def combine(one: Any, other: Any) -> Any:
            (a, b), (c, d) = one, other
            return a * c, b * c + d

        def recur(x: nm.Tensor) -> nm.Tensor:
            decay = nm.sigmoid(dense(x, [M], [W], name="decay"))
            value = dense(x, [M], [W], name="value") * (1.0 - decay)
            _, state = nm.associative_scan(combine, (decay, value), S)
            return dense(state * nm.swish(dense(x, [M], [W], name="gate")), [W], [M], name="out")

        def look_back(x: nm.Tensor) -> nm.Tensor:
            return self_attention(x, S, heads, mask=causal_mask(S, heads.memory(S)))

        def mix(x: nm.Tensor) -> nm.Tensor:
            gate = lambda logits: top_k_gating(logits, S, E, C, second="all")
            return moe(x, gate, (B, S, E, C, M, H), activation="swish")[0]

        def layer(x: nm.Tensor, _: None) -> tuple[nm.Tensor, None]:
            for name, part in (("recurrence", recur), ("attention", look_back), ("experts", mix)):
                with nm.scope(name):
                    x = x + part(rms_norm(x, M))
            return x, None

        def train(tokens: nm.Tensor, targets: nm.Tensor) -> nm.Tensor:
            x = embedding(tokens, V, M, dtype=self.dtype)
            x, _ = nm.scan(layer, x, over=L, stack=True, remat="full")
            logits = dense(rms_norm(x, M, name="final"), [M], [V], name="logits")
            loss = nm.mean(cross_entropy(logits, targets, V)[0])
            Adam(1e-4).apply(nm.grad(loss))
            return loss

        rows = nm.spec([B, S], "int32")
        return nm.trace(train, tokens=rows, targets=rows)


@dataclass(frozen=True)
class Grpo:
    """Group-relative policy optimisation: several samples of each prompt, compared among them."""

    prompts: int
    samples: int = 8
    prompt_length: int = 128
    length: int = 128
    layers: int = 8
    model: int = 1024

    @property
    def settings(self) -> Settings:
        """The settings of the policy, a dense model on bytes."""
        architecture = Architecture(
            layers=self.layers, model=self.model, hidden=self.model * 11 // 4,
            heads=self.model // 128, group=2, key=64, tied=False,
        )  # fmt: skip
        return Settings(architecture, layout="one")

    @property
    def dims(self) -> list[nm.Dimension]:
        """Prompts, samples of each, and the tokens of both."""
        return nm.dims(
            f"batch={self.prompts} sample={self.samples} "
            f"prompt={self.prompt_length} step={self.length}"
        )

    def trace_rollout(self) -> nm.Program:
        """Trace the program that reads prompts and draws samples, token by token."""
        B, K, P, T = self.dims
        model = LanguageModel(self.settings)
        positions = nm.Dimension("position", P.size + T.size)

        def roll_out(prompts: nm.Tensor, seed: nm.Tensor) -> dict[str, nm.Tensor]:
            step, cache = model.decoding([B, K], positions, prompt=prompts)
            first = nm.zeros([B, K], "int32")
            drawn = decode(step, cache, first, T, Sample(nm.random.key_from_seed(seed)))
            return {name: drawn[name] for name in ("sequences", "scores")}

        return nm.trace(roll_out, nm.spec([B, P], "int32"), nm.spec([], "int32"))

    def trace_train(self) -> nm.Program:
        """Trace the update by the samples' rewards, their old and their reference probabilities."""
        B, K, P, T = self.dims
        model = LanguageModel(self.settings.but(length=P.size + T.size))
        S, V = model.S, model.V

        def train(
            inputs: nm.Tensor,
            targets: nm.Tensor,
            mask: nm.Tensor,
            rewards: nm.Tensor,
            before: nm.Tensor,
            reference: nm.Tensor,
        ) -> nm.Tensor:
            centred = rewards - nm.mean(rewards, over=K)
            advantage = centred / nm.sqrt(nm.mean(nm.square(centred), over=K) + 1e-6)
            logits, _ = model.logits(inputs)
            now = -cross_entropy(logits, targets, V)[0]
            ratio = nm.exp(now - before)
            gain = nm.minimum(ratio * advantage, nm.clip(ratio, 0.8, 1.2) * advantage)
            away = nm.exp(reference - now) - (reference - now) - 1.0
            loss = -nm.sum((gain - 0.04 * away) * mask) / nm.maximum(nm.sum(mask), 1.0)
            Adam(1e-6).apply(nm.grad(loss))
            return loss

        tokens, numbers = nm.spec([B, K, S], "int32"), nm.spec([B, K, S])
        given = (tokens, tokens, numbers, nm.spec([B, K]), numbers, numbers)
        return nm.trace(train, *given)


@dataclass(frozen=True)
class Contrastive:
    """Images in patches and texts, encoded apart, and matched within the batch."""

    batch: int
    patches: int = 196
    words: int = 77
    image: int = 1024
    text: int = 768
    layers: int = 12
    vocab: int = 49_408

    def trace(self) -> nm.Program:
        """Trace a train step."""
        B, P, C, W, V, J = nm.dims(
            f"batch={self.batch} patch={self.patches} colours=768 word={self.words} "
            f"vocab={self.vocab} joint=512"
        )
        other = nm.Dimension("other", self.batch)

        def encode(x: nm.Tensor, S: nm.Dimension, M: nm.Dimension, name: str) -> nm.Tensor:
            H, N = nm.dims(f"{name}_hidden={4 * M.size} {name}_heads={M.size // 64}")
            L, K = nm.dims(f"{name}_layer={self.layers} {name}_key=64")

            def layer(x: nm.Tensor, _: None) -> tuple[nm.Tensor, None]:
                with nm.scope("attention"):
                    x = x + self_attention(rms_norm(x, M), S, Heads(M, N, K))
                with nm.scope("network"):
                    return x + feed_forward(rms_norm(x, M), M, H, activation="gelu"), None

            with nm.scope(name):
                x, _ = nm.scan(layer, x, over=L, stack=True, remat="full")
                y = dense(nm.mean(x, over=S), [M], [J], name="joint")
            return y / nm.sqrt(nm.sum(nm.square(y), over=J) + 1e-6)

        def train(pixels: nm.Tensor, words: nm.Tensor) -> nm.Tensor:
            M, D = nm.dims(f"image={self.image} text={self.text}")
            images = encode(dense(pixels, [C], [M], name="patches"), P, M, "images")
            texts = encode(embedding(words, V, D), W, D, "texts")
            scores = nm.einsum([images, nm.rename(texts, B, other)], [B, other]) * 20.0
            own = nm.sum(nm.where(nm.equal(nm.range(B), nm.range(other)), scores, 0.0), over=other)
            loss = nm.mean(nm.logsumexp(scores, over=other) - own)
            Adam(1e-4).apply(nm.grad(loss))
            return loss

        return nm.trace(train, nm.spec([B, P, C]), nm.spec([B, W], "int32"))

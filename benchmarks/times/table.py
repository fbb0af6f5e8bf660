"""Rows of published step times, read into the sizes, degrees and options that a model is made of.

The columns are written by people ("14336 (SwiGLU), 8 experts top-2, every layer"), so every reader
here looks for what it knows in a text and leaves the rest. What a row does not say is filled in by
the rules of `_fill`, which look at nothing measured.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import pathlib
import re
from dataclasses import dataclass

from namedmesh.hardware.chips import CHIPS

TABLE = pathlib.Path(__file__).parent / "published_times.tsv"
FURTHER = TABLE.with_name("further_times.tsv")
KEPT = TABLE.with_name("kept_times.tsv")  # predicted once, after the rules were settled


class Inexpressible(Exception):
    """A row that no model of ours stands for, and why."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One published training step, as numbers.

    Attributes:
        id, source, system, chip, model, grade: What it is, and how much is known of it.
        measured: Seconds of the step.
        devices: Devices as jax lists them: cores of TPU v3, halves of a v7x.
        layers, width, hidden, heads, kv_heads, head, vocab, length: The sizes of the model.
        activation, gated, tied: The feed-forward network, and whether one table is used twice.
        experts, choices, shared, dense_layers, expert_hidden, capacity: The mixture, if any.
        dropless: Whether the mixture multiplies every token, in groups of uneven sizes.
        latent: Whether attention is DeepSeek's, with keys and values from a latent vector.
        window, local: The tokens that a layer with local attention sees, and the share of layers
            that are such.
        batch, micro: Sequences of a step, and of a microbatch of one data-parallel replica.
        dtype: That of products: `bf16`, `fp8`, `fp4`, `int8`, `fp16` or `fp32`.
        data, tensor, context, stages, rounds, expert: Degrees of parallelism.
        slices, slices_sharded: TPU slices, which DCN joins, and whether weights are sharded over
            them too.
        sharded: Weights are sharded over the data axis at rest (FSDP, ZeRO-3).
        zero: Optimizer state alone is (ZeRO-1).
        async_tensor: Tensor-parallel collectives run beside products.
        remat: `none`, `dots`, `full`, or `` where the row does not say.
        saved: Names of projections that full recomputation leaves out.
        flash: Attention is a kernel that stores no scores.
        watts, bandwidth, across: A board's power limit, bytes a second of memory and of a GPU to
            other nodes, where a row has them.
        tokens: Of a device, where sequences are not known (the paper's models).
    """

    id: str
    source: str
    system: str
    chip: str
    model: str
    grade: str
    measured: float
    devices: int
    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    vocab: int
    length: int
    activation: str = "gelu"
    gated: bool = False
    tied: bool = False
    experts: int = 0
    choices: int = 2
    shared: int = 0
    dense_layers: int = 0
    expert_hidden: int = 0
    capacity: float = 1.0
    dropless: bool = False
    latent: bool = False
    window: int = 0
    local: float = 0.0
    batch: int
    micro: int
    dtype: str = "bf16"
    data: int = 1
    tensor: int = 1
    context: int = 1
    stages: int = 1
    rounds: int = 1
    expert: int = 1
    slices: int = 1
    slices_sharded: bool = False
    sharded: bool = False
    zero: bool = False
    async_tensor: bool = False
    remat: str = ""
    saved: tuple[str, ...] = ()
    flash: bool = True
    watts: float = 0.0
    bandwidth: float = 0.0
    across: float = 0.0
    tokens: int = 0

    @property
    def microbatches(self) -> int:
        """The microbatches of a step on each replica."""
        return max(1, self.batch // (self.data * self.micro))


# Systems by what their source, id or model contains, the most specific first.
_SYSTEMS = {
    "nvidia-nemo/automodel": "Automodel",
    "megatron-bridge": "NeMo",
    "nvidia-nemo": "NeMo",
    "nemo": "NeMo",
    "bigscience": "Megatron-DeepSpeed",
    "deepspeed": "Megatron-DeepSpeed",
    "2201.11990": "Megatron-DeepSpeed",
    "gpt-neox": "Megatron-DeepSpeed",
    "megatron": "Megatron",
    "torchtitan": "torchtitan",
    "llm-foundry": "llm-foundry",
    "mosaicml": "llm-foundry",
    "maxtext": "MaxText",
    "tpu-recipes": "MaxText",
    "maxdiffusion": "MaxText",
    "paxml": "Pax",
    "projects/pax": "Pax",
    "axlearn": "AXLearn",
    "fms-fsdp": "fms-fsdp",
    "foundation-model-stack": "fms-fsdp",
    "internlm": "InternLM",
    "internevo": "InternLM",
    "nanotron": "nanotron",
    "olmo": "OLMo",
    "colossal": "Colossal-AI",
    "levanter": "Levanter",
    "marin": "Levanter",
    "haliax": "Levanter",
    "2407.21783": "Meta",
    "neuron": "Neuron",
    "2006.16668": "GShard",
}
_CHIPS = [
    (r"tpu ?7x|ironwood|tpu v7x", "tpu-v7x"),
    (r"v6e|trillium", "tpu-v6e"),
    (r"v5p", "tpu-v5p"),
    (r"v5e|v5 ?lite", "tpu-v5e"),
    (r"tpu ?v4", "tpu-v4"),
    (r"tpu ?v3", "tpu-v3"),
    (r"tpu ?v2", "tpu-v2"),
    (r"gb300", "gb300"),
    (r"gb200", "gb200"),
    (r"b300", "b300"),
    (r"b200", "b200"),
    (r"h200", "h200"),
    (r"h[18]00|hopper|gh200", "h100"),
    (r"a[18]00", "a100"),
    (r"v100", "v100"),
    (r"mi300x", "mi300x"),
    (r"trainium ?1|trn1", "trn1"),
    (r"trainium ?2|trn2", "trn2"),
]
_GATED = (
    "llama", "mistral", "mixtral", "qwen", "gemma", "deepseek", "nemotron-h", "phi", "olmo", "yi-",
    "internlm", "dbrx", "grok", "kimi", "gpt-oss", "baichuan",
)  # fmt: skip
# Local attention of families, in which a row need not mention it: tokens, and the share of layers.
_LOCAL = {"gemma-?3": (1024, 5 / 6), "gemma-?2": (4096, 1 / 2), "gpt[-_ ]?oss": (128, 1 / 2)}
_WORDS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "half": 2, "other": 2}


def read_table(path: pathlib.Path) -> list[dict[str, str]]:
    """Return the rows of a table, by its head; other columns than ours are kept."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return [{(key or ""): (value or "").strip() for key, value in row.items()} for row in rows]


def read_step(row: dict[str, str]) -> Step:
    """Read one row.

    Raises:
        Inexpressible: It lacks something that nothing can stand in for.
    """
    chip = _find_chip(row.get("hardware", ""))
    system = _find_system(row)
    text = row.get("parallelism", "")
    degrees = _read_degrees(text)
    fields = {**_read_sizes(row), **_read_mixture(row)}
    devices = _read_devices(row.get("devices", ""), chip)
    interleaved = "interleaved" in text.lower() and "non-interleaved" not in text.lower()
    if interleaved and degrees["rounds"] == 1:
        degrees["rounds"] = 2  # the least, and torchtitan's default
    split = degrees["tensor"] * degrees["context"] * degrees["stages"]
    if devices % split:
        raise Inexpressible(f"{devices} devices are not a multiple of {split}: {text!r}")
    degrees["data"] = devices // split
    how = row.get("how", "")
    grade = re.search(r"\[([A-D])\]", how)
    measured = _number(row.get("step_seconds", ""))
    lower = text.lower()
    remat = _read_remat(row.get("remat", ""))
    dtype = row.get("dtype", "").lower()
    step = Step(
        id=row.get("id", ""),
        source=row.get("source", ""),
        system=system,
        chip=chip,
        model=row.get("model", ""),
        grade=grade[1] if grade else "",
        measured=measured or 0.0,
        devices=devices,
        dtype=_read_dtype(dtype),
        remat=remat,
        saved=_read_saved(row.get("remat", "")) if remat == "full" else (),
        flash="not flash" not in row.get("attention", "").lower(),
        sharded=not _is_stated(text)  # whatever does not say how it is split is sharded
        or bool(re.search(r"(?<!no )(?<!no-)[fh]sdp|zero[- ]?(?:stage )?3|fully shard", lower)),
        zero=bool(re.search(r"zero[- ]?(?:stage )?[12]", lower)),
        async_tensor="async" in dtype or "async" in lower or "overlap flags" in how,
        watts=_find_number(r"([\d.]+) ?w(?:att)? cap", row.get("hardware", "")),
        bandwidth=1e12 * _find_number(r"([\d.]+) ?tb/s", row.get("hardware", "")),
        across=_read_network(row.get("hardware", ""), chip),
        slices=_read_slices(lower),
        slices_sharded="dcn_fsdp" in lower or "fsdp over dcn" in lower,
        **{**fields, **degrees, **_read_batch(row, degrees)},
    )
    return _fill(step)


def _fill(step: Step) -> Step:
    """Fill in what a row does not say, by rules for systems."""
    changes: dict[str, object] = {}
    if step.system in ("Megatron", "NeMo", "Megatron-DeepSpeed", "Neuron") and not step.sharded:
        changes["zero"] = True  # the distributed optimizer; sends what plain sums of gradients do
    if step.system == "NeMo":
        changes["async_tensor"] = True  # its recipes overlap tensor-parallel collectives
    if step.system == "MaxText" and step.model.lower().startswith("maxtext"):
        changes["tied"] = True
    return dataclasses.replace(step, **changes)  # type: ignore[arg-type]


def _find_chip(text: str) -> str:
    """Return the chip that a description of hardware names first."""
    for pattern, chip in _CHIPS:
        if re.search(pattern, text.lower()) and chip in CHIPS:
            return chip
    raise Inexpressible(f"no chip of ours is named in {text!r}")


def _read_network(text: str, chip: str) -> float:
    """Return the bytes a second of a GPU to other nodes, or 0 where that is not clear."""
    text = re.sub(r"(\d+) Omni-Path links", r"\1 x 100 Gb Omni-Path", text)
    rate = r"(?:(\d+) ?x ?)?([\d.]+) ?([GT])(?:b/s|bps|bit/s|b)\b"
    found = re.search(rate + r"(?:[^,;()]*?(?:per |/)(GPU|node))?", text)
    if found is None or CHIPS[chip].family != "gpu":
        return 0.0
    ports, number, unit, whose = found.groups()
    bits = float(ports or 1) * float(number) * (1e12 if unit == "T" else 1e9)
    if whose is None and not ports and bits < 800e9:  # a port for each GPU, or a node's
        return 0.0
    return bits / 8 / (1 if whose == "GPU" else CHIPS[chip].host)


def _find_system(row: dict[str, str]) -> str:
    """Return the system that ran a step, or its source if we know none."""
    text = " ".join(row.get(key, "") for key in ("source", "id", "model", "dtype")).lower()
    found = [(text.index(part), i) for i, part in enumerate(_SYSTEMS) if part in text]
    return [*_SYSTEMS.values()][min(found)[1]] if found else "other"


def _number(text: str, thousand: float = 1e3) -> float | None:
    """Return the first number of a text, with its suffix K, M or B."""
    found = re.search(r"(\d[\d,]*\.?\d*(?:e[+-]?\d+)?)\s*([kmb]\b)?", text.lower())
    if found is None:
        return None
    scale = {"k": thousand, "m": 1e6, "b": 1e9}.get(found[2] or "", 1.0)
    return float(found[1].replace(",", "")) * scale


def _is_stated(text: str) -> bool:
    """Return whether a column says anything."""
    said = text.lower().strip(" .()")
    return said not in ("", "-", "?", "n/a", "na") and not re.match(
        r"(?:not |un)(?:stated|published|given|known|specified|clear|reported)", said
    )


def _find_number(pattern: str, text: str) -> float:
    """Return the number that a pattern finds, or 0."""
    found = re.search(pattern, text.lower())
    return float(found[1]) if found else 0.0


def _whole(row: dict[str, str], key: str, default: int | None = None) -> int:
    """Return the first number of a column as a whole one."""
    value = _number(row.get(key, ""))
    if value is None and default is None:
        raise Inexpressible(f"{key} is not stated")
    return int(default or 0) if value is None else round(value)


def _read_devices(text: str, chip: str) -> int:
    """Return the number of devices, as jax lists them."""
    cores = re.search(r"([\d,]+) *(?:cores|jax devices|neuroncores|devices)", text.lower())
    if cores:
        return int(cores[1].replace(",", ""))
    value = _number(text)
    if value is None:
        raise Inexpressible("devices are not stated")
    part = r" *(?:slices|nodes|hosts|pods)? *(?:x|of|\*) *\d+"
    product = re.match(rf"\d+(?:{part})+", text.lower())  # 2 x 256, 4 nodes of 8
    if product:
        value = math.prod(int(one) for one in re.findall(r"\d+", product[0]))
    return round(value) * CHIPS[chip].devices


def _read_sizes(row: dict[str, str]) -> dict[str, object]:
    """Return the sizes of the model."""
    model, width, heads = row.get("model", "").lower(), _whole(row, "d_model"), _whole(row, "heads")
    feed = row.get("d_ff", "")
    size = re.search(
        r"(?:head_dim|key/value dim|head size|head dim) *=? *(\d+)", row.get("heads", "")
    )
    name = next((name for name in ("swiglu", "geglu", "relu", "gelu") if name in feed.lower()), "")
    if not name:
        name = "swiglu" if any(part in model for part in _GATED) else "gelu"
    if "gemma" in model and name == "gelu":
        name = "geglu"
    vocab = _whole(row, "vocab", 0) or _default_vocab(model)
    return {
        "layers": _whole(row, "layers"),
        "width": width,
        "hidden": _read_hidden(feed, 4 * width),
        "heads": heads,
        "kv_heads": _whole(row, "kv_heads", heads),
        "head": int(size[1])
        if size
        else 128
        if "mla" in row.get("heads", "").lower()
        else width // heads,
        "vocab": vocab,
        "length": round(_number(row.get("seq_len", ""), 1024) or 1024),
        **_read_windows(row),
        "activation": {"swiglu": "swish", "geglu": "gelu"}.get(name, name),
        "gated": name in ("swiglu", "geglu"),
        "tied": "tied" in model or model.startswith(("gpt", "mpt", "mt-nlg", "bloom", "gemma")),
    }


def _read_hidden(feed: str, default: int) -> int:
    """Return the hidden size of a feed-forward network: the first number that counts no experts."""
    counted = r"\b\d+ *(?:x )?(?:routed|shared|experts?|matmuls|e\b)|\btop[- ]?\d+"
    return round(_number(re.sub(counted, "", feed.lower())) or default)


def _read_windows(row: dict[str, str]) -> dict[str, float]:
    """Return the window of local attention and the share of layers that have one."""
    text = row.get("attention", "").lower()
    known = (
        found for name, found in _LOCAL.items() if re.search(name, row.get("model", "").lower())
    )
    window, share = next(known, (0, 1.0))
    said = re.search(r"(?:window|local)\D{0,20}?(\d+)", text)
    if said and "full attention" not in text:
        window = int(said[1])
        layers = re.search(r"(\w+) (?:of|in|out of) (?:every )?(\w+) layers|(half|other)\b", text)
        if layers:
            count = lambda word: int(word) if word.isdigit() else _WORDS.get(word, 0)
            above, below = count(layers[1] or ""), count(layers[2] or "") or count(layers[3] or "")
            share = (above or 1) / below if below else share
    return {"window": window, "local": share if window else 0.0}


def _default_vocab(model: str) -> int:
    """Return a vocabulary where a row has none: that of the family."""
    known = {"llama3": 128256, "llama 3": 128256, "llama-3": 128256, "llama": 32000,
             "mixtral": 32000, "mistral": 32000, "qwen": 151936, "deepseek": 129280}  # fmt: skip
    return next((size for part, size in known.items() if part in model), 51200)


def _read_mixture(row: dict[str, str]) -> dict[str, object]:
    """Return the experts, if there are any."""
    feed, model, heads = (row.get(key, "").lower() for key in ("d_ff", "model", "heads"))
    found = re.search(r"([\d,]+) *(?:routed|experts|e\b)", feed)
    if found is None:
        return {}
    top = re.search(r"top[- ]?(\d+)", feed + " " + model)
    shared = re.search(r"(\d+) *shared", feed)
    expert = re.search(r"expert (\d[\d,]*)", feed)
    first = re.search(r"first (\d+) dense", row.get("layers", ""))
    room = re.search(r"capacity[_ ]factor *=? *([\d.]+)", f"{model} {feed}")
    every = "every other" in f"{feed} {model}"
    fields: dict[str, object] = {
        "experts": int(found[1].replace(",", "")),
        "choices": int(top[1]) if top else 2,
        "shared": int(shared[1]) if shared else 0,
        "dense_layers": int(first[1]) if first else 0,
        "capacity": float(room[1]) if room else 1.0,
        "dropless": not room and "dropping" not in model,
        "latent": "mla" in heads,
    }
    hidden = int(expert[1].replace(",", "")) if expert else _read_hidden(feed, 0)
    if not hidden:
        raise Inexpressible("the hidden size of an expert is not stated")
    fields["expert_hidden"] = hidden
    if every:
        fields["dense_layers"] = _whole(row, "layers") // 2
    return fields


def _read_degrees(text: str) -> dict[str, int]:
    """Return the degrees of parallelism, but for data, which is what is left."""
    lower = text.lower()

    def find(*names: str) -> int:
        for name in names:
            before = rf"(\d+)-way {name}"  # 8-way tensor
            after = rf"(?<![a-z]){name}(?:[- ]?(?:model[- ])?parallel\w*)?(?: size)?[ =_:]*(\d+)"
            found = re.search(before, lower) or re.search(after, lower)
            if found:
                return int(found[1])
        return 1

    return {
        "tensor": find("tp", "tensor", "mp", "model"),
        "context": find("cp", "context"),
        "stages": find("pp", "pipeline"),
        "rounds": find("vp", "vpp", "virtual", "virtual pipeline"),
        "expert": find("ep", "expert"),
    }


def _read_slices(lower: str) -> int:
    """Return the number of TPU slices that DCN joins."""
    patterns = (
        r"dcn_\w+[ =]+(\d+)",
        r"[a-z]+ ?(\d+) (?:over|across) (?:dcn|slices)",
        r"(\d+) slices",
    )
    found = next(filter(None, (re.search(one, lower) for one in patterns)), None)
    return int(found[1]) if found else 1


def _read_batch(row: dict[str, str], degrees: dict[str, int]) -> dict[str, int]:
    """Return sequences of a step and of a microbatch, or tokens of a device."""
    text, column = row.get("microbatch_accum", "").lower(), row.get("global_batch", "")
    tokens = re.search(r"([\d,]+) tokens per (?:core|device)", text)
    if tokens:
        return {"batch": 1, "micro": 1, "tokens": int(tokens[1].replace(",", ""))}
    length = _number(row.get("seq_len", ""), 1024) or 1024
    value, data = _number(column), degrees["data"]
    counted = re.search(r"([\d,.]+ *[kmb]?)[ -]*tokens", column.lower())
    both = f"{text} {row.get('parallelism', '').lower()}"
    of_device = re.search(r"(?:local|per-\w+|per-jax-device) batch(?: size)? *=?:? *(\d+)", text)
    micro = re.search(r"(?:micro[-_ ]?(?:batch|bsz|bs)(?:[ _]size)?|\bmbs\b):? *=? *(\d+)", text)
    parts = (
        re.search(r"(?:accum\w*|accumulation|\bga\b)(?: steps)? *=?:? *(\d+)", both)
        or re.search(r"micro[-_ ]?num:? *=? *(\d+)", both)
        or re.search(r"(\d+) (?:gradient[- ])?(?:accumulation|microbatches)", both)
    )
    if counted and column.lower().startswith(counted[0]):  # 4M tokens, but not 1024 (4M tokens)
        tokens = _number(counted[1], 1024) or 0.0
        whole = "m" in counted[1] and tokens % 1e6 == 0.0  # millions that are powers of two
        value = tokens * (2**20 / 1e6 if whole else 1.0) / length
    given = micro or of_device
    if value is None and given:
        value = int(given[1]) * (int(parts[1]) if parts else 1) * data
    if value is None:
        raise Inexpressible("the batch is not stated")
    batch = max(1, round(value))
    each = max(1, batch // data)  # of a replica
    if micro:
        size = int(micro[1])
    elif parts:
        size = max(1, each // int(parts[1]))
    elif degrees["stages"] > 1 and "local" in text:  # torchtitan: as many as there are stages
        size = max(1, each // (degrees["stages"] * degrees["rounds"]))
    elif degrees["stages"] > 1:
        size = 1
    elif "no accumulation" in text or "per-chip" in text or "per-gpu" in text or "local" in text:
        size = each
    else:
        size = 1 if each > 1 and "gradient" in text else each
    return {"batch": batch, "micro": min(size, each)}


def _read_dtype(text: str) -> str:
    """Return the dtype of matrix products."""
    if re.search(r"fp4|float4", text):
        return "fp4"
    if re.search(r"fp8|float8|e4m3", text):
        return "fp8"
    if "int8" in text:
        return "int8"
    if "fp16" in text and "bf16" not in text:
        return "fp16"
    plain = "float32 weights and activations" in text or re.match(r"(?:fp|float|tf)32", text)
    mixed = "bf16" in text or "bfloat16" in text or "mixed" in text
    return "fp32" if plain and not mixed else "bf16"


def _read_remat(text: str) -> str:
    """Return what is stored for the backward pass."""
    lower = text.lower()
    if not _is_stated(lower):
        return ""
    if lower.startswith(("none", "no ", "off", "false", "disabled")) or lower == "no":
        return "none"
    if "minimal" in lower or "dots" in lower:
        return "dots"
    if "selective" in lower:
        return "dots" if "per op" in lower or "op" in lower or "attention" not in lower else "core"
    return "full"


def _read_saved(text: str) -> tuple[str, ...]:
    """Return the projections whose results full recomputation does not compute again."""
    lower = text.lower()
    names = []
    if re.search(r"q, ?k, ?v", lower):
        names += ["wq", "wk", "wv"]
    elif re.search(r"\bk, ?v\b", lower):
        names += ["wk", "wv"]
    for word, name in (("out,", "wo"), ("mlpwo", "mlp_wo"), ("context", "attention")):
        if word in lower:
            names.append(name)
    return tuple(names)

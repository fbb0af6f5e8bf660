/* One tensor: where its shards lie, forward and backward, what moves it and what reads it. */

function Moves({ model, i }) {
  const moves = model.data.moves.filter(([tensor]) => tensor === i);
  const tensor = model.tensor(i);
  if (!moves.length && !tensor.moved) return null;
  const readers = new Map();
  for (const move of moves) pushTo(readers, move[1], move);
  return html`<h4>Ways</h4><ul class="moves">
    ${tensor.moved && html`<li>made as <${Place} model=${model} place=${tensor.natural} /></li>`}
    ${[...readers].slice(0, 12).map(([reader, steps]) => html`<li key=${reader}>
      ${reader === tensor.op ? "after it is made" : html`for <${OpLink} model=${model} op=${reader} />`}:
      ${" "}${steps.map(([, , kind, axes], step) => html`${step ? ", then " : ""}<b>${model.text(kind)}</b>${axes.length ? html` over <${AxisChips} model=${model} axes=${axes} />` : ""}`)}</li>`)}
  </ul>`;
}

function OpLink({ model, op }) {
  const [first] = model.data.ops.outputs[op];
  const name = model.text(model.data.ops.name[op]);
  return first === undefined ? name : html`<${TensorLink} model=${model} tensor=${first}>${name}<//>`;
}

function Neighbours({ model, i }) {
  const readers = useMemo(() => {
    const found = [];
    for (let op = 0; op < model.opCount; op++) if (model.data.ops.inputs[op].includes(i)) found.push(op);
    return found;
  }, [model, i]);
  const reads = model.data.ops.inputs[model.data.tensors.op[i]];
  const most = 12;
  return html`<dl class="neighbours">
    <div><dt>made of</dt><dd>${reads.length ? reads.slice(0, most).map((one, at) => html`${at ? ", " : ""}<${TensorLink} model=${model} tensor=${one} />`) : "nothing: it is an input, a variable or a constant"}${reads.length > most ? ` and ${reads.length - most} more` : ""}</dd></div>
    <div><dt>read by</dt><dd>${readers.length ? readers.slice(0, most).map((op, at) => html`${at ? ", " : ""}<${OpLink} model=${model} op=${op} />`) : "nothing in this body: it is a result"}${readers.length > most ? ` and ${readers.length - most} more` : ""}</dd></div>
  </dl>`;
}

function TensorFacts({ model, costs, i }) {
  const tensor = model.tensor(i);
  const op = model.op(tensor.op);
  const cost = costs.byOp.get(tensor.op);
  const loops = model.loops(tensor.op);
  const rows = [
    ["on a device", tensor.free ? "nothing: every reader makes it where it needs it" : html`${formatBytes(tensor.bytes)}${tensor.padding ? `, ${formatShare(tensor.padding, 1)} of it padding` : ""}`],
    ["made by", html`<code>${op.name}</code> <${PhaseBadge} phase=${op.phase} />${op.scope ? html` in ${op.scope}` : ""}`],
    loops.length && ["inside", html`${loops.map((loop, at) => html`${at ? ", in " : ""}<${OpLink} model=${model} op=${loop} />`)}${cost ? `: runs ${formatNumber(cost.times)} times` : ""}`],
    cost && ["its op takes", html`${formatSeconds(cost.total)} <span class="faint">(${formatFlops(cost.flops * cost.times)}, ${formatBytes(cost.bytes * cost.times)} of memory traffic, bound by ${cost.bound})</span>`],
    ["written at", html`<${LineLink} model=${model} line=${op.line} /> <code class="snippet">${model.lineCode(op.line)}</code>${op.user.join() !== op.line.join() ? html` for <${LineLink} model=${model} line=${op.user} />` : ""}`],
  ];
  return html`<dl class="tensor-facts">${rows.filter(Boolean).map(([title, value]) => html`<div key=${title}><dt>${title}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/* Forward and backward: a tensor and its cotangents, whichever of them was asked for. */
function directions(model, i) {
  const { primal, origin } = model.data.tensors;
  const first = origin[primal[i]] >= 0 ? origin[primal[i]] : primal[i];
  const forward = primal[i] >= 0 ? first : i;
  const back = primal[i] >= 0 ? i : (model.cotangents.get(i) || [])[0];
  return { forward, backward: back };
}

function TensorView({ model, costs, i }) {
  const { forward, backward } = directions(model, i);
  const tensor = model.tensor(i);
  const collectives = model.collectives().filter((one) => one.op >= 0 && model.tensorOf(one) === i);
  const options = [[String(forward), "forward"]];
  if (backward !== undefined) options.push([String(backward), "backward"]);
  return html`<div class="tensor-view">
    <h3>${tensor.label}</h3>
    <p><${Place} model=${model} place=${tensor.place} /></p>
    ${options.length > 1 ? html`<${Choice} label="Direction" name=${`direction-${model.letter}`} value=${String(i)} options=${options}
      onChange=${(key) => { location.hash = tensorAddress(model, Number(key)); }} />`
      : !model.data.compiled && html`<p class="faint small">It has no cotangent: no gradient passes through it.</p>`}
    <${Shards} model=${model} place=${tensor.place} key=${model.letter} />
    <${TensorFacts} model=${model} costs=${costs} i=${i} />
    ${!model.data.compiled && html`<${Neighbours} model=${model} i=${i} />`}
    <${Moves} model=${model} i=${i} />
    ${collectives.length > 0 && html`<h4>Collectives</h4><ul class="moves">${collectives.slice(0, 12).map((one) => html`<li key=${one.i}>
      <b>${one.kind}</b> over <${AxisChips} model=${model} axes=${one.axes} /> ${formatBytes(one.bytes)}${one.times > 1 ? ` × ${formatNumber(one.times)}` : ""} for <${OpLink} model=${model} op=${one.op} />${one.status?.[0] ? html`, <${Status} status=${one.status} />` : ""}</li>`)}</ul>`}
  </div>`;
}

/* The tensor to show before any is chosen: one with a cotangent that is moved, or large. */
function firstTensor(model) {
  const { listed, op, bytes, free } = model.data.tensors;
  const sent = new Map();
  for (const one of model.collectives()) {
    const tensor = one.op >= 0 ? model.tensorOf(one) : -1;
    if (tensor >= 0) sent.set(tensor, (sent.get(tensor) || 0) + one.wire * one.times);
  }
  let best = -1;
  let most = -1;
  for (let i = 0; i < model.tensorCount; i++) {
    if (!listed[i] || free[i]) continue;
    const forward = model.phases[model.data.ops.phase[op[i]]] === "forward";
    const moved = model.cotangents.has(i) && sent.has(i) ? 1e24 : 0;
    const worth = (forward ? 1 : 0.01) * (moved + (model.cotangents.has(i) ? 1e18 : 0) + (sent.get(i) || 0) + bytes[i]);
    if (worth > most) [best, most] = [i, worth];
  }
  return best;
}

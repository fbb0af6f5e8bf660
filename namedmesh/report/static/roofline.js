/* Every op against what the target can do, and where the time of a step goes. */

const PLOT = { left: 74, right: 14, top: 18, bottom: 46 };

const power = (value) => {
  const digits = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  return `10${value < 0 ? "⁻" : ""}${[...String(Math.abs(value))].map((digit) => digits[digit]).join("")}`;
};

function RooflinePlot({ model, costs, points, hovered, setHovered }) {
  const [ref, width] = useWidth();
  const { bandwidth } = costs.data;
  const rates = roofs(costs);
  const height = Math.min(420, Math.max(280, width * 0.5));
  const total = costs.data.seconds;
  const fastest = Math.max(...rates.map(([, rate]) => rate));
  const range = (values, least, most) => [Math.min(least, ...values), Math.max(most, ...values)].map(Math.log10);
  const knees = rates.map(([, rate]) => rate / bandwidth);
  const [x0, x1] = range(points.map((one) => one.intensity), Math.min(...knees) / 100, Math.max(...knees) * 10);
  // Ops that take next to no time may be slow by any factor: they lie on the floor of the plot.
  const [y0, y1] = range(points.filter((one) => one.total > total / 1e4).map((one) => one.speed), fastest / 1e4, fastest * 2);
  const x = (value) => PLOT.left + ((Math.log10(value) - x0) / (x1 - x0)) * (width - PLOT.left - PLOT.right);
  const y = (value) => height - PLOT.bottom - (Math.max(0, Math.log10(value) - y0) / (y1 - y0)) * (height - PLOT.top - PLOT.bottom);
  const decades = (from, to) => Array.from({ length: Math.floor(to) - Math.ceil(from) + 1 }, (_, i) => Math.ceil(from) + i);
  const every = (list, most) => list.filter((_, i) => i % Math.ceil(list.length / most) === 0);
  const left = 10 ** x0;
  const middle = 10 ** (0.65 * x0 + 0.35 * Math.log10(Math.max(...knees)));
  const circles = useMemo(() => joinPoints(points, x, y), [points, width]);
  return html`<div ref=${ref} class="drawing">${width > 0 && html`
    <svg width=${width} height=${height} role="img" aria-label=${`roofline of ${costs.data.target}: ${formatRate(fastest, "FLOP/s")} and ${formatRate(bandwidth, "B/s")}, with ${plural(points.length, "op")}; the table below has the slowest`}
      onMouseLeave=${() => setHovered(null)}>
      ${every(decades(x0, x1), 9).map((one) => html`<line x1=${x(10 ** one)} x2=${x(10 ** one)} y1=${PLOT.top} y2=${height - PLOT.bottom} class="rule" />
        <text x=${x(10 ** one)} y=${height - PLOT.bottom + 17} text-anchor="middle" class="tick-text">${power(one)}</text>`)}
      ${every(decades(y0, y1), 8).map((one) => html`<line x1=${PLOT.left} x2=${width - PLOT.right} y1=${y(10 ** one)} y2=${y(10 ** one)} class="rule" />
        <text x=${PLOT.left - 7} y=${y(10 ** one) + 4} text-anchor="end" class="tick-text">${formatRate(10 ** one, "").trim()}</text>`)}
      ${rates.map(([, rate]) => html`<polyline points=${`${x(left)},${y(left * bandwidth)} ${x(rate / bandwidth)},${y(rate)} ${x(10 ** x1)},${y(rate)}`} class="roof" />
        <line x1=${PLOT.left} x2=${x(rate / bandwidth)} y1=${y(rate)} y2=${y(rate)} class="roof-guide" />`)}
      <text x=${PLOT.left + 8} y=${y(fastest) - 6} class="roof-text">${formatRate(fastest, "FLOP/s")}</text>
      <g transform=${`translate(${x(middle)} ${y(middle * bandwidth)}) rotate(${slope(x, y, left, bandwidth)})`}><text y="22" text-anchor="middle" class="roof-text">memory ${formatRate(bandwidth, "B/s")}</text></g>
      ${circles.map((one) => html`<circle key=${one.key} cx=${one.x} cy=${one.y} r=${Math.max(3, Math.min(26, 50 * Math.sqrt(one.total / total)))}
        class=${`dot dot-${one.bound} ${one.key === hovered?.key ? "chosen" : ""}`} onMouseEnter=${() => setHovered(one)}
        onClick=${() => openEntry(model, { collective: -1, op: one.ops[0].op })} />`)}
      <text x=${(PLOT.left + width - PLOT.right) / 2} y=${height - 8} text-anchor="middle" class="axis-text">FLOPs for each byte of memory traffic</text>
      <text x="16" y=${(PLOT.top + height - PLOT.bottom) / 2} text-anchor="middle" class="axis-text" transform=${`rotate(-90 16 ${(PLOT.top + height - PLOT.bottom) / 2})`}>FLOP/s</text>
    </svg>`}
    <p class="legend"><span class="key dot-compute" /> bound by compute <span class="key dot-memory" /> bound by memory; a circle's area is its share of the step.
      ${" "}${rates.length > 1 ? "Roofs" : "Roof"}: ${rates.map(([name, rate]) => `${formatRate(rate, "FLOP/s")} (${name})`).join(", ")}.</p>
  </div>`;
}

/* The different rates of matrix products, fastest first, each with the dtypes that have it. */
function roofs(costs) {
  const found = new Map();
  for (const [dtype, rate] of costs.data.rates) pushTo(found, rate, dtype);
  return [...found].map(([rate, dtypes]) => [dtypes.join(", "), rate]);
}

/* Ops that would be drawn over each other, as in layers that repeat, make one circle. */
function joinPoints(points, x, y) {
  const found = new Map();
  for (const one of points) {
    const [across, down] = [x(one.intensity), y(one.speed)];
    const key = `${one.bound} ${Math.round(across / 4)} ${Math.round(down / 4)}`;
    if (!found.has(key)) found.set(key, { key, x: across, y: down, bound: one.bound, total: 0, ops: [] });
    const circle = found.get(key);
    circle.total += one.total;
    circle.ops.push(one);
  }
  for (const circle of found.values()) circle.ops.sort((one, other) => other.total - one.total);
  return [...found.values()].sort((one, other) => other.total - one.total);
}

const slope = (x, y, left, bandwidth) => {
  const right = left * 100;
  return (180 / Math.PI) * Math.atan2(y(right * bandwidth) - y(left * bandwidth), x(right) - x(left));
};

function Circle({ model, circle }) {
  const [{ op, speed }] = circle.ops;
  const more = circle.ops.length > 1 ? ` and ${plural(circle.ops.length - 1, "op")} like it` : "";
  return html`<b>${model.text(model.data.ops.name[op])}</b>${more}: ${formatSeconds(circle.total)}, ${formatRate(speed, "FLOP/s")}, ${model.lineText(model.data.ops.line[op])}`;
}

/* Seconds by part of the model and by what they are spent on: the paper's breakdown. */
function breakdown(model, costs) {
  const parts = new Map();
  const at = (scope, phase) => {
    const name = scope || (phase === "update" ? "optimizer and other unscoped" : "outside all scopes");
    if (!parts.has(name)) parts.set(name, { name, compute: 0, memory: 0, collectives: 0 });
    return parts.get(name);
  };
  for (const cost of costs.byOp.values()) {
    at(model.text(model.data.ops.scope[cost.op]), model.phases[model.data.ops.phase[cost.op]])[cost.bound] += cost.total;
  }
  model.collectives().filter((one) => one.phase !== "init").forEach((one) => {
    const scope = one.op >= 0 ? model.text(model.data.ops.scope[one.op]) : one.scope;
    at(scope, one.phase).collectives += costs.collectiveSeconds(one.i);
  });
  return [...parts.values()].map((part) => ({ ...part, total: part.compute + part.memory + part.collectives }))
    .filter((part) => part.total > 0).sort((one, other) => other.total - one.total);
}

function Breakdown({ model, costs }) {
  const parts = useMemo(() => breakdown(model, costs), [model]);
  const [some, more] = useSome(parts, 12, [model]);
  const largest = parts.length ? parts[0].total : 1;
  const share = (value) => ({ width: `${(100 * value) / largest}%` });
  return html`<h3>Where the time goes</h3>
    <p class="legend"><span class="key fill-compute" /> bound by compute <span class="key fill-memory" /> bound by memory <span class="key fill-collectives" /> collectives</p>
    <ul class="breakdown">${some.map((part) => html`<li key=${part.name}>
      <span class="part-name">${part.name}</span>
      <span class="part-bar" role="img" aria-label=${`compute ${formatSeconds(part.compute)}, memory ${formatSeconds(part.memory)}, collectives ${formatSeconds(part.collectives)}`}>
        <span class="fill-compute" style=${share(part.compute)} /><span class="fill-memory" style=${share(part.memory)} /><span class="fill-collectives" style=${share(part.collectives)} /></span>
      <span class="part-time">${formatSeconds(part.total)} <span class="faint">${formatShare(part.total, costs.data.seconds)}</span></span></li>`)}</ul>${more}`;
}

function Roofline({ model, costs, query }) {
  const [hovered, setHovered] = useState(null);
  const [phase, setPhase] = useState("");
  const rows = useMemo(() => {
    const matches = matcher(query);
    return [...costs.byOp.values()].filter((cost) => !phase || model.phases[model.data.ops.phase[cost.op]] === phase)
      .filter((cost) => { const op = model.op(cost.op); return matches(`${op.name} ${op.scope} ${model.lineText(op.line)}`.toLowerCase()); })
      .map((cost) => ({ ...cost, key: cost.op, intensity: cost.bytes ? cost.flops / cost.bytes : 0, speed: cost.seconds ? cost.flops / cost.seconds : 0 }));
  }, [model, query, phase]);
  const points = useMemo(() => rows.filter((one) => one.intensity > 0 && one.speed > 0), [rows]);
  const others = rows.filter((one) => !(one.intensity > 0 && one.speed > 0));
  const phases = [...costs.byOp.keys()].map((op) => ({ phase: model.phases[model.data.ops.phase[op]] }));
  const columns = [
    { key: "op", title: "Op", kind: "name", sort: (one) => model.text(model.data.ops.name[one.op]), cell: (one) => html`<${OpLink} model=${model} op=${one.op} />` },
    { key: "scope", title: "Scope", sort: (one) => model.text(model.data.ops.scope[one.op]), cell: (one) => model.text(model.data.ops.scope[one.op]) || "–" },
    { key: "total", title: "Time", number: true, sort: (one) => one.total, cell: (one) => formatSeconds(one.total) },
    { key: "times", title: "Times", number: true, sort: (one) => one.times, cell: (one) => formatNumber(one.times) },
    { key: "flops", title: "FLOPs", number: true, sort: (one) => one.flops, cell: (one) => (one.flops ? scaled(one.flops, 1000, ["", " k", " M", " G", " T", " P"]) : "–") },
    { key: "bytes", title: "Bytes", number: true, sort: (one) => one.bytes, cell: (one) => formatBytes(one.bytes) },
    { key: "bound", title: "Bound by", sort: (one) => one.bound, cell: (one) => one.bound },
    { key: "line", title: "Line", sort: (one) => model.lineText(model.data.ops.line[one.op]), cell: (one) => html`<${LineLink} model=${model} line=${model.data.ops.line[one.op]} />` },
  ];
  return html`<div class="controls"><${Choice} label="Phase" name=${`roofline-${model.letter}`} value=${phase} options=${phaseOptions(model, phases)} onChange=${setPhase} /></div>
    <${RooflinePlot} model=${model} costs=${costs} points=${points} hovered=${hovered} setHovered=${setHovered} />
    <p class="readout">${hovered ? html`<${Circle} model=${model} circle=${hovered} />` : others.length ? `${plural(others.length, "op")} without floating-point work ${others.length === 1 ? "is" : "are"} not in the plot: ${formatSeconds(sum(others.map((one) => one.total)))} of memory traffic.` : "Point at a circle to see its op."}</p>
    <${Breakdown} model=${model} costs=${costs} />
    <h3>Ops by time</h3>
    <${SortedTable} caption=${`Ops of plan ${model.letter} by time`} columns=${columns} rows=${rows} start=${["total", -1]} most=${12} />`;
}

/* What one device keeps while each op of the step runs, and what it is made of at the peak. */

const CHART = { left: 64, right: 12, top: 38, bottom: 34 };

/* The largest value in each column of pixels: a peak is never lost. */
function envelope(values, columns) {
  if (values.length <= columns) return values.map((value, i) => ({ value, at: i, from: i, to: i + 1 }));
  return Array.from({ length: columns }, (_, column) => {
    const from = Math.floor((column * values.length) / columns);
    const to = Math.max(from + 1, Math.floor(((column + 1) * values.length) / columns));
    let at = from;
    for (let i = from; i < to; i++) if (values[i] > values[at]) at = i;
    return { value: values[at], at, from, to };
  });
}

function byteTicks(largest) {
  const unit = 2 ** (10 * Math.floor(Math.log2(Math.max(1, largest)) / 10));
  return ticks(largest / unit, 4).map((value) => value * unit);
}

function MemoryChart({ model, memory, capacity }) {
  const [ref, width] = useWidth();
  const [hovered, setHovered] = useState(null);
  const height = 240;
  const values = memory.timeline.bytes;
  const inner = Math.max(1, width - CHART.left - CHART.right);
  const columns = useMemo(() => envelope(values, inner), [memory, inner]);
  const near = capacity && capacity < 3 * memory.peak;
  const largest = 1.06 * Math.max(memory.peak, near ? capacity : 0);
  const x = (i) => CHART.left + (inner * i) / values.length;
  const y = (value) => CHART.top + (height - CHART.top - CHART.bottom) * (1 - value / largest);
  const top = columns.map((one) => `${x(one.from)},${y(one.value)} ${x(one.to)},${y(one.value)}`).join(" ");
  const peakAt = values.indexOf(Math.max(...values));
  const name = (i) => model.text(memory.timeline.op[i]);
  const bands = memoryBands(model, memory);
  const point = (event) => {
    const i = Math.floor(((event.offsetX - CHART.left) / inner) * values.length);
    setHovered(i >= 0 && i < values.length ? i : null);
  };
  return html`<div ref=${ref} class="drawing">${width > 0 && html`
    <svg width=${width} height=${height} role="img" aria-label=${`memory of a device over the step: at most ${formatBytes(memory.peak)}, while ${memory.at} runs; ${formatBytes(memory.kept)} throughout`}
      onMouseMove=${point} onMouseLeave=${() => setHovered(null)}>
      ${bands.map((band) => html`<rect x=${x(band.from)} y=${CHART.top - 18} width=${Math.max(0, x(band.to) - x(band.from) - 1)} height=${height - CHART.top - CHART.bottom + 18} class=${`band band-${band.phase}`} />
        ${x(band.to) - x(band.from) > 70 && html`<text x=${x(band.from) + 4} y=${CHART.top - 24} class="band-name">${band.phase}</text>`}`)}
      ${byteTicks(largest).map((value) => html`<line x1=${CHART.left} x2=${width - CHART.right} y1=${y(value)} y2=${y(value)} class="rule" />
        <text x=${CHART.left - 6} y=${y(value) + 4} text-anchor="end" class="tick-text">${formatBytes(value)}</text>`)}
      <polygon points=${`${x(0)},${y(0)} ${top} ${x(values.length)},${y(0)}`} class="area" />
      <rect x=${x(0)} y=${y(memory.kept)} width=${inner} height=${Math.max(0, y(0) - y(memory.kept))} class="kept" />
      <text x=${CHART.left + 6} y=${Math.min(y(memory.kept) + 15, y(0) - 4)} class="kept-text">inputs and variables ${formatBytes(memory.kept)}</text>
      ${near && html`<line x1=${CHART.left} x2=${width - CHART.right} y1=${y(capacity)} y2=${y(capacity)} class="limit" />
        <text x=${width - CHART.right - 4} y=${y(capacity) - 5} text-anchor="end" class="limit-text">a device has ${formatBytes(capacity)}</text>`}
      <circle cx=${x(peakAt + 0.5)} cy=${y(memory.peak)} r="4.5" class="peak" />
      <text x=${Math.max(CHART.left + 60, Math.min(x(peakAt + 0.5), width - 110))} y=${y(memory.peak) - 9} text-anchor="middle" class="peak-text">${formatBytes(memory.peak)}</text>
      ${hovered !== null && html`<line x1=${x(hovered + 0.5)} x2=${x(hovered + 0.5)} y1=${CHART.top} y2=${height - CHART.bottom} class="cursor" />`}
      <text x=${CHART.left + inner / 2} y=${height - 8} text-anchor="middle" class="tick-text">ops of the step, in order; the body of a loop once</text>
    </svg>`}
    <p class="readout">${hovered === null ? `The peak is reached while ${memory.at} runs.` : `${formatBytes(values[hovered])} while ${name(hovered)} runs`}</p>
  </div>`;
}

function memoryBands(model, memory) {
  const bands = [];
  memory.timeline.op.forEach((text, i) => {
    const op = model.opByName.get(model.text(text));
    const phase = op === undefined ? bands[bands.length - 1]?.phase || "forward" : model.phases[model.data.ops.phase[op]];
    const last = bands[bands.length - 1];
    if (last && last.phase === phase) last.to = i + 1;
    else bands.push({ phase, from: i, to: i + 1 });
  });
  return bands;
}

function Memory({ model, costs }) {
  const { memory, capacity } = costs.data;
  const rows = useMemo(() => memory.alive.map((one, i) => ({ ...one, key: i })), [memory]);
  const columns = [
    { key: "label", title: "Alive at the peak", kind: "name", sort: (one) => one.label, cell: (one) => (one.tensor >= 0 ? html`<${TensorLink} model=${model} tensor=${one.tensor}>${one.label}<//>` : one.label) },
    { key: "bytes", title: "Bytes", number: true, sort: (one) => one.bytes, cell: (one) => formatBytes(one.bytes) },
    { key: "share", title: "Share", number: true, cell: (one) => html`<span class="share"><span style=${{ width: `${(100 * one.bytes) / memory.alive[0].bytes}%` }} /></span> ${formatShare(one.bytes, memory.peak)}` },
    { key: "place", title: "Place", cell: (one) => html`<span class="place">${one.place}</span>` },
    { key: "line", title: "Line", sort: (one) => one.line ? model.lineText(one.line) : "", cell: (one) => (one.line ? html`<${LineLink} model=${model} line=${one.line} />` : "") },
  ];
  const chart = memory.timeline.bytes.length > 0;
  if (!chart && !memory.alive.length) return html`<p>Nothing of a step runs; inputs and variables take ${formatBytes(memory.kept)}.</p>`;
  return html`${chart && html`<${MemoryChart} model=${model} memory=${memory} capacity=${capacity} />`}
    <${SortedTable} caption=${`Tensors alive at the peak of plan ${model.letter}`} columns=${columns} rows=${rows} start=${["bytes", -1]} most=${12} />`;
}

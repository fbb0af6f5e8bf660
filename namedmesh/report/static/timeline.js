/* The step from left to right: compute in one lane, collectives in a lane for each set of axes. */

const LANE = 34;
const MARGIN = { left: 8, right: 8, top: 26, bottom: 26 };

/* The entries of a step, or of one of its phases alone, from 0 on. */
function timelineEntries(costs, phase) {
  let start = 0;
  return costs.sequence().filter((entry) => !phase || entry.phase === phase).map((entry) => {
    const moved = { ...entry, start };
    start += entry.seconds;
    return moved;
  });
}

/* Neighbours in one lane that are too thin to see are drawn as one. */
function joinThin(entries, scale, lane) {
  const drawn = [];
  for (const entry of entries) {
    const last = drawn[drawn.length - 1];
    const key = lane(entry);
    const thin = entry.seconds * scale < 3;
    if (last && thin && last.thin && last.key === key && (entry.start - last.end) * scale < 0.75) {
      last.end = entry.start + entry.seconds;
      last.entries.push(entry);
    } else drawn.push({ key, thin, start: entry.start, end: entry.start + entry.seconds, entries: [entry] });
  }
  return drawn;
}

function Timeline({ model, costs, phase }) {
  const [ref, width] = useWidth();
  const [hovered, setHovered] = useState(null);
  const entries = useMemo(() => timelineEntries(costs, phase), [model, phase]);
  const total = entries.length ? entries[entries.length - 1].start + entries[entries.length - 1].seconds : 0;
  const laneOf = (entry) => (entry.collective < 0 ? "compute" : model.data.collectives.axes[entry.collective].join("+"));
  const lanes = [...new Set(entries.map(laneOf))].sort((one, other) => (other === "compute") - (one === "compute") || one.localeCompare(other));
  const height = MARGIN.top + lanes.length * LANE + MARGIN.bottom;
  const scale = total ? (width - MARGIN.left - MARGIN.right) / total : 0;
  const drawn = useMemo(() => lanes.flatMap((lane) => joinThin(entries.filter((entry) => laneOf(entry) === lane), scale, laneOf)), [entries, scale]);
  const bands = phaseBands(entries);
  const x = (value) => MARGIN.left + value * scale;
  if (!total) return html`<p ref=${ref}>Nothing of a step runs${phase ? ` in ${phase}` : ""}.</p>`;
  const words = lanes.map((lane) => {
    const share = sum(entries.filter((entry) => laneOf(entry) === lane).map((entry) => entry.seconds));
    return `${laneName(model, lane)} ${formatSeconds(share)}`;
  });
  return html`<div ref=${ref} class="drawing">${width > 0 && html`
    <svg width=${width} height=${height} role="img" aria-label=${`timeline of ${formatSeconds(total)}: ${words.join(", ")}`}
      onMouseLeave=${() => setHovered(null)}>
      <defs>${lanes.filter((lane) => lane.includes("+")).map((lane) => html`<${Stripes} key=${lane} model=${model} lane=${lane} />`)}</defs>
      ${bands.map((band) => html`<rect x=${x(band.start)} y=${MARGIN.top - 4} width=${Math.max(0, (band.end - band.start) * scale - 1)} height=${lanes.length * LANE + 4} class=${`band band-${band.phase}`} />
        ${(band.end - band.start) * scale > 70 && html`<text x=${x(band.start) + 4} y=${MARGIN.top - 10} class="band-name">${band.phase}</text>`}`)}
      ${drawn.map((one) => {
        const row = lanes.indexOf(one.key);
        return html`<rect x=${x(one.start)} y=${MARGIN.top + row * LANE + 14} width=${Math.max(1, (one.end - one.start) * scale)} height=${LANE - 18}
          class=${one.key === "compute" ? "bar compute" : "bar"} style=${one.key === "compute" ? null : { fill: laneFill(model, one.key) }}
          onMouseEnter=${() => setHovered(one)} onClick=${() => openEntry(model, one.entries[0])} />`;
      })}
      ${lanes.map((lane, row) => html`<text x=${MARGIN.left + 4} y=${MARGIN.top + row * LANE + 11} class="lane-name">${words[row]}</text>`)}
      ${ticks(total, Math.max(2, Math.floor(width / 140))).map((value) => html`<line x1=${x(value)} x2=${x(value)} y1=${height - MARGIN.bottom} y2=${height - MARGIN.bottom + 5} class="tick" />
        <text x=${Math.min(x(value), width - 26)} y=${height - 6} class="tick-text" text-anchor=${value ? "middle" : "start"}>${formatSeconds(value)}</text>`)}
    </svg>`}
    <p class="readout">${hovered ? html`<${Entry} model=${model} drawn=${hovered} />` : "Nothing overlaps in this drawing; point at a bar to see what it is, click to open its tensor."}</p>
  </div>`;
}

const laneName = (model, lane) => (lane === "compute" ? "compute" : lane.split("+").map((axis) => model.axes[axis].name).join(" + "));

/* Bars of one axis are plain; those of several have a stripe of each. */
const laneFill = (model, lane) => (lane.includes("+") ? `url(#${stripesName(model, lane)})` : axisColour(Number(lane)));

const stripesName = (model, lane) => `stripes-${model.letter}-${lane.replaceAll("+", "-")}`;

function Stripes({ model, lane }) {
  const axes = lane.split("+").map(Number);
  return html`<pattern id=${stripesName(model, lane)} width="8" height=${4 * axes.length} patternUnits="userSpaceOnUse">
    ${axes.map((axis, i) => html`<rect y=${4 * i} width="8" height="4" style=${{ fill: axisColour(axis) }} />`)}</pattern>`;
}

function openEntry(model, entry) {
  const tensor = entry.collective >= 0 ? model.tensorOf(model.collective(entry.collective)) : model.data.ops.outputs[entry.op][0];
  if (tensor >= 0) location.hash = tensorAddress(model, tensor);
}

function Entry({ model, drawn }) {
  if (drawn.entries.length > 1) {
    return html`${drawn.key === "compute" ? plural(drawn.entries.length, "op") : plural(drawn.entries.length, "collective")} in a row, ${formatSeconds(sum(drawn.entries.map((one) => one.seconds)))}`;
  }
  const [entry] = drawn.entries;
  if (entry.collective < 0) return html`<b>${model.text(model.data.ops.name[entry.op])}</b> ${formatSeconds(entry.seconds)}, ${model.lineText(model.data.ops.line[entry.op])}`;
  const one = model.collective(entry.collective);
  return html`<b>${one.kind}</b> of ${one.tensor}, ${formatBytes(one.bytes)}${one.times > 1 ? ` × ${formatNumber(one.times)}` : ""}, ${formatSeconds(entry.seconds)}, ${model.lineText(one.line)}`;
}

function phaseBands(entries) {
  const bands = [];
  for (const { phase, start, seconds } of entries) {
    const last = bands[bands.length - 1];
    if (last && last.phase === phase) last.end = start + seconds;
    else bands.push({ phase, start, end: start + seconds });
  }
  return bands;
}

/* The devices of the mesh as a grid, each with the shard of one tensor that it holds. */

const MOST_COLUMNS = 64;

/* Rows and columns: the last axis runs along a row, folded where it is long; the others go down. */
function arrange(model, width) {
  const last = model.axes[model.axes.length - 1].size;
  const square = model.axes.length === 1 && last > 16 ? Math.ceil(Math.sqrt(last)) : last;
  const roomy = model.devices <= 64;
  const columns = Math.min(square, roomy ? Math.max(1, Math.floor(width / 78)) : MOST_COLUMNS);
  const folds = Math.ceil(last / columns);
  const blocks = model.devices / last;
  const between = blocks > 1 && folds > 1 ? 4 : 0;
  const cell = Math.max(4, Math.min(110, Math.floor((width - 2) / columns)));
  const high = Math.min(cell, roomy ? 54 : cell);
  const block = folds * high + between;
  return {
    columns, folds, cell, high, gap: cell > 40 ? 4 : cell > 8 ? 2 : 1, height: blocks * block - between + 2,
    at: (position) => {
      const inside = position % last;
      return { x: (inside % columns) * cell, y: Math.floor(position / last) * block + Math.floor(inside / columns) * high };
    },
    find: (x, y) => {
      const column = Math.floor(x / cell);
      const inside = Math.min(folds - 1, Math.floor((y % block) / high)) * columns + column;
      const down = Math.floor(y / block);
      const there = column >= 0 && column < columns && inside < last && down >= 0 && down < blocks;
      return there ? down * last + inside : -1;
    },
  };
}

/* A shade for each shard: from light to dark, so that the order of shards shows. */
function shade(model, place, share) {
  const axes = model.heldAxes(place);
  if (!axes.length) return "var(--unsplit)";
  return `color-mix(in oklab, ${axisColour(axes[0].number)} ${Math.round(22 + 48 * share)}%, var(--card))`;
}

function describeDevice(model, place, position) {
  const coordinates = model.coordinates(position);
  const where = model.axes.map((axis, i) => `${axis.name}=${coordinates[i]}`).join(", ");
  const holds = model.shards(place, position).map((dim) =>
    `${dim.name} ${dim.ways > 1 ? `${formatNumber(dim.start)} to ${formatNumber(dim.end)}` : "whole"}`);
  return `device ${formatNumber(model.deviceAt(position))} at ${where} holds ${holds.join(", ") || "the scalar"}`;
}

const SHADES = 24; // cells of one shade are one path, so that thousands of devices draw at once

function DeviceGrid({ model, place, device, setDevice }) {
  const [ref, width] = useWidth();
  const count = model.shardCount(place);
  const grid = useMemo(() => (width ? arrange(model, width) : null), [model, width]);
  const numbers = useMemo(() => Array.from({ length: model.devices }, (_, position) => model.shardNumber(place, position)), [model, place.number]);
  const row = grid && (grid.folds > 1 ? grid.columns : model.axes[model.axes.length - 1].size);
  const press = (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row, Home: -device, End: model.devices };
    if (!(event.key in steps)) return;
    event.preventDefault();
    setDevice(Math.max(0, Math.min(model.devices - 1, device + steps[event.key])));
  };
  const point = (event) => {
    const position = grid.find(event.offsetX, event.offsetY);
    if (position >= 0) setDevice(position);
  };
  const cells = useMemo(() => grid && drawCells(model, place, grid, numbers, count), [grid, numbers]);
  const copies = grid && count > 1 ? outline(grid, numbers, numbers[device], device) : "";
  const mark = grid && grid.at(device);
  return html`<div ref=${ref} class="device-grid">${grid && html`
    <svg width=${width} height=${grid.height} role="slider" tabindex="0" aria-label="devices of the mesh; arrow keys move"
      aria-valuemin="0" aria-valuemax=${model.devices - 1} aria-valuenow=${device} aria-valuetext=${describeDevice(model, place, device)}
      onKeyDown=${press} onClick=${point} onMouseMove=${point}>
      ${cells}
      <path d=${copies} class="mark copy" pointer-events="none" />
      <rect x=${mark.x + 0.5} y=${mark.y + 0.5} width=${grid.cell - grid.gap} height=${grid.high - grid.gap} class="mark" pointer-events="none" />
    </svg>`}</div>`;
}

const cellPath = (grid, position) => {
  const { x, y } = grid.at(position);
  return `M${x + 0.5} ${y + 0.5}h${grid.cell - grid.gap}v${grid.high - grid.gap}h${grid.gap - grid.cell}z`;
};

const outline = (grid, numbers, number, device) => numbers
  .map((one, position) => (one === number && position !== device ? cellPath(grid, position) : "")).join("");

function drawCells(model, place, grid, numbers, count) {
  const shades = new Map();
  numbers.forEach((number, position) => {
    const level = count > 1 ? Math.round((SHADES * number) / (count - 1)) : 0;
    pushTo(shades, level, cellPath(grid, position));
  });
  const paths = [...shades].map(([level, cells]) => html`<path key=${level} d=${cells.join("")} fill=${shade(model, place, level / SHADES)} />`);
  if (grid.cell < 60) return paths;
  return [paths, numbers.map((_, position) => {
    const { x, y } = grid.at(position);
    return html`<text x=${x + 6} y=${y + 16} class="cell-device">${model.deviceAt(position)}</text>
      ${cellLines(model, place, position).map((text, line) => html`<text x=${x + 6} y=${y + 31 + 13 * line} class="cell-slice">${text}</text>`)}`;
  })];
}

/* What fits into a roomy cell: the slices of the dimensions that are split. */
function cellLines(model, place, position) {
  const split = model.shards(place, position).filter((dim) => dim.ways > 1);
  if (!split.length) return ["whole"];
  return split.slice(0, 2).map((dim) => `${dim.start}:${dim.end}`);
}

/* Every dimension as a bar, cut as it is split, with the device's shard marked. */
function DimBars({ model, place, device }) {
  return html`<ul class="dim-bars">${model.shards(place, device).map((dim) => html`<li key=${dim.name}>
    <span class="dim-name">${dim.name} <span class="faint">${formatNumber(dim.size)}</span></span>
    <span class="dim-bar" aria-hidden="true" style=${{ "--ways": dim.ways <= 64 ? dim.ways : 1 }}>
      <span style=${{ left: `${(100 * dim.start) / dim.size}%`, width: `max(3px, ${(100 * (dim.end - dim.start)) / dim.size}%)`, background: dim.axes.length ? axisColour(dim.axes[0]) : "var(--faint-fill)" }} /></span>
    <span class="dim-slice">${dim.ways > 1 ? html`${formatNumber(dim.start)}:${formatNumber(dim.end)} <span class="faint">${plural(dim.ways, "shard")} over</span> <${AxisChips} model=${model} axes=${dim.axes} />` : html`<span class="faint">whole</span>`}</span>
  </li>`)}</ul>`;
}

function Shards({ model, place }) {
  const [device, setDevice] = useState(0);
  const count = model.shardCount(place);
  const copies = model.devices / count;
  const coordinates = model.coordinates(device);
  const down = model.axes.slice(0, -1).map((axis) => axis.name).join(" × ");
  const along = model.axes[model.axes.length - 1].name;
  return html`<div class="shards">
    <p>${count > 1 ? html`<b>${plural(count, "different shard")}</b>, ${copies > 1 ? `each on ${formatNumber(copies)} devices` : "each on one device"}` : html`<b>A whole copy</b> on every device`}${place.partial.length ? html`, each with its own part of a sum over <${AxisChips} model=${model} axes=${place.partial} />` : ""}.</p>
    <${DeviceGrid} model=${model} place=${place} device=${device} setDevice=${setDevice} />
    <p class="faint small">${down ? `${down} downwards, ${along} along each row${model.axes[model.axes.length - 1].size > MOST_COLUMNS ? ", folded" : ""}` : `${along}, row by row`}${count > 1 && copies > 1 ? "; outlined: the same shard" : ""}.</p>
    <label class="device-input">${model.data.devices.length ? "Place in the mesh" : "Device"} <input type="number" min="0" max=${model.devices - 1} value=${device}
      onInput=${(event) => event.target.value !== "" && setDevice(Math.max(0, Math.min(model.devices - 1, Math.floor(Number(event.target.value) || 0))))} /></label>
    <span class="where">${model.axes.map((axis, i) => html`<span key=${axis.name}><${AxisChip} axis=${axis} /> ${coordinates[i]} </span>`)}</span>
    <${DimBars} model=${model} place=${place} device=${device} />
  </div>`;
}

/* Small parts that every view is made of. */

const { html, render, useEffect, useLayoutEffect, useMemo, useRef, useState } = htmPreact;

const AXIS_COLOURS = 8;

const axisColour = (number) => `var(--axis-${number % AXIS_COLOURS})`;

const AxisChip = ({ axis }) => html`
  <span class="axis" style=${{ "--colour": axisColour(axis.number) }}>${axis.name}</span>`;

const AxisChips = ({ model, axes }) => axes.map((number) => html`
  <${AxisChip} key=${number} axis=${model.axes[number]} />`);

/* A dtype and dimensions, each with the axes that it holds; a line breaks between dimensions only. */
function Place({ model, place }) {
  const last = place.dims.length - 1;
  return html`<span class="place">
    <span class="dtype">${place.dtype}</span>${" "}${last < 0 && "[]"}${place.dims.map((dim, i) => html`<span class="dim">${i ? "" : "["}${/^\d/.test(dim.name) ? "" : `${dim.name}=`}${formatNumber(dim.size)}${dim.axes.length ? html`
      <span class="slash" aria-label=" split over ">/</span><${AxisChips} model=${model} axes=${dim.axes} />` : ""}${i < last ? "," : "]"}</span>${i < last ? " " : ""}`)}${place.partial.length ? html`
      ${" "}<span class="parts">parts of a sum over <${AxisChips} model=${model} axes=${place.partial} /></span>` : ""}
  </span>`;
}

const PhaseBadge = ({ phase }) => html`<span class=${`phase phase-${phase}`}>${phase}</span>`;

const TensorLink = ({ model, tensor, children }) => html`
  <a href=${tensorAddress(model, tensor)}>${children || model.tensor(tensor).label}</a>`;

const LineLink = ({ model, line }) => html`
  <a class="line-link" href=${lineAddress(model, line)}>${model.lineText(line)}</a>`;

/* A choice of one of a few, as radio buttons that look like one control. */
function Choice({ label, name, value, options, onChange }) {
  return html`<fieldset class="choice"><legend>${label}</legend>
    <div>${options.map(([key, text]) => html`<label key=${key}>
      <input type="radio" name=${name} value=${key} checked=${key === value}
        onChange=${() => onChange(key)} /><span>${text}</span></label>`)}</div></fieldset>`;
}

function Select({ label, value, options, onChange }) {
  return html`<label class="select"><span>${label}</span>
    <select value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${options.map(([key, text]) => html`<option value=${key} selected=${key === value}>${text}</option>`)}
    </select></label>`;
}

/* The first rows of many, and a button for the next. */
function useSome(items, most, reset) {
  const [count, setCount] = useState(most);
  useEffect(() => setCount(most), reset);
  const rest = items.length - count;
  const more = rest > 0 && html`<button type="button" class="more" onClick=${() => setCount(count + 5 * most)}>
    Show ${formatNumber(Math.min(rest, 5 * most))} more of ${formatNumber(items.length)}</button>`;
  return [items.slice(0, count), more];
}

/* The width that an element has, so that drawings are made for it and text stays readable. */
function useWidth() {
  const ref = useRef(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const measure = () => ref.current && setWidth(Math.floor(ref.current.clientWidth));
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

/* The phases that some rows have. */
const phaseOptions = (model, rows) => [["", "all"], ...model.phases
  .filter((phase) => rows.some((row) => row.phase === phase)).map((one) => [one, one])];

const axisOptions = (model) => [
  ["", "any"], ...model.axes.map((axis) => [axis.name, axis.name]),
];

/* A table whose columns sort: each column has a key, a title, a cell, and maybe a value to sort by. */
function SortedTable({ caption, columns, rows, start, most = 25 }) {
  const [order, setOrder] = useState(start || ["", 1]);
  const [key, direction] = order;
  const column = columns.find((one) => one.key === key);
  const sorted = useMemo(() => {
    if (!column) return rows;
    const value = column.sort;
    return [...rows].sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      return direction * (typeof a === "string" ? a.localeCompare(b) : a - b);
    });
  }, [rows, key, direction]);
  const [some, more] = useSome(sorted, most, [rows, key, direction]);
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}><table>
    <caption class="hidden">${caption}</caption>
    <thead><tr>${columns.map((one) => html`
      <th scope="col" class=${one.number ? "number" : ""} aria-sort=${one.key === key ? (direction > 0 ? "ascending" : "descending") : null}>
        ${one.sort ? html`<button type="button" class="sort" onClick=${() => setOrder([one.key, one.key === key ? -direction : one.number ? -1 : 1])}>
          ${one.title}<span class="arrow" aria-hidden="true">${one.key === key ? (direction > 0 ? "▲" : "▼") : ""}</span></button>` : one.title}</th>`)}</tr></thead>
    <tbody>${some.map((row) => html`<tr key=${row.key}>${columns.map((one) => html`
      <td class=${one.number ? "number" : one.kind || ""}>${one.cell(row)}</td>`)}</tr>`)}</tbody>
  </table></div>${more}`;
}

/* Words of a query, all of which must be in a text. */
const matcher = (query) => {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return (text) => words.every((word) => text.includes(word));
};

/* Two plans: what their totals are, which collectives came and went, which tensors moved. */

/* Axes by name, as plans of different meshes have them. */
const NamedAxes = ({ model, names }) => names.map((name) => {
  const axis = model.axes.find((one) => one.name === name);
  return axis ? html`<${AxisChip} key=${name} axis=${axis} />` : name;
});

const whichHave = (a, b) => (a ? (b ? "both" : html`<b>A only</b>`) : html`<b>B only</b>`);

function CollectiveChanges({ models, rows }) {
  const [before, after] = models;
  const side = (entry) => (entry ? `${formatBytes(entry.sent)} in ${formatNumber(entry.times)}` : "–");
  const shown = useMemo(() => rows.map(([a, b], key) => ({ key, a, b, one: a || b, change: (b?.sent || 0) - (a?.sent || 0) }))
    .sort((one, other) => Math.abs(other.change) - Math.abs(one.change)), [rows]);
  const axes = ({ a, b }) => {
    const [from, to] = [a && html`<${NamedAxes} model=${before} names=${a.axes} />`, b && html`<${NamedAxes} model=${after} names=${b.axes} />`];
    return a && b && a.axes.join() !== b.axes.join() ? html`${from} → ${to}` : from || to;
  };
  return html`<${SortedTable} caption="Collectives that came, went or changed" rows=${shown} most=${10} columns=${[
    { key: "state", title: "In", cell: (row) => whichHave(row.a, row.b) },
    { key: "kind", title: "Collective", kind: "whole", sort: (row) => row.one.kind, cell: (row) => html`<b>${row.a && row.b && row.a.kind !== row.b.kind ? `${row.a.kind} → ${row.b.kind}` : row.one.kind}</b> ${axes(row)}` },
    { key: "tensor", title: "Tensor", kind: "name", sort: (row) => row.one.tensor, cell: (row) => html`${row.one.tensor} <${PhaseBadge} phase=${row.one.phase} />` },
    { key: "a", title: "Sent, A", number: true, sort: (row) => row.a?.sent || 0, cell: (row) => side(row.a) },
    { key: "b", title: "Sent, B", number: true, sort: (row) => row.b?.sent || 0, cell: (row) => side(row.b) },
  ]} />`;
}

function TensorChanges({ models, rows }) {
  const [before, after] = models;
  const shown = useMemo(() => rows.map(([a, b, count], key) => {
    const [x, y] = [a === null ? null : before.tensor(a), b === null ? null : after.tensor(b)];
    return { key, a, b, x, y, count, label: (x || y).label, change: (y?.bytes || 0) - (x?.bytes || 0) };
  }).sort((one, other) => Math.abs(other.change) - Math.abs(one.change)), [rows]);
  const place = (model, i, tensor) => (tensor
    ? html`<${TensorLink} model=${model} tensor=${i}><span class="hidden">${`${tensor.label} in plan ${model.letter}: `}</span><${Place} model=${model} place=${tensor.place} /><//>` : "–");
  return html`<${SortedTable} caption="Tensors that lie elsewhere" rows=${shown} most=${10} columns=${[
    { key: "tensor", title: "Tensor", kind: "name", sort: (row) => row.label, cell: (row) => html`${row.label}${row.count > 1 ? html` <span class="faint">and ${plural(row.count - 1, "other")} alike</span>` : ""}` },
    { key: "a", title: "Plan A", cell: (row) => place(before, row.a, row.x) },
    { key: "b", title: "Plan B", cell: (row) => place(after, row.b, row.y) },
    { key: "bytes", title: "Bytes", number: true, sort: (row) => row.change, cell: (row) => `${row.x ? formatBytes(row.x.bytes) : "–"} → ${row.y ? formatBytes(row.y.bytes) : "–"}` },
  ]} />`;
}

function Differences({ models, differences }) {
  const [before, after] = models;
  const totals = useMemo(() => {
    const later = new Map(facts(after).map((fact) => [fact.key, fact]));
    return facts(before).filter((fact) => later.has(fact.key)).map((fact) => [fact, later.get(fact.key)]);
  }, models);
  const { tensors, collectives } = differences;
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label="Totals of both plans"><table><caption class="hidden">Totals of both plans</caption>
      <thead><tr><th scope="col">Total</th><th scope="col" class="number">Plan A</th><th scope="col" class="number">Plan B</th><th scope="col" class="number">Change</th></tr></thead>
      <tbody>${totals.map(([a, b]) => html`<tr key=${a.key}><th scope="row">${a.title}</th><td class="number">${a.value}</td><td class="number">${b.value}</td><td class="number"><b>${formatChange(a.number, b.number)}</b></td></tr>`)}</tbody></table></div>
    <h3>Collectives that came, went or changed <span class="faint">${formatNumber(collectives.length)}; ${formatNumber(differences.equal_collectives)} are the same</span></h3>
    ${collectives.length > 0 && html`<${CollectiveChanges} models=${models} rows=${collectives} />`}
    <h3>Tensors that lie elsewhere <span class="faint">${formatNumber(sum(tensors.map((row) => row[2])))}; ${formatNumber(differences.equal_tensors)} are the same</span></h3>
    ${tensors.length > 0 && html`<${TensorChanges} models=${models} rows=${tensors} />`}`;
}
